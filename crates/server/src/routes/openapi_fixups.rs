//! Fixups for the derived OpenAPI document: number ranges, and schemas that are never null.

use serde_json::{Value, json};

/// Applies all fixups to the document.
pub fn apply_fixups(document: &mut Value) {
    let Some(paths) = document["paths"].as_object_mut() else { return };
    for operation in paths.values_mut().filter_map(Value::as_object_mut).flat_map(|item| item.values_mut()) {
        let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
        for schema in parameters.into_iter().flatten().filter_map(|parameter| parameter.get_mut("schema")) {
            strip_null(schema);
        }
        if let Some(schema) = operation.pointer_mut("/requestBody/content/application~1json/schema") {
            strip_null(schema);
        }
    }
    bound_numbers(document);
}

/// Removes null from a schema. Path, query and header parameters are text, and an optional body is omitted instead.
fn strip_null(schema: &mut Value) {
    if let Some(kind) = schema.get_mut("type")
        && let Some(kinds) = kind.as_array_mut()
    {
        kinds.retain(|kind| kind != "null");
        if let [only] = kinds.as_slice() {
            *kind = only.clone();
        }
    }
    if let Some(choices) = schema.get_mut("oneOf").and_then(Value::as_array_mut) {
        choices.retain(|choice| choice["type"] != "null");
        if let [only] = choices.as_slice() {
            *schema = only.clone();
        }
    }
}

/// Adds the range of the Rust type to `u32`, `u64` and `i64`. Unsigned numbers already have a minimum.
fn bound_numbers(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.values_mut().for_each(bound_numbers);
            let is_signed = fields.get("minimum").is_none();
            let (format, least, most) = match fields.get("format").and_then(Value::as_str) {
                Some("int32") if !is_signed => ("uint32", None, json!(u32::MAX)),
                Some("int64") if !is_signed => ("uint64", None, json!(u64::MAX)),
                Some("int64") => ("int64", Some(json!(i64::MIN)), json!(i64::MAX)),
                _ => return,
            };
            fields.insert("format".to_owned(), json!(format));
            fields.entry("maximum").or_insert(most);
            if let Some(least) = least {
                fields.insert("minimum".to_owned(), least);
            }
        }
        Value::Array(schemas) => schemas.iter_mut().for_each(bound_numbers),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_get_bounds_and_parameters_are_never_null() {
        let small = json!({ "type": ["integer", "null"], "format": "int32", "minimum": 0 });
        let limit = json!({ "type": ["integer", "null"], "format": "int32", "minimum": 1, "maximum": 500 });
        let body = json!({ "oneOf": [{ "$ref": "#/x" }, { "type": "null" }] });
        let mut document = json!({
            "paths": { "/p": { "post": {
                "parameters": [{ "schema": limit }],
                "requestBody": { "content": { "application/json": { "schema": body } } },
            } } },
            "components": { "schemas": { "x": { "properties": { "n": small, "at": { "format": "int64" } } } } },
        });
        document["paths"]["/bare"] = json!({ "get": { "responses": {} } });
        apply_fixups(&mut document);
        assert_eq!(document["paths"]["/bare"], json!({ "get": { "responses": {} } }), "nothing is added");
        let operation = &document["paths"]["/p"]["post"];
        let limit = json!({ "type": "integer", "format": "uint32", "minimum": 1, "maximum": 500 });
        assert_eq!(operation["parameters"][0]["schema"], limit);
        let body = &operation["requestBody"]["content"]["application/json"]["schema"];
        assert_eq!(*body, json!({ "$ref": "#/x" }));
        let fields = &document["components"]["schemas"]["x"]["properties"];
        assert_eq!(
            (&fields["n"]["maximum"], &fields["n"]["type"]),
            (&json!(u32::MAX), &json!(["integer", "null"]))
        );
        assert_eq!(
            (&fields["at"]["minimum"], &fields["at"]["maximum"]),
            (&json!(i64::MIN), &json!(i64::MAX))
        );
    }
}
