//! Session search by words, in titles and in content.
//!
//! A page first lists the sessions whose title matches, then sessions with full-text hits. The cursor contains the
//! position in both lists, so that paging to the end returns every match.

use sapwood::core::port::store::{ListFilter, SearchQuery};
use sapwood::core::project::session_filter::{SessionFilter, TitleMatcher};
use sapwood::core::project::summary::Summary;

use super::ListPage;
use crate::auth::Caller;
use crate::problem::{Problem, Result};
use crate::state::State;

/// Maximum number of pages of full-text hits that one request reads.
const HIT_PAGES_MAX: usize = 8;
/// Separates the two halves of a cursor. Ids never contain this character.
const CURSOR_SEPARATOR: char = '|';
const START_MARKER: &str = "^";

/// The read position in a list or a search.
#[derive(Debug, Clone, PartialEq, Eq)]
enum HitPosition {
    Start,
    At(String),
    End,
}

impl HitPosition {
    fn parse(text: &str) -> Self {
        match text {
            "" => Self::End,
            START_MARKER => Self::Start,
            at => Self::At(at.to_owned()),
        }
    }

    fn as_str(&self) -> &str {
        match self {
            Self::Start => START_MARKER,
            Self::At(at) => at,
            Self::End => "",
        }
    }

    /// Returns the cursor for the next store request, or `None` at the start and the end.
    fn cursor(&self) -> Option<String> {
        if let Self::At(at) = self { Some(at.clone()) } else { None }
    }

    fn after_page(next: Option<String>) -> Self {
        next.map_or(Self::End, Self::At)
    }
}

/// Finds the sessions that match the words and the filter.
pub async fn find_sessions(
    state: &State,
    caller: &Caller,
    words: String,
    filter: ListFilter,
) -> Result<ListPage<Summary>> {
    let (mut titled, mut hits) = match filter.cursor.as_deref() {
        None => (HitPosition::Start, HitPosition::Start),
        Some(cursor) => {
            let halves = cursor.split_once(CURSOR_SEPARATOR);
            let (titled, hits) = halves.ok_or_else(|| Problem::invalid("cursor: not a search cursor"))?;
            (HitPosition::parse(titled), HitPosition::parse(hits))
        }
    };
    let mut items = Vec::new();
    if titled != HitPosition::End {
        let both = [filter.title.as_deref(), Some(words.as_str())];
        let title = Some(both.into_iter().flatten().collect::<Vec<_>>().join(" "));
        let named = ListFilter { title, cursor: titled.cursor(), ..filter.clone() };
        let page = state.engine.directory().list(&caller.scope, &named).await?;
        titled = HitPosition::after_page(page.next);
        items = page.items;
    }
    let search = Search { state, caller, words: &words, filter: &filter };
    hits = search.fill(&mut items, hits).await?;
    let is_over = titled == HitPosition::End && hits == HitPosition::End;
    let next = (!is_over).then(|| format!("{}{CURSOR_SEPARATOR}{}", titled.as_str(), hits.as_str()));
    Ok(ListPage::new(items, next))
}

struct Search<'a> {
    state: &'a State,
    caller: &'a Caller,
    words: &'a str,
    filter: &'a ListFilter,
}

impl Search<'_> {
    /// Fills a page with the sessions of full-text hits, each once. Sessions whose title matches are skipped, because
    /// the title list returns them.
    async fn fill(&self, items: &mut Vec<Summary>, mut from: HitPosition) -> Result<HitPosition> {
        let (engine, scope) = (&self.state.engine, &self.caller.scope);
        let (wanted, title) = (SessionFilter::of(self.filter), TitleMatcher::of(self.words));
        for _ in 0..HIT_PAGES_MAX {
            let remaining = self.filter.limit.saturating_sub(items.len());
            if remaining == 0 || from == HitPosition::End {
                break;
            }
            let text = self.words.to_owned();
            let query = SearchQuery { text, session: None, limit: remaining, cursor: from.cursor() };
            let page = engine.directory().search(scope, &query).await?;
            for hit in page.items {
                if items.iter().any(|summary| summary.id == hit.session) {
                    continue;
                }
                let summary = match engine.directory().summary(scope, &hit.session).await {
                    // The session was erased in the meantime.
                    Err(error) if error.code() == "session.not_found" => continue,
                    summary => summary?,
                };
                let is_match = wanted.includes(&summary) && !title.matches(&summary);
                if is_match && engine.directory().is_in_context_state(scope, &summary, self.filter).await? {
                    items.push(summary);
                }
            }
            from = HitPosition::after_page(page.next);
        }
        Ok(from)
    }
}
