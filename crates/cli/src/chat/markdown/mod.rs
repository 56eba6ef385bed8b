//! Renders streaming markdown for a terminal. A line is returned once, as soon as further text cannot change it. The
//! undecided rest is available from [`Markdown::pending`]. Pure.
//!
//! The input is untrusted: control characters are removed first, so all escape sequences in the output are ours.

mod block;
mod inline;
mod table;
mod wrap;

use anstyle::Style;

use crate::render::{BOLD, CYAN, DIM, clean, fit};

use block::{Kind, Line, kind_of};
use inline::Span;
use wrap::{Row, wrap};

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
    /// Whether the beginning of the line was already added to the open block.
    is_line_in_flow: bool,
    open: Open,
    gap: Gap,
    /// Indentation of the last list item's text.
    item_indent: Option<usize>,
    out: Vec<String>,
}

/// The current incomplete block.
enum Open {
    None,
    Flow(Flow),
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

/// Flowing text: a paragraph, an item, a quote or a heading.
struct Flow {
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
            is_line_in_flow: false,
            open: Open::None,
            gap: Gap::Top,
            item_indent: None,
            out: Vec::new(),
        }
    }

    /// Add text and return the lines that became final.
    pub fn push(&mut self, text: &str) -> Vec<String> {
        let text = clean(text).replace('\t', "    ");
        for piece in text.split_inclusive('\n') {
            match piece.strip_suffix('\n') {
                Some(end) => {
                    self.grow_line(end);
                    self.end_line();
                }
                None => self.grow_line(piece),
            }
        }
        self.print_decided();
        std::mem::take(&mut self.out)
    }

    /// End the text and return the remaining lines.
    pub fn finish(&mut self) -> Vec<String> {
        if !self.line.is_empty() || self.is_line_in_flow {
            self.end_line();
        }
        self.close();
        (self.gap, self.item_indent) = (Gap::Top, None);
        std::mem::take(&mut self.out)
    }

    /// The last rows of the undecided text, at most `rows_max`.
    pub fn pending(&self, rows_max: usize) -> Vec<String> {
        let mut rows = match &self.open {
            Open::Flow(flow) => flow.rows_left(self.width),
            Open::Table(rows) => rows.iter().map(|row| fit(row, self.width)).collect(),
            Open::None | Open::Code { .. } => Vec::new(),
        };
        if !self.is_line_in_flow && !self.line.trim().is_empty() {
            let is_code = matches!(self.open, Open::Code { .. });
            let line = fit(&self.line, self.width.saturating_sub(4));
            rows.push(if is_code { code_line(&line) } else { line });
        }
        rows.split_off(rows.len().saturating_sub(rows_max))
    }

    fn grow_line(&mut self, more: &str) {
        if let (true, Open::Flow(flow)) = (self.is_line_in_flow, &mut self.open) {
            flow.text.push_str(more);
            return;
        }
        self.line.push_str(more);
        if self.line.len() > LINE_BYTES_MAX {
            self.end_line();
        } else if !matches!(self.open, Open::Code { .. } | Open::Table(_)) {
            self.take_line(Line::Growing);
        }
    }

    fn end_line(&mut self) {
        if !self.is_line_in_flow {
            self.take_line(Line::Whole);
            self.line.clear();
        }
        if let (true, Open::Flow(flow)) = (std::mem::take(&mut self.is_line_in_flow), &mut self.open) {
            flow.end_line();
        }
    }

    /// Add the line to its block, once the kind of the block is decided.
    fn take_line(&mut self, state: Line) {
        let line = std::mem::take(&mut self.line);
        if let Open::Code { mark, length, indent } = self.open {
            self.take_code(&line, mark, length, indent);
            return;
        }
        let Some(kind) = kind_of(&line, state) else {
            self.line = line;
            return;
        };
        if !matches!(kind, Kind::Row) && matches!(self.open, Open::Table(_)) {
            self.close();
        }
        match kind {
            Kind::Blank => {
                self.close();
                if self.gap == Gap::None {
                    self.gap = Gap::Due;
                }
            }
            Kind::Fence { mark, length, indent } => {
                self.close();
                self.lead();
                self.open = Open::Code { mark, length, indent };
            }
            Kind::Heading { text } => {
                self.item_indent = None;
                self.begin(Flow::new(BOLD.fg_color(CYAN.get_fg_color()), text));
                self.close();
            }
            Kind::Rule => {
                self.close();
                self.lead();
                self.out.push(format!("{DIM}{}{DIM:#}", "─".repeat(self.width.min(40))));
            }
            Kind::Item { indent, marker, text } => self.begin_item(indent, marker, text),
            Kind::Quote { text } => self.take_quote(text),
            Kind::Row => self.take_row(&line),
            Kind::Text { indent, text } => self.take_text(indent, text),
        }
    }

    fn take_code(&mut self, line: &str, mark: char, length: usize, indent: usize) {
        let text = line.trim();
        let is_end = text.chars().count() >= length && text.chars().all(|c| c == mark);
        if is_end {
            self.open = Open::None;
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
        self.begin(Flow { first, rest: " ".repeat(indent), indent, ..Flow::new(Style::new(), text) });
    }

    fn take_quote(&mut self, text: &str) {
        let bar = format!("{DIM}│{DIM:#} ");
        if text.is_empty() {
            self.close();
            self.lead();
            self.out.push(bar.trim_end().to_owned());
            return;
        }
        if let Open::Flow(flow @ Flow { is_quote: true, .. }) = &mut self.open {
            flow.text.push_str(text);
            self.is_line_in_flow = true;
            return;
        }
        let style = Style::new().italic();
        self.begin(Flow {
            first: bar.clone(),
            rest: bar,
            indent: 2,
            is_quote: true,
            ..Flow::new(style, text)
        });
    }

    fn take_row(&mut self, line: &str) {
        match &mut self.open {
            Open::Table(rows) if rows.len() < TABLE_ROWS_MAX => rows.push(line.to_owned()),
            _ => {
                self.close();
                self.open = Open::Table(vec![line.to_owned()]);
            }
        }
    }

    fn take_text(&mut self, indent: usize, text: &str) {
        if let Open::Flow(flow) = &mut self.open {
            flow.text.push_str(text);
            self.is_line_in_flow = true;
            return;
        }
        // After a blank line, indented text still belongs to the list item.
        let lead = self.item_indent.filter(|_| indent >= 2).unwrap_or(0);
        if lead == 0 {
            self.item_indent = None;
        }
        let lead_text = " ".repeat(lead);
        let flow =
            Flow { first: lead_text.clone(), rest: lead_text, indent: lead, ..Flow::new(Style::new(), text) };
        self.begin(flow);
    }

    fn begin(&mut self, flow: Flow) {
        self.close();
        self.open = Open::Flow(flow);
        self.is_line_in_flow = true;
    }

    /// Print the rest of the open block.
    fn close(&mut self) {
        self.is_line_in_flow = false;
        let lines = match std::mem::replace(&mut self.open, Open::None) {
            Open::None | Open::Code { .. } => return,
            Open::Flow(flow) => flow.rows_left(self.width),
            Open::Table(rows) => table::draw(&rows, self.width).unwrap_or(rows),
        };
        self.lead();
        self.out.extend(lines);
    }

    /// Print the blank line between two blocks, if the source has a blank line.
    fn lead(&mut self) {
        if std::mem::replace(&mut self.gap, Gap::None) == Gap::Due {
            self.out.push(String::new());
        }
    }

    fn print_decided(&mut self) {
        let width = self.width;
        let Open::Flow(flow) = &mut self.open else { return };
        let lines = flow.take_decided(width);
        if !lines.is_empty() {
            self.lead();
            self.out.extend(lines);
        }
    }
}

impl Flow {
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

    fn paint(&self, rows: &[Row], range: std::ops::Range<usize>) -> Vec<String> {
        let lead = |at: usize| if at == 0 { &self.first } else { &self.rest };
        range.map(|at| format!("{}{}", lead(at), rows[at].paint())).collect()
    }

    fn wrap(&self, spans: &[Span], width: usize) -> Vec<Row> {
        wrap(spans, width.saturating_sub(self.indent).max(WIDTH_MIN / 2))
    }

    /// All rows that are not printed yet.
    fn rows_left(&self, width: usize) -> Vec<String> {
        let rows = self.wrap(&inline::parse(self.source(), self.style).spans, width);
        self.paint(&rows, self.printed.min(rows.len())..rows.len())
    }

    /// Remove and return the full lines that further text cannot change. Emphasis that stays open for too long
    /// counts as plain text.
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
