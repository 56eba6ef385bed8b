//! A request's messages as alternating user and assistant turns, the structure that all providers accept. Pure. Tool
//! results, engine notes and user messages belong to the user's side. Consecutive messages of one side are merged
//! into one turn. Tool results are first in their turn, because they answer the calls of the previous turn.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sapwood_core::content::ToolCall;
use sapwood_core::port::model::{Request, RequestPart, Signature};
use sapwood_core::project::context::Role;
use serde_json::{Map, Value, json};

/// Longest call id that every provider accepts.
const CALL_ID_CHARS_MAX: usize = 40;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    User,
    Assistant,
}

#[derive(Debug)]
pub struct ChatTurn<'a> {
    pub side: Side,
    pub items: Vec<ChatItem<'a>>,
}

#[derive(Debug, Clone, Copy)]
pub enum ChatItem<'a> {
    Text(&'a str),
    /// A note from the engine in the middle of the conversation.
    Note(&'a str),
    Reasoning {
        text: &'a str,
        signature: &'a str,
    },
    Call(&'a ToolCall),
    Result(ChatToolResult<'a>),
    Media(Media<'a>),
}

#[derive(Debug, Clone, Copy)]
pub struct ChatToolResult<'a> {
    pub call_id: &'a str,
    pub tool: &'a str,
    pub parts: &'a [RequestPart],
    pub is_error: bool,
}

#[derive(Debug, Clone, Copy)]
pub struct Media<'a> {
    pub mime: &'a str,
    pub name: Option<&'a str>,
    pub bytes: &'a [u8],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MediaKind {
    Image,
    Pdf,
    /// Media that can be sent as text.
    Text,
    Audio,
    Other,
}

/// Fold the request's messages into turns. Omits unsigned reasoning, empty texts and empty messages.
pub fn fold_turns(request: &Request) -> Vec<ChatTurn<'_>> {
    let mut turns: Vec<ChatTurn<'_>> = Vec::new();
    for message in &request.messages {
        let side = if message.role == Role::Assistant { Side::Assistant } else { Side::User };
        let items = message.parts.iter().filter_map(|part| item_of(message.role, part));
        let items: Vec<ChatItem<'_>> = items.collect();
        match turns.last_mut() {
            _ if items.is_empty() => {}
            Some(turn) if turn.side == side => turn.items.extend(items),
            _ => turns.push(ChatTurn { side, items }),
        }
    }
    for turn in &mut turns {
        turn.items.sort_by_key(|item| !matches!(item, ChatItem::Result(_)));
    }
    turns
}

fn item_of(role: Role, part: &RequestPart) -> Option<ChatItem<'_>> {
    match part {
        RequestPart::Text(text) if text.trim().is_empty() => None,
        RequestPart::Text(text) if role == Role::System => Some(ChatItem::Note(text)),
        RequestPart::Text(text) => Some(ChatItem::Text(text)),
        RequestPart::Reasoning { text, signature: Some(Signature(signature)) } => {
            Some(ChatItem::Reasoning { text, signature })
        }
        RequestPart::Reasoning { signature: None, .. } => None,
        RequestPart::ToolCall(call) => Some(ChatItem::Call(call)),
        RequestPart::ToolResult { call_id, tool, parts, is_error } => {
            Some(ChatItem::Result(ChatToolResult { call_id, tool, parts, is_error: *is_error }))
        }
        RequestPart::Media { mime, name, bytes } => {
            Some(ChatItem::Media(Media { mime, name: name.as_deref(), bytes }))
        }
    }
}

impl<'a> ChatToolResult<'a> {
    /// The text of the result. Other parts are replaced by a placeholder.
    pub fn text(&self) -> String {
        let texts = self.parts.iter().filter_map(|part| match part {
            RequestPart::Text(text) => Some(text.clone()),
            RequestPart::Media { mime, name, bytes } => {
                Some(Media { mime, name: name.as_deref(), bytes }.placeholder())
            }
            RequestPart::Reasoning { .. } | RequestPart::ToolCall(_) | RequestPart::ToolResult { .. } => None,
        });
        texts.collect::<Vec<_>>().join("\n")
    }

    pub fn media(&self) -> impl Iterator<Item = Media<'a>> {
        self.parts.iter().filter_map(|part| match part {
            RequestPart::Media { mime, name, bytes } => Some(Media { mime, name: name.as_deref(), bytes }),
            _ => None,
        })
    }
}

