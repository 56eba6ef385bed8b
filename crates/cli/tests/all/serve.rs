//! `sapwood serve` as a process: authentication, and streams that survive a restart.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::World;

/// Deadline for every wait in a test.
const DEADLINE: Duration = Duration::from_secs(180);

pub struct Served {
    pub child: Child,
    pub addr: String,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn serve(world: &World, addr: &str) -> Served {
    serve_with(world, &[], addr, &[])
}

/// Starts a server with global options and environment variables.
pub fn serve_with(world: &World, options: &[&str], addr: &str, env: &[(&str, &str)]) -> Served {
    let mut command = world.command(&[options, &["serve", "--addr", addr, "--json"]].concat());
    command.envs(env.iter().copied());
    started(command)
}

/// Starts a server and waits until it listens.
fn started(mut command: Command) -> Served {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let announced: Value =
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("unexpected output {line:?}"));
    Served { child, addr: announced["addr"].as_str().unwrap().to_owned() }
}

/// Sends a request over HTTP/1.0, so that the body is not chunked and ends with the connection.
pub fn open(
    addr: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> std::io::Result<(u16, BufReader<TcpStream>)> {
    let mut stream = TcpStream::connect(addr)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    let mut text =
        format!("{method} {path} HTTP/1.0\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    write!(stream, "{text}content-length: {}\r\n\r\n{body}", body.len())?;
    let mut reader = BufReader::new(stream);
    let (mut status, mut line) = (0, String::new());
    while reader.read_line(&mut line)? > 0 && line != "\r\n" {
        if status == 0 {
            status = line.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        }
        line.clear();
    }
    Ok((status, reader))
}

pub fn request(addr: &str, method: &str, path: &str, key: Option<&str>, body: &str) -> (u16, Value) {
    let bearer = key.map(|key| format!("Bearer {key}"));
    let headers: Vec<(&str, &str)> = bearer.iter().map(|bearer| ("authorization", bearer.as_str())).collect();
    let (status, mut reader) = open(addr, method, path, &headers, body).unwrap();
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    (status, serde_json::from_str(&text).unwrap_or_default())
}

#[test]
fn a_key_is_shown_once_and_grants_access_until_it_is_revoked() {
    let world = World::new("sqlite");
    let served = serve(&world, "127.0.0.1:0");
    assert_eq!(
        request(&served.addr, "GET", "/v1/sessions", None, "").0,
        200,
        "a key was required although none exists"
    );
    let made = world.json(&["key", "new", "--tenant", "acme", "--user", "ana", "--label", "test"]);
    let (key, id) = (made["key"].as_str().unwrap(), made["id"].as_str().unwrap());
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(
        request(&served.addr, "GET", "/v1/sessions", None, "").0,
        401,
        "no key was required although one exists"
    );
    let (status, session) = request(&served.addr, "POST", "/v1/sessions", Some(key), "{\"id\":\"s\"}");
    assert_eq!((status, session["owner"].as_str()), (201, Some("user:ana")));
    assert!(world.ok(&["tenant", "ls"]).lines().any(|tenant| tenant == "acme"));
    let listed = world.lines(&["key", "ls", "--tenant", "acme"]);
    assert_eq!((listed.len(), listed[0]["user"].as_str()), (1, Some("ana")));
    let stored = std::fs::read(world.url.trim_start_matches("sqlite:")).unwrap();
    let wal = std::fs::read(format!("{}-wal", world.url.trim_start_matches("sqlite:"))).unwrap_or_default();
    let has_secret =
        [stored, wal].iter().any(|bytes| bytes.windows(key.len()).any(|window| window == key.as_bytes()));
    assert!(!has_secret, "the key was stored, not only its hash");
    assert!(!world.ok(&["key", "ls", "--tenant", "acme", "--json"]).contains(key));
    world.ok(&["key", "revoke", id, "--tenant", "acme"]);
    assert_eq!(request(&served.addr, "GET", "/v1/sessions", Some(key), "").0, 401);
    assert_eq!(world.run(&["key", "revoke", "key_none", "--json"]).status, Some(3));
}

#[test]
fn a_server_refuses_to_listen_on_public_addresses_without_a_key() {
    let world = World::new("sqlite");
    let ran = world.run(&["serve", "--addr", "0.0.0.0:0", "--json"]);
    assert_eq!((ran.status, ran.error()["code"].as_str()), (Some(5), Some("server.open")));
    world.ok(&["key", "new", "--user", "ana"]);
    let served = serve(&world, "0.0.0.0:0");
    let port = served.addr.rsplit(':').next().unwrap();
    assert_eq!(request(&format!("127.0.0.1:{port}"), "GET", "/v1/sessions", None, "").0, 401);
}

/// Another process writes continuously. The reader reconnects after every few events, and the server is killed and
/// restarted several times.
#[test]
fn a_reader_that_reconnects_across_restarts_sees_every_event_once_and_in_order() {
    const EVENTS: u32 = 400;
    let world = World::new("sqlite");
    world.ok(&["new", "--id", "s"]);
    let mut served = serve(&world, "127.0.0.1:0");
    let addr = served.addr.clone();
    let written = Arc::new(AtomicU32::new(0));
    let counted = written.clone();
    let mut inject: Child = {
        let mut command: Command = world.command(&["inject", "s", "--message", "-", "--json"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    };
    let mut lines = inject.stdin.take().unwrap();
    let acks = BufReader::new(inject.stdout.take().unwrap());
    let writer = std::thread::spawn(move || {
        for number in 0..EVENTS {
            writeln!(lines, "{{\"role\":\"user\",\"content\":\"{number}\"}}").unwrap();
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(lines);
        counted.store(acks.lines().count() as u32, Ordering::SeqCst);
    });
    let (mut seen, mut rounds, end) = (Vec::new(), 0u32, Instant::now() + DEADLINE);
    while seen.last() != Some(&EVENTS) {
        assert!(Instant::now() < end, "only {:?} of {EVENTS} were seen", seen.last());
        rounds += 1;
        read_some(&addr, &mut seen, rounds % 17 + 3);
        if rounds % 7 == 0 {
            served.child.kill().unwrap();
            served.child.wait().unwrap();
            served = serve(&world, &addr);
        }
    }
    writer.join().unwrap();
    inject.wait().unwrap();
    assert_eq!(written.load(Ordering::SeqCst), EVENTS);
    assert_eq!(seen, (1..=EVENTS).collect::<Vec<u32>>());
    assert!(rounds > 20, "the reader reconnected only {rounds} times");
}

/// Follows the events after the last event seen, and disconnects after `most` events.
fn read_some(addr: &str, seen: &mut Vec<u32>, most: u32) {
    let last = seen.last().copied().unwrap_or(0).to_string();
    let headers = [("last-event-id", last.as_str())];
    let Ok((200, mut reader)) = open(addr, "GET", "/v1/sessions/s/events", &headers, "") else { return };
    let (mut taken, mut line) = (0, String::new());
    while taken < most && seen.last() != Some(&400) {
        line.clear();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        if let Some(id) = line.strip_prefix("id:") {
            seen.push(id.trim().parse().unwrap());
            taken += 1;
        }
    }
}

#[test]
fn a_server_shuts_down_gracefully_when_it_is_terminated() {
    let world = World::new("sqlite");
    let mut served = serve(&world, "127.0.0.1:0");
    request(&served.addr, "POST", "/v1/sessions", None, "{\"id\":\"s\"}");
    let (status, mut events) = open(&served.addr, "GET", "/v1/sessions/s/events", &[], "").unwrap();
    assert_eq!(status, 200);
    let stopped = Command::new("kill").arg(served.child.id().to_string()).status().unwrap();
    assert!(stopped.success());
    let mut rest = String::new();
    events.read_to_string(&mut rest).unwrap();
    assert!(served.child.wait().unwrap().success());
}

#[test]
fn an_internal_error_is_logged_with_the_request_id_of_the_answer() {
    let world = World::new("sqlite");
    let log = std::fs::File::create(world.path("log")).unwrap();
    let mut command = world.command(&["serve", "--addr", "127.0.0.1:0", "--json"]);
    let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let announced: Value = serde_json::from_str(&line).unwrap();
    let served = Served { child, addr: announced["addr"].as_str().unwrap().to_owned() };
    std::fs::rename(world.path("store.sqlite"), world.path("away")).unwrap();
    let mut stream = TcpStream::connect(&served.addr).unwrap();
    write!(stream, "GET /readyz HTTP/1.0\r\nhost: 127.0.0.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 503") && !answer.contains("store.sqlite"), "{answer}");
    let id = answer.lines().find_map(|line| line.strip_prefix("x-request-id: ")).unwrap();
    let log = std::fs::read_to_string(world.path("log")).unwrap();
    let lines: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let line =
        lines.iter().find(|line| line["request"] == id).unwrap_or_else(|| panic!("{id} is not in {log}"));
    assert_eq!((line["level"].as_str(), line["code"].as_str()), (Some("error"), Some("store.unreachable")));
    assert!(line["detail"].as_str().unwrap().contains("store.sqlite"), "{line}");
}

#[test]
fn a_server_with_an_unknown_model_does_not_start() {
    let world = World::new("sqlite");
    world.configure("model = \"opnai/gpt-5\"\n");
    let error = world.fail(2, &["serve", "--addr", "127.0.0.1:0"]);
    assert_eq!(error["code"], "config.invalid");
    assert!(error["message"].as_str().unwrap().contains("opnai/gpt-5"), "{error}");
}

#[cfg(unix)]
#[test]
fn a_draining_server_is_not_ready_and_still_answers() {
    let world = World::new("sqlite");
    let mut served = started(world.command(&["serve", "--addr", "127.0.0.1:0", "--json", "--drain", "3600"]));
    let terminate = |served: &Served| {
        let pid = served.child.id().to_string();
        assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    };
    terminate(&served);
    let began = std::time::Instant::now();
    while request(&served.addr, "GET", "/readyz", None, "").0 != 503 {
        assert!(began.elapsed() < std::time::Duration::from_secs(60), "the server is still ready");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(request(&served.addr, "GET", "/v1/sessions", None, "").0, 200);
    terminate(&served);
    assert!(served.child.wait().unwrap().success());
}
