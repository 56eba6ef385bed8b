//! Parses YAML and TOML into the same document tree, with source positions. Pure.

use serde::Deserialize;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;
use toml::de::{DeTable, DeValue};

use super::spanned::{FieldKey, Located, Mistake, SourcePosition, Value};

/// Maximum nesting depth.
const DEPTH_MAX: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Syntax {
    Yaml,
    Toml,
}

impl Syntax {
    pub fn of(extension: &str) -> Option<Self> {
        match extension {
            "yaml" | "yml" => Some(Syntax::Yaml),
            "toml" => Some(Syntax::Toml),
            _ => None,
        }
    }

    /// Parse a document. Returns all syntax errors.
    pub fn parse(self, text: &str) -> Result<Located, Vec<Mistake>> {
        match self {
            Syntax::Yaml => parse_yaml(text).map_err(|mistake| vec![mistake]),
            Syntax::Toml => parse_toml(text),
        }
    }
}

fn mistake(position: SourcePosition, why: impl Into<String>) -> Mistake {
    Mistake { position, field: String::new(), why: why.into() }
}

fn parse_yaml(text: &str) -> Result<Located, Mistake> {
    let options = serde_saphyr::options! { with_snippet: false };
    match serde_saphyr::from_str_with_options::<YamlNode>(text, options) {
        Ok(node) => Ok(node.0),
        Err(error) => {
            let position = error.location().map_or(SourcePosition { line: 1, column: 1 }, |at| {
                SourcePosition { line: at.line(), column: at.column() }
            });
            let why = error.to_string();
            // Remove the parser's position, because the mistake has its own.
            let why = why.split(" at line ").next().unwrap_or(&why).lines().next().unwrap_or_default();
            Err(mistake(position, why.trim_start_matches("error: ").trim()))
        }
    }
}

/// A YAML node.
struct YamlNode(Located);

impl<'de> Deserialize<'de> for YamlNode {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<YamlValue>::deserialize(deserializer)?;
        let at = spanned.referenced;
        Ok(Self(Located::new(SourcePosition { line: at.line(), column: at.column() }, spanned.value.0)))
    }
}

struct YamlValue(Value);

impl<'de> Deserialize<'de> for YamlValue {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(YamlValueVisitor).map(YamlValue)
    }
}

struct YamlValueVisitor;

impl<'de> Visitor<'de> for YamlValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a value")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Int(value))
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(i64::try_from(value).map_or(Value::Float(value as f64), Value::Int))
    }
    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }
    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(YamlNode(item)) = seq.next_element()? {
            items.push(item);
        }
        Ok(Value::List(items))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut rows = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            let YamlNode(node) = map.next_value()?;
            let at = key.referenced;
            let position = match (at.line(), at.column()) {
                (0, _) => node.position,
                (line, column) => SourcePosition { line, column },
            };
            rows.push((FieldKey { name: key.value, position }, node));
        }
        Ok(Value::Table(rows))
    }
}

fn parse_toml(text: &str) -> Result<Located, Vec<Mistake>> {
    let lines = LineIndex::of(text);
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let position = |error: &toml::de::Error| lines.position(error.span().map_or(0, |span| span.start));
        return Err(errors.iter().map(|error| mistake(position(error), error.message())).collect());
    }
    let value = table_of(table.get_ref(), &lines, 0).map_err(|mistake| vec![mistake])?;
    Ok(Located::new(SourcePosition { line: 1, column: 1 }, value))
}

fn table_of(table: &DeTable<'_>, lines: &LineIndex<'_>, depth: usize) -> Result<Value, Mistake> {
    let mut rows = Vec::new();
    for (key, value) in table {
        let position = lines.position(key.span().start);
        let node = node_of(value.get_ref(), lines.position(value.span().start), lines, depth + 1)?;
        rows.push((FieldKey { name: key.get_ref().to_string(), position }, node));
    }
    // Restore the order in the file.
    rows.sort_by_key(|(key, _)| key.position);
    Ok(Value::Table(rows))
}

fn node_of(
    value: &DeValue<'_>,
    position: SourcePosition,
    lines: &LineIndex<'_>,
    depth: usize,
) -> Result<Located, Mistake> {
    if depth > DEPTH_MAX {
        return Err(mistake(position, format!("is nested deeper than {DEPTH_MAX} levels")));
    }
    let value = match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map(Value::Int)
            .map_err(|_| mistake(position, "is a number that is too large"))?,
        DeValue::Float(number) => number
            .as_str()
            .parse()
            .map(Value::Float)
            .map_err(|_| mistake(position, "is not a valid number"))?,
        DeValue::Boolean(value) => Value::Bool(*value),
        DeValue::Datetime(time) => Value::Text(time.to_string()),
        DeValue::Array(items) => {
            let items = items
                .iter()
                .map(|item| node_of(item.get_ref(), lines.position(item.span().start), lines, depth + 1));
            Value::List(items.collect::<Result<_, _>>()?)
        }
        DeValue::Table(table) => table_of(table, lines, depth)?,
    };
    Ok(Located::new(position, value))
}

/// Converts byte offsets to lines and columns.
struct LineIndex<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> LineIndex<'a> {
    fn of(text: &'a str) -> Self {
        let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Self { text, starts: std::iter::once(0).chain(breaks).collect() }
    }

    fn position(&self, at: usize) -> SourcePosition {
        let line = self.starts.partition_point(|start| *start <= at).max(1);
        let start = self.starts[line - 1];
        let column = self.text.get(start..at).map_or(0, |before| before.chars().count()) + 1;
        SourcePosition { line: line as u64, column: column as u64 }
    }
}
