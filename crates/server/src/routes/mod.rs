//! The routes, one file per resource, and the OpenAPI document generated from them.

mod about;
mod agents;
mod approvals;
mod artifacts;
mod console;
mod entries;
mod export;
mod feed;
mod flows;
mod grafts;
mod import;
mod login;
mod long_documents;
mod members;
mod memory;
pub(crate) mod openai;
mod openapi_events;
mod openapi_fixups;
mod personal_data;
mod projections;
mod search;
mod session_search;
mod sessions;
mod skills;
mod streams;
mod table;
mod tree;
mod triggers;
mod turns;

pub use about::{HEALTH, METRICS, READINESS};
pub use login::LOGIN;
pub use table::{is_openai, is_upload, matches};
pub use triggers::FIRE;

use axum::Router;
use sapwood::SessionId;
use serde::Serialize;
use serde_json::Value;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Components, ContentBuilder, OpenApi, Ref, ResponseBuilder};
use utoipa::{OpenApi as _, ToSchema};
use utoipa_axum::router::OpenApiRouter;

use crate::auth::Caller;
use crate::problem::Problem;
use crate::state::State;
use crate::wire;
use crate::wire::openai::OpenAiError;

/// Everything below this path requires authentication, except signed calls of triggers.
pub const API: &str = "/v1";

#[derive(utoipa::OpenApi)]
#[openapi(info(
    title = "Sapwood",
    description = "Sessions for AI agents: durable, branching, searchable. Errors are application/problem+json with a \
                   stable code. Lists are paged by cursor. Streams resume after the last seq."
))]
struct ApiDocument;

/// Returns all API routes with their OpenAPI descriptions.
fn api_routes() -> OpenApiRouter<State> {
    OpenApiRouter::with_openapi(ApiDocument::openapi())
        .merge(sessions::routes())
        .merge(entries::routes())
        .merge(projections::routes())
        .merge(feed::routes())
        .merge(tree::routes())
        .merge(turns::routes())
        .merge(approvals::routes())
        .merge(flows::routes())
        .merge(streams::routes())
        .merge(artifacts::routes())
        .merge(export::routes())
        .merge(members::routes())
        .merge(search::routes())
        .merge(memory::routes())
        .merge(grafts::routes())
        .merge(agents::routes())
        .merge(import::routes())
        .merge(login::routes())
        .merge(skills::routes())
        .merge(triggers::routes())
        .merge(personal_data::routes())
        .merge(openai::routes())
        .merge(about::routes())
}

/// Returns the router that the middleware wraps.
pub fn router(state: &State) -> Router {
    let (router, _) = api_routes().split_for_parts();
    router
        .merge(console::routes())
        .fallback(|| async { Problem::new("route.not_found", "no such route") })
        .method_not_allowed_fallback(|| async {
            Problem::new("route.method", "this route does not support the method")
        })
        .with_state(state.clone())
}

/// Returns the OpenAPI document as served.
pub fn document() -> Value {
    let mut document = serde_json::to_value(generated_document()).unwrap_or_default();
    openapi_events::split_events(&mut document);
    openapi_fixups::apply_fixups(&mut document);
    document
}

/// Returns the document as generated from the routes, before fixups.
fn generated_document() -> OpenApi {
    let (_, mut document) = api_routes().split_for_parts();
    let components = document.components.get_or_insert_default();
    add_schema::<wire::Problem>(components);
    add_schema::<OpenAiError>(components);
    add_schema::<sapwood::core::project::event::Event<'_>>(components);
    add_schema::<sapwood::engine::Fragment>(components);
    let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    components.add_security_scheme("key", bearer);
    for (path, item) in &mut document.paths.paths {
        let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch];
        for operation in operations.into_iter().flatten() {
            let problem = problem_response(table::is_openai_operation(operation));
            operation.responses.responses.insert("default".to_owned(), problem.into());
            if path.starts_with(API) {
                operation.security = Some(vec![SecurityRequirement::new("key", Vec::<String>::new())]);
            }
        }
    }
    document
}

/// Adds a schema that no route mentions, with the schemas that it references.
fn add_schema<T: ToSchema>(components: &mut Components) {
    let mut schemas = vec![(T::name().into_owned(), T::schema())];
    T::schemas(&mut schemas);
    components.schemas.extend(schemas);
}

/// The error response of every operation.
fn problem_response(is_openai: bool) -> utoipa::openapi::Response {
    let (kind, name) = match is_openai {
        true => ("application/json", OpenAiError::name()),
        false => ("application/problem+json", wire::Problem::name()),
    };
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(name))).build();
    ResponseBuilder::new()
        .description("An error; the status depends on its code.")
        .content(kind, content)
        .build()
}

/// A page of a list.
#[derive(Serialize)]
pub struct ListPage<T> {
    pub items: Vec<T>,
    pub next: Option<String>,
    /// Why sessions are missing from the list.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub incomplete: Vec<String>,
}

impl<T> ListPage<T> {
    fn new(items: Vec<T>, next: Option<String>) -> Self {
        Self { items, next, incomplete: Vec::new() }
    }

    /// Adds what the list or search left out, because it cannot be read.
    async fn with_omissions(self, state: &State, caller: &Caller) -> Result<Self, Problem> {
        let left_out = state.engine.directory().left_out(&caller.scope).await?;
        let incomplete = left_out.into_iter().map(|finding| format!("{}: {}", finding.place, finding.what));
        Ok(Self { incomplete: incomplete.collect(), ..self })
    }
}

/// Default page size.
const ROWS_DEFAULT: u32 = 50;

/// Returns the page size. Fails if it is out of range.
fn rows(limit: Option<u32>, most: u32) -> Result<usize, Problem> {
    match limit.unwrap_or(ROWS_DEFAULT) {
        limit if limit == 0 || limit > most => {
            Err(Problem::invalid(format!("limit must be from 1 to {most}, not {limit}")))
        }
        limit => Ok(limit as usize),
    }
}

fn session_id(text: &str) -> Result<SessionId, Problem> {
    Ok(text.parse()?)
}

fn appended(appended: &sapwood::core::port::store::Appended) -> wire::Appended {
    let head = appended.head;
    let key =
        |(seq, id): &(sapwood::Seq, sapwood::EntryId)| wire::EntryKey { seq: seq.0, id: id.to_string() };
    wire::Appended {
        head: wire::Head { seq: head.seq.0, leaf: head.leaf.map(|leaf| leaf.0) },
        entries: appended.entries.iter().map(key).collect(),
    }
}
