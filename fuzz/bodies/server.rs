//! Any bytes as what a client sends to the server over a connection: it answers or hangs up, in time, and never fails inside.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

/// The server cuts off within a second, see `settings`.
const PATIENCE: Duration = Duration::from_secs(10);
/// What is read of an answer: its first line decides.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

pub fn run(addr: SocketAddr, data: &[u8]) {
    let mut stream = TcpStream::connect(addr).expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time is set");
    let _ = stream.write_all(data);
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    if let Err(error) = stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer) {
        let is_late = matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut);
        assert!(!is_late, "it was never answered: {}", String::from_utf8_lossy(data));
    }
    let failed = answer.starts_with(b"HTTP/1.1 5") || answer.starts_with(b"HTTP/1.0 5");
    assert!(!failed, "{}\n{}", String::from_utf8_lossy(data), String::from_utf8_lossy(&answer));
}
