//! `sapwood context`: the messages that the model would receive.

use std::io::Write;

use clap::Args;
use sapwood::Context;
use sapwood::core::project::context::{Message, Role};

use super::show::{print_calls, role_style};
use crate::app::App;
use crate::failure::Result;
use crate::render::{DIM, clean};

/// Show the context that the model would receive
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood context @last
  sapwood context @last --at 12 --json")]
pub struct ContextArgs {
    /// Session id, unique prefix, or @last
    session: String,
    /// Show the context at this entry; default: the current leaf
    #[arg(long, value_name = "ENTRY")]
    at: Option<String>,
}

pub async fn run(app: &mut App, args: ContextArgs) -> Result<()> {
    let session = app.session_to_read(&args.session).await?;
    let at = match &args.at {
        Some(at) => Some(app.engine.directory().find_entry(&app.scope, &session, at).await?.meta.seq),
        None => None,
    };
    let context = app.engine.views().context(&app.scope, &session, at).await?;
    if app.out.is_json() {
        return app.out.json(&context);
    }
    print_head(app, &context)?;
    context.messages.iter().try_for_each(|message| print_message(app, message))
}

fn print_head(app: &mut App, context: &Context) -> Result<()> {
    let model = context.model.as_deref().unwrap_or("-");
    let count = context.messages.len();
    writeln!(app.out, "model: {}  thinking: {}", clean(model), clean(&context.thinking))?;
    writeln!(app.out, "messages: {count}  tokens: about {}", context.tokens)?;
    if !context.skills.is_empty() {
        writeln!(app.out, "skills: {}", clean(&context.skills.join(", ")))?;
    }
    if let Some(session) = context.session.as_ref().map(ToString::to_string).filter(|text| !text.is_empty()) {
        writeln!(app.out, "\n{DIM}context{DIM:#}\n{}", clean(&session))?;
    }
    if let Some(system) = &context.system {
        writeln!(app.out, "\n{DIM}system{DIM:#}\n{}", clean(system))?;
    }
    Ok(())
}

fn print_message(app: &mut App, message: &Message) -> Result<()> {
    let role = match message.role {
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
        Role::System => "system",
    };
    let style = role_style(role);
    let seq = message.entry.map_or("synthesised".to_owned(), |(seq, _)| seq.to_string());
    let tool = message.answers.as_ref().and_then(|answers| answers.tool.as_deref());
    let tool = tool.map_or(String::new(), |tool| format!(" · {}", clean(tool)));
    writeln!(
        app.out,
        "\n{style}{role}{style:#} {DIM}{seq} · about {} tokens{tool}{DIM:#}",
        message.tokens()
    )?;
    let text = message.text();
    if !text.is_empty() {
        writeln!(app.out, "{}", clean(&text))?;
    }
    print_calls(&mut app.out, &message.parts, true)
}
