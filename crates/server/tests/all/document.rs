//! Snapshot test of the OpenAPI document `openapi.json`.

use crate::harness::DOCUMENT;

/// Run `UPDATE=1 cargo test -p sapwood-server document` to regenerate it.
#[test]
fn the_document_matches_the_snapshot() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");
    let text = serde_json::to_string_pretty(&*DOCUMENT).unwrap() + "\n";
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    let snapshot = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        snapshot == text,
        "the API changed: review it, then run UPDATE=1 cargo test -p sapwood-server document"
    );
}

#[test]
fn every_operation_has_a_unique_name_and_documents_errors() {
    let mut names = std::collections::BTreeSet::new();
    for (path, item) in DOCUMENT["paths"].as_object().unwrap() {
        for operation in item.as_object().unwrap().values() {
            let name = operation["operationId"].as_str().unwrap();
            assert!(names.insert(name.to_owned()), "{name} is used twice");
            let is_openai =
                ["/v1/conversations", "/v1/responses"].iter().any(|prefix| path.starts_with(prefix));
            let kind = if is_openai { "application/json" } else { "application/problem+json" };
            let problem = &operation["responses"]["default"]["content"][kind];
            assert!(!problem.is_null(), "{name} does not document errors");
            assert_eq!(operation["security"].is_array(), path.starts_with("/v1"), "{name}");
        }
    }
}
