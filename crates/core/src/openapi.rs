//! OpenAPI schemas of types whose JSON differs from their fields: ids, raw JSON, kinds, and the tagged union of entry
//! bodies. All other types derive their schema.

use std::borrow::Cow;

use serde_json::Value;
use utoipa::openapi::schema::{
    AllOfBuilder, Discriminator, ObjectBuilder, OneOfBuilder, Schema, Type, empty,
};
use utoipa::openapi::{Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

use crate::content::Json;
use crate::entry::{Body, Kind, codec};
use crate::id::{BlobHash, EntryId, Seq, SessionId, TimestampMs, TurnId};
use crate::scope::Principal;

macro_rules! same_schema {
    ($($name:ty => $schema:expr;)*) => {
        $(impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                $schema.into()
            }
        }
        impl ToSchema for $name {})*
    };
}

same_schema! {
    BlobHash => String::schema();
    EntryId => String::schema();
    Json => empty();
    Kind => text_of(Kind::ALL.iter().map(|kind| kind.as_str()));
    Principal => String::schema();
    Seq => u32::schema();
    SessionId => String::schema();
    TimestampMs => i64::schema();
    TurnId => String::schema();
}

/// A string with a fixed set of values.
fn text_of(values: impl Iterator<Item = &'static str>) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(values))
}

/// The example bodies: at least one of each kind, and one for each event name.
pub fn example_bodies() -> Vec<Body> {
    let lines = include_str!("entry/examples.jsonl").lines();
    lines.map(|line| serde_json::from_str(line).expect("the examples are valid bodies")).collect()
}

/// The name of the schema of this kind's bodies.
pub fn schema_name(kind: Kind) -> String {
    format!("{kind:?}Body")
}

impl PartialSchema for Body {
    fn schema() -> RefOr<Schema> {
        let reference = |kind: &Kind| Ref::from_schema_name(schema_name(*kind));
        let mapping = Kind::ALL.iter().map(|kind| (kind.as_str(), reference(kind).ref_location));
        let union = OneOfBuilder::new()
            .description(Some(
                "The content of an entry, as stored in the log. Its `type` is the entry's kind.",
            ))
            .discriminator(Some(Discriminator::with_mapping("type", mapping)));
        Kind::ALL.iter().fold(union, |union, kind| union.item(reference(kind))).into()
    }
}

impl ToSchema for Body {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("EntryBody")
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        let examples = example_bodies();
        for (kind, schema) in Body::field_schemas(schemas) {
            let example = examples.iter().find(|body| body.kind() == kind).map(codec::encode);
            let example = example.and_then(|json| serde_json::from_slice(&json).ok());
            schemas.push((schema_name(kind), tagged(schema, kind.as_str(), example)));
        }
    }
}

/// Adds the property `type` to the schema of a body's fields.
fn tagged(fields: RefOr<Schema>, name: &'static str, example: Option<Value>) -> RefOr<Schema> {
    let tag = text_of([name].into_iter());
    match fields {
        RefOr::T(Schema::Object(fields)) => {
            let fields = ObjectBuilder::from(fields).property("type", tag).required("type");
            fields.examples(example).into()
        }
        other => {
            let tag = ObjectBuilder::new().property("type", tag).required("type");
            AllOfBuilder::new().item(other).item(tag).examples(example).into()
        }
    }
}
