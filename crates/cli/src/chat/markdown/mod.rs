//! Renders streaming markdown for a terminal. A line is returned once, when more text can no longer change it. The text
//! that is not final yet is available from [`Markdown::pending`]. Pure.
//!
//! The input is untrusted. Control characters are replaced first, so only this module adds escape sequences.

mod block;
mod inline;
mod table;
mod wrap;

use anstyle::Style;

use crate::render::{BOLD, CYAN, DIM, clean, fit};

use block::{LineKind, LineState, kind_of};
use inline::Span;
use wrap::{WrappedRow, wrap};

/// Minimum width for wrapping.
const WIDTH_MIN: usize = 20;
/// Maximum number of bytes buffered while waiting for the end of an emphasis span.
const HELD_BYTES_MAX: usize = 600;
/// Maximum length of a line.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Maximum number of buffered table rows.
const TABLE_ROWS_MAX: usize = 500;

pub struct Markdown {
    width: usize,
    /// The current incomplete line.
    line: String,
    /// Whether the beginning of the line was already added to the current block.
    is_line_in_block: bool,
    open: CurrentBlock,
    gap: Gap,
    /// Indentation of the last list item's text.
    item_indent: Option<usize>,
    out: Vec<String>,
}

/// The current incomplete block.
enum CurrentBlock {
    None,
    Text(TextBlock),
    Code { mark: char, length: usize, indent: usize },
    Table(Vec<String>),
}

/// Whether a blank line is due before the next block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gap {
    /// Nothing has been printed yet.
    Top,
    None,
    Due,
}

/// A block of wrapped text: a paragraph, a list item, a quote or a heading.
struct TextBlock {
    text: String,
    style: Style,
    first: String,
    rest: String,
    indent: usize,
    /// Number of lines already printed.
    printed: usize,
    is_quote: bool,
}

impl Markdown {
    pub fn new(width: usize) -> Self {
        Self {
            width: width.max(WIDTH_MIN),
            line: String::new(),
            is_line_in_block: false,
            open: CurrentBlock::None,
            gap: Gap::Top,
            item_indent: None,
            out: Vec::new(),
        }
    }

    /// Add text and return the lines that became final.
    pub fn push(&mut self, text: &str) -> Vec<String> {
        let text = clean(text).replace('\t', "    ");
        for chunk in text.split_inclusive('\n') {
            match chunk.strip_suffix('\n') {
                Some(end) => {
                    self.extend_line(end);
                    self.end_line();
                }
                None => self.extend_line(chunk),
            }
        }
        self.print_decided();
        std::mem::take(&mut self.out)
    }

    /// End the text and return the remaining lines.
    pub fn finish(&mut self) -> Vec<String> {
        if !self.line.is_empty() || self.is_line_in_block {
            self.end_line();
        }
        self.close();
        (self.gap, self.item_indent) = (Gap::Top, None);
        std::mem::take(&mut self.out)
    }

    /// The last rows of the text that is not final yet, at most `rows_max`.
    pub fn pending(&self, rows_max: usize) -> Vec<String> {
        let mut rows = match &self.open {
            CurrentBlock::Text(block) => block.pending_rows(self.width),
            CurrentBlock::Table(rows) => rows.iter().map(|row| fit(row, self.width)).collect(),
            CurrentBlock::None | CurrentBlock::Code { .. } => Vec::new(),
        };
        if !self.is_line_in_block && !self.line.trim().is_empty() {
            let is_code = matches!(self.open, CurrentBlock::Code { .. });
            let line = fit(&self.line, self.width.saturating_sub(4));
            rows.push(if is_code { code_line(&line) } else { line });
        }
        rows.split_off(rows.len().saturating_sub(rows_max))
    }

    fn extend_line(&mut self, more: &str) {
        if let (true, CurrentBlock::Text(block)) = (self.is_line_in_block, &mut self.open) {
            block.text.push_str(more);
            return;
        }
        self.line.push_str(more);
        if self.line.len() > LINE_BYTES_MAX {
            self.end_line();
        } else if !matches!(self.open, CurrentBlock::Code { .. } | CurrentBlock::Table(_)) {
            self.take_line(LineState::Incomplete);
        }
    }

