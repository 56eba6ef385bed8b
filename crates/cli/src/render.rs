//! The output of commands, except the screen of a chat. [`Out`] writes data to stdout, [`report`] writes failures to
//! stderr.
//!
//! A transcript is untrusted text: before it reaches a terminal, [`clean`] replaces its control characters. Colours
//! are added afterwards. anstream drops them if stdout is not a terminal or NO_COLOR is set.

use std::borrow::Cow;
use std::io::{BufWriter, IsTerminal, Write};
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use serde::Serialize;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::failure::{Exit, Failure, Result};

pub const BOLD: Style = Style::new().bold();
pub const DIM: Style = Style::new().dimmed();
pub const GREEN: Style = AnsiColor::Green.on_default();
pub const CYAN: Style = AnsiColor::Cyan.on_default();
pub const YELLOW: Style = AnsiColor::Yellow.on_default();
pub const RED: Style = AnsiColor::Red.on_default();
pub const MATCH: Style = AnsiColor::Yellow.on_default().bold();

/// Width of a terminal whose size is unknown.
const WIDTH_DEFAULT: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Text,
    Json,
}

/// Buffered standard output. It is flushed at the end of every command, and by the caller before it waits.
pub struct Out {
    pub format: Format,
    /// Width of the terminal in columns, or None if stdout is not a terminal.
    pub terminal: Option<usize>,
    stream: BufWriter<Box<dyn Write>>,
}

impl Out {
    pub fn new(format: Format) -> Self {
        let stdout = std::io::stdout();
        let width =
            || terminal_size::terminal_size().map_or(WIDTH_DEFAULT, |(width, _)| usize::from(width.0));
        let terminal = stdout.is_terminal().then(width);
        let stream: Box<dyn Write> = match format {
            Format::Text => Box::new(anstream::AutoStream::auto(stdout)),
            Format::Json => Box::new(stdout),
        };
        Self { format, terminal, stream: BufWriter::with_capacity(1 << 16, stream) }
    }

    pub fn is_json(&self) -> bool {
        self.format == Format::Json
    }

    /// Print one line of JSON.
    pub fn json(&mut self, value: &impl Serialize) -> Result<()> {
        serde_json::to_writer(&mut self.stream, value).map_err(std::io::Error::from)?;
        Ok(self.stream.write_all(b"\n")?)
    }

    /// Width for text in columns. Unlimited without a terminal.
    pub fn width(&self) -> usize {
        self.terminal.unwrap_or(usize::MAX)
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.stream.write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.flush()
    }
}

#[derive(Serialize)]
struct JsonFailure<'a> {
    error: JsonError<'a>,
}

#[derive(Serialize)]
struct JsonError<'a> {
    code: &'a str,
    message: &'a str,
    hint: &'a str,
}

/// Print a failure and return the exit code. A closed output pipe is not reported.
pub fn report(failure: &Failure, format: Format) -> ExitCode {
    let mut stderr = anstream::AutoStream::auto(std::io::stderr());
    // If writing to stderr fails, only the exit code reports the failure.
    let _ = match (failure.exit, format) {
        (Exit::Closed, _) => Ok(()),
        (_, Format::Json) => {
            let Failure { code, message, hint, .. } = failure;
            let error = JsonFailure { error: JsonError { code, message, hint } };
            writeln!(stderr, "{}", serde_json::to_string(&error).unwrap_or_default())
        }
        (_, Format::Text) => {
            writeln!(
                stderr,
                "{RED}error:{RED:#} {}\n  {DIM}hint:{DIM:#} {}",
                clean(&failure.message),
                failure.hint
            )
        }
    };
    ExitCode::from(failure.exit.status())
}

/// Print a note on stderr, except with `--json`.
pub fn note(format: Format, text: &str) {
    if format == Format::Text {
        let _ = writeln!(anstream::AutoStream::auto(std::io::stderr()), "{DIM}{}{DIM:#}", clean(text));
    }
}

/// Replace control characters by U+FFFD, so that no escape sequence remains. Keeps line breaks and tabs, drops `\r`.
pub fn clean(text: &str) -> Cow<'_, str> {
    let harmless = |c: char| !c.is_control() || c == '\n' || c == '\t';
    if text.chars().all(harmless) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(
        text.chars().filter(|c| *c != '\r').map(|c| if harmless(c) { c } else { '\u{fffd}' }).collect(),
    )
}

/// Truncate text to one line of at most `columns`.
pub fn fit(text: &str, columns: usize) -> String {
    let line = clean(text).replace(['\n', '\t'], " ");
    if line.width() <= columns {
        return line;
    }
    let (mut short, mut used) = (String::new(), 1);
    for c in line.chars() {
        used += c.width().unwrap_or(0);
        if used > columns {
            break;
        }
        short.push(c);
    }
    short.push('…');
    short
}

