//! Send arbitrary bytes to the server over a connection. It must respond or disconnect in time, without an internal error.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

/// Longer than the server's own timeouts of one second: see `settings` in `fuzz_targets/server.rs`.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Read limit of a response; only the status line matters.
const RESPONSE_BYTES_MAX: u64 = 1 << 20;

pub fn run(addr: SocketAddr, data: &[u8]) {
    let mut stream = TcpStream::connect(addr).expect("the server accepts connections");
    stream.set_read_timeout(Some(READ_TIMEOUT)).expect("the timeout can be set");
    let _ = stream.write_all(data);
    let _ = stream.shutdown(Shutdown::Write);
    let mut response = Vec::new();
    if let Err(error) = stream.take(RESPONSE_BYTES_MAX).read_to_end(&mut response) {
        let is_late = matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut);
        assert!(!is_late, "no response in time to: {}", String::from_utf8_lossy(data));
    }
    let failed = response.starts_with(b"HTTP/1.1 5") || response.starts_with(b"HTTP/1.0 5");
    assert!(!failed, "{}\n{}", String::from_utf8_lossy(data), String::from_utf8_lossy(&response));
}
