//! `sapwood search`: full-text search over every session that the caller can read.

use std::collections::BTreeSet;
use std::io::Write;

use clap::Args;
use sapwood::SessionId;
use sapwood::core::port::clock::Clock;
use sapwood::core::port::store::{Hit, SearchQuery};
use serde::Serialize;

use crate::app::App;
use crate::failure::Result;
use crate::number_arg::rows;
use crate::render::{self, BOLD, DIM, MATCH, age, clean, fit};

const HITS_DEFAULT: u32 = 50;
/// Number of hits per store query.
const PAGE_ROWS: usize = 500;

/// Search the messages of all sessions
///
/// Words in "quotes" match as a phrase. A trailing * matches any word with this prefix.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood search \"connection pool\"
  sapwood search 'deploy*' --session @last
  sapwood search '\"exact phrase\"' --limit 10 --json")]
pub struct SearchArgs {
    /// Words to search for
    #[arg(allow_hyphen_values = true)]
    query: String,
    /// Search only this session: id, unique prefix, or @last
    #[arg(long, value_name = "SESSION")]
    session: Option<String>,
    /// Maximum number of hits
    #[arg(long, value_name = "N", value_parser = rows, default_value_t = HITS_DEFAULT, allow_hyphen_values = true)]
    limit: u32,
    /// Continue after this cursor: the "next" value of an earlier search
    #[arg(long, value_name = "CURSOR", allow_hyphen_values = true)]
    after: Option<String>,
}

/// A hit. The last line of a truncated result has the cursor for `--after`.
#[derive(Serialize)]
struct HitLine<'a> {
    #[serde(flatten)]
    hit: &'a Hit,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<&'a str>,
}

pub async fn run(app: &mut App, args: SearchArgs) -> Result<()> {
    let session = match &args.session {
        Some(given) => Some(app.session(given).await?),
        None => None,
    };
    let mut remaining = args.limit as usize;
    let mut query = SearchQuery { text: args.query, session, limit: 0, cursor: args.after };
    let mut hits = Vec::new();
    while remaining > 0 {
        query.limit = remaining.min(PAGE_ROWS);
        let page = app.engine.directory().search(&app.scope, &query).await?;
        let found = page.items.len();
        remaining -= found.min(remaining);
        hits.extend(page.items);
        query.cursor = page.next;
        if query.cursor.is_none() || found == 0 {
            break;
        }
    }
    let shown: BTreeSet<&SessionId> = hits.iter().map(|hit| &hit.session).collect();
    for session in shown {
        match app.note_read(session).await {
            // The session was erased in the meantime, so there is no read to record.
            Err(failure) if failure.code == "session.not_found" => {}
            noted => noted?,
        }
    }
    print_hits(app, &hits, &query)?;
    match query.session {
        Some(_) => Ok(()),
        None => app.check_complete("search").await,
    }
}

fn print_hits(app: &mut App, hits: &[Hit], query: &SearchQuery) -> Result<()> {
    if app.out.is_json() {
        for (at, hit) in hits.iter().enumerate() {
            let next = query.cursor.as_deref().filter(|_| at + 1 == hits.len());
            app.out.json(&HitLine { hit, next })?;
        }
        return Ok(());
    }
    if hits.is_empty() {
        render::note(app.format(), "no matches");
    }
    let words = words(&query.text);
    let now = sapwood::SystemClock.now().0;
    let mut group: Option<&SessionId> = None;
    for hit in hits {
        if group != Some(&hit.session) {
            let gap = if group.is_some() { "\n" } else { "" };
            let title = clean(hit.title.as_deref().unwrap_or_default());
            writeln!(app.out, "{gap}{BOLD}{}{BOLD:#} {title}", hit.session)?;
            group = Some(&hit.session);
        }
        let snippet = highlight(&fit(&hit.snippet, usize::MAX), &words);
        writeln!(app.out, "  {DIM}{} {} {}{DIM:#}  {snippet}", hit.seq, hit.kind, age(hit.at.0, now))?;
    }
    if let Some(next) = &query.cursor {
        render::note(app.format(), &format!("more hits: --after {next}"));
    }
    Ok(())
}

/// Returns the words of a query in lower case, for highlighting.
fn words(query: &str) -> Vec<String> {
    let words = query.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect()
}

/// Highlights the words of a snippet that start with a word of the query.
fn highlight(snippet: &str, words: &[String]) -> String {
    let mut marked = String::with_capacity(snippet.len() + 32);
    for token in snippet.split_inclusive(|c: char| !c.is_alphanumeric()) {
        let word = token.trim_end_matches(|c: char| !c.is_alphanumeric());
        let lower = word.to_lowercase();
        if !word.is_empty() && words.iter().any(|wanted| lower.starts_with(wanted)) {
            marked.push_str(&format!("{MATCH}{word}{MATCH:#}{}", &token[word.len()..]));
        } else {
            marked.push_str(token);
        }
    }
    marked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_of_the_query_are_highlighted() {
        let marked = highlight("The Fern grows, fernlike.", &words("fern"));
        assert_eq!(marked, format!("The {MATCH}Fern{MATCH:#} grows, {MATCH}fernlike{MATCH:#}."));
    }
}