/// A table: aligned on a terminal, tab-separated for `cut` and `awk` in a pipe.
pub struct Table<'a> {
    pub head: &'a [&'a str],
    pub rows: Vec<Vec<String>>,
    /// The column that shrinks if the terminal is too narrow.
    pub flexible: usize,
}

impl Table<'_> {
    pub fn print(&self, out: &mut Out) -> Result<()> {
        if out.terminal.is_none() {
            return self.rows.iter().try_for_each(|row| Ok(writeln!(out, "{}", tabbed(row))?));
        }
        let widths = self.widths(out.width());
        let titles: Vec<String> = self.head.iter().map(|title| (*title).to_owned()).collect();
        writeln!(out, "{DIM}{}{DIM:#}", aligned(&titles, &widths))?;
        self.rows.iter().try_for_each(|row| Ok(writeln!(out, "{}", aligned(row, &widths))?))
    }

    /// The width of each column: its widest cell, except that the flexible column shrinks to fit the terminal.
    fn widths(&self, terminal: usize) -> Vec<usize> {
        let cell_width = |column: usize| self.rows.iter().map(|row| row[column].width()).max().unwrap_or(0);
        let title_width = |column: usize| self.head[column].width();
        let mut widths: Vec<usize> =
            (0..self.head.len()).map(|column| cell_width(column).max(title_width(column))).collect();
        let needed = widths.iter().sum::<usize>() + 2 * (self.head.len() - 1);
        let narrowed = widths[self.flexible].saturating_sub(needed.saturating_sub(terminal));
        widths[self.flexible] = narrowed.max(title_width(self.flexible)).max(8);
        widths
    }
}

fn tabbed(row: &[String]) -> String {
    let cells: Vec<String> = row.iter().map(|cell| fit(cell, usize::MAX)).collect();
    cells.join("\t")
}

fn aligned(cells: &[String], widths: &[usize]) -> String {
    let mut line = String::new();
    for (cell, width) in cells.iter().zip(widths) {
        let cell = fit(cell, *width);
        let gap = width.saturating_sub(cell.width()) + 2;
        line.push_str(&cell);
        line.push_str(&" ".repeat(gap));
    }
    line.truncate(line.trim_end().len());
    line
}

/// Format an age in its largest whole unit, or as a date after 30 days.
pub fn age(at_ms: i64, now_ms: i64) -> String {
    let seconds = (now_ms - at_ms).max(0) / 1000;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..86_400 => format!("{} h", seconds / 3_600),
        86_400..2_592_000 => format!("{} d", seconds / 86_400),
        _ => local_time(at_ms).chars().take(10).collect(),
    }
}

/// Format as local time, to the second.
pub fn local_time(at_ms: i64) -> String {
    match jiff::Timestamp::from_millisecond(at_ms) {
        Ok(time) => time.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string(),
        Err(_) => format!("{at_ms} ms"),
    }
}

/// Format billionths of a dollar as an amount of money.
pub fn cost(nano_usd: u64) -> String {
    let dollars = nano_usd as f64 / 1e9;
    match nano_usd {
        0 => "$0".to_owned(),
        1..10_000_000 => format!("${dollars:.4}"),
        _ => format!("${dollars:.2}"),
    }
}

pub fn plural(count: u64, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ if noun.ends_with('y') && !noun.ends_with("ey") => {
            format!("{count} {}ies", noun.trim_end_matches('y'))
        }
        _ => format!("{count} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_sequences_are_removed() {
        assert_eq!(clean("a\u{1b}[31mb\r\nc\u{9b}0m"), "a\u{fffd}[31mb\nc\u{fffd}0m");
        assert_eq!(clean("tab\tand\nline"), "tab\tand\nline");
    }

    #[test]
    fn text_is_truncated_by_columns_and_not_by_bytes() {
        assert_eq!(fit("hello", 5), "hello");
        assert_eq!(fit("hello", 4), "hel…");
        assert_eq!(fit("日本語です", 5), "日本…");
        assert_eq!(fit("a\nb", 9), "a b");
    }

    #[test]
    fn formats_ages_and_costs() {
        assert_eq!(age(0, 59_999), "59 s");
        assert_eq!(age(0, 7_200_000), "2 h");
        assert_eq!(cost(12_300_000), "$0.01");
        assert_eq!(cost(1_230_000), "$0.0012");
        assert_eq!(plural(2, "entry"), "2 entries");
    }
}
