//! `sapwood model`: lists, shows and checks models. Opens no store.

use std::io::Write;

use clap::{Args, Subcommand};
use sapwood::core::port::model::{ModelError, Price};
use sapwood::effects::model::{Checked, KeyState, ModelEntry, Models, ThinkingStyle};
use serde_json::{Value, json};

use crate::app_paths::AppPaths;
use crate::failure::{Failure, Result};
use crate::global_args::Global;
use crate::providers;
use crate::render::{DIM, GREEN, Out, Table, note};

/// Converts billionths of a dollar per token to dollars per million tokens.
const NANO_PER_DOLLAR_PER_MILLION: f64 = 1_000.0;

/// List, show and check models
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood model ls --available
  sapwood model show claude-sonnet-4-5-20250929
  sapwood model check openai/gpt-5

A row in your own sapwood.toml adds a model or corrects the catalog:
  [models.\"lab/llama-3.3\"]
  window = 32000
  output = 4000
  price = { input = 0.1, output = 0.4 }")]
pub struct ModelArgs {
    #[command(subcommand)]
    command: ModelCommand,
}

#[derive(Debug, Subcommand)]
enum ModelCommand {
    /// List the models of the catalog, with windows, prices and whether their key is set
    #[command(after_help = "\
Examples:
  sapwood model ls
  sapwood model ls --available --json")]
    Ls {
        /// List only models that can be called now
        #[arg(long)]
        available: bool,
    },
    /// Show a model; accepts dated names and other programs' spellings
    #[command(after_help = "\
Examples:
  sapwood model show openai/gpt-5
  sapwood model show us.anthropic.claude-sonnet-4-5-20250929-v1:0")]
    Show {
        /// Model name; default: the configured model
        name: Option<String>,
    },
    /// Check that a model's key is accepted and its endpoint answers, without a conversation
    #[command(after_help = "\
Examples:
  sapwood model check
  sapwood model check anthropic/claude-sonnet-4-5")]
    Check {
        /// Model name; default: the configured model
        name: Option<String>,
    },
}

pub async fn run(args: ModelArgs, global: &Global) -> Result<()> {
    let paths = AppPaths::find(global)?;
    let models = providers::open_models(&paths)?;
    let default = paths.config.model.clone().unwrap_or_else(|| "demo".to_owned());
    let mut out = Out::new(global.format());
    match args.command {
        ModelCommand::Ls { available } => list(&models, &default, available, &mut out)?,
        ModelCommand::Show { name } => show(&models, name.as_deref().unwrap_or(&default), &mut out)?,
        ModelCommand::Check { name } => check(&models, name.as_deref().unwrap_or(&default), &mut out).await?,
    }
    Ok(out.flush()?)
}

fn list(models: &Models, default: &str, only_available: bool, out: &mut Out) -> Result<()> {
    let mut entries = models.list();
    let default = models.describe(default).ok();
    if let Some(default) = default.as_ref().filter(|default| !entries.contains(default)) {
        entries.insert(0, default.clone());
    }
    entries.retain(|entry| !only_available || entry.is_available());
    let is_default = |entry: &ModelEntry| default.as_ref().is_some_and(|default| default.name == entry.name);
    if out.is_json() {
        return entries.iter().try_for_each(|entry| out.json(&as_json(entry, is_default(entry))));
    }
    let missing = entries.iter().filter(|entry| !entry.is_available()).count();
    let rows = entries.iter().map(|entry| row(entry, is_default(entry))).collect();
    let head = ["MODEL", "WINDOW", "OUTPUT", "INPUT $/M", "OUTPUT $/M", "KEY"];
    Table { head: &head, rows, flexible: 0 }.print(out)?;
    if missing > 0 {
        note(
            out.format,
            &format!("{missing} models have no key; `sapwood model show NAME` names its variable"),
        );
    }
    Ok(())
}

fn row(entry: &ModelEntry, is_default: bool) -> Vec<String> {
    let tokens = |tokens: Option<u64>| tokens.map_or_else(|| "-".to_owned(), |tokens| tokens.to_string());
    let price = |of: fn(&Price) -> u64| {
        entry.facts.price.as_ref().map_or_else(|| "-".to_owned(), |price| dollars(of(price)).to_string())
    };
    let key = match &entry.key {
        KeyState::NotNeeded => "not needed",
        KeyState::Found(_) => "set",
        KeyState::Missing(_) => "missing",
    };
    vec![
        if is_default { format!("{} (default)", entry.name) } else { entry.name.clone() },
        tokens(entry.facts.window_tokens),
        tokens(entry.facts.output_tokens_max),
        price(|price| price.input),
        price(|price| price.output),
        key.to_owned(),
    ]
}

fn dollars(nano_per_token: u64) -> f64 {
    nano_per_token as f64 / NANO_PER_DOLLAR_PER_MILLION
}

fn as_json(entry: &ModelEntry, is_default: bool) -> Value {
    let (key, variable) = match &entry.key {
        KeyState::NotNeeded => ("not_needed", None),
        KeyState::Found(variable) => ("found", Some(variable)),
        KeyState::Missing(variable) => ("missing", Some(variable)),
    };
    let price = entry.facts.price.as_ref().map(|price| {
        json!({
            "input": dollars(price.input), "output": dollars(price.output),
            "cache_read": dollars(price.cache_read), "cache_write": dollars(price.cache_write),
        })
    });
    json!({
        "model": entry.name, "provider": entry.provider, "base_url": entry.base_url,
        "window_tokens": entry.facts.window_tokens, "output_tokens_max": entry.facts.output_tokens_max,
        "price_usd_per_million": price, "thinking": thinking_name(entry.thinking),
        "key": key, "key_variable": variable, "available": entry.is_available(), "default": is_default,
    })
}

fn thinking_name(style: ThinkingStyle) -> &'static str {
    match style {
        ThinkingStyle::Unknown => "unknown",
        ThinkingStyle::None => "none",
        ThinkingStyle::Budget => "budget",
        ThinkingStyle::Adaptive => "adaptive",
        ThinkingStyle::AdaptiveByDefault => "adaptive-by-default",
        ThinkingStyle::Effort => "effort",
        ThinkingStyle::Level => "level",
    }
}

