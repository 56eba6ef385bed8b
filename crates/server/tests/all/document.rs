//! The OpenAPI document as it was agreed on: a change shows in this file's neighbour, `openapi.json`.

use crate::harness::DOCUMENT;

/// `UPDATE=1 cargo test -p sapwood-server document` writes it anew.
#[test]
fn the_document_is_the_one_that_was_agreed_on() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");
    let text = serde_json::to_string_pretty(&*DOCUMENT).unwrap() + "\n";
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    let agreed = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        agreed == text,
        "the API changed: look at it, then UPDATE=1 cargo test -p sapwood-server document"
    );
}

#[test]
fn every_operation_has_a_name_of_its_own_and_says_what_goes_wrong() {
    let mut names = std::collections::BTreeSet::new();
    for (path, item) in DOCUMENT["paths"].as_object().unwrap() {
        for operation in item.as_object().unwrap().values() {
            let name = operation["operationId"].as_str().unwrap();
            assert!(names.insert(name.to_owned()), "{name} is used twice");
            let is_openai =
                ["/v1/conversations", "/v1/responses"].iter().any(|theirs| path.starts_with(theirs));
            let kind = if is_openai { "application/json" } else { "application/problem+json" };
            let problem = &operation["responses"]["default"]["content"][kind];
            assert!(!problem.is_null(), "{name} says nothing of errors");
            assert_eq!(operation["security"].is_array(), path.starts_with("/v1"), "{name}");
        }
    }
}