    fn end_line(&mut self) {
        if !self.is_line_in_block {
            self.take_line(LineState::Complete);
            self.line.clear();
        }
        if let (true, CurrentBlock::Text(block)) =
            (std::mem::take(&mut self.is_line_in_block), &mut self.open)
        {
            block.end_line();
        }
    }

    /// Add the line to its block, once the kind of the block is decided.
    fn take_line(&mut self, state: LineState) {
        let line = std::mem::take(&mut self.line);
        if let CurrentBlock::Code { mark, length, indent } = self.open {
            self.take_code(&line, mark, length, indent);
            return;
        }
        let Some(kind) = kind_of(&line, state) else {
            self.line = line;
            return;
        };
        if !matches!(kind, LineKind::TableRow) && matches!(self.open, CurrentBlock::Table(_)) {
            self.close();
        }
        match kind {
            LineKind::Blank => {
                self.close();
                if self.gap == Gap::None {
                    self.gap = Gap::Due;
                }
            }
            LineKind::Fence { mark, length, indent } => {
                self.close();
                self.print_gap();
                self.open = CurrentBlock::Code { mark, length, indent };
            }
            LineKind::Heading { text } => {
                self.item_indent = None;
                self.begin(TextBlock::new(BOLD.fg_color(CYAN.get_fg_color()), text));
                self.close();
            }
            LineKind::Rule => {
                self.close();
                self.print_gap();
                self.out.push(format!("{DIM}{}{DIM:#}", "─".repeat(self.width.min(40))));
            }
            LineKind::Item { indent, marker, text } => self.begin_item(indent, marker, text),
            LineKind::Quote { text } => self.take_quote(text),
            LineKind::TableRow => self.take_row(&line),
            LineKind::Text { indent, text } => self.take_text(indent, text),
        }
    }

    fn take_code(&mut self, line: &str, mark: char, length: usize, indent: usize) {
        let text = line.trim();
        let is_end = text.chars().count() >= length && text.chars().all(|c| c == mark);
        if is_end {
            self.open = CurrentBlock::None;
            return;
        }
        let kept =
            line.char_indices().find(|(at, c)| *at >= indent || *c != ' ').map_or(line.len(), |(at, _)| at);
        self.out.push(code_line(&line[kept..]));
    }

    fn begin_item(&mut self, indent: usize, marker: &str, text: &str) {
        let level = indent / 2;
        let (marker, text) = match (marker, text.get(..4)) {
            ("-" | "*" | "+", Some("[ ] ")) => ("☐", &text[4..]),
            ("-" | "*" | "+", Some("[x] " | "[X] ")) => ("☑", &text[4..]),
            ("-" | "*" | "+", _) => (["•", "◦", "▪"][level % 3], text),
            (number, _) => (number, text),
        };
        let lead = " ".repeat(2 * level + 1);
        let indent = lead.len() + marker.chars().count() + 1;
        let first = format!("{lead}{DIM}{marker}{DIM:#} ");
        self.item_indent = Some(indent);
        self.begin(TextBlock {
            first,
            rest: " ".repeat(indent),
            indent,
            ..TextBlock::new(Style::new(), text)
        });
    }

    fn take_quote(&mut self, text: &str) {
        let bar = format!("{DIM}│{DIM:#} ");
        if text.is_empty() {
            self.close();
            self.print_gap();
            self.out.push(bar.trim_end().to_owned());
            return;
        }
        if let CurrentBlock::Text(block @ TextBlock { is_quote: true, .. }) = &mut self.open {
            block.text.push_str(text);
            self.is_line_in_block = true;
            return;
        }
        let style = Style::new().italic();
        self.begin(TextBlock {
            first: bar.clone(),
            rest: bar,
            indent: 2,
            is_quote: true,
            ..TextBlock::new(style, text)
        });
    }

    fn take_row(&mut self, line: &str) {
        match &mut self.open {
            CurrentBlock::Table(rows) if rows.len() < TABLE_ROWS_MAX => rows.push(line.to_owned()),
            _ => {
                self.close();
                self.open = CurrentBlock::Table(vec![line.to_owned()]);
            }
        }
    }

