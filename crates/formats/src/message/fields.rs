//! The fields of a JSON object. The caller takes them one by one, with type and size checks. Every error contains the
//! location of the field. `null` counts as absent.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::{MessageError, NAME_BYTES_MAX, NESTING_MAX, Result, nesting};

/// Maximum number of keys in an object. A larger object is probably a mistake.
const KEYS_MAX: usize = 1_000;

pub(super) struct Fields<'a> {
    /// The location of this object, such as `content[2]`; empty for the message itself.
    at: String,
    map: BTreeMap<String, &'a RawValue>,
}

impl<'a> Fields<'a> {
    pub(super) fn parse(text: &'a str) -> Result<Self> {
        if nesting(text.as_bytes()) > NESTING_MAX {
            return Err(MessageError::TooDeep { at: "the message".to_owned() });
        }
        let raw: &RawValue =
            serde_json::from_str(text).map_err(|error| MessageError::NotJson { why: error.to_string() })?;
        Self::of(raw, String::new())
    }

    pub(super) fn of(raw: &'a RawValue, at: String) -> Result<Self> {
        let location = if at.is_empty() { "the message" } else { at.as_str() };
        if type_of(raw) != "an object" {
            return Err(wrong_type(location, "an object", raw));
        }
        let invalid = |error: serde_json::Error| MessageError::Invalid {
            at: location.to_owned(),
            why: error.to_string(),
        };
        let keys: ObjectKeys<'a> = serde_json::from_str(raw.get()).map_err(invalid)?;
        if let Some(duplicate) = keys.duplicate {
            return Err(MessageError::Duplicate { at: join(&at, &duplicate) });
        }
        Ok(Self { at, map: keys.map })
    }

    pub(super) fn at(&self, key: &str) -> String {
        join(&self.at, key)
    }

    pub(super) fn location(&self) -> String {
        self.at.clone()
    }

    pub(super) fn take(&mut self, key: &str) -> Option<&'a RawValue> {
        self.map.remove(key).filter(|raw| raw.get() != "null")
    }

    pub(super) fn peek(&self, key: &str) -> Option<&'a RawValue> {
        self.map.get(key).copied().filter(|raw| raw.get() != "null")
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(|raw| raw.get() != "null")
    }

    pub(super) fn text(&mut self, key: &str) -> Result<Option<String>> {
        self.take(key).map(|raw| text_of(raw, &join(&self.at, key))).transpose()
    }

    pub(super) fn required_text(&mut self, key: &str) -> Result<String> {
        self.text(key)?.ok_or_else(|| MessageError::Missing { at: self.at(key) })
    }

    /// Take a short text: an id or a name.
    pub(super) fn name(&mut self, key: &str) -> Result<Option<String>> {
        match self.text(key)? {
            Some(name) if name.is_empty() => Err(MessageError::Empty { at: self.at(key) }),
            Some(name) if name.len() > NAME_BYTES_MAX => Err(MessageError::Invalid {
                at: self.at(key),
                why: format!("it is longer than {NAME_BYTES_MAX} bytes"),
            }),
            name => Ok(name),
        }
    }

    pub(super) fn required_name(&mut self, key: &str) -> Result<String> {
        self.name(key)?.ok_or_else(|| MessageError::Missing { at: self.at(key) })
    }

    /// Take a name that has several possible keys. If several keys are present, their values must be equal.
    pub(super) fn one_of(&mut self, keys: &[&str]) -> Result<Option<String>> {
        let mut found: Option<String> = None;
        for key in keys {
            let Some(name) = self.name(key)? else { continue };
            if found.as_ref().is_some_and(|before| *before != name) {
                let why = format!("it differs from another of {}", keys.join(", "));
                return Err(MessageError::Invalid { at: self.at(key), why });
            }
            found = Some(name);
        }
        Ok(found)
    }

    pub(super) fn flag(&mut self, key: &str) -> Result<bool> {
        match self.take(key) {
            None => Ok(false),
            Some(raw) => match raw.get() {
                "true" => Ok(true),
                "false" => Ok(false),
                _ => Err(wrong_type(&self.at(key), "true or false", raw)),
            },
        }
    }

    pub(super) fn number(&mut self, key: &str, max: u64) -> Result<Option<u64>> {
        let Some(raw) = self.take(key) else { return Ok(None) };
        let at = self.at(key);
        if type_of(raw) != "a number" {
            return Err(wrong_type(&at, "a whole number", raw));
        }
        match serde_json::from_str::<u64>(raw.get()) {
            Ok(number) if number <= max => Ok(Some(number)),
            _ => Err(MessageError::OutOfRange { at, max, found: raw.get().chars().take(32).collect() }),
        }
    }

    pub(super) fn object(&mut self, key: &str) -> Result<Option<Fields<'a>>> {
        let at = self.at(key);
        self.take(key).map(|raw| Fields::of(raw, at)).transpose()
    }

    pub(super) fn array(&mut self, key: &str, max: usize) -> Result<Option<Vec<&'a RawValue>>> {
        let at = self.at(key);
        self.take(key).map(|raw| array_of(raw, &at, max)).transpose()
    }

    /// Fail if a field was not taken.
    pub(super) fn finish(self, role: &'static str) -> Result<()> {
        match self.map.iter().find(|(_, raw)| raw.get() != "null") {
            Some((key, _)) => Err(MessageError::UnknownKey { key: key.chars().take(64).collect(), role }),
            None => Ok(()),
        }
    }
}

