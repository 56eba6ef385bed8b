//! A document tree with source positions, and a deserializer that continues after a mistake, so that all mistakes in
//! a file are found in one pass. Pure.

use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error as _, Expected, MapAccess, SeqAccess,
    Unexpected, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use crate::suggest::nearest;

/// Maximum number of mistakes reported per file.
pub const MISTAKES_MAX: usize = 50;

/// Line and column, starting at one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourcePosition {
    pub line: u64,
    pub column: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Located {
    pub position: SourcePosition,
    pub value: Value,
    /// A mistake in this value was already reported, so the value is skipped.
    is_reported: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Located>),
    Table(Vec<(FieldKey, Located)>),
}

#[derive(Debug, Clone, PartialEq)]
pub struct FieldKey {
    pub name: String,
    pub position: SourcePosition,
}

/// A mistake in a document, with its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    pub position: SourcePosition,
    /// Path of the field, joined by dots. Empty for the document itself.
    pub field: String,
    pub why: String,
}

impl Located {
    pub fn new(position: SourcePosition, value: Value) -> Self {
        Self { position, value, is_reported: false }
    }

    /// Deserialize the whole document and collect up to [`MISTAKES_MAX`] mistakes.
    pub fn read<T: DeserializeOwned>(mut self) -> (Option<T>, Vec<Mistake>) {
        let mut mistakes = Vec::new();
        while mistakes.len() < MISTAKES_MAX {
            let field_error = match T::deserialize(&self) {
                Ok(read) => return (mistakes.is_empty().then_some(read), mistakes),
                Err(field_error) => field_error,
            };
            let is_consequence = self.report(&field_error);
            if !is_consequence {
                let position = self.position_of(&field_error);
                mistakes.push(Mistake {
                    position,
                    field: field_error.path.join("."),
                    why: field_error.why.clone(),
                });
            }
            if field_error.path.is_empty() {
                break;
            }
        }
        (None, mistakes)
    }

    /// Mark the invalid value as reported. Returns true if the error is only a consequence of an earlier one: a field
    /// counts as missing because its value was skipped.
    fn report(&mut self, field_error: &FieldError) -> bool {
        let Some(node) = self.find_mut(&field_error.path) else { return false };
        let missing = field_error.missing;
        let is_consequence = missing.is_some_and(
            |name| matches!(&node.value, Value::Table(rows) if rows.iter().any(|(key, _)| key.name == name)),
        );
        node.is_reported = true;
        is_consequence
    }

    fn find_mut(&mut self, path: &[String]) -> Option<&mut Located> {
        let Some((step, rest)) = path.split_first() else { return Some(self) };
        let below = match &mut self.value {
            Value::Table(rows) => rows.iter_mut().find(|(key, _)| key.name == *step).map(|(_, node)| node),
            Value::List(items) => step.parse::<usize>().ok().and_then(|at| items.get_mut(at)),
            _ => None,
        };
        below?.find_mut(rest)
    }

    /// Descend one step: a key in a table or an index in a list. Also returns the position of the key or item.
    fn step(&self, step: &str) -> Option<(SourcePosition, &Located)> {
        match &self.value {
            Value::Table(rows) => {
                rows.iter().find(|(key, _)| key.name == *step).map(|(key, node)| (key.position, node))
            }
            Value::List(items) => items.get(step.parse::<usize>().ok()?).map(|node| (node.position, node)),
            _ => None,
        }
    }

    fn position_of(&self, field_error: &FieldError) -> SourcePosition {
        let (key, value) = self.positions(&field_error.path);
        match field_error.subject {
            ErrorSubject::FieldKey => key,
            ErrorSubject::Value => value,
        }
    }

    /// Position of the value at this path, or of its nearest existing ancestor.
    pub fn position_at(&self, path: &[String]) -> SourcePosition {
        self.positions(path).1
    }

    fn positions(&self, path: &[String]) -> (SourcePosition, SourcePosition) {
        let (mut key, mut node) = (self.position, self);
        for step in path {
            let Some((at, below)) = node.step(step) else { break };
            (key, node) = (at, below);
        }
        (key, node.position)
    }
}

/// Whether a mistake is in a key or in its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ErrorSubject {
    FieldKey,
    Value,
}

/// A deserialization error with the path to the value.
#[derive(Debug)]
pub struct FieldError {
    path: Vec<String>,
    why: String,
    subject: ErrorSubject,
    missing: Option<&'static str>,
}

impl FieldError {
    fn below(mut self, step: &str) -> Self {
        self.path.insert(0, step.to_owned());
        self
    }
}

impl std::fmt::Display for FieldError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for FieldError {}

