//! Inline styles of a block: emphasis, code, links. Pure. For incomplete text, the parser also returns the offset up to
//! which the result is final.

use anstyle::Style;
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::render::{CYAN, DIM};

/// Text in one style, with its offset in the source.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    pub text: String,
    pub style: Style,
    pub at: usize,
}

pub struct Inline {
    pub spans: Vec<Span>,
    /// Spans that begin before this offset are final.
    pub decided: usize,
}

/// Parse a block's text into spans. Inline styles are added to the block's style `base`.
pub fn parse(source: &str, base: Style) -> Inline {
    let mut collector =
        SpanCollector { spans: Vec::new(), styles: vec![base], links: Vec::new(), open: None, source };
    for (event, range) in Parser::new_ext(source, Options::ENABLE_STRIKETHROUGH).into_offset_iter() {
        collector.take(event, range.start);
    }
    let end = source.trim_end().len();
    Inline { decided: collector.open.unwrap_or(end).min(end), spans: collector.spans }
}

struct SpanCollector<'a> {
    spans: Vec<Span>,
    styles: Vec<Style>,
    links: Vec<(String, usize)>,
    /// Offset of the first character that may still open a span.
    open: Option<usize>,
    source: &'a str,
}

impl SpanCollector<'_> {
    fn style(&self) -> Style {
        self.styles.last().copied().unwrap_or_default()
    }

    fn add(&mut self, text: &str, style: Style, at: usize) {
        self.spans.push(Span { text: text.to_owned(), style, at });
    }

    fn take(&mut self, event: Event<'_>, at: usize) {
        match event {
            Event::Text(text) => {
                self.find_opener(&text, at);
                self.add(&text, self.style(), at);
            }
            Event::Code(code) => self.add(&code, self.style().fg_color(CYAN.get_fg_color()), at),
            Event::InlineHtml(text) | Event::Html(text) => self.add(&text, self.style(), at),
            Event::SoftBreak => self.add(" ", self.style(), at),
            Event::HardBreak => self.add("\n", self.style(), at),
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag, at),
            _ => {}
        }
    }

    fn start(&mut self, tag: Tag<'_>) {
        let style = self.style();
        match tag {
            Tag::Strong => self.styles.push(style.bold()),
            Tag::Emphasis => self.styles.push(style.italic()),
            Tag::Strikethrough => self.styles.push(style.strikethrough()),
            Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } => {
                self.links.push((dest_url.to_string(), self.spans.len()));
                self.styles.push(style.underline());
            }
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd, at: usize) {
        match tag {
            TagEnd::Strong | TagEnd::Emphasis | TagEnd::Strikethrough => {
                self.styles.pop();
            }
            TagEnd::Link | TagEnd::Image => {
                self.styles.pop();
                let Some((url, from)) = self.links.pop() else { return };
                let shown: String = self.spans[from..].iter().map(|span| span.text.as_str()).collect();
                // Always show the target of a link: its text is untrusted and may show another address.
                if shown != url && !url.is_empty() {
                    self.add(&format!(" ({url})"), DIM, at);
                }
            }
            _ => {}
        }
    }

    /// Find the first character that is plain text now but could become markup when more text follows.
    fn find_opener(&mut self, text: &str, at: usize) {
        if self.open.is_some() {
            return;
        }
        let end = (at + text.len()).min(self.source.len());
        let Some(here) = self.source.get(at..end) else { return };
        let opens = |(offset, c): &(usize, char)| self.may_open(at + offset, *c);
        self.open = here.char_indices().find(opens).map(|(offset, _)| at + offset);
    }

    fn may_open(&self, at: usize, c: char) -> bool {
        let after = &self.source[at + c.len_utf8()..];
        let next = after.chars().next();
        let is_adjacent = next.is_none_or(|next| !next.is_whitespace());
        match c {
            '*' => is_adjacent,
            '_' => is_adjacent && !self.source[..at].ends_with(char::is_alphanumeric),
            '`' => true,
            '~' => next.is_none_or(|next| next == '~'),
            '[' => match after.split_once(']') {
                None => !after.contains('\n'),
                Some((_, rest)) => rest.is_empty() || rest.starts_with('(') && !rest.contains(')'),
            },
            '!' | '\\' | '&' | '<' => next.is_none(),
            _ => false,
        }
    }
}
