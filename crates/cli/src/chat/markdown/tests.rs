//! Tests of the rendered output, which must not depend on how the text is split into chunks.

use super::*;

fn plain(lines: &[String]) -> String {
    anstream::adapter::strip_str(&lines.join("\n")).to_string()
}

fn render(text: &str, width: usize, chunk_chars: usize) -> Vec<String> {
    let mut markdown = Markdown::new(width);
    let chars: Vec<char> = text.chars().collect();
    let mut lines = Vec::new();
    for chunk in chars.chunks(chunk_chars) {
        lines.extend(markdown.push(&chunk.iter().collect::<String>()));
    }
    lines.extend(markdown.finish());
    lines
}

const SAMPLE: &str = "# A *title*\n\nSome **bold text that runs over the end of a line** and `code`, snake_case_name, 2 * 3, \
and a [link](https://example.org/a) that ends.\nSecond line of the same paragraph.\n\n- one\n- two with **bold**\n  and more\n  \
- nested item that is long enough to be wrapped somewhere\n1. first\n2. second\n\n```rust\nfn main() {\n    let x = 1;\n}\n```\n\n\
| name | value |\n|---|--:|\n| a | 1 |\n| `b|c` | 22 |\n\n> quoted *words*\n> go on\n\n---\n- [ ] open\n- [x] done\n\nlast *args and **kwargs";

#[test]
fn the_chunk_size_does_not_affect_the_output() {
    for width in [24, 40, 80] {
        let whole = render(SAMPLE, width, usize::MAX >> 1);
        for chunk_chars in [1, 2, 3, 7, 50] {
            assert_eq!(render(SAMPLE, width, chunk_chars), whole, "width {width}, chunks of {chunk_chars}");
        }
    }
}

#[test]
fn blocks_are_laid_out_for_reading() {
    let expected = "\
A title

Some bold text that runs over the end of
a line and code, snake_case_name, 2 * 3,
and a link (https://example.org/a) that
ends. Second line of the same paragraph.

 • one
 • two with bold and more
   ◦ nested item that is long enough to
     be wrapped somewhere
 1. first
 2. second

    fn main() {
        let x = 1;
    }

name │ value
─────┼──────
a    │     1
b|c  │    22

│ quoted words go on

────────────────────────────────────────
 ☐ open
 ☑ done

last *args and **kwargs";
    assert_eq!(plain(&render(SAMPLE, 40, 5)), expected);
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    for width in [20, 33, 60] {
        for line in render(SAMPLE, width, 4) {
            let shown = anstream::adapter::strip_str(&line).to_string();
            assert!(unicode_width::UnicodeWidthStr::width(shown.as_str()) <= width, "{width}: {shown:?}");
        }
    }
}

#[test]
fn a_paragraph_streams_line_by_line() {
    let mut markdown = Markdown::new(20);
    assert_eq!(markdown.push("These words are more "), [""; 0]);
    assert_eq!(markdown.push("than one line"), ["These words are more"]);
    assert_eq!(markdown.pending(3), ["than one line"]);
    assert_eq!(markdown.push(" holds, and so on"), ["than one line holds,"]);
}

#[test]
fn emphasis_without_an_end_does_not_block_the_output() {
    let text = format!("*never closed {}", "word ".repeat(400));
    let mut markdown = Markdown::new(40);
    let early = markdown.push(&text);
    assert!(early.len() > 30, "{}", early.len());
    let all = [early, markdown.finish()].concat();
    let words = plain(&all).split_whitespace().filter(|word| *word == "word").count();
    assert_eq!(words, 400);
}

#[test]
fn control_sequences_are_removed() {
    let lines = render("a\u{1b}[2Jb \u{9b}31m `\u{7}` \u{1b}]0;x\u{7}", 80, 1);
    let text = lines.join("");
    assert!(!text.contains("\u{1b}[2J") && !text.contains("\u{1b}]") && !text.contains('\u{7}'), "{text:?}");
}

#[test]
fn a_link_always_shows_its_target() {
    let text = plain(&render("[https://bank.example](https://evil.example)", 80, 3));
    assert_eq!(text, "https://bank.example (https://evil.example)");
}
