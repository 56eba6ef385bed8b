//! Routes for the console's files: one page at `/` and its assets. The files are public; the console loads its data
//! from the API, which requires authentication. The content security policy allows only scripts of this server.

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::problem::Problem;
use crate::state::State;

/// A file of the console.
pub struct Asset {
    path: &'static str,
    bytes: &'static [u8],
    gzip: Option<&'static [u8]>,
}

include!(concat!(env!("OUT_DIR"), "/assets.rs"));

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; \
    connect-src 'self'; font-src 'self'; manifest-src 'self'; form-action 'none'; base-uri 'none'; \
    frame-ancestors 'none'; require-trusted-types-for 'script'";
/// Asset names contain their hash, so the bytes under a name never change.
const IMMUTABLE: &str = "public, max-age=31536000, immutable";
const NO_CONSOLE_PAGE: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Sapwood</title>\
    <h1>Sapwood is running</h1><p>The API is under <code>/v1</code>, and <a href=\"/openapi.json\">/openapi.json</a> \
    describes it.</p><p>This build has no console. With Node 18 or later installed, run \
    <code>cargo xtask console</code> and build again.</p></html>";

pub fn routes() -> Router<State> {
    Router::new()
        .route("/", get(get_page))
        .route("/favicon.svg", get(|headers: HeaderMap| async move { find("favicon.svg", &headers) }))
        .route("/assets/{file}", get(get_asset))
}

async fn get_page(headers: HeaderMap) -> Response {
    let page = ASSETS.iter().find(|asset| asset.path == "index.html");
    let mut response = match page {
        Some(page) => serve(page, &headers),
        None => ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], NO_CONSOLE_PAGE).into_response(),
    };
    let set = response.headers_mut();
    set.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    set.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    set.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    let opener = HeaderName::from_static("cross-origin-opener-policy");
    set.insert(opener, HeaderValue::from_static("same-origin"));
    response
}

async fn get_asset(Path(file): Path<String>, headers: HeaderMap) -> Response {
    find(&format!("assets/{file}"), &headers)
}

fn find(path: &str, headers: &HeaderMap) -> Response {
    let Some(asset) = ASSETS.iter().find(|asset| asset.path == path) else {
        return Problem::new("route.not_found", "no such route").into_response();
    };
    let mut response = serve(asset, headers);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static(IMMUTABLE));
    response
}

fn serve(asset: &Asset, headers: &HeaderMap) -> Response {
    let accepted = headers.get(header::ACCEPT_ENCODING).and_then(|accepted| accepted.to_str().ok());
    let accepts_gzip =
        accepted.unwrap_or_default().split(',').any(|coding| coding.trim().starts_with("gzip"));
    let kind = [(header::CONTENT_TYPE, mime_of(asset.path)), (header::VARY, "accept-encoding")];
    match asset.gzip.filter(|_| accepts_gzip) {
        Some(compressed) => {
            (StatusCode::OK, kind, [(header::CONTENT_ENCODING, "gzip")], compressed).into_response()
        }
        None => (StatusCode::OK, kind, asset.bytes).into_response(),
    }
}

fn mime_of(path: &str) -> &'static str {
    match path.rsplit('.').next().unwrap_or_default() {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        "woff2" => "font/woff2",
        "png" => "image/png",
        _ => "application/octet-stream",
    }
}
