//! JSON responses, serialized into a buffer that is large enough for most of them. axum's default buffer starts small
//! and reallocates several times per response, which took 10 % of the time of a small read.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::problem::Problem;

/// Large enough for a session summary.
const RESPONSE_BYTES: usize = 1_024;
const JSON_TYPE: HeaderValue = HeaderValue::from_static("application/json");

pub struct Json<T>(pub T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        let mut bytes = Vec::with_capacity(RESPONSE_BYTES);
        match serde_json::to_writer(&mut bytes, &self.0) {
            Ok(()) => ([(header::CONTENT_TYPE, JSON_TYPE)], bytes).into_response(),
            Err(error) => Problem::new("server.panicked", error.to_string()).into_response(),
        }
    }
}
