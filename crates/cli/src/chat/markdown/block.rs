//! Classifies lines of markdown. Pure. The kind of an incomplete line may still be undecided.

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LineKind<'a> {
    Blank,
    Fence { mark: char, length: usize, indent: usize },
    Heading { text: &'a str },
    Rule,
    Item { indent: usize, marker: &'a str, text: &'a str },
    Quote { text: &'a str },
    TableRow,
    Text { indent: usize, text: &'a str },
}

/// Whether further text may be added to the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineState {
    Complete,
    Incomplete,
}

/// The kind of the line, or `None` if more text could change it.
pub fn kind_of(line: &str, state: LineState) -> Option<LineKind<'_>> {
    let text = line.trim_start();
    let indent = line.len() - text.len();
    let decided = state == LineState::Complete;
    let Some(first) = text.chars().next() else { return decided.then_some(LineKind::Blank) };
    let plain = LineKind::Text { indent, text };
    match first {
        '`' | '~' => {
            let marks = text.len() - text.trim_start_matches(first).len();
            let is_sure = decided || marks < 3 && marks < text.len();
            is_sure.then(|| fence(text, first, indent).unwrap_or(plain))
        }
        '#' => {
            let after = text.trim_start_matches('#');
            let is_heading = text.len() - after.len() <= 6 && (after.starts_with(' ') || after.is_empty());
            let heading = LineKind::Heading { text: after.trim().trim_end_matches('#').trim_end() };
            decided.then_some(if is_heading { heading } else { plain })
        }
        '>' => {
            let text = text[1..].trim_start_matches(' ');
            (decided || !text.is_empty()).then_some(LineKind::Quote { text })
        }
        '|' => decided.then_some(LineKind::TableRow),
        '-' | '*' | '+' | '_' => match bullet(text, indent, state) {
            Bullet::Item(kind) => Some(kind),
            Bullet::Undecided => None,
            Bullet::None if is_rule(text) => decided.then_some(LineKind::Rule),
            Bullet::None => {
                let is_other = |c: char| c != ' ' && c != first;
                (decided || text.contains(is_other)).then_some(plain)
            }
        },
        '0'..='9' => number(text, indent, plain, state),
        _ => Some(plain),
    }
}

fn fence(text: &str, mark: char, indent: usize) -> Option<LineKind<'_>> {
    let length = text.chars().take_while(|c| *c == mark).count();
    let rest = &text[length..];
    (length >= 3 && !(mark == '`' && rest.contains('`'))).then_some(LineKind::Fence { mark, length, indent })
}

pub fn is_rule(text: &str) -> bool {
    let marks: Vec<char> = text.chars().filter(|c| !c.is_whitespace()).collect();
    marks.len() >= 3 && marks.iter().all(|c| *c == marks[0]) && matches!(marks[0], '-' | '*' | '_')
}

enum Bullet<'a> {
    Item(LineKind<'a>),
    Undecided,
    None,
}

fn bullet(text: &str, indent: usize, state: LineState) -> Bullet<'_> {
    let Some(rest) = text.strip_prefix(['-', '*', '+']) else { return Bullet::None };
    let marker = &text[..1];
    let item = |text| Bullet::Item(LineKind::Item { indent, marker, text });
    if rest.is_empty() && state == LineState::Complete {
        return item("");
    }
    let Some(content) = rest.strip_prefix(' ').map(str::trim_start) else { return Bullet::None };
    // `- - -` is a rule unless other text follows. A checkbox is recognised only at its closing bracket.
    let may_be_rule = content.is_empty() || content.chars().all(|c| text.starts_with(c) || c == ' ');
    let may_be_task = content.starts_with('[') && content.len() < 4;
    match state {
        LineState::Complete if is_rule(text) => Bullet::None,
        LineState::Incomplete if may_be_rule || may_be_task => Bullet::Undecided,
        LineState::Complete | LineState::Incomplete => item(content),
    }
}

fn number<'a>(text: &'a str, indent: usize, plain: LineKind<'a>, state: LineState) -> Option<LineKind<'a>> {
    let digits = text.chars().take_while(char::is_ascii_digit).count();
    let rest = &text[digits..];
    if digits > 9 || !rest.is_empty() && !rest.starts_with(['.', ')']) {
        return Some(plain);
    }
    match rest.get(1..) {
        Some(after) if after.starts_with(' ') => {
            Some(LineKind::Item { indent, marker: &text[..=digits], text: after.trim_start() })
        }
        None | Some("") if state == LineState::Incomplete => None,
        _ => Some(plain),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_classified_by_its_beginning() {
        let whole = |line| kind_of(line, LineState::Complete).unwrap();
        assert_eq!(whole("  - a"), LineKind::Item { indent: 2, marker: "-", text: "a" });
        assert_eq!(whole("12) b"), LineKind::Item { indent: 0, marker: "12)", text: "b" });
        assert_eq!(whole("## c ##"), LineKind::Heading { text: "c" });
        assert_eq!(whole("```rust"), LineKind::Fence { mark: '`', length: 3, indent: 0 });
        assert_eq!(whole("---"), LineKind::Rule);
        assert_eq!(whole("- - -"), LineKind::Rule);
        assert_eq!(whole("> q"), LineKind::Quote { text: "q" });
        assert_eq!(whole("#tag"), LineKind::Text { indent: 0, text: "#tag" });
        assert_eq!(whole("1.5 m"), LineKind::Text { indent: 0, text: "1.5 m" });
        assert_eq!(whole("**b**"), LineKind::Text { indent: 0, text: "**b**" });
        assert_eq!(whole(""), LineKind::Blank);
    }

    #[test]
    fn an_early_decision_never_changes() {
        let lines = [
            "- item",
            "* item",
            "---",
            "- - -",
            "**bold** x",
            "*em* x",
            "``` rust",
            "`code` x",
            "~~gone~~",
            "1. one",
            "12 monkeys",
            "2026-01-01",
            "# head",
            "> quote",
            "| a | b |",
            "plain",
            "_em_ x",
            "__init__ x",
            "-5 degrees",
            "+ plus",
            "- [x] task",
            "*** x",
            "-- dash",
        ];
        for line in lines {
            let whole = kind_of(line, LineState::Complete).unwrap();
            for end in (1..line.len()).filter(|end| line.is_char_boundary(*end)) {
                if let Some(early) = kind_of(&line[..end], LineState::Incomplete) {
                    let same = std::mem::discriminant(&early) == std::mem::discriminant(&whole);
                    assert!(same, "{line:?} at {end}: {early:?} became {whole:?}");
                }
            }
        }
    }
}
