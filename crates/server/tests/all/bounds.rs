//! The OpenAPI document describes exactly which nulls and numbers are accepted: allowed values are never rejected as
//! invalid, and other values always are.

use jsonschema::Validator;
use serde_json::{Value, json};

use crate::harness::{DOCUMENT, TestRequest, TestServer};
use crate::rights::{Route, prepare, routes};
use crate::wire::TestResponse;

fn operation(route: &Route) -> &'static Value {
    &DOCUMENT["paths"][&route.template][route.method.to_lowercase()]
}

fn resolve(schema: &Value) -> &Value {
    match schema["$ref"].as_str() {
        Some(name) => &DOCUMENT["components"]["schemas"][name.rsplit('/').next().unwrap()],
        None => schema,
    }
}

fn validator(schema: &Value) -> Validator {
    jsonschema::validator_for(&json!({ "components": DOCUMENT["components"], "allOf": [schema] })).unwrap()
}

/// Returns boundary values of a number, and null.
fn edges(schema: &Value) -> Vec<Value> {
    let mut edges = vec![Value::Null, json!(-1), json!(0), json!(1)];
    edges.extend([u64::from(u32::MAX), u64::from(u32::MAX) + 1, i64::MAX as u64, u64::MAX].map(Value::from));
    edges.push(json!(i64::MIN));
    for bound in ["minimum", "maximum"] {
        if let Some(bound) = schema[bound].as_i64() {
            edges.extend([bound.saturating_sub(1), bound, bound.saturating_add(1)].map(Value::from));
        }
    }
    edges
}

fn is_number(schema: &Value) -> bool {
    let kind = &schema["type"];
    let is =
        |name: &str| kind == name || kind.as_array().is_some_and(|all| all.iter().any(|one| one == name));
    is("integer")
}

/// Whether the request was rejected as invalid.
fn is_rejected(answer: &TestResponse) -> bool {
    let codes = ["input.invalid", "input.json", "input.option", "workflow.invalid"];
    answer.status == 400 && codes.contains(&answer.code().as_str())
}

struct BoundsTester {
    server: TestServer,
    number: usize,
    faults: Vec<String>,
}

impl BoundsTester {
    async fn call(&mut self, route: &Route, body: &str, query: &str) -> TestResponse {
        self.number += 1;
        let session = format!("s{}", self.number);
        let (turn, approval) = prepare(&self.server, route, &session).await;
        let mut path = route.path(&session, &turn, &approval);
        if !query.is_empty() {
            path += if path.contains('?') { "&" } else { "?" };
            path += query;
        }
        let headers: &[(&str, &str)] =
            if body.is_empty() { &[] } else { &[("content-type", "application/json")] };
        let req = TestRequest {
            method: &route.method,
            path: &path,
            key: Some("ana"),
            headers,
            body: body.as_bytes(),
        };
        crate::wire::exchange(self.server.addr, &self.server.bytes_of(req)).await
    }

    async fn check_body(&mut self, route: &Route) {
        let operation = operation(route);
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
        if schema.is_null() || schema == &json!({}) {
            return;
        }
        let validator = validator(schema);
        self.compare(route, &validator, Value::Null, "the body").await;
        let Some(properties) = resolve(schema)["properties"].as_object() else { return };
        for (name, property) in properties {
            let property = resolve(property);
            let values = if is_number(property) { edges(property) } else { vec![Value::Null] };
            for value in values {
                let mut body = if route.row.2.is_object() { route.row.2.clone() } else { json!({}) };
                body[name] = value;
                self.compare(route, &validator, body, name).await;
            }
        }
    }

    async fn compare(&mut self, route: &Route, validator: &Validator, body: Value, name: &str) {
        let answer = self.call(route, &body.to_string(), "").await;
        let (is_allowed, is_rejected) = (validator.is_valid(&body), is_rejected(&answer));
        if is_allowed == is_rejected {
            let mismatch = if is_allowed { "allowed but rejected" } else { "not allowed but accepted" };
            self.faults.push(format!(
                "{} {name}: {body} is {mismatch}: {} {}",
                route.row.0,
                answer.status,
                answer.json()
            ));
        }
    }

    async fn check_query(&mut self, route: &Route) {
        let parameters = operation(route)["parameters"].as_array().cloned().unwrap_or_default();
        for parameter in parameters.iter().filter(|parameter| parameter["in"] == "query") {
            let (name, schema) = (parameter["name"].as_str().unwrap(), &parameter["schema"]);
            if schema["type"].is_array() {
                self.faults.push(format!("{} {name}: a query parameter cannot be null", route.row.0));
            }
            for value in edges(schema).iter().filter(|value| is_number(schema) && !value.is_null()) {
                let answer = self.call(route, "", &format!("{name}={value}")).await;
                let is_allowed = validator(schema).is_valid(value);
                // A cursor past the end is valid by its schema and still rejected.
                let is_past =
                    answer.json()["detail"].as_str().is_some_and(|detail| detail.contains("past the end"));
                if is_allowed == (is_rejected(&answer) && !is_past) {
                    self.faults.push(format!(
                        "{} {name}={value}: {} {}",
                        route.row.0,
                        answer.status,
                        answer.json()
                    ));
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_accepts_exactly_the_documented_nulls_and_numbers() {
    let mut tester = BoundsTester { server: TestServer::open().await, number: 0, faults: Vec::new() };
    for route in routes() {
        // The response is a stream that does not end.
        if route.row.0 != "follow_events" {
            tester.check_query(&route).await;
        }
        tester.check_body(&route).await;
    }
    assert!(tester.faults.is_empty(), "{}", tester.faults.join("\n"));
}
