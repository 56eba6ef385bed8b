//! Routes across all sessions: full-text search and the audit log.

use std::collections::BTreeSet;

use axum::extract::State as Shared;
use futures_util::future::join_all;
use sapwood::SessionId;
use sapwood::core::port::store::{AuditLine, Hit, SearchQuery};
use serde::Serialize;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::ListPage;
use super::{rows, session_id};
use crate::auth::Caller;
use crate::extract::Params;
use crate::json::Json;
use crate::problem::Result;
use crate::state::State;
use crate::wire;

const HITS_MAX: u32 = 500;
const LINES_MAX: u32 = 1_000;

pub fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(search_sessions)).routes(routes!(read_audit))
}

#[derive(Serialize)]
struct Audit {
    items: Vec<AuditLine>,
    next: Option<u64>,
}

/// Search the full text of every session you may read, newest first.
#[utoipa::path(get, path = "/v1/search", tag = "search", params(wire::SearchParams),
    responses((status = 200, body = wire::Hits)))]
async fn search_sessions(
    Shared(state): Shared<State>,
    caller: Caller,
    Params(query): Params<wire::SearchParams>,
) -> Result<Json<ListPage<Hit>>> {
    let session = query.session.as_deref().map(session_id).transpose()?;
    if let Some(session) = &session {
        state.engine.directory().summary(&caller.scope, session).await?;
    }
    let limit = rows(query.limit, HITS_MAX)?;
    let query = SearchQuery { text: query.q, session, limit, cursor: query.cursor };
    let page = state.engine.directory().search(&caller.scope, &query).await?;
    audit_hits(&state, &caller, &page.items).await?;
    Ok(Json(ListPage::new(page.items, page.next).with_omissions(&state, &caller).await?))
}

/// Audits the sessions of the hits, because a snippet shows content. Writes the lines concurrently, so that they share
/// one commit.
async fn audit_hits(state: &State, caller: &Caller, hits: &[Hit]) -> Result<()> {
    let shown: BTreeSet<&SessionId> = hits.iter().map(|hit| &hit.session).collect();
    let audits = shown.into_iter().map(|session| state.audit_read(caller, session));
    for audited in join_all(audits).await {
        match audited {
            // The session was erased in the meantime, so no audit line is needed.
            Err(problem) if problem.code == "session.not_found" => {}
            audited => audited?,
        }
    }
    Ok(())
}

/// Read the audit lines that you may see. The lines form a hash chain.
#[utoipa::path(get, path = "/v1/audit", tag = "audit", params(wire::AuditQuery),
    responses((status = 200, body = wire::Audit)))]
async fn read_audit(
    Shared(state): Shared<State>,
    caller: Caller,
    Params(query): Params<wire::AuditQuery>,
) -> Result<Json<Audit>> {
    let session = query.session.as_deref().map(session_id).transpose()?;
    let limit = rows(query.limit, LINES_MAX)?;
    let after = query.after.unwrap_or(0);
    let items = state.engine.directory().audit(&caller.scope, session.as_ref(), after, limit).await?;
    let next = items.last().filter(|_| items.len() == limit).map(|line| line.number);
    Ok(Json(Audit { items, next }))
}