    fn take_text(&mut self, indent: usize, text: &str) {
        if let CurrentBlock::Text(block) = &mut self.open {
            block.text.push_str(text);
            self.is_line_in_block = true;
            return;
        }
        // After a blank line, indented text still belongs to the list item.
        let lead = self.item_indent.filter(|_| indent >= 2).unwrap_or(0);
        if lead == 0 {
            self.item_indent = None;
        }
        let lead_text = " ".repeat(lead);
        let block = TextBlock {
            first: lead_text.clone(),
            rest: lead_text,
            indent: lead,
            ..TextBlock::new(Style::new(), text)
        };
        self.begin(block);
    }

    fn begin(&mut self, block: TextBlock) {
        self.close();
        self.open = CurrentBlock::Text(block);
        self.is_line_in_block = true;
    }

    /// Print the rest of the current block.
    fn close(&mut self) {
        self.is_line_in_block = false;
        let lines = match std::mem::replace(&mut self.open, CurrentBlock::None) {
            CurrentBlock::None | CurrentBlock::Code { .. } => return,
            CurrentBlock::Text(block) => block.pending_rows(self.width),
            CurrentBlock::Table(rows) => table::draw(&rows, self.width).unwrap_or(rows),
        };
        self.print_gap();
        self.out.extend(lines);
    }

    /// Print the blank line between two blocks, if the source has a blank line.
    fn print_gap(&mut self) {
        if std::mem::replace(&mut self.gap, Gap::None) == Gap::Due {
            self.out.push(String::new());
        }
    }

    fn print_decided(&mut self) {
        let width = self.width;
        let CurrentBlock::Text(block) = &mut self.open else { return };
        let lines = block.take_decided(width);
        if !lines.is_empty() {
            self.print_gap();
            self.out.extend(lines);
        }
    }
}

impl TextBlock {
    fn new(style: Style, text: &str) -> Self {
        let (first, rest) = (String::new(), String::new());
        Self { text: text.to_owned(), style, first, rest, indent: 0, printed: 0, is_quote: false }
    }

    /// A line break becomes a space, unless the line ends in two spaces or a backslash.
    fn end_line(&mut self) {
        let is_hard = self.text.ends_with("  ") || self.text.ends_with('\\');
        let kept = self.text.trim_end_matches([' ', '\\']).len();
        if is_hard {
            self.text.truncate(kept);
            self.text.push_str("\\\n");
        } else if !self.text.is_empty() {
            self.text.push(' ');
        }
    }

    fn source(&self) -> &str {
        self.text.trim_end_matches([' ', '\n', '\\'])
    }

    fn paint(&self, rows: &[WrappedRow], range: std::ops::Range<usize>) -> Vec<String> {
        let lead = |at: usize| if at == 0 { &self.first } else { &self.rest };
        range.map(|at| format!("{}{}", lead(at), rows[at].paint())).collect()
    }

    fn wrap(&self, spans: &[Span], width: usize) -> Vec<WrappedRow> {
        wrap(spans, width.saturating_sub(self.indent).max(WIDTH_MIN / 2))
    }

    /// All rows that are not printed yet.
    fn pending_rows(&self, width: usize) -> Vec<String> {
        let rows = self.wrap(&inline::parse(self.source(), self.style).spans, width);
        self.paint(&rows, self.printed.min(rows.len())..rows.len())
    }

    /// Return the full lines that more text cannot change and that were not printed yet. Emphasis that stays open for
    /// more than `HELD_BYTES_MAX` bytes counts as plain text.
    fn take_decided(&mut self, width: usize) -> Vec<String> {
        let inline = inline::parse(self.source(), self.style);
        let rows = self.wrap(&inline.spans, width);
        let is_held = self.text.len() - inline.decided.min(self.text.len()) > HELD_BYTES_MAX;
        let decided = if is_held { self.text.len() } else { inline.decided };
        // The last row may still grow.
        let full = rows.len().saturating_sub(1);
        let done = rows[..full].iter().take_while(|row| row.end <= decided).count();
        let lines = self.paint(&rows, self.printed..done.max(self.printed));
        self.printed = self.printed.max(done);
        if is_held && done > 0 {
            self.cut(rows[done].at);
        }
        lines
    }

    /// Drop the printed part, so that further text cannot change it.
    fn cut(&mut self, at: usize) {
        if self.text.is_char_boundary(at) {
            self.text.drain(..at);
            self.printed = 0;
            self.first.clone_from(&self.rest);
        }
    }
}

fn code_line(line: &str) -> String {
    format!("    {CYAN}{line}{CYAN:#}")
}

#[cfg(test)]
mod tests;
