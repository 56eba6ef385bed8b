//! Properties of routes that the middleware needs before a request is routed. They are read from the routes' own
//! declarations, so that a new or renamed route changes only its file.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use axum::http::Method;
use utoipa::openapi::RefOr;
use utoipa::openapi::path::Operation;

use super::api_routes;

/// The tag of the routes for OpenAI's clients.
const OPENAI_TAG: &str = "openai";
/// The request content type of the routes that stream an upload.
const UPLOAD_TYPE: &str = "application/octet-stream";

static TABLE: LazyLock<RouteTable> = LazyLock::new(RouteTable::read);

struct RouteTable {
    /// The paths of the uploads, all with the method POST.
    uploads: Vec<String>,
    /// The first two segments of the OpenAI routes.
    openai_prefixes: BTreeSet<String>,
}

impl RouteTable {
    fn read() -> Self {
        let (_, document) = api_routes().split_for_parts();
        let mut table = Self { uploads: Vec::new(), openai_prefixes: BTreeSet::new() };
        for (path, item) in &document.paths.paths {
            let operations = [&item.get, &item.put, &item.post, &item.delete, &item.patch];
            if operations.into_iter().flatten().any(is_openai_operation) {
                table.openai_prefixes.insert(prefix_of(path).to_owned());
            }
            if item.post.as_ref().is_some_and(is_upload_operation) {
                table.uploads.push(path.clone());
            }
        }
        table
    }
}

/// The first two segments of a path, with their slashes.
fn prefix_of(path: &str) -> &str {
    path.match_indices('/').nth(2).map_or(path, |(end, _)| &path[..end])
}

pub fn is_openai_operation(operation: &Operation) -> bool {
    operation.tags.iter().flatten().any(|tag| tag == OPENAI_TAG)
}

fn is_upload_operation(operation: &Operation) -> bool {
    let Some(RefOr::T(body)) = &operation.request_body else { return false };
    body.content.contains_key(UPLOAD_TYPE)
}

/// Whether a path is an OpenAI route, or below one.
pub fn is_openai(path: &str) -> bool {
    TABLE.openai_prefixes.contains(prefix_of(path))
}

/// Whether the body of a request is a streamed upload.
pub fn is_upload(method: &Method, path: &str) -> bool {
    *method == Method::POST && TABLE.uploads.iter().any(|route| matches(route, path))
}

/// Whether a path matches a route's path, in which `{name}` is any segment.
pub fn matches(route: &str, path: &str) -> bool {
    let (mut expected, mut given) = (route.split('/'), path.split('/'));
    loop {
        match (expected.next(), given.next()) {
            (None, None) => return true,
            (Some(part), Some(segment)) if part == segment || part.starts_with('{') => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_openai_paths_get_the_openai_error_format() {
        for theirs in ["/v1/responses", "/v1/responses/resp_1/cancel", "/v1/conversations/c/items"] {
            assert!(is_openai(theirs), "{theirs}");
        }
        for ours in ["/v1/responsesx", "/v1/sessions", "/v1/conversation", "/"] {
            assert!(!is_openai(ours), "{ours}");
        }
    }

    #[test]
    fn uploads_are_the_routes_that_accept_bytes() {
        for path in ["/v1/sessions/s/artifacts", "/v1/sessions/s/inputs", "/v1/import"] {
            assert!(is_upload(&Method::POST, path), "{path}");
            assert!(!is_upload(&Method::GET, path), "{path}");
        }
        for path in ["/v1/sessions", "/v1/sessions/s/artifacts/a", "/v1/sessions/s/entries", "/v1/imports"] {
            assert!(!is_upload(&Method::POST, path), "{path}");
        }
    }
}