fn describe(models: &Models, name: &str) -> Result<ModelEntry> {
    models.describe(name).map_err(|error| failure(&error))
}

fn show(models: &Models, name: &str, out: &mut Out) -> Result<()> {
    let entry = describe(models, name)?;
    if out.is_json() {
        let mut line = as_json(&entry, false);
        (line["asked"], line["default"]) = (json!(name), Value::Null);
        return out.json(&line);
    }
    let mut lines = vec![("model", entry.name.clone())];
    let mut add = |key, value: Option<String>| lines.extend(value.map(|value| (key, value)));
    add("asked", Some(name.to_owned()).filter(|name| *name != entry.name));
    add("endpoint", entry.base_url.clone());
    add("key", Some(key_text(&entry.key)));
    add("window", entry.facts.window_tokens.map(|tokens| format!("{tokens} tokens")));
    add("output", entry.facts.output_tokens_max.map(|tokens| format!("at most {tokens} tokens")));
    add("price", entry.facts.price.as_ref().map(price_text));
    add("thinking", Some(thinking_name(entry.thinking).to_owned()));
    if entry.facts.window_tokens.is_none() {
        let row = format!("unknown: add [models.\"{}\"] to your own sapwood.toml", entry.name);
        add("window", Some(row));
    }
    for (key, value) in lines {
        writeln!(out, "{DIM}{key}:{DIM:#} {value}")?;
    }
    Ok(())
}

fn key_text(key: &KeyState) -> String {
    match key {
        KeyState::NotNeeded => "not needed".to_owned(),
        KeyState::Found(variable) => format!("found in {variable}"),
        KeyState::Missing(variable) => format!("missing: set {variable}"),
    }
}

fn price_text(price: &Price) -> String {
    format!(
        "${} input, ${} output, ${} cache read, ${} cache write per million tokens",
        dollars(price.input),
        dollars(price.output),
        dollars(price.cache_read),
        dollars(price.cache_write)
    )
}

async fn check(models: &Models, name: &str, out: &mut Out) -> Result<()> {
    let entry = describe(models, name)?;
    let checked = models.check_endpoint(&entry.name).await.map_err(|error| failure(&error))?;
    let (state, text) = match checked {
        Checked::Local => ("local", "runs inside this program"),
        Checked::Listed => ("listed", "the key is accepted and the provider has the model"),
        Checked::Answered => ("answered", "the key is accepted; the provider does not list its models"),
    };
    if out.is_json() {
        return out.json(
            &json!({ "model": entry.name, "ok": true, "endpoint": state, "base_url": entry.base_url }),
        );
    }
    let at = entry.base_url.map(|url| format!("  {DIM}{url}{DIM:#}")).unwrap_or_default();
    Ok(writeln!(out, "{GREEN}✓{GREEN:#} {}: {text}{at}", entry.name)?)
}

fn failure(error: &ModelError) -> Failure {
    Failure::new(error.code(), error.to_string())
}
