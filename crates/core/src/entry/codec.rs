//! Encodes a body as one JSON object whose first key is `"type"`.

use std::borrow::Cow;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::upcast::{LOG_VERSION, differs, upcast};
use super::{Body, Kind};
use crate::content::Part;

/// An entry that cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// The fields do not match the entry's kind.
    #[error("failed to decode a {kind} entry: {source}", kind = kind.as_str())]
    Malformed { kind: Kind, source: serde_json::Error },
    /// The entry has no readable `type`.
    #[error("not an entry: {0}")]
    NoType(serde_json::Error),
    /// This version of Sapwood does not know the entry's `type`.
    #[error("this version of Sapwood does not know entries of type {0:?}")]
    UnknownType(String),
    /// The entry has a newer format version than this version of Sapwood reads.
    #[error("the log has format version {found}, but this version of Sapwood reads only up to {LOG_VERSION}")]
    TooNew { found: u32 },
}

/// Encode a body as JSON.
pub fn encode(body: &Body) -> Vec<u8> {
    let mut out = Vec::with_capacity(encoded_bytes_estimate(body));
    out.extend_from_slice(b"{\"type\":\"");
    out.extend_from_slice(body.kind().as_str().as_bytes());
    out.push(b'"');
    let fields_start = out.len();
    body.write_fields(&mut out).expect("bodies contain only strings, numbers and valid JSON");
    // The fields are encoded as an object: replace its opening brace with a comma, or drop it if there are no fields.
    if out.ends_with(b"{}") && out.len() == fields_start + 2 {
        out.truncate(fields_start);
        out.push(b'}');
    } else {
        out[fields_start] = b',';
    }
    out
}

/// Initial buffer capacity, enough for most bodies.
fn encoded_bytes_estimate(body: &Body) -> usize {
    let parts = body.parts().iter().map(|part| match part {
        Part::Text(text) => text.text.len(),
        Part::Reasoning(reasoning) => reasoning.text.len(),
        Part::ToolCall(call) => call.input.get().len() + 64,
        Part::Media(_) => 256,
    });
    let text: usize = parts.sum();
    256 + text + text / 8
}

/// Decode a body of a known kind. Bytes of an older format version are upgraded first, which may change the kind.
pub fn decode(version: u32, kind: Kind, json: &[u8]) -> Result<Body, CodecError> {
    if version > LOG_VERSION {
        return Err(CodecError::TooNew { found: version });
    }
    let malformed = |source| CodecError::Malformed { kind, source };
    if !differs(version, kind) {
        return Body::read_fields(kind, json).map_err(malformed);
    }
    let (kind, json) = upcast(version, kind, json).map_err(malformed)?;
    Body::read_fields(kind, &json).map_err(|source| CodecError::Malformed { kind, source })
}

/// Read only the `"type"` of an object.
pub fn peek_kind(json: &[u8]) -> Result<Kind, CodecError> {
    #[derive(Deserialize)]
    struct TypeTag<'a> {
        #[serde(rename = "type", borrow)]
        kind: Cow<'a, str>,
    }
    let tag: TypeTag<'_> = serde_json::from_slice(json).map_err(CodecError::NoType)?;
    Kind::from_name(&tag.kind).ok_or_else(|| CodecError::UnknownType(tag.kind.chars().take(64).collect()))
}

impl Serialize for Body {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let json = String::from_utf8(encode(self)).expect("serde_json writes UTF-8");
        RawValue::from_string(json).expect("an encoded body is valid JSON").serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Body {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = Box::<RawValue>::deserialize(deserializer)?;
        let json = json.get().as_bytes();
        peek_kind(json).and_then(|kind| decode(LOG_VERSION, kind, json)).map_err(D::Error::custom)
    }
}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = Cow::<'de, str>::deserialize(deserializer)?;
        Kind::from_name(&name).ok_or_else(|| D::Error::custom(format!("{name:?} is not an entry kind")))
    }
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use super::*;

    #[test]
    fn a_body_without_fields_is_still_one_object() {
        let body = Body::LeafMoved(LeafMoved { to: None });
        assert_eq!(encode(&body), br#"{"type":"leaf_moved"}"#);
        assert_eq!(decode(LOG_VERSION, Kind::LeafMoved, &encode(&body)).unwrap(), body);
    }

    #[test]
    fn every_kind_has_its_own_name_and_code() {
        for kind in Kind::ALL {
            assert_eq!(Kind::from_name(kind.as_str()), Some(*kind));
            assert_eq!(Kind::from_code(kind.code()), Some(*kind));
        }
    }

    #[test]
    fn a_newer_log_is_refused_rather_than_misread() {
        let error = decode(LOG_VERSION + 1, Kind::UserMessage, b"{}").unwrap_err();
        assert!(matches!(error, CodecError::TooNew { .. }));
    }

    #[test]
    fn records_of_format_2_get_their_own_kind_and_keep_their_data() {
        let old =
            br#"{"type":"custom_info","custom_type":"sapwood.flow","data":{ "v":1 , "event":"improving"}}"#;
        let body = decode(2, Kind::CustomInfo, old).unwrap();
        let Body::FlowEvent(event) = &body else { panic!("{body:?}") };
        assert_eq!(event.data.get(), r#"{ "v":1 , "event":"improving"}"#);
        assert_eq!(decode(3, Kind::CustomInfo, old).unwrap().kind(), Kind::CustomInfo);
        let other = br#"{"type":"custom_info","custom_type":"mine","data":{"v":1}}"#;
        assert_eq!(decode(2, Kind::CustomInfo, other).unwrap().kind(), Kind::CustomInfo);
    }

    #[test]
    fn statuses_of_format_2_are_renamed() {
        let cases =
            [("error", "failed"), ("malformed", "refused"), ("ok", "ok"), ("interrupted", "interrupted")];
        for (old, new) in cases {
            let json = format!(
                r#"{{"type":"round","number":1,"action":{{"kind":"tool"}},"result":{{"status":"{old}"}}}}"#
            );
            let Body::Round(round) = decode(2, Kind::Round, json.as_bytes()).unwrap() else { panic!() };
            assert_eq!(round.result.unwrap().status.as_str(), new);
        }
    }

    #[test]
    fn a_version_1_message_with_plain_text_is_decoded() {
        let old = br#"{"type":"user_message","text":"hello"}"#;
        assert_eq!(decode(1, Kind::UserMessage, old).unwrap().text(), "hello");
    }
}
