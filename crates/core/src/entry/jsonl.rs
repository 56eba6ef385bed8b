//! An entry as one line of a JSONL file: a flat object whose envelope directly follows the type.
//!
//! ```text
//! {"type":"user_message","seq":1,"id":"…","parent_id":null,"timestamp":1700000000000,"by":"user:ana","parts":[…]}
//! ```
//!
//! The JSONL store, export and import all use this format. [`read_line`] returns canonical bodies: a manually written
//! body with other spacing or key order is converted to the form that this version writes.

use serde::{Deserialize, Serialize};

use super::codec::{self, CodecError};
use super::proof::{Proof, ProofFields};
use super::{Body, Draft, Kind, Record};
use crate::id::{EntryId, Seq, TimestampMs, TurnId};
use crate::scope::Principal;

/// Fields that only a store adds to a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Extra<'a> {
    /// The line's format version, if it differs from the file's version.
    pub version: Option<u32>,
    /// The idempotency key of the append, stored on the last line of its batch.
    pub key: Option<&'a str>,
    /// The hash of the request with this key.
    pub request: Option<&'a str>,
    /// Whether the batch continues on the next line. If the next line is missing, this line is ignored (I4).
    pub more: bool,
    /// The entry's hash and salt.
    pub proof: Option<Proof>,
}

/// A decoded line.
#[derive(Debug, Clone, PartialEq)]
pub struct EntryLine {
    /// Always present in lines written by Sapwood; other tools may omit it.
    pub seq: Option<Seq>,
    pub id: EntryId,
    pub parent_id: Option<EntryId>,
    pub at: TimestampMs,
    pub by: Option<Principal>,
    pub turn: Option<TurnId>,
    pub key: Option<String>,
    pub request: Option<String>,
    pub more: bool,
    /// Only the JSONL store writes it. An import ignores it.
    pub proof: Option<Proof>,
    pub body: Body,
}

impl EntryLine {
    /// The body's canonical bytes.
    pub fn encoded(&self) -> Vec<u8> {
        codec::encode(&self.body)
    }

    pub fn kind(&self) -> Kind {
        self.body.kind()
    }

    /// Convert the line to a draft with its original id, time and author.
    pub fn into_draft(self) -> Draft {
        Draft { id: Some(self.id), at: self.at, by: self.by, turn: self.turn, body: self.body }
    }
}

#[derive(Serialize)]
struct EnvelopeOut<'a> {
    seq: Seq,
    id: EntryId,
    parent_id: Option<EntryId>,
    timestamp: TimestampMs,
    by: &'a Principal,
    #[serde(skip_serializing_if = "Option::is_none")]
    turn: Option<TurnId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<&'a str>,
    #[serde(skip_serializing_if = "crate::content::is_false")]
    more: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    salt: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    commitment: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hash: Option<String>,
}

#[derive(Deserialize)]
struct EnvelopeIn {
    #[serde(default)]
    seq: Option<Seq>,
    id: EntryId,
    #[serde(default)]
    parent_id: Option<EntryId>,
    timestamp: TimestampMs,
    #[serde(default)]
    by: Option<Principal>,
    #[serde(default)]
    turn: Option<TurnId>,
    #[serde(default)]
    version: Option<u32>,
    #[serde(default)]
    key: Option<String>,
    #[serde(default)]
    request: Option<String>,
    #[serde(default)]
    more: bool,
    #[serde(default)]
    salt: Option<String>,
    #[serde(default)]
    commitment: Option<String>,
    #[serde(default)]
    hash: Option<String>,
}

/// Write one record as a line, including the line break. `parent_id` is the id of the entry at `meta.parent`.
pub fn write_line(record: &Record, parent_id: Option<EntryId>, out: &mut Vec<u8>) {
    write_line_with(record, parent_id, Extra::default(), out);
}

