//! `sapwood info`: a session's metadata.

use std::io::Write;

use clap::Args;
use sapwood::EntryId;
use sapwood::core::delegation::Delegation;
use sapwood::core::pressure::Pressure;
use sapwood::core::project::context::Context;
use sapwood::core::project::context_state::ContextState;
use sapwood::core::project::summary::Summary;
use serde::Serialize;

use crate::app::App;
use crate::failure::Result;
use crate::render::{clean, cost, local_time};

/// Show a session's metadata
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood info @last
  sapwood info @last --json")]
pub struct InfoArgs {
    /// Session id, unique prefix, or @last
    session: String,
}

pub async fn run(app: &mut App, args: InfoArgs) -> Result<()> {
    let session = app.session_to_read(&args.session).await?;
    let summary = app.engine.directory().summary(&app.scope, &session).await?;
    // Load the context, which may be long, only if there is a compaction to show.
    let context = match summary.compactions + summary.inherited {
        0 => None,
        _ => state_of(&app.engine.views().context(&app.scope, &session, None).await?),
    };
    let delegated = app.engine.views().delegation(&app.scope, &summary).await?;
    // Metadata is shown even if the models are misconfigured.
    let context_pressure = match app.open_backends() {
        Ok(()) => app.engine.compaction().pressure_of(&app.scope, &session).await?,
        Err(_) => None,
    };
    let shown = Info { summary, context, delegated, context_pressure };
    if app.out.is_json() {
        return app.out.json(&shown);
    }
    let context = shown.context.map(|state| ("context", format!("{} ({})", state.state, state.strategy)));
    let pressure = shown.context_pressure.map(|pressure| ("pressure", pressure.to_string()));
    let facts = facts(&shown.summary, shown.delegated.as_ref());
    for (key, value) in facts.into_iter().chain(context).chain(pressure) {
        writeln!(app.out, "{key}: {}", clean(&value))?;
    }
    Ok(())
}

#[derive(Serialize)]
struct Info {
    #[serde(flatten)]
    summary: Summary,
    /// None if the context contains the whole conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<ContextInfo>,
    /// The session and turn that delegated this session's task.
    #[serde(skip_serializing_if = "Option::is_none")]
    delegated: Option<Delegation>,
    /// None if neither the model's window nor a token budget is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    context_pressure: Option<Pressure>,
}

/// The compaction that makes the context shorter than the conversation.
#[derive(Serialize)]
struct ContextInfo {
    state: &'static str,
    strategy: &'static str,
    entry: EntryId,
}

fn state_of(context: &Context) -> Option<ContextInfo> {
    let compaction = context.compaction.as_ref()?;
    let strategy = compaction.body.strategy;
    let state = ContextState::of(strategy).as_str();
    Some(ContextInfo { state, strategy: strategy.as_str(), entry: compaction.id })
}

fn facts(summary: &Summary, delegated: Option<&Delegation>) -> Vec<(&'static str, String)> {
    let spent = summary.spend.total();
    let mut facts = vec![("id", summary.id.to_string())];
    let mut add = |key, value: Option<String>| facts.extend(value.map(|value| (key, value)));
    add("title", summary.title.clone());
    add("preview", summary.preview.clone());
    add("state", Some(summary.state.as_str().to_owned()));
    add("owner", Some(summary.owner.to_string()));
    add("agent", summary.agent.clone());
    add("model", summary.model.clone());
    add("directory", summary.cwd.clone());
    add("created", Some(local_time(summary.created_at.0)));
    add("updated", Some(local_time(summary.updated_at.0)));
    add("entries", Some(summary.head.seq.to_string()));
    add("leaf", summary.head.leaf.map(|leaf| leaf.to_string()));
    add("messages", Some(summary.messages.to_string()));
    add("compactions", Some(summary.compactions.to_string()).filter(|_| summary.compactions > 0));
    add("cost", Some(cost(spent.cost_nano_usd)).filter(|_| spent.calls > 0));
    add("open turn", summary.open_turn.map(|turn| turn.to_string()));
    let parent = summary.parent.as_ref().map(|parent| parent.session.to_string());
    add(if delegated.is_some() { "delegated by" } else { "forked from" }, parent);
    add(
        "shares",
        Some(format!("{} entries with its parent", summary.inherited)).filter(|_| summary.inherited > 0),
    );
    add("imported from", summary.origin.as_ref().map(|origin| format!("{} {}", origin.format, origin.id)));
    for (member, role) in &summary.members {
        add("shared with", Some(format!("{member} as {}", super::share::role_name(*role))));
    }
    facts
}
