//! `sapwood search`: full text over every session the caller may read.

use std::collections::BTreeSet;
use std::io::Write;

use clap::Args;
use sapwood::SessionId;
use sapwood::core::port::clock::Clock;
use sapwood::core::port::store::{Hit, SearchQuery};
use serde::Serialize;

use crate::app::App;
use crate::args::rows;
use crate::failure::Result;
use crate::render::{self, BOLD, DIM, MATCH, age, clean, fit};

const HITS_DEFAULT: u32 = 50;
/// How many are asked of the store at a time.
const PAGE_ROWS: usize = 500;

/// Find messages; "words in quotes" stand together, a trailing * matches the rest of a word
#[derive(Debug, Args)]
pub struct SearchArgs {
    #[arg(allow_hyphen_values = true)]
    query: String,
    /// Only in this session
    #[arg(long, value_name = "SESSION")]
    session: Option<String>,
    #[arg(long, value_name = "N", value_parser = rows, default_value_t = HITS_DEFAULT, allow_hyphen_values = true)]
    limit: u32,
    /// Go on where a list ended: what its last line has as "next"
    #[arg(long, value_name = "CURSOR", allow_hyphen_values = true)]
    after: Option<String>,
}

/// A line of the answer; the last one of an answer that goes on says where.
#[derive(Serialize)]
struct Line<'a> {
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
    let mut left = args.limit as usize;
    let mut query = SearchQuery { text: args.query, session, limit: 0, cursor: args.after };
    let mut hits = Vec::new();
    while left > 0 {
        query.limit = left.min(PAGE_ROWS);
        let page = app.engine.search(&app.scope, &query).await?;
        let found = page.items.len();
        left -= found.min(left);
        hits.extend(page.items);
        query.cursor = page.next;
        if query.cursor.is_none() || found == 0 {
            break;
        }
    }
    let shown: BTreeSet<&SessionId> = hits.iter().map(|hit| &hit.session).collect();
    for session in shown {
        match app.note_read(session).await {
            // Erased in between: nobody is left to be told.
            Err(failure) if failure.code == "session.not_found" => {}
            noted => noted?,
        }
    }
    print_hits(app, &hits, &query)
}

fn print_hits(app: &mut App, hits: &[Hit], query: &SearchQuery) -> Result<()> {
    if app.out.is_json() {
        for (at, hit) in hits.iter().enumerate() {
            let next = query.cursor.as_deref().filter(|_| at + 1 == hits.len());
            app.out.json(&Line { hit, next })?;
        }
        return Ok(());
    }
    if hits.is_empty() {
        render::note(app.format(), "nothing found");
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
        render::note(app.format(), &format!("there is more: --after {next}"));
    }
    Ok(())
}

/// The words of a query, in lower case, as far as they are worth showing.
fn words(query: &str) -> Vec<String> {
    let words = query.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect()
}

/// Marks the words of a snippet that begin with a word of the query.
fn highlight(snippet: &str, words: &[String]) -> String {
    let mut marked = String::with_capacity(snippet.len() + 32);
    for piece in snippet.split_inclusive(|c: char| !c.is_alphanumeric()) {
        let word = piece.trim_end_matches(|c: char| !c.is_alphanumeric());
        let lower = word.to_lowercase();
        if !word.is_empty() && words.iter().any(|wanted| lower.starts_with(wanted)) {
            marked.push_str(&format!("{MATCH}{word}{MATCH:#}{}", &piece[word.len()..]));
        } else {
            marked.push_str(piece);
        }
    }
    marked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_words_that_were_asked_for_are_marked() {
        let marked = highlight("The Fern grows, fernlike.", &words("fern"));
        assert_eq!(marked, format!("The {MATCH}Fern{MATCH:#} grows, {MATCH}fernlike{MATCH:#}."));
    }
}