/// Like [`write_line`], with the fields that only a store adds. Returns the offset in `out` where the body's fields
/// start: from there to the line break, the bytes equal those of the encoded body after its type, except that
/// line breaks became spaces.
pub fn write_line_with(
    record: &Record,
    parent_id: Option<EntryId>,
    extra: Extra<'_>,
    out: &mut Vec<u8>,
) -> usize {
    let meta = &record.meta;
    let head = type_head(meta.kind);
    out.extend_from_slice(head.as_bytes());
    let envelope_start = out.len();
    let proof = extra.proof.map(|proof| proof.to_fields()).unwrap_or_default();
    let envelope = EnvelopeOut {
        seq: meta.seq,
        id: meta.id,
        parent_id,
        timestamp: meta.at,
        by: &meta.by,
        // A cancel request names its turn in its body, which has the same key.
        turn: meta.turn.filter(|_| meta.kind != Kind::CancelAsked),
        version: extra.version,
        key: extra.key,
        request: extra.request,
        more: extra.more,
        salt: proof.salt,
        commitment: proof.commitment,
        hash: proof.hash,
    };
    serde_json::to_writer(&mut *out, &envelope).expect("an envelope contains only strings and numbers");
    // Replace the envelope's opening brace with a comma, and drop its closing brace.
    out[envelope_start] = b',';
    out.pop();
    let fields_start = out.len();
    let fields = record.body.strip_prefix(head.as_bytes()).unwrap_or(b"}");
    // Raw JSON may contain line breaks. Outside strings they are only whitespace.
    out.extend(fields.iter().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte }));
    out.push(b'\n');
    fields_start
}

/// The first bytes of an encoded body or line of this kind.
pub fn type_head(kind: Kind) -> String {
    format!("{{\"type\":\"{}\"", kind.as_str())
}

/// Read one line, with or without its line break, of a file with this format version.
pub fn read_line(version: u32, line: &[u8]) -> Result<EntryLine, CodecError> {
    let kind = codec::peek_kind(line)?;
    let malformed = |source| CodecError::Malformed { kind, source };
    let deduplicated;
    let line = match kind {
        // Earlier builds wrote the turn of a cancel request twice.
        Kind::CancelAsked => {
            deduplicated = without_duplicate_keys(line).map_err(malformed)?;
            &deduplicated
        }
        _ => line,
    };
    let envelope: EnvelopeIn = serde_json::from_slice(line).map_err(malformed)?;
    // Decoding a body ignores unknown keys, including those of the envelope.
    let body = codec::decode(envelope.version.unwrap_or(version), kind, line)?;
    let EnvelopeIn { salt, commitment, hash, .. } = envelope;
    Ok(EntryLine {
        seq: envelope.seq,
        id: envelope.id,
        parent_id: envelope.parent_id,
        at: envelope.timestamp,
        by: envelope.by,
        turn: envelope.turn,
        key: envelope.key,
        request: envelope.request,
        more: envelope.more,
        proof: Proof::from_fields(&ProofFields { salt, commitment, hash }),
        body,
    })
}

/// Write an object again, with the last value of each key.
fn without_duplicate_keys(line: &[u8]) -> serde_json::Result<Vec<u8>> {
    let fields: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(line)?;
    serde_json::to_vec(&fields)
}

#[cfg(test)]
mod tests {
    use super::super::{
        CancelAsked, CustomInfo, Graft, GraftWhat, LOG_VERSION, LeafMoved, Meta, UserMessage,
    };
    use super::*;
    use crate::content::{Json, Part};

    fn record(body: impl Into<Body>) -> Record {
        let body = body.into();
        let meta = Meta {
            seq: Seq(7),
            id: EntryId::mint(TimestampMs(1_700_000_000_000), 42),
            parent: Some(Seq(6)),
            at: TimestampMs(1_700_000_000_000),
            by: "user:ana".parse().unwrap(),
            turn: Some(TurnId::mint(TimestampMs(1), 1)),
            kind: body.kind(),
        };
        Record { meta, version: LOG_VERSION, body: codec::encode(&body) }
    }

    fn parent() -> EntryId {
        EntryId::mint(TimestampMs(1_600_000_000_000), 1)
    }