impl Media<'_> {
    pub fn kind(&self) -> MediaKind {
        let mime = self.mime.split(';').next().unwrap_or_default().trim();
        let is_text = mime.starts_with("text/")
            || mime.ends_with("+json")
            || mime.ends_with("+xml")
            || matches!(
                mime,
                "application/json" | "application/xml" | "application/yaml" | "application/toml"
            );
        match mime {
            "application/pdf" => MediaKind::Pdf,
            _ if mime.starts_with("image/") => MediaKind::Image,
            _ if mime.starts_with("audio/") => MediaKind::Audio,
            _ if is_text => MediaKind::Text,
            _ => MediaKind::Other,
        }
    }

    pub fn base64(&self) -> String {
        STANDARD.encode(self.bytes)
    }

    pub fn data_url(&self) -> String {
        format!("data:{};base64,{}", self.mime, self.base64())
    }

    /// Placeholder text for models that do not accept the media.
    pub fn placeholder(&self) -> String {
        let name = self.name.unwrap_or("a file");
        format!("[{name}: {}, {} bytes]", self.mime, self.bytes.len())
    }

    /// The text in a `<file>` element with the file name, or a placeholder if the media is not text.
    pub fn as_text(&self) -> String {
        match self.kind() {
            MediaKind::Text => {
                let text = String::from_utf8_lossy(self.bytes);
                format!("<file name=\"{}\">\n{text}\n</file>", self.name.unwrap_or("unnamed"))
            }
            MediaKind::Image | MediaKind::Pdf | MediaKind::Audio | MediaKind::Other => self.placeholder(),
        }
    }
}

/// Wrap an engine note for a provider that accepts no system message in the middle of the conversation.
pub fn note_text(text: &str) -> String {
    format!("<system_note>\n{text}\n</system_note>")
}

/// A call's input as the JSON object that providers require. Input that is not an object is wrapped in one.
pub fn input_object(call: &ToolCall) -> Value {
    match serde_json::from_str::<Value>(call.input.get()) {
        Ok(Value::Object(input)) => Value::Object(input),
        Ok(Value::String(text)) => json!({ "malformed_input": text }),
        Ok(other) => json!({ "malformed_input": other.to_string() }),
        Err(_) => json!({ "malformed_input": call.input.get() }),
    }
}

/// A call id that every provider accepts. An id from an import or another provider may be too long or contain invalid
/// characters. Such an id is replaced by a hash, which is the same for the call and its result.
pub fn wire_call_id(id: &str) -> String {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
    if !id.is_empty() && id.len() <= CALL_ID_CHARS_MAX && id.chars().all(fits) {
        return id.to_owned();
    }
    let hash = id
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    format!("call_{hash:016x}")
}

/// Build an object from the fields that have a value.
pub fn object<const N: usize>(fields: [(&str, Option<Value>); N]) -> Value {
    let present = fields.into_iter().filter_map(|(name, value)| value.map(|value| (name.to_owned(), value)));
    Value::Object(present.collect::<Map<String, Value>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use sapwood_core::content::Json;
    use sapwood_core::port::model::{RequestMessage, Thinking};

    fn request(messages: Vec<(Role, Vec<RequestPart>)>) -> Request {
        let messages = messages.into_iter().map(|(role, parts)| RequestMessage { role, parts }).collect();
        Request {
            model: "p/m".into(),
            system: None,
            messages,
            tools: vec![],
            thinking: Thinking::Off,
            temperature: None,
            output_tokens_max: None,
        }
    }

    fn text(text: &str) -> RequestPart {
        RequestPart::Text(text.into())
    }

    #[test]
    fn merges_consecutive_messages_of_one_side_with_results_first() {
        let result = RequestPart::ToolResult {
            call_id: "c".into(),
            tool: "ls".into(),
            parts: vec![text("out")],
            is_error: false,
        };
        let request = request(vec![
            (Role::User, vec![text("a")]),
            (Role::System, vec![text("note")]),
            (Role::Assistant, vec![text("b")]),
            (Role::Assistant, vec![text(" "), text("c")]),
            (Role::System, vec![text("late")]),
            (Role::Tool, vec![result]),
        ]);
        let turns = fold_turns(&request);
        let shape: Vec<(Side, usize)> = turns.iter().map(|turn| (turn.side, turn.items.len())).collect();
        assert_eq!(shape, [(Side::User, 2), (Side::Assistant, 2), (Side::User, 2)]);
        assert!(matches!(turns[2].items[0], ChatItem::Result(_)));
        assert!(matches!(turns[2].items[1], ChatItem::Note("late")));
    }

    #[test]
    fn wraps_input_that_is_not_an_object() {
        let input = |text: &str| {
            let call = ToolCall { call_id: "c".into(), name: "n".into(), input: Json::parse(text).unwrap() };
            input_object(&call).to_string()
        };
        assert_eq!(input(r#"{"a":1}"#), r#"{"a":1}"#);
        assert_eq!(input(r#""{\"a\":""#), r#"{"malformed_input":"{\"a\":"}"#);
        assert_eq!(input("[1]"), r#"{"malformed_input":"[1]"}"#);
    }

    #[test]
    fn keeps_a_valid_call_id_and_hashes_others() {
        assert_eq!(wire_call_id("toolu_01A-b"), "toolu_01A-b");
        let other = wire_call_id("functions.ls:0");
        assert!(other.starts_with("call_") && other.len() == 21);
        assert_eq!(other, wire_call_id("functions.ls:0"));
        assert_ne!(other, wire_call_id("functions.ls:1"));
        assert_ne!(wire_call_id(""), "");
    }
}
