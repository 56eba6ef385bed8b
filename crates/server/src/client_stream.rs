//! A client's connection, below the HTTP parser. It does two things that the parser does not:
//!
//! - It notices a request head with both `Content-Length` and `Transfer-Encoding`. The parser drops the former. A proxy may
//!   have used it, and would then disagree about where the request ends.
//! - It closes a connection whose request was refused before its body was read, without losing the response: it stops
//!   sending, then reads and discards input for a while. Closing at once would reset the connection, and the client,
//!   which is still sending, could not read the status.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::extract::Request;
use axum::http::header;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

/// Time limit and size limit of discarded input before the connection is closed.
const LINGER_TIME_MAX: Duration = Duration::from_secs(5);
const LINGER_BYTES_MAX: usize = 256 << 20;
const DISCARD_BYTES: usize = 16 << 10;
/// Maximum number of bytes kept of a line. Longer lines are neither of the two headers.
const LINE_BYTES_MAX: usize = 8 << 10;

/// What the connection and the handlers of its requests tell each other.
#[derive(Default)]
pub struct ConnectionNotes {
    heads: Mutex<HeadScanner>,
    /// Whether the client may still be sending a body that the server does not read.
    has_unread_body: AtomicBool,
}

impl ConnectionNotes {
    /// Whether the head of this request has both headers.
    pub fn is_ambiguous(&self, request: &Request) -> bool {
        if !request.headers().contains_key(header::TRANSFER_ENCODING) {
            return false;
        }
        let line = format!("{} {} ", request.method(), request.uri());
        let heads = self.heads.lock().unwrap_or_else(PoisonError::into_inner);
        heads.ambiguous.as_ref().is_some_and(|head| head.starts_with(line.as_bytes()))
    }

    /// Discard input for a while when the connection closes.
    pub fn expect_unread_body(&self) {
        self.has_unread_body.store(true, Ordering::Relaxed);
    }
}

/// Looks for ambiguous heads among the lines that a client sends. Lines of bodies look like heads only if they begin
/// with a request line, and [`ConnectionNotes::is_ambiguous`] compares this line with the request.
#[derive(Default)]
struct HeadScanner {
    line: Vec<u8>,
    /// The request line of the head that is being read.
    head: Option<Vec<u8>>,
    has_length: bool,
    has_encoding: bool,
    /// The request line of the last head with both headers.
    ambiguous: Option<Vec<u8>>,
}

impl HeadScanner {
    fn scan(&mut self, bytes: &[u8]) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let kept = part.len().min(LINE_BYTES_MAX.saturating_sub(self.line.len()));
            self.line.extend_from_slice(&part[..kept]);
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                self.take_line(line.trim_ascii_end());
            }
        }
    }

    fn take_line(&mut self, line: &[u8]) {
        if line.ends_with(b" HTTP/1.1") {
            (self.has_length, self.has_encoding) = (false, false);
            self.head = Some(line.to_owned());
        } else if line.is_empty() {
            self.head = None;
        } else if self.head.is_some() {
            self.has_length |= has_name(line, b"content-length:");
            self.has_encoding |= has_name(line, b"transfer-encoding:");
            if self.has_length && self.has_encoding {
                self.ambiguous = self.head.take();
            }
        }
    }
}

fn has_name(line: &[u8], name: &[u8]) -> bool {
    line.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name))
}

/// A TCP stream with notes.
pub struct ClientStream {
    stream: TcpStream,
    notes: Arc<ConnectionNotes>,
    closing: Closing,
}

/// How far the connection is closed.
enum Closing {
    NotYet,
    Discarding { deadline: Pin<Box<Sleep>>, discarded: usize },
    Done,
}

impl ClientStream {
    pub fn new(stream: TcpStream, notes: Arc<ConnectionNotes>) -> Self {
        Self { stream, notes, closing: Closing::NotYet }
    }

    /// Read and discard until the client closes, or until a limit.
    fn poll_discard(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Closing::Discarding { deadline, discarded } = &mut self.closing else {
            return Poll::Ready(Ok(()));
        };
        let mut buffer = [0; DISCARD_BYTES];
        while *discarded < LINGER_BYTES_MAX && deadline.as_mut().poll(context).is_pending() {
            let mut input = ReadBuf::new(&mut buffer);
            match ready!(Pin::new(&mut self.stream).poll_read(context, &mut input)) {
                Ok(()) if !input.filled().is_empty() => *discarded += input.filled().len(),
                _ => break,
            }
        }
        self.closing = Closing::Done;
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let mut heads = self.notes.heads.lock().unwrap_or_else(PoisonError::into_inner);
        heads.scan(&buffer.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if matches!(self.closing, Closing::NotYet) {
            ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
            self.closing = match self.notes.has_unread_body.load(Ordering::Relaxed) {
                true => {
                    let deadline = Box::pin(tokio::time::sleep(LINGER_TIME_MAX));
                    Closing::Discarding { deadline, discarded: 0 }
                }
                false => Closing::Done,
            };
        }
        self.poll_discard(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ambiguous(text: &str, chunk: usize) -> Option<String> {
        let mut scanner = HeadScanner::default();
        text.as_bytes().chunks(chunk).for_each(|part| scanner.scan(part));
        scanner.ambiguous.map(|head| String::from_utf8(head).unwrap())
    }

    #[test]
    fn a_head_with_both_headers_is_found_in_any_order_and_division() {
        for (first, second) in [
            ("Content-Length: 3", "TRANSFER-ENCODING: chunked"),
            ("transfer-encoding:chunked", "content-length:3"),
        ] {
            let text = format!("POST /a HTTP/1.1\r\nhost: x\r\n{first}\r\n{second}\r\n\r\n");
            for chunk in [1, 7, 1_000] {
                assert_eq!(ambiguous(&text, chunk).as_deref(), Some("POST /a HTTP/1.1"));
            }
        }
    }

    #[test]
    fn headers_of_different_requests_and_lines_of_bodies_are_not_combined() {
        let two = "POST /a HTTP/1.1\r\ncontent-length: 0\r\n\r\nPOST /b HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n";
        let body = "POST /a HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n20\r\ncontent-length: 3\r\ntransfer-encoding: x\r\n";
        for text in [two, body] {
            assert_eq!(ambiguous(text, 3), None, "{text}");
        }
    }
}
