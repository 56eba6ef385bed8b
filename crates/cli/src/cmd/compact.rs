//! `sapwood compact`: replaces older messages in the context with a summary. The log keeps them.

use std::io::Write;
use std::sync::Arc;

use clap::Args;
use sapwood::SessionId;
use sapwood::core::compact::options::parse_method;
use sapwood::core::compact::{CompactOptions, Method};
use sapwood::core::entry::Trigger;
use sapwood::core::port::summariser::Summariser;
use sapwood::engine::compact::{Compacted, Compacting, IfLarger, Writing};
use serde_json::json;

use crate::app::App;
use crate::failure::{Failure, Result};
use crate::number_arg::{count, tokens};
use crate::render::{DIM, note, plural};

/// Replace older messages with a summary
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood compact @last
  sapwood compact @last --keep-last 6 --dry-run
  sapwood compact @last --keep-last 2 --force
  sapwood compact @last --compact-strategy llm --model openai/gpt-5")]
pub struct CompactArgs {
    /// Session id, unique prefix, or @last
    session: String,
    /// Number of recent messages to keep; default: 12, up to 20000 tokens
    #[arg(long, value_name = "N", value_parser = count, allow_hyphen_values = true)]
    keep_last: Option<u32>,
    /// Number of recent tokens to keep, rounded to whole messages
    #[arg(long, value_name = "N", value_parser = tokens, allow_hyphen_values = true)]
    keep_recent_tokens: Option<u64>,
    /// Number of first messages that the summary quotes verbatim
    #[arg(long, value_name = "N", value_parser = count, allow_hyphen_values = true, default_value = "0")]
    keep_first: u32,
    /// Compact only if the context exceeds this number of tokens
    #[arg(long, value_name = "N", value_parser = tokens, allow_hyphen_values = true)]
    token_threshold: Option<u64>,
    /// Shorten tool results in the kept messages to this many characters
    #[arg(long, value_name = "N", value_parser = count, allow_hyphen_values = true)]
    tool_output_max_chars: Option<u32>,
    /// Strategy: truncate, observation_mask or llm
    #[arg(long, value_name = "STRATEGY", default_value = "observation_mask")]
    compact_strategy: String,
    /// Apply the hard limit strategy if the compacted context exceeds this many tokens
    #[arg(long, value_name = "N", value_parser = tokens, allow_hyphen_values = true)]
    hard_limit_tokens: Option<u64>,
    /// Strategy for --hard-limit-tokens; default: truncate
    #[arg(long, value_name = "STRATEGY")]
    hard_limit_strategy: Option<String>,
    /// Instructions for the summary, such as what to focus on
    #[arg(long, value_name = "TEXT")]
    instructions: Option<String>,
    /// Model that writes the summary for the llm strategy; default: the session's model
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// Compact even if the context does not become smaller
    #[arg(long)]
    force: bool,
    /// Show what would change, without changing it
    #[arg(long)]
    dry_run: bool,
}

pub async fn run(app: &mut App, args: CompactArgs) -> Result<()> {
    let session = app.session(&args.session).await?;
    let is_dry = args.dry_run;
    let mut how = Compacting::new(options_of(&args)?, Trigger::Manual);
    how.summariser = summariser(app, &session, &how.options, args.model).await?;
    how.writing = if is_dry { Writing::DryRun } else { Writing::Write };
    how.if_larger = if args.force { IfLarger::Write } else { IfLarger::Refuse };
    let done = app.engine.compaction().compact(&app.scope, &session, how).await?;
    print_compacted(app, &done, is_dry)
}

fn options_of(args: &CompactArgs) -> Result<CompactOptions> {
    let method = |key, name: &str| parse_method(key, name).map_err(sapwood::Error::from);
    let hard = args.hard_limit_strategy.as_deref().map(|name| method("hard_limit_strategy", name));
    let options = CompactOptions {
        keep_last: args.keep_last,
        keep_recent_tokens: args.keep_recent_tokens,
        keep_first: args.keep_first,
        token_threshold: args.token_threshold,
        tool_output_max_chars: args.tool_output_max_chars,
        compact_strategy: method("compact_strategy", &args.compact_strategy)?,
        hard_limit_tokens: args.hard_limit_tokens,
        hard_limit_strategy: hard.transpose()?,
        instructions: args.instructions.clone(),
        ..CompactOptions::default()
    };
    Ok(options)
}

/// Returns the summariser for the llm strategy. It uses the given model, or the session's model.
async fn summariser(
    app: &mut App,
    session: &SessionId,
    options: &CompactOptions,
    model: Option<String>,
) -> Result<Option<Arc<dyn Summariser>>> {
    let uses_model =
        [Some(options.compact_strategy), options.hard_limit_strategy].contains(&Some(Method::Llm));
    if !uses_model {
        // Reject --model if no strategy uses it, so that it is never silently ignored.
        let hint = "add --compact-strategy llm, or omit --model";
        return match model {
            Some(model) => Err(Failure::usage(
                format!("--model {model} has no effect: only the llm strategy uses a model"),
                hint,
            )),
            None => Ok(None),
        };
    }
    app.open_backends()?;
    Ok(Some(Arc::new(app.engine.compaction().summariser_of(&app.scope, session, model).await?)))
}

fn print_compacted(app: &mut App, done: &Compacted, is_dry: bool) -> Result<()> {
    if let Some(reason) = &done.cancelled {
        return Err(Failure::new("hook.refused", format!("a hook refused the compaction: {reason}")));
    }
    if let Some(larger) = done.larger {
        let before = done.tokens_before;
        let message =
            format!("the session was not compacted: the context would grow from {before} to {larger} tokens");
        return Err(Failure::new("compact.not_smaller", message));
    }
    if app.out.is_json() {
        let mut line = json!({
            "kept": done.kept, "archived": done.archived,
            "tokens_before": done.tokens_before, "tokens_after": done.tokens_after,
        });
        if let Some((seq, id)) = done.entry {
            (line["seq"], line["id"]) = (json!(seq), json!(id));
        }
        if let Some(instead_of) = done.compaction.as_ref().and_then(|compaction| compaction.instead_of) {
            line["instead_of"] = json!(instead_of);
        }
        if is_dry {
            line["dry_run"] = json!(true);
        }
        return app.out.json(&line);
    }
    let Some(compaction) = &done.compaction else {
        let kept = plural(done.kept as u64, "message");
        return Ok(writeln!(app.out, "nothing to compact: {kept}, {} tokens", done.tokens_before)?);
    };
    let would = if is_dry { "would be removed" } else { "removed" };
    writeln!(
        app.out,
        "{} {would} from the context, {} kept  {DIM}{} → {} tokens · {}{DIM:#}",
        plural(done.archived as u64, "message"),
        done.kept,
        done.tokens_before,
        done.tokens_after,
        compaction.strategy.as_str(),
    )?;
    if let Some(instead_of) = compaction.instead_of {
        let text = format!(
            "the {} strategy produced an empty summary, so {} was used instead",
            instead_of.as_str(),
            compaction.strategy.as_str()
        );
        note(app.format(), &text);
    }
    Ok(())
}
