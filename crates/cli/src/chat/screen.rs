//! The screen of a running turn: permanent lines, and below them a few live lines that change. A terminal without
//! escape sequences or colours shows only the permanent lines.
//!
//! Permanent lines are never changed. The live lines are erased before the next permanent line is printed and redrawn
//! below it, in a single write.

use std::io::{IsTerminal, Write};

use crate::failure::Result;

/// Maximum number of live rows. Rows that scroll off a small terminal cannot be erased.
pub const LIVE_ROWS_MAX: usize = 6;
/// Synchronized output: the terminal shows all output between these sequences as one change, or ignores them.
const BEGIN_CHANGE: &str = "\x1b[?2026h";
const END_CHANGE: &str = "\x1b[?2026l";
const WIDTH_DEFAULT: usize = 80;
const WIDTH_MIN: usize = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScreenMode {
    /// Colours, markdown and live rows.
    Rich,
    /// Unformatted text, line by line.
    Plain,
}

impl ScreenMode {
    /// Detect what stdout supports.
    pub fn of_stdout() -> Self {
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        if std::io::stdout().is_terminal() && !is_dumb && !no_colour {
            ScreenMode::Rich
        } else {
            ScreenMode::Plain
        }
    }
}

pub struct Screen {
    mode: ScreenMode,
    live_rows: usize,
    shown: Vec<String>,
    to: Box<dyn Write>,
}

impl Screen {
    pub fn new(mode: ScreenMode) -> Self {
        Self::on(mode, Box::new(std::io::stdout()))
    }

    fn on(mode: ScreenMode, to: Box<dyn Write>) -> Self {
        Self { mode, live_rows: 0, shown: Vec::new(), to }
    }

    pub fn mode(&self) -> ScreenMode {
        self.mode
    }

    /// The current width in columns, which changes with the terminal window.
    pub fn width(&self) -> usize {
        let width = terminal_size::terminal_size().map_or(WIDTH_DEFAULT, |(width, _)| usize::from(width.0));
        width.max(WIDTH_MIN)
    }

    /// Print permanent lines and replace the live lines.
    pub fn draw(&mut self, lines: &[String], mut live: Vec<String>) -> Result<()> {
        if self.mode == ScreenMode::Plain {
            lines.iter().try_for_each(|line| writeln!(self.to, "{}", anstream::adapter::strip_str(line)))?;
            return Ok(self.to.flush()?);
        }
        live.drain(..live.len().saturating_sub(LIVE_ROWS_MAX));
        if lines.is_empty() && live == self.shown {
            return Ok(());
        }
        let mut text = String::from(BEGIN_CHANGE);
        text.push_str(&self.erase_sequence());
        for line in lines {
            text.push_str(line);
            text.push('\n');
        }
        text.push_str(&live.join("\n"));
        text.push_str(END_CHANGE);
        self.live_rows = live.len();
        self.shown = live;
        self.to.write_all(text.as_bytes())?;
        Ok(self.to.flush()?)
    }

    /// Print permanent lines and remove the live lines.
    pub fn print(&mut self, lines: &[String]) -> Result<()> {
        self.draw(lines, Vec::new())
    }

    fn erase_sequence(&self) -> String {
        match self.live_rows {
            0 => String::new(),
            1 => "\r\x1b[J".to_owned(),
            rows => format!("\r\x1b[{}A\x1b[J", rows - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Buffer {
        fn take(&self) -> String {
            let text = String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap();
            text.replace(BEGIN_CHANGE, "").replace(END_CHANGE, "")
        }
    }

    #[test]
    fn live_rows_are_erased_before_a_line_is_printed() {
        let buffer = Buffer::default();
        let mut screen = Screen::on(ScreenMode::Rich, Box::new(buffer.clone()));
        screen.draw(&[], vec!["a".into(), "b".into()]).unwrap();
        assert_eq!(buffer.take(), "a\nb");
        screen.draw(&["line".into()], vec!["c".into()]).unwrap();
        assert_eq!(buffer.take(), "\r\x1b[1A\x1b[Jline\nc");
        screen.draw(&[], vec!["c".into()]).unwrap();
        assert_eq!(buffer.take(), "", "nothing has changed");
        screen.print(&[]).unwrap();
        assert_eq!(buffer.take(), "\r\x1b[J");
    }

    #[test]
    fn a_plain_screen_shows_only_permanent_lines() {
        let buffer = Buffer::default();
        let mut screen = Screen::on(ScreenMode::Plain, Box::new(buffer.clone()));
        screen.draw(&["\x1b[1mline\x1b[0m".into()], vec!["live".into()]).unwrap();
        assert_eq!(buffer.take(), "line\n");
    }
}