pub(super) fn array_of<'a>(raw: &'a RawValue, at: &str, max: usize) -> Result<Vec<&'a RawValue>> {
    if type_of(raw) != "an array" {
        return Err(wrong_type(at, "an array", raw));
    }
    let invalid =
        |error: serde_json::Error| MessageError::Invalid { at: at.to_owned(), why: error.to_string() };
    let items: Vec<&RawValue> = serde_json::from_str(raw.get()).map_err(invalid)?;
    if items.len() > max {
        return Err(MessageError::TooMany { at: at.to_owned(), max });
    }
    Ok(items)
}

pub(super) fn text_of(raw: &RawValue, at: &str) -> Result<String> {
    if type_of(raw) != "a string" {
        return Err(wrong_type(at, "a string", raw));
    }
    let invalid =
        |error: serde_json::Error| MessageError::Invalid { at: at.to_owned(), why: error.to_string() };
    serde_json::from_str(raw.get()).map_err(invalid)
}

pub(super) fn wrong_type(at: &str, expected: &'static str, raw: &RawValue) -> MessageError {
    MessageError::WrongType { at: at.to_owned(), expected, found: type_of(raw) }
}

pub(super) fn type_of(raw: &RawValue) -> &'static str {
    match raw.get().as_bytes().first() {
        Some(b'{') => "an object",
        Some(b'[') => "an array",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "true or false",
        Some(b'n') => "null",
        _ => "a number",
    }
}

fn join(at: &str, key: &str) -> String {
    if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") }
}

/// The fields of one object, and a duplicate key if there is one. serde's maps would silently keep the last value.
struct ObjectKeys<'a> {
    map: BTreeMap<String, &'a RawValue>,
    duplicate: Option<String>,
}

impl<'de> Deserialize<'de> for ObjectKeys<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectKeysVisitor)
    }
}

struct ObjectKeysVisitor;

impl<'de> Visitor<'de> for ObjectKeysVisitor {
    type Value = ObjectKeys<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<ObjectKeys<'de>, A::Error> {
        let mut keys = ObjectKeys { map: BTreeMap::new(), duplicate: None };
        while let Some((key, raw)) = access.next_entry::<String, &'de RawValue>()? {
            if keys.map.len() >= KEYS_MAX {
                return Err(serde::de::Error::custom(format!("it has more than {KEYS_MAX} keys")));
            }
            if keys.map.insert(key.clone(), raw).is_some() {
                keys.duplicate = Some(key.chars().take(64).collect());
            }
        }
        Ok(keys)
    }
}
