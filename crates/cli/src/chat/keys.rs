//! Reads the keyboard during a turn. The terminal is in raw mode, and a separate thread reads the keys, because reading
//! blocks. Dropping [`Keyboard`] ends the thread and restores the terminal.

/// A key press.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyPress {
    Text(String),
    Enter,
    Backspace,
    /// Ctrl-U
    ClearLine,
    /// Ctrl-C
    Interrupt,
    /// Ctrl-D
    End,
    Escape,
}

/// Decodes bytes to keys. The bytes may be split inside a UTF-8 character. Line breaks in a paste are text, and other
/// escape sequences are ignored.
#[derive(Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    is_paste: bool,
}

const PASTE_BEGIN: &[u8] = b"\x1b[200~";
const PASTE_END: &[u8] = b"\x1b[201~";
/// Maximum length of an escape sequence.
const SEQUENCE_BYTES_MAX: usize = 32;

impl Decoder {
    pub fn push(&mut self, bytes: &[u8]) -> Vec<KeyPress> {
        self.bytes.extend_from_slice(bytes);
        let mut keys: Vec<KeyPress> = Vec::new();
        while let Some((key, used)) = self.next() {
            self.bytes.drain(..used);
            match (key, keys.last_mut()) {
                (Some(KeyPress::Text(more)), Some(KeyPress::Text(text))) => text.push_str(&more),
                (Some(key), _) => keys.push(key),
                (None, _) => {}
            }
        }
        keys
    }

    /// The next key, if the bytes encode one, and the number of bytes used. `None` if more bytes are needed.
    fn next(&mut self) -> Option<(Option<KeyPress>, usize)> {
        let first = *self.bytes.first()?;
        if first == 0x1b {
            return self.sequence();
        }
        let key = match first {
            b'\r' | b'\n' if !self.is_paste => KeyPress::Enter,
            b'\r' | b'\n' => KeyPress::Text("\n".to_owned()),
            0x7f | 0x08 => KeyPress::Backspace,
            0x15 => KeyPress::ClearLine,
            0x03 => KeyPress::Interrupt,
            0x04 => KeyPress::End,
            b'\t' => KeyPress::Text(" ".to_owned()),
            0..0x20 => return Some((None, 1)),
            0x20..0x80 => KeyPress::Text(char::from(first).to_string()),
            _ => return self.character(first),
        };
        Some((Some(key), 1))
    }

    fn character(&self, first: u8) -> Option<(Option<KeyPress>, usize)> {
        let length = match first {
            0xc0..0xe0 => 2,
            0xe0..0xf0 => 3,
            0xf0..0xf8 => 4,
            _ => return Some((None, 1)),
        };
        let bytes = self.bytes.get(..length)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Some((Some(KeyPress::Text(text.to_owned())), length)),
            Err(_) => Some((None, 1)),
        }
    }

    fn sequence(&mut self) -> Option<(Option<KeyPress>, usize)> {
        match self.bytes.get(1) {
            // Terminals send a sequence at once, so an escape byte without further bytes is the Escape key.
            None => Some((Some(KeyPress::Escape), 1)),
            Some(b'[' | b'O') => {
                let is_end = |byte: &u8| (0x40..0x7f).contains(byte);
                let Some(end) = self.bytes[2..].iter().position(is_end) else {
                    return (self.bytes.len() > SEQUENCE_BYTES_MAX).then_some((None, self.bytes.len()));
                };
                let sequence = &self.bytes[..end + 3];
                if sequence == PASTE_BEGIN || sequence == PASTE_END {
                    self.is_paste = sequence == PASTE_BEGIN;
                }
                Some((None, end + 3))
            }
            // Alt-Enter inserts a line break.
            Some(b'\r' | b'\n') => Some((Some(KeyPress::Text("\n".to_owned())), 2)),
            Some(_) => Some((None, 2)),
        }
    }
}

