//! `sapwood memory`: lists, searches, adds, edits, deletes and extracts memories.

use std::io::Write;

use clap::{Args, Subcommand, ValueEnum};
use sapwood::core::port::memory::Standing;
use sapwood::engine::memory::MemoryView;
use sapwood::{
    Belongs, Memory, MemoryEdit, MemoryFilter, MemoryKind, MemoryOutcome, StoredMemory, UserMemory, Whose,
};
use serde_json::{Value, json};

use crate::app::App;
use crate::failure::Result;
use crate::number_arg::rows;
use crate::render::{BOLD, DIM, clean, note, plural};

const ROWS_DEFAULT: u32 = 50;
const RESULTS_DEFAULT: u32 = 10;

/// Manage memories learned from sessions
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood memory add \"Our staging database is heron\"
  sapwood memory search \"which database do we use for staging\"")]
pub struct MemoryArgs {
    #[command(subcommand)]
    command: MemoryCommand,
}

#[derive(Debug, Subcommand)]
enum MemoryCommand {
    /// List memories, newest first
    #[command(after_help = "\
Examples:
  sapwood memory ls
  sapwood memory ls --kind decision --limit 10")]
    Ls {
        /// List only memories of this kind
        #[arg(long, value_enum)]
        kind: Option<KindArg>,
        /// List only memories from this session
        #[arg(long, value_name = "SESSION")]
        session: Option<String>,
        /// Include superseded memories
        #[arg(long)]
        superseded: bool,
        /// List the memories of all users (operator only)
        #[arg(long)]
        all: bool,
        /// Maximum number of memories
        #[arg(long, value_name = "N", value_parser = rows, default_value_t = ROWS_DEFAULT)]
        limit: u32,
        /// Continue after this cursor: the "next" value of an earlier list
        #[arg(long, value_name = "CURSOR")]
        after: Option<String>,
    },
    /// Add a memory
    #[command(after_help = "\
Examples:
  sapwood memory add \"Our staging database is heron\"
  sapwood memory add \"Use tabs\" --kind preference")]
    Add {
        /// Text of the memory
        #[arg(allow_hyphen_values = true)]
        text: String,
        /// Kind of the memory
        #[arg(long, value_enum, default_value = "fact")]
        kind: KindArg,
        /// Share the memory with all users of the tenant
        #[arg(long)]
        everybody: bool,
    },
    /// Show a memory and its sources
    #[command(after_help = "\
Examples:
  sapwood memory show MEMORY_ID")]
    Show {
        /// Memory id or unique prefix
        id: String,
    },
    /// Edit a memory
    #[command(after_help = "\
Examples:
  sapwood memory edit MEMORY_ID --text \"Our staging database is egret\"
  sapwood memory edit MEMORY_ID --private")]
    Edit {
        /// Memory id or unique prefix
        id: String,
        /// New text
        #[arg(long, allow_hyphen_values = true)]
        text: Option<String>,
        /// New kind
        #[arg(long, value_enum)]
        kind: Option<KindArg>,
        /// Share the memory with all users of the tenant
        #[arg(long, conflicts_with = "private")]
        everybody: bool,
        /// Make the memory visible to you only
        #[arg(long)]
        private: bool,
        /// Edit only if the memory has this version
        #[arg(long, value_name = "N")]
        version: Option<u64>,
    },
    /// Search memories with a question or keywords
    #[command(after_help = "\
Examples:
  sapwood memory search \"which database do we use for staging\"
  sapwood memory search \"staging database\" --words")]
    Search {
        /// Question or keywords
        #[arg(allow_hyphen_values = true)]
        question: String,
        /// Maximum number of results
        #[arg(long, value_name = "N", value_parser = rows, default_value_t = RESULTS_DEFAULT)]
        limit: u32,
        /// Match all words as `sapwood search` does, newest first
        #[arg(long)]
        words: bool,
    },
    /// Delete a memory permanently, with the ones it superseded
    #[command(after_help = "\
Examples:
  sapwood memory forget MEMORY_ID")]
    Forget {
        /// Memory id or unique prefix
        id: String,
    },
    /// Extract memories from the new entries of a session
    #[command(after_help = "\