    #[test]
    fn a_line_round_trips() {
        let graft = Graft {
            source: "other".parse().unwrap(),
            upto: parent(),
            what: GraftWhat::Artifact { name: "a \"b\"".to_owned() },
        };
        let message = UserMessage { parts: vec![Part::text("one\ntwo")], origin: None };
        let cancel = CancelAsked { turn: TurnId::mint(TimestampMs(1), 1) };
        let bodies: [Body; 4] = [message.into(), graft.into(), LeafMoved { to: None }.into(), cancel.into()];
        for body in bodies {
            let record = record(body.clone());
            let mut out = Vec::new();
            write_line(&record, Some(parent()), &mut out);
            assert_eq!(out.iter().filter(|byte| **byte == b'\n').count(), 1);
            let line = read_line(LOG_VERSION, &out).unwrap();
            assert_eq!((line.seq, line.id, line.parent_id), (Some(Seq(7)), record.meta.id, Some(parent())));
            assert_eq!(
                (line.at, line.by.clone(), line.turn),
                (record.meta.at, Some(record.meta.by.clone()), record.meta.turn)
            );
            assert_eq!(line.encoded(), record.body);
            assert_eq!(line.body, body);
        }
    }

    #[test]
    fn the_fields_of_a_line_equal_those_of_the_body() {
        let record = record(UserMessage { parts: vec![Part::text("hi")], origin: None });
        let mut out = b"before".to_vec();
        let extra = Extra { key: Some("k"), request: Some("r"), more: true, ..Extra::default() };
        let fields = write_line_with(&record, None, extra, &mut out);
        let body = [type_head(Kind::UserMessage).as_bytes(), &out[fields..out.len() - 1]].concat();
        assert_eq!(body, record.body);
        let line = read_line(LOG_VERSION, &out[6..]).unwrap();
        let read = (line.key.as_deref(), line.request.as_deref(), line.more, line.parent_id);
        assert_eq!(read, (Some("k"), Some("r"), true, None));
    }

    #[test]
    fn a_cancel_request_with_its_turn_written_twice_is_read() {
        let (id, turn) = (parent(), TurnId::mint(TimestampMs(1), 1));
        let line =
            format!(r#"{{"type":"cancel_asked","id":"{id}","timestamp":5,"turn":"{turn}","turn":"{turn}"}}"#);
        let line = read_line(LOG_VERSION, line.as_bytes()).unwrap();
        assert_eq!((line.turn, line.body), (Some(turn), CancelAsked { turn }.into()));
    }

    #[test]
    fn json_with_line_breaks_stays_on_one_line() {
        let data = Json::parse("{\n  \"a\": [1,\r\n 2]\n}").unwrap();
        let record = record(CustomInfo { custom_type: "x".to_owned(), data: data.clone() });
        let mut out = Vec::new();
        write_line(&record, None, &mut out);
        assert_eq!(out.iter().filter(|byte| matches!(byte, b'\n' | b'\r')).count(), 1);
        let Body::CustomInfo(info) = read_line(LOG_VERSION, &out).unwrap().body else {
            panic!("another kind")
        };
        assert_eq!(info.data.to_value(), data.to_value());
    }

    #[test]
    fn a_line_written_by_hand_becomes_canonical() {
        let id = parent();
        let text = format!(
            r#"{{ "parts" : [{{"text":"hi","type":"text"}}], "timestamp": 5, "id": "{id}", "type": "user_message" }}"#
        );
        let line = read_line(LOG_VERSION, text.as_bytes()).unwrap();
        assert_eq!(line.encoded(), br#"{"type":"user_message","parts":[{"type":"text","text":"hi"}]}"#);
        assert_eq!((line.seq, line.by, line.parent_id), (None, None, None));
    }

    #[test]
    fn a_line_without_an_id_or_of_unknown_type_is_refused() {
        assert!(read_line(LOG_VERSION, br#"{"type":"user_message","timestamp":1,"parts":[]}"#).is_err());
        assert!(matches!(read_line(LOG_VERSION, br#"{"type":"hm"}"#), Err(CodecError::UnknownType(_))));
        assert!(read_line(LOG_VERSION, br#"{"type":"user_mess"#).is_err());
    }

    #[test]
    fn a_line_may_have_an_older_or_newer_version_than_its_file() {
        let id = parent();
        let old = format!(r#"{{"type":"user_message","id":"{id}","timestamp":5,"text":"hi"}}"#);
        assert_eq!(read_line(1, old.as_bytes()).unwrap().body.text(), "hi");
        let new = format!(r#"{{"type":"user_message","id":"{id}","timestamp":5,"version":2,"parts":[]}}"#);
        assert_eq!(read_line(1, new.as_bytes()).unwrap().body.text(), "");
    }
}
