//! Validates a call's input against its tool's JSON Schema, with error messages that a model can act on.

use jsonschema::Validator;
use serde_json::Value;

/// Maximum number of errors in one report.
const FAULTS_MAX: usize = 5;
/// Maximum length of one error, in characters, because it may quote the input.
const FAULT_CHARS_MAX: usize = 300;

pub struct InputSchema(Validator);

impl InputSchema {
    pub fn compile(schema: &Value) -> Result<Self, String> {
        jsonschema::validator_for(schema).map(Self).map_err(|fault| fault.to_string())
    }

    pub fn check(&self, input: &Value) -> Result<(), String> {
        let faults: Vec<String> = self.0.iter_errors(input).take(FAULTS_MAX).map(describe).collect();
        if faults.is_empty() { Ok(()) } else { Err(faults.join("; ")) }
    }
}

fn describe(fault: jsonschema::ValidationError<'_>) -> String {
    let path = fault.instance_path().to_string();
    let location = if path.is_empty() { "input".to_owned() } else { format!("input{path}") };
    format!("{location}: {fault}").chars().take(FAULT_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_error_names_the_field_and_what_was_expected() {
        let schema = json!({"type": "object", "properties": {"path": {"type": "string"}, "limit": {"type": "integer", "minimum": 1}},
                            "required": ["path"], "additionalProperties": false});
        let schema = InputSchema::compile(&schema).unwrap();
        let why = schema.check(&json!({"limit": "many", "lmit": 1})).unwrap_err();
        for fact in ["input/limit", "integer", "path", "lmit"] {
            assert!(why.contains(fact), "{fact} is not in: {why}");
        }
        assert!(schema.check(&json!({"path": "a", "limit": 0})).unwrap_err().contains("minimum"));
        assert_eq!(schema.check(&json!({"path": "a", "limit": 1})), Ok(()));
    }
}
