//! Routes for the agents that this server offers.

use axum::extract::State as Shared;
use sapwood::core::agent::Agent;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::auth::Caller;
use crate::extract::PathParams;
use crate::json::Json;
use crate::problem::Result;
use crate::state::State;
use crate::wire;

pub fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(list_agents)).routes(routes!(get_agent))
}

/// List the agents that this server offers.
#[utoipa::path(get, path = "/v1/agents", tag = "agents", responses((status = 200, body = wire::Agents)))]
async fn list_agents(Shared(state): Shared<State>, _: Caller) -> Json<wire::Agents> {
    Json(wire::Agents { items: state.agents().map(card_of).collect() })
}

/// Get an agent.
#[utoipa::path(get, path = "/v1/agents/{agent}", tag = "agents", params(("agent" = String, Path)),
    responses((status = 200, body = wire::AgentCard)))]
async fn get_agent(
    Shared(state): Shared<State>,
    _: Caller,
    PathParams(agent): PathParams<String>,
) -> Result<Json<wire::AgentCard>> {
    Ok(Json(card_of(state.agent(&agent)?)))
}

/// Returns the public part of an agent. Prompts, hosts and servers are visible to the operator only.
fn card_of(agent: &Agent) -> wire::AgentCard {
    wire::AgentCard {
        id: agent.id.clone(),
        name: agent.name.clone(),
        description: agent.description.clone(),
        model: agent.model.clone(),
        tools: agent.tools.clone(),
    }
}
