//! The schemas of the events: one per event name, with an example, and their union `Event`, which the `type`
//! discriminates. They are built from the schemas of the durable event, the fragment and the entry bodies.

use std::collections::BTreeMap;

use sapwood::core::entry::{Entry, Kind, Meta};
use sapwood::core::openapi::{example_bodies, schema_name};
use sapwood::core::project::event::Event;
use sapwood::core::{Body, EntryId, Principal, TimestampMs, TurnId};
use sapwood::engine::{Fragment, FragmentKind};
use sapwood::{Seq, SessionId};
use serde_json::{Map, Value, json};

/// Replaces the schemas `Event` and `Fragment` with one schema per event name.
pub fn split_events(document: &mut Value) {
    let Some(schemas) = document["components"]["schemas"].as_object_mut() else { return };
    let mut forms = BTreeMap::<String, Vec<Value>>::new();
    let durable = schemas.remove("Event").unwrap_or_default();
    for (name, kinds) in kinds_by_name() {
        forms.entry(name.to_owned()).or_default().push(durable_schema(&durable, name, &kinds));
    }
    let fragment = schemas.remove("Fragment").unwrap_or_default();
    let variants = schemas.remove("FragmentKind").unwrap_or_default();
    for variant in variants["oneOf"].as_array().into_iter().flatten() {
        let schema = fragment_schema(&fragment, variant);
        forms.entry(type_of(&schema).to_owned()).or_default().push(schema);
    }
    schemas.insert("Event".to_owned(), union(forms.keys()));
    for (name, mut forms) in forms {
        let schema = if forms.len() == 1 { forms.remove(0) } else { json!({ "oneOf": forms }) };
        schemas.insert(component(&name), schema);
    }
    let data = &mut schemas["StreamEvent"]["properties"]["data"];
    data["contentMediaType"] = json!("application/json");
    data["contentSchema"] = reference("Event");
}

fn kinds_by_name() -> BTreeMap<&'static str, Vec<Kind>> {
    let mut kinds = BTreeMap::<_, Vec<Kind>>::new();
    for kind in Kind::ALL {
        kind.events().iter().for_each(|name| kinds.entry(*name).or_default().push(*kind));
    }
    kinds
}

fn durable_schema(template: &Value, name: &str, kinds: &[Kind]) -> Value {
    let mut schema = template.clone();
    let bodies: Vec<Value> = kinds.iter().map(|kind| reference(&schema_name(*kind))).collect();
    schema["properties"]["type"] = json!({ "type": "string", "enum": [name] });
    schema["properties"]["entry"] = match bodies.as_slice() {
        [only] => only.clone(),
        bodies => json!({ "oneOf": bodies }),
    };
    let examples = example_bodies().into_iter().map(example_event);
    schema["examples"] = examples.filter(|event| event["type"] == name).take(1).collect();
    schema
}

fn example_event(body: Body) -> Value {
    let meta = Meta {
        seq: Seq(7),
        id: example_id(7),
        parent: Some(Seq(6)),
        at: TimestampMs(1_767_225_600_000),
        by: Principal::System,
        turn: None,
        kind: body.kind(),
    };
    let record = Entry { meta, body }.to_record();
    Event::of(&example_session(), &record).map_or(Value::Null, |event| json!(event))
}

fn fragment_schema(template: &Value, variant: &Value) -> Value {
    let mut schema = variant.clone();
    let common = template["allOf"].as_array().and_then(|all| all.last()).unwrap_or(template);
    if let (Some(fields), Some(more)) =
        (schema["properties"].as_object_mut(), common["properties"].as_object())
    {
        fields.extend(more.clone());
    }
    if let (Some(required), Some(more)) = (schema["required"].as_array_mut(), common["required"].as_array()) {
        required.extend(more.iter().cloned());
    }
    let examples = example_fragments().into_iter().map(|fragment| json!(fragment));
    schema["examples"] = examples.filter(|example| example["type"] == type_of(&schema)).collect();
    schema
}

fn example_fragments() -> Vec<Fragment> {
    let text = |text: &str| text.to_owned();
    let (call_id, name) = (text("c1"), text("read_file"));
    let kinds = vec![
        FragmentKind::Token { text: text("Gran") },
        FragmentKind::Reasoning { text: text("The file lists") },
        FragmentKind::ToolCall { call_id: call_id.clone(), name: name.clone() },
        FragmentKind::ToolRunning { call_id, name },
        FragmentKind::Failover { from: text("large"), to: text("small"), why: text("overloaded") },
        FragmentKind::Retrying { model: text("large"), after_ms: 500, why: text("overloaded") },
        FragmentKind::Compacting,
        FragmentKind::Pressure { level: text("orange"), used_tokens: 80, window_tokens: 100 },
        FragmentKind::OverBudget { text: text("80 % of the budget is used") },
        FragmentKind::Waiting { approvals: vec![text("stones~1")] },
    ];
    let (session, at) = (example_session(), TimestampMs(1_767_225_600_000));
    let turn = Some(TurnId::from_bytes(*example_id(1).as_bytes()));
    let fragment_of =
        |kind| Fragment { kind, session: session.clone(), at, after: Seq::ZERO, turn, index: None };
    kinds.into_iter().map(fragment_of).collect()
}

fn example_session() -> SessionId {
    SessionId::mint(TimestampMs(1_767_225_600_000), 1)
}

fn example_id(number: u128) -> EntryId {
    EntryId::mint(TimestampMs(1_767_225_600_000), number)
}

/// The value of the `type` that a schema allows.
fn type_of(schema: &Value) -> &str {
    schema["properties"]["type"]["enum"][0].as_str().unwrap_or_default()
}

fn union<'a>(names: impl Iterator<Item = &'a String>) -> Value {
    let mapping: Map<String, Value> =
        names.map(|name| (name.clone(), reference(&component(name))["$ref"].clone())).collect();
    let refs: Vec<Value> = mapping.values().map(|location| json!({ "$ref": location })).collect();
    json!({
        "description": "An event: a durable event has a `seq` and its `entry`; a fragment is never stored or replayed.",
        "oneOf": refs,
        "discriminator": { "propertyName": "type", "mapping": mapping },
    })
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// The schema name of an event: `session:turn_started` becomes `SessionTurnStartedEvent`.
fn component(name: &str) -> String {
    let words = name.split([':', '_']).map(|word| word[..1].to_uppercase() + &word[1..]);
    words.collect::<String>() + "Event"
}
