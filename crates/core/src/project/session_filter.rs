//! The session filter: one pure rule for all stores, searches and clients.

use super::summary::Summary;
use crate::port::store::ListFilter;

/// Maximum number of title words to match; further words are ignored.
const WORDS_MAX: usize = 16;

/// A [`ListFilter`], prepared for matching many sessions.
#[derive(Debug, Clone)]
pub struct SessionFilter<'a> {
    filter: &'a ListFilter,
    title: TitleMatcher,
}

impl<'a> SessionFilter<'a> {
    pub fn of(filter: &'a ListFilter) -> Self {
        Self { filter, title: TitleMatcher::of(filter.title.as_deref().unwrap_or_default()) }
    }

    pub fn includes(&self, summary: &Summary) -> bool {
        let filter = self.filter;
        filter.state.is_none_or(|state| summary.state == state)
            && (filter.context.is_none() || summary.compactions > 0 || summary.inherited > 0)
            && (filter.cwd.is_none() || summary.cwd == filter.cwd)
            && (filter.agent.is_none() || summary.agent == filter.agent)
            && filter.owner.as_ref().is_none_or(|owner| summary.owner == *owner)
            && filter.since.is_none_or(|since| summary.updated_at >= since)
            && filter.until.is_none_or(|until| summary.updated_at < until)
            && (!filter.has_open_turn || summary.open_turn.is_some())
            && filter.id_prefix.as_ref().is_none_or(|prefix| summary.id.as_str().starts_with(prefix.as_str()))
            && self.title.matches(summary)
    }
}

/// Words that must all occur in a session's title or id, ignoring case. Search operators are ignored.
#[derive(Debug, Clone)]
pub struct TitleMatcher(Vec<String>);

impl TitleMatcher {
    pub fn of(text: &str) -> Self {
        let lower = text.to_lowercase();
        let words = lower.split_whitespace().map(|word| word.trim_matches(['*', '"']));
        Self(words.filter(|word| !word.is_empty()).take(WORDS_MAX).map(str::to_owned).collect())
    }

    pub fn matches(&self, summary: &Summary) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let shown = summary.title.as_deref().or(summary.preview.as_deref()).unwrap_or_default();
        let (shown, id) = (shown.to_lowercase(), summary.id.as_str().to_lowercase());
        self.0.iter().all(|word| shown.contains(word) || id.contains(word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TimestampMs;
    use crate::port::store::NewSession;
    use crate::scope::Principal;

    fn summary_of(id: &str, title: Option<&str>) -> Summary {
        let new = NewSession {
            title: title.map(str::to_owned),
            ..NewSession::new(id.parse().unwrap(), TimestampMs(1_000))
        };
        Summary::new(&new, Principal::System)
    }

    fn is_included(text: &str, summary: &Summary) -> bool {
        let filter = ListFilter { title: Some(text.to_owned()), ..ListFilter::default() };
        SessionFilter::of(&filter).includes(summary)
    }

    #[test]
    fn every_word_must_be_in_the_title_or_the_id_in_any_case() {
        let summary = summary_of("river-7", Some("The Längste Winter"));
        for text in ["", "  ", "winter", "WIN", "längste the", "RIVER winter", "\"the\" win*"] {
            assert!(is_included(text, &summary), "{text:?}");
        }
        assert!(!is_included("winter summer", &summary));
        assert!(!is_included("7 8", &summary));
    }

    #[test]
    fn the_preview_counts_as_the_title_if_there_is_none() {
        let mut summary = summary_of("s", None);
        assert!(!is_included("hello", &summary));
        summary.preview = Some("Hello there".to_owned());
        assert!(is_included("hello", &summary));
        summary.title = Some("Named".to_owned());
        assert!(!is_included("hello", &summary), "the list shows the title instead");
    }

    #[test]
    fn a_time_range_includes_its_start_and_excludes_its_end() {
        let summary = summary_of("s", None);
        let within = |since, until| {
            let filter = ListFilter {
                since: Some(TimestampMs(since)),
                until: Some(TimestampMs(until)),
                ..ListFilter::default()
            };
            SessionFilter::of(&filter).includes(&summary)
        };
        assert!(within(1_000, 1_001));
        assert!(!within(1_001, 2_000));
        assert!(!within(0, 1_000));
    }
}
