//! Wraps spans into lines of a given width. Pure. Breaks at spaces and between wide characters, and inside a word
//! only if the word is wider than a line.

use anstyle::Style;
use unicode_width::UnicodeWidthChar;

use super::inline::Span;

/// One line, without its prefix.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WrappedRow {
    pub runs: Vec<(String, Style)>,
    pub width: usize,
    /// Offset in the source where the line begins.
    pub at: usize,
    /// Offset in the source of the end of the next word, which did not fit. The line is final once the source up to
    /// this offset is final.
    pub end: usize,
}

impl WrappedRow {
    /// Render the line. The only escape sequences are those of the styles.
    pub fn paint(&self) -> String {
        self.runs.iter().map(|(text, style)| format!("{style}{text}{style:#}")).collect()
    }

    fn push(&mut self, c: char, style: Style) {
        self.width += c.width().unwrap_or(0);
        match self.runs.last_mut() {
            Some((text, last)) if *last == style => text.push(c),
            _ => self.runs.push((c.to_string(), style)),
        }
    }

    fn append(&mut self, word: WrappedRow) {
        for (text, style) in word.runs {
            text.chars().for_each(|c| self.push(c, style));
        }
    }
}

pub fn wrap(spans: &[Span], width: usize) -> Vec<WrappedRow> {
    let mut wrapping = Wrapping {
        rows: Vec::new(),
        row: WrappedRow::default(),
        word: WrappedRow::default(),
        gap: None,
        width,
    };
    let mut end = 0;
    for span in spans {
        for (offset, c) in span.text.char_indices() {
            end = span.at + offset + c.len_utf8();
            wrapping.take(c, span.style, span.at + offset);
        }
    }
    wrapping.finish(end)
}

struct Wrapping {
    rows: Vec<WrappedRow>,
    row: WrappedRow,
    word: WrappedRow,
    /// Style of the space between the row and the word.
    gap: Option<Style>,
    width: usize,
}

impl Wrapping {
    fn take(&mut self, c: char, style: Style, at: usize) {
        let columns = c.width().unwrap_or(0);
        if c == '\n' {
            self.place_word();
            self.break_row(at);
        } else if c.is_whitespace() && c != '\u{a0}' {
            self.place_word();
            self.gap = Some(style);
        } else {
            if columns > 1 || self.word.width + columns > self.width {
                self.place_word();
            }
            if self.word.runs.is_empty() {
                self.word.at = at;
            }
            self.word.push(c, style);
            self.word.end = at + c.len_utf8();
            if columns > 1 {
                self.place_word();
            }
        }
    }

    fn place_word(&mut self) {
        if self.word.runs.is_empty() {
            return;
        }
        let word = std::mem::take(&mut self.word);
        let gap = self.gap.take();
        let is_first = self.row.runs.is_empty();
        let needed = word.width + usize::from(gap.is_some() && !is_first);
        if !is_first && self.row.width + needed > self.width {
            self.break_row(word.end);
        }
        if self.row.runs.is_empty() {
            self.row.at = word.at;
        } else if let Some(style) = gap {
            self.row.push(' ', style);
        }
        self.row.append(word);
    }

    fn break_row(&mut self, by: usize) {
        let mut row = std::mem::take(&mut self.row);
        row.end = by;
        self.rows.push(row);
        self.gap = None;
    }

    fn finish(mut self, end: usize) -> Vec<WrappedRow> {
        self.place_word();
        if !self.row.runs.is_empty() {
            self.break_row(end);
        }
        self.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrapped(text: &str, width: usize) -> Vec<String> {
        let span = Span { text: text.to_owned(), style: Style::new(), at: 0 };
        wrap(&[span], width).iter().map(WrappedRow::paint).collect()
    }

    #[test]
    fn lines_break_at_spaces_and_inside_words_that_are_too_wide() {
        assert_eq!(wrapped("one two three", 8), ["one two", "three"]);
        assert_eq!(wrapped("abcdefghij", 4), ["abcd", "efgh", "ij"]);
        assert_eq!(wrapped("a  b", 8), ["a b"]);
        assert_eq!(wrapped("", 8), [""; 0]);
    }

    #[test]
    fn wide_characters_count_twice_and_need_no_spaces() {
        assert_eq!(wrapped("日本語です", 4), ["日本", "語で", "す"]);
    }
}