impl serde::de::Error for FieldError {
    fn custom<T: std::fmt::Display>(why: T) -> Self {
        Self { path: Vec::new(), why: why.to_string(), subject: ErrorSubject::Value, missing: None }
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::custom(format_args!(
            "is {}, but must be {}",
            describe_found(&found),
            describe_expected(expected)
        ))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::custom(format_args!(
            "is {}, but must be {}",
            describe_found(&found),
            describe_expected(expected)
        ))
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        let why = match nearest(field, expected.iter().copied()) {
            Some(known) => format!("is unknown: did you mean {known}?"),
            None => format!("is unknown; known fields: {}", expected.join(", ")),
        };
        Self { subject: ErrorSubject::FieldKey, ..Self::custom(why) }
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        let hint = nearest(variant, expected.iter().copied())
            .map_or(String::new(), |known| format!(": did you mean {known}?"));
        Self::custom(format_args!("is {variant:?}, but must be one of {}{hint}", expected.join(", ")))
    }

    fn missing_field(field: &'static str) -> Self {
        Self { missing: Some(field), ..Self::custom(format_args!("has no {field}")) }
    }
}

/// Translate the names of Rust types to terms for users.
fn describe_expected(expected: &dyn Expected) -> String {
    match expected.to_string().as_str() {
        "f32" | "f64" => "a number".to_owned(),
        "u32" | "u64" => "a whole number".to_owned(),
        "a string" => "text".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a sequence" => "a list".to_owned(),
        "a map" => "a table".to_owned(),
        text if text.starts_with("struct ") => "a table".to_owned(),
        other => other.to_owned(),
    }
}

fn describe_found(found: &Unexpected<'_>) -> String {
    match found {
        Unexpected::Bool(value) => value.to_string(),
        Unexpected::Unsigned(value) => value.to_string(),
        Unexpected::Signed(value) => value.to_string(),
        Unexpected::Float(value) => value.to_string(),
        Unexpected::Str(text) => format!("{text:?}"),
        Unexpected::Seq => "a list".to_owned(),
        Unexpected::Map => "a table".to_owned(),
        Unexpected::Unit => "empty".to_owned(),
        other => other.to_string(),
    }
}

impl<'de> Deserializer<'de> for &'de Located {
    type Error = FieldError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldError> {
        match &self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Int(value) => match u64::try_from(*value) {
                Ok(value) => visitor.visit_u64(value),
                Err(_) => visitor.visit_i64(*value),
            },
            Value::Float(value) => visitor.visit_f64(*value),
            Value::Text(text) => visitor.visit_borrowed_str(text),
            Value::List(items) => visitor.visit_seq(ListAccess { items: items.iter().enumerate() }),
            Value::Table(rows) => visitor.visit_map(TableAccess { rows: rows.iter(), current: None }),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldError> {
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, FieldError> {
        match &self.value {
            Value::Text(text) => visitor.visit_enum(VariantName(text)),
            // Report `false`, which users may write for `off`, with the list of valid names.
            Value::Bool(value) => Err(FieldError::unknown_variant(&value.to_string(), variants)),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, FieldError> {
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct identifier ignored_any
    }
}

struct VariantName<'de>(&'de str);

impl<'de> EnumAccess<'de> for VariantName<'de> {
    type Error = FieldError;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), FieldError> {
        Ok((seed.deserialize(StrDeserializer::new(self.0))?, self))
    }
}

/// All enum variants in agent files are plain names.
impl<'de> VariantAccess<'de> for VariantName<'de> {
    type Error = FieldError;

    fn unit_variant(self) -> Result<(), FieldError> {
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, _seed: S) -> Result<S::Value, FieldError> {
        Err(FieldError::custom("is a plain name, but must have a value"))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, _visitor: V) -> Result<V::Value, FieldError> {
        Err(FieldError::custom("is a plain name, but must have a value"))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, FieldError> {
        Err(FieldError::custom("is a plain name, but must have a value"))
    }
}

struct ListAccess<'de> {
    items: std::iter::Enumerate<std::slice::Iter<'de, Located>>,
}

impl<'de> SeqAccess<'de> for ListAccess<'de> {
    type Error = FieldError;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, FieldError> {
        match self.items.find(|(_, item)| !item.is_reported) {
            Some((at, item)) => {
                seed.deserialize(item).map(Some).map_err(|field_error| field_error.below(&at.to_string()))
            }
            None => Ok(None),
        }
    }
}

struct TableAccess<'de> {
    rows: std::slice::Iter<'de, (FieldKey, Located)>,
    current: Option<&'de (FieldKey, Located)>,
}

impl<'de> MapAccess<'de> for TableAccess<'de> {
    type Error = FieldError;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, FieldError> {
        self.current = self.rows.find(|(_, node)| !node.is_reported);
        let Some((key, _)) = self.current else { return Ok(None) };
        let name = StrDeserializer::<FieldError>::new(&key.name);
        seed.deserialize(name).map(Some).map_err(|field_error| field_error.below(&key.name))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, FieldError> {
        let (key, node) =
            self.current.take().ok_or_else(|| FieldError::custom("a value was requested before its key"))?;
        seed.deserialize(node).map_err(|field_error| field_error.below(&key.name))
    }
}
