//! The protocol for a model's rating of its own answer: a final line `<confidence>0.8</confidence>`. The line is
//! removed from the stream and from the logged answer.

use crate::content::Part;

const OPEN: &str = "<confidence>";
const CLOSE: &str = "</confidence>";
/// Maximum length of a rating, in bytes. Longer text is ordinary text.
const RATING_BYTES_MAX: usize = 16;

/// The instruction for the model, appended to its system prompt.
pub const INSTRUCTION: &str = "End every message with one line that rates how sure you are that it is right, from 0 \
    to 1, in this form: <confidence>0.8</confidence>. Only the program reads that line.";

/// Remove the ratings from an answer's text. The last rating from 0 to 1 counts. A text part without a rating stays
/// unchanged.
pub fn take_rating(parts: &mut Vec<Part>) -> Option<f32> {
    let mut rating = None;
    for part in parts.iter_mut() {
        if let Part::Text(text) = part {
            let mut filter = RatingFilter::default();
            let mut shown = filter.push(&text.text);
            shown.push_str(&filter.finish());
            if filter.has_removed {
                rating = filter.rating.or(rating);
                text.text = shown.trim_end().to_owned();
            }
        }
    }
    parts.retain(|part| part.as_text() != Some(""));
    rating
}

/// Stream filter that holds back text that may be the start of a rating.
#[derive(Debug, Default)]
pub struct RatingFilter {
    held: String,
    pub rating: Option<f32>,
    /// Whether a rating was removed, valid or not.
    has_removed: bool,
}

impl RatingFilter {
    /// Add text, and return the text that may be shown so far.
    pub fn push(&mut self, text: &str) -> String {
        self.held.push_str(text);
        let mut shown = String::new();
        while let Some(at) = self.held.find('<') {
            shown.push_str(&self.held[..at]);
            self.held.drain(..at);
            match match_rating(&self.held) {
                TagMatch::Complete { rating, bytes } => {
                    self.rating = rating.or(self.rating);
                    self.has_removed = true;
                    self.held.drain(..bytes);
                }
                TagMatch::Partial => return shown,
                TagMatch::None => {
                    shown.push('<');
                    self.held.drain(..1);
                }
            }
        }
        shown.push_str(&self.held);
        self.held.clear();
        shown
    }

    /// Return the text that was held back but is not a rating.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

enum TagMatch {
    Complete { rating: Option<f32>, bytes: usize },
    Partial,
    None,
}

fn match_rating(text: &str) -> TagMatch {
    let Some(inside) = text.strip_prefix(OPEN) else {
        return if OPEN.starts_with(text) { TagMatch::Partial } else { TagMatch::None };
    };
    match inside.find('<') {
        Some(at) if at > RATING_BYTES_MAX => TagMatch::None,
        Some(at) if inside[at..].starts_with(CLOSE) => {
            let rating = inside[..at].trim().parse().ok().filter(|rating| (0.0..=1.0).contains(rating));
            TagMatch::Complete { rating, bytes: OPEN.len() + at + CLOSE.len() }
        }
        Some(at) if CLOSE.starts_with(&inside[at..]) => TagMatch::Partial,
        Some(_) => TagMatch::None,
        None if inside.len() <= RATING_BYTES_MAX => TagMatch::Partial,
        None => TagMatch::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rating_is_removed_for_every_split_of_the_stream() {
        let text = "It is 4 < 5.\n<confidence>0.85</confidence>";
        for cut in (0..=text.len()).filter(|cut| text.is_char_boundary(*cut)) {
            let mut filter = RatingFilter::default();
            let shown = filter.push(&text[..cut]) + &filter.push(&text[cut..]) + &filter.finish();
            assert_eq!((shown.as_str(), filter.rating), ("It is 4 < 5.\n", Some(0.85)), "cut at {cut}");
        }
    }

    #[test]
    fn text_that_only_resembles_a_rating_is_kept() {
        for text in
            ["<conf", "<confidence>surely not a number at all</confidence>", "a <b> c", "<confidence>0.5<b>"]
        {
            let mut filter = RatingFilter::default();
            assert_eq!(filter.push(text) + &filter.finish(), text);
            assert_eq!(filter.rating, None);
        }
    }

    #[test]
    fn a_rating_out_of_range_is_ignored_and_not_shown() {
        let mut parts = vec![Part::text("Yes.<confidence>7</confidence>")];
        assert_eq!(take_rating(&mut parts), None);
        assert_eq!(parts, [Part::text("Yes.")]);
    }

    #[test]
    fn a_part_with_only_a_rating_is_removed() {
        let mut parts = vec![Part::text("Yes."), Part::text("<confidence>0.2</confidence>")];
        assert_eq!(take_rating(&mut parts), Some(0.2));
        assert_eq!(parts, [Part::text("Yes.")]);
    }
}
