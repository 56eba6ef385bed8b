//! Routes for flow runs: start, show, resume, cancel. The events of a run are the events of its session.

use axum::extract::State as Shared;
use axum::http::StatusCode;
use sapwood::SessionId;
use sapwood::core::flow::Flow;
use sapwood::engine::flow::{RUN_PREFIX, RunList, RunView, StartFlow};
use sapwood::formats::workflow::{self, Document, OwnAgents, Readings, WorkflowError};
use serde_json::Value;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::rows;
use crate::auth::Caller;
use crate::extract::{AuditedPath, Body, Params, PathParams};
use crate::json::Json;
use crate::problem::{Problem, Result};
use crate::state::State;
use crate::wire;

const ROWS_MAX: u32 = 200;

pub fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new()
        .routes(routes!(list_flows, start_flow))
        .routes(routes!(get_flow))
        .routes(routes!(resume_flow))
        .routes(routes!(cancel_flow))
}

impl From<WorkflowError> for Problem {
    fn from(error: WorkflowError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

/// List the flow runs that you can see, newest first.
#[utoipa::path(get, path = "/v1/flows", tag = "flows", params(wire::ListFlows), responses((status = 200, body = wire::FlowRuns)))]
async fn list_flows(
    Shared(state): Shared<State>,
    caller: Caller,
    Params(query): Params<wire::ListFlows>,
) -> Result<Json<RunList>> {
    let limit = rows(query.limit, ROWS_MAX)?;
    Ok(Json(state.engine.flows().list(&caller.scope, limit, query.cursor).await?))
}

/// Start a flow run. The flow is validated completely before anything runs, and the run continues if the client
/// disconnects. Only agents of this server are used: agents defined in the document are ignored.
#[utoipa::path(post, path = "/v1/flows", tag = "flows", request_body = wire::NewFlow,
    responses((status = 202, body = wire::FlowAccepted)))]
async fn start_flow(
    Shared(state): Shared<State>,
    caller: Caller,
    Body(new): Body<wire::NewFlow>,
) -> Result<(StatusCode, Json<wire::FlowAccepted>)> {
    if new.cwd.is_some() && !caller.is_operator() {
        return Err(Problem::invalid("cwd names a directory on the server: only an operator may set it"));
    }
    let flow = read_flow(&state, &new)?;
    let with_prefix = |id: &String| match id.starts_with(RUN_PREFIX) {
        true => id.clone(),
        false => format!("{RUN_PREFIX}{id}"),
    };
    let run: Option<SessionId> = new.id.as_ref().map(with_prefix).map(|id| id.parse()).transpose()?;
    let start = StartFlow {
        flow,
        input: new.input.unwrap_or_default(),
        run,
        improve: new.improve,
        cwd: new.cwd,
        mirror: None,
    };
    let running = state.engine.flows().start(&caller.scope, start).await?;
    let accepted = accepted(&running.run);
    state.track_flow(running);
    Ok((StatusCode::ACCEPTED, Json(accepted)))
}

fn accepted(run: &SessionId) -> wire::FlowAccepted {
    wire::FlowAccepted { run: run.to_string() }
}

fn read_flow(state: &State, new: &wire::NewFlow) -> Result<Flow> {
    let document: Document = match &new.flow {
        Value::String(yaml) => workflow::parse(yaml)?,
        object => {
            // Parse objects as YAML text, so that both forms are checked by the same code.
            let text = object.to_string();
            workflow::parse(&text)?
        }
    };
    let readings = Readings { texts: new.readings.clone(), ..Readings::default() };
    let find_agent = |name: &str| state.agent(name).ok().cloned();
    let mut flow = workflow::flow_of(&document, &readings, OwnAgents::Ignore, find_agent)?;
    flow.variables.extend(new.variables.clone());
    Ok(flow)
}

/// Get a flow run: its graph, the status of each node, the roles' sessions and pending approvals.
#[utoipa::path(get, path = "/v1/flows/{run}", tag = "flows", params(("run" = String, Path)),
    responses((status = 200, body = wire::FlowRun)))]
async fn get_flow(
    Shared(state): Shared<State>,
    caller: Caller,
    AuditedPath(run): AuditedPath<SessionId>,
) -> Result<Json<RunView>> {
    Ok(Json(state.engine.flows().show(&caller.scope, &run).await?))
}

/// Resume a flow run that was interrupted, is waiting, or failed.
#[utoipa::path(post, path = "/v1/flows/{run}/resume", tag = "flows", params(("run" = String, Path)),
    responses((status = 202, body = wire::FlowAccepted)))]
async fn resume_flow(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(run): PathParams<SessionId>,
) -> Result<(StatusCode, Json<wire::FlowAccepted>)> {
    if let Some(running) = state.engine.flows().resume(&caller.scope, &run).await? {
        state.track_flow(running);
    }
    Ok((StatusCode::ACCEPTED, Json(accepted(&run))))
}

/// Cancel a flow run, whichever process runs it.
#[utoipa::path(post, path = "/v1/flows/{run}/cancel", tag = "flows", params(("run" = String, Path)),
    responses((status = 202, body = wire::FlowAccepted)))]
async fn cancel_flow(
    Shared(state): Shared<State>,
    caller: Caller,
    PathParams(run): PathParams<SessionId>,
) -> Result<(StatusCode, Json<wire::FlowAccepted>)> {
    if let Some(running) = state.engine.flows().cancel(&caller.scope, &run).await? {
        state.track_flow(running);
    }
    Ok((StatusCode::ACCEPTED, Json(accepted(&run))))
}