Examples:
  sapwood memory extract @last")]
    Extract {
        /// Session id, unique prefix, or @last
        session: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum KindArg {
    /// A fact
    Fact,
    /// A preference of the user
    Preference,
    /// A decision and its reason
    Decision,
    /// A recurring error and its fix
    #[value(alias = "error_pattern")]
    ErrorPattern,
}

impl KindArg {
    fn kind(self) -> MemoryKind {
        match self {
            KindArg::Fact => MemoryKind::Fact,
            KindArg::Preference => MemoryKind::Preference,
            KindArg::Decision => MemoryKind::Decision,
            KindArg::ErrorPattern => MemoryKind::ErrorPattern,
        }
    }
}

pub async fn run(app: &mut App, args: MemoryArgs) -> Result<()> {
    match args.command {
        MemoryCommand::Ls { kind, session, superseded, all, limit, after } => {
            let session = match session {
                Some(given) => Some(app.session(&given).await?),
                None => None,
            };
            let whose = if all { Whose::Any } else { Whose::For(app.scope.principal.clone()) };
            let standing = if superseded { Standing::Any } else { Standing::Current };
            let kind = kind.map(KindArg::kind);
            let (text, limit) = (String::new(), limit as usize);
            list(app, MemoryFilter { whose, standing, kind, session, text, limit, cursor: after }).await
        }
        MemoryCommand::Add { text, kind, everybody } => {
            let belongs = everybody.then_some(Belongs::Tenant);
            let kept = app
                .engine
                .memories()
                .remember(&app.scope, UserMemory { text, kind: kind.kind(), belongs })
                .await?;
            print_kept(app, &kept)
        }
        MemoryCommand::Show { id } => show(app, &id).await,
        MemoryCommand::Edit { id, text, kind, everybody, private, version } => {
            let own = private.then(|| Belongs::To(app.scope.principal.clone()));
            let belongs = everybody.then_some(Belongs::Tenant).or(own);
            let edit = MemoryEdit { text, kind: kind.map(KindArg::kind), belongs, expected: version };
            let id = app.engine.memories().find(&app.scope, &id).await?;
            let memory = app.engine.memories().edit(&app.scope, id, edit).await?;
            print_memory(app, &memory, json!({}))
        }
        MemoryCommand::Search { question, limit, words } => {
            search(app, question, limit as usize, words).await
        }
        MemoryCommand::Forget { id } => {
            let id = app.engine.memories().find(&app.scope, &id).await?;
            let forgotten = app.engine.memories().forget(&app.scope, id).await?;
            if app.out.is_json() {
                return app.out.json(&json!({ "id": id, "forgotten": forgotten }));
            }
            Ok(writeln!(app.out, "forgot {}", plural(forgotten as u64, "memory"))?)
        }
        MemoryCommand::Extract { session } => extract(app, &session).await,
    }
}

async fn list(app: &mut App, filter: MemoryFilter) -> Result<()> {
    let page = app.engine.memories().list(&app.scope, &filter).await?;
    for (at, memory) in page.items.iter().enumerate() {
        let next = page.next.as_ref().filter(|_| at + 1 == page.items.len());
        print_memory(app, memory, next.map_or(json!({}), |next| json!({ "next": next })))?;
    }
    if page.items.is_empty() {
        note(app.format(), "no memories");
    } else if let Some(next) = &page.next {
        note(app.format(), &format!("more memories: --after {next}"));
    }
    Ok(())
}

async fn show(app: &mut App, given: &str) -> Result<()> {
    let id = app.engine.memories().find(&app.scope, given).await?;
    let memory = app.engine.memories().get(&app.scope, id).await?;
    let older = app.engine.memories().superseded(&app.scope, &memory).await?;
    if app.out.is_json() {
        let ids: Vec<String> = older.iter().map(|older| older.id.to_string()).collect();
        return print_memory(app, &memory, json!({ "supersedes": ids }));
    }
    let shown = MemoryView::from(&memory);
    writeln!(app.out, "{BOLD}{}{BOLD:#}", memory.id)?;
    writeln!(app.out, "{}", clean(&memory.text))?;
    writeln!(
        app.out,
        "{DIM}{}, version {}, strength {}{DIM:#}",
        shown.kind.as_str(),
        shown.version,
        shown.strength
    )?;
    writeln!(app.out, "{DIM}{}{DIM:#}", clean(&shown.provenance))?;
    for source in &memory.sources {
        let entries: Vec<String> = source.entries.iter().map(ToString::to_string).collect();
        writeln!(app.out, "  from session {}: {}", source.session, entries.join(", "))?;
    }
    if let Some(newer) = memory.superseded_by {
        writeln!(app.out, "  superseded by {newer}")?;
    }
    for older in older {
        writeln!(app.out, "  supersedes {}: {}", older.id, clean(&older.text))?;
    }
    Ok(())
}

async fn search(app: &mut App, question: String, limit: usize, words: bool) -> Result<()> {
    let whose = Whose::For(app.scope.principal.clone());
    if words {
        return list(app, MemoryFilter { whose, text: question, limit, ..MemoryFilter::default() }).await;
    }
    let recollection = app.engine.memories().recollect(&app.scope, &question, whose, limit).await?;
    for found in &recollection.found {
        let score = (found.score * 1_000.0).round() / 1_000.0;
        let by = if recollection.by_embedding { "embedding" } else { "words" };
        print_memory(app, &found.memory, json!({ "score": score, "by": by }))?;
    }
    if recollection.found.is_empty() {
        note(app.format(), "no matching memories");
    }
    Ok(())
}

async fn extract(app: &mut App, given: &str) -> Result<()> {
    app.open_backends_to_learn()?;
    let session = app.session(given).await?;
    let learning = app.engine.memories().learn(&app.scope, &session).await?;
    if app.out.is_json() {
        let kept: Vec<Value> = learning.kept.iter().map(kept_json).collect();
        return app.out.json(&json!({
            "session": session, "how": learning.how, "fell_back": learning.fell_back,
            "entries": learning.entries, "kept": kept,
        }));
    }
    for kept in &learning.kept {
        print_kept(app, kept)?;
    }
    if let Some(why) = &learning.fell_back {
        note(app.format(), &format!("rules were used instead of the model's answer: {why}"));
    }
    if learning.kept.is_empty() {
        note(app.format(), "nothing new to learn");
    }
    Ok(())
}

fn kept_json(kept: &StoredMemory) -> Value {
    let mut value = serde_json::to_value(MemoryView::from(&kept.memory)).unwrap_or_default();
    let outcome = serde_json::to_value(kept.outcome).unwrap_or_default();
    merge(&mut value, outcome);
    value
}

fn print_kept(app: &mut App, kept: &StoredMemory) -> Result<()> {
    if app.out.is_json() {
        return app.out.json(&kept_json(kept));
    }
    let word = match kept.outcome {
        MemoryOutcome::Learned => "learned",
        MemoryOutcome::Strengthened => "strengthened",
        MemoryOutcome::Known => "already known",
        MemoryOutcome::Superseded { .. } => "learned, superseding an older memory",
    };
    Ok(writeln!(app.out, "{DIM}{}{DIM:#} {word}: {}", kept.memory.id, clean(&kept.memory.text))?)
}

fn print_memory(app: &mut App, memory: &Memory, more: Value) -> Result<()> {
    if app.out.is_json() {
        let mut value = serde_json::to_value(MemoryView::from(memory)).unwrap_or_default();
        merge(&mut value, more);
        return app.out.json(&value);
    }
    let old = if memory.is_current() { "" } else { " (superseded)" };
    let whose = if memory.belongs == Belongs::Tenant { " (tenant)" } else { "" };
    Ok(writeln!(
        app.out,
        "{DIM}{} {:<13}{DIM:#} {}{DIM}{whose}{old}{DIM:#}",
        memory.id,
        memory.kind.as_str(),
        clean(&memory.text)
    )?)
}

fn merge(value: &mut Value, more: Value) {
    if let (Some(fields), Value::Object(more)) = (value.as_object_mut(), more) {
        fields.extend(more);
    }
}