#[cfg(unix)]
mod device {
    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::thread::JoinHandle;

    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};
    use tokio::sync::mpsc;

    use super::{Decoder, KeyPress};

    /// Maximum number of queued keys.
    const KEYS_QUEUED_MAX: usize = 1_024;
    const PASTE_ON: &[u8] = b"\x1b[?2004h";
    const PASTE_OFF: &[u8] = b"\x1b[?2004l";

    pub struct Keyboard {
        keys: mpsc::Receiver<KeyPress>,
        stop: Option<OwnedFd>,
        thread: Option<JoinHandle<()>>,
        original: Termios,
    }

    impl Keyboard {
        /// Switch the terminal to raw mode to read keys. `None` if stdin or stdout is not a terminal.
        pub fn open() -> Option<Self> {
            let stdin = std::io::stdin();
            if !rustix::termios::isatty(&stdin) || !rustix::termios::isatty(std::io::stdout()) {
                return None;
            }
            let original = tcgetattr(&stdin).ok()?;
            let mut raw = original.clone();
            raw.local_modes &=
                !(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG | LocalModes::IEXTEN);
            raw.special_codes[SpecialCodeIndex::VMIN] = 1;
            raw.special_codes[SpecialCodeIndex::VTIME] = 0;
            let (wait, stop) = rustix::pipe::pipe().ok()?;
            tcsetattr(&stdin, OptionalActions::Drain, &raw).ok()?;
            let _ = std::io::stdout().write_all(PASTE_ON);
            let (sender, keys) = mpsc::channel(KEYS_QUEUED_MAX);
            let thread = std::thread::spawn(move || read_keys(&wait, &sender));
            Some(Self { keys, stop: Some(stop), thread: Some(thread), original })
        }

        /// Wait for the next key.
        pub async fn next(&mut self) -> Option<KeyPress> {
            self.keys.recv().await
        }

        /// The next queued key, without waiting.
        pub fn try_next(&mut self) -> Option<KeyPress> {
            self.keys.try_recv().ok()
        }
    }

    impl Drop for Keyboard {
        fn drop(&mut self) {
            // Closes the pipe, which ends the thread.
            drop(self.stop.take());
            self.keys.close();
            if let Some(thread) = self.thread.take() {
                let _ = thread.join();
            }
            let _ = std::io::stdout().write_all(PASTE_OFF);
            let _ = std::io::stdout().flush();
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Drain, &self.original);
        }
    }

    fn read_keys(stop: &OwnedFd, keys: &mpsc::Sender<KeyPress>) {
        let stdin = std::io::stdin();
        let mut decoder = Decoder::default();
        loop {
            let mut poll_fds = [PollFd::new(&stdin, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
            match poll(&mut poll_fds, None) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return,
                Ok(_) if !poll_fds[1].revents().is_empty() => return,
                Ok(_) => {}
            }
            let mut bytes = [0; 1_024];
            let count = match rustix::io::read(&stdin, &mut bytes) {
                Err(rustix::io::Errno::INTR) => continue,
                Ok(0) | Err(_) => {
                    let _ = keys.blocking_send(KeyPress::End);
                    return;
                }
                Ok(count) => count,
            };
            for key in decoder.push(&bytes[..count]) {
                if keys.blocking_send(key).is_err() {
                    return;
                }
            }
        }
    }
}

#[cfg(not(unix))]
mod device {
    use super::KeyPress;

    /// On other systems, keys are not read during a turn.
    pub struct Keyboard;

    impl Keyboard {
        pub fn open() -> Option<Self> {
            None
        }
        pub async fn next(&mut self) -> Option<KeyPress> {
            None
        }
        pub fn try_next(&mut self) -> Option<KeyPress> {
            None
        }
    }
}

pub use device::Keyboard;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_may_be_split_anywhere() {
        let mut decoder = Decoder::default();
        assert_eq!(decoder.push(b"h\xc3"), [KeyPress::Text("h".into())]);
        assert_eq!(decoder.push(b"\xa9!\r"), [KeyPress::Text("é!".into()), KeyPress::Enter]);
    }

    #[test]
    fn a_paste_keeps_its_line_breaks_and_arrow_keys_are_ignored() {
        let mut decoder = Decoder::default();
        let keys = decoder.push(b"\x1b[200~a\rb\x1b[201~\x1b[A\x03");
        assert_eq!(keys, [KeyPress::Text("a\nb".into()), KeyPress::Interrupt]);
        assert_eq!(decoder.push(b"\x1b"), [KeyPress::Escape]);
    }
}
