//! Large uploads and downloads through `sapwood serve`: memory does not grow with their size, and an upload
//! interrupted by its client or by `kill -9` leaves no data in the store.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::actors::{assert_healthy, seed};
use crate::harness::{World, on_each_store};
use crate::serve::{Served, open, request, serve};

/// Deadline for every wait in a test.
const DEADLINE: Duration = Duration::from_secs(120);
const CHUNK_BYTES: usize = 64 << 10;

/// Generates chunks of pseudorandom bytes, the same for the same seed.
struct Noise(u64);

impl Noise {
    fn chunk(&mut self) -> Vec<u8> {
        let mut next = || {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 ^ self.0 >> 29).to_le_bytes()
        };
        (0..CHUNK_BYTES / 8).flat_map(|_| next()).collect()
    }
}

/// Begins an upload of `chunks` chunks.
fn begin_upload(addr: &str, session: &str, name: &str, chunks: usize) -> TcpStream {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let head = format!("POST /v1/sessions/{session}/artifacts?name={name} HTTP/1.0\r\nhost: 127.0.0.1\r\n");
    write!(stream, "{head}content-length: {}\r\n\r\n", chunks * CHUNK_BYTES).unwrap();
    stream
}

fn upload(addr: &str, name: &str, seed: u64, chunks: usize) -> (u16, Value) {
    let (mut stream, mut noise) = (begin_upload(addr, "s", name, chunks), Noise(seed));
    for _ in 0..chunks {
        stream.write_all(&noise.chunk()).unwrap();
    }
    let (status, mut rest) = answer_of(stream);
    let mut text = String::new();
    rest.read_to_string(&mut text).unwrap();
    (status, serde_json::from_str(&text).unwrap_or_default())
}

fn answer_of(stream: TcpStream) -> (u16, BufReader<TcpStream>) {
    let mut reader = BufReader::with_capacity(CHUNK_BYTES, stream);
    let (mut status, mut line) = (0, String::new());
    while reader.read_line(&mut line).unwrap() > 0 && line != "\r\n" {
        if status == 0 {
            status = line.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        }
        line.clear();
    }
    (status, reader)
}

fn assert_download_matches(addr: &str, name: &str, seed: u64, chunks: usize) {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    write!(stream, "GET /v1/sessions/s/artifacts/{name} HTTP/1.0\r\nhost: 127.0.0.1\r\n\r\n").unwrap();
    let (status, mut body) = answer_of(stream);
    assert_eq!(status, 200);
    let (mut noise, mut chunk) = (Noise(seed), vec![0; CHUNK_BYTES]);
    for number in 0..chunks {
        body.read_exact(&mut chunk).unwrap();
        assert!(chunk == noise.chunk(), "chunk {number} of {name} differs");
    }
    assert_eq!(body.read(&mut chunk).unwrap(), 0, "there is data after the last chunk");
}

fn artifacts(served: &Served, session: &str) -> Vec<Value> {
    let (status, listed) =
        request(&served.addr, "GET", &format!("/v1/sessions/{session}/artifacts"), None, "");
    assert_eq!(status, 200);
    listed["items"].as_array().unwrap().clone()
}

#[cfg(target_os = "linux")]
#[test]
fn memory_does_not_grow_with_the_size_of_uploads_and_downloads() {
    const CLIENTS: u64 = 8;
    const UPLOAD_BYTES: usize = 64 << 20;
    /// A third of the uploaded data. The caches of eight reading connections alone need a quarter of it.
    const GROWTH_KB_MAX: u64 = (CLIENTS << 16) / 3;
    let world = World::new("sqlite");
    world.ok(&["new", "--id", "s"]);
    let served = serve(&world, "127.0.0.1:0");
    let chunks = UPLOAD_BYTES / CHUNK_BYTES;
    assert_eq!(upload(&served.addr, "small", 0, 32).0, 201);
    let before_kb = peak_kb(&served);
    let addr = served.addr.as_str();
    let each = |act: fn(&str, u64, usize)| {
        std::thread::scope(|scope| {
            for seed in 1..=CLIENTS {
                scope.spawn(move || act(addr, seed, chunks));
            }
        });
    };
    each(|addr, seed, chunks| {
        let (status, put) = upload(addr, &format!("a{seed}"), seed, chunks);
        assert_eq!((status, put["content"]["bytes"].as_u64()), (201, Some(UPLOAD_BYTES as u64)), "{put}");
    });
    each(|addr, seed, chunks| assert_download_matches(addr, &format!("a{seed}"), seed, chunks));
    let growth_kb = peak_kb(&served) - before_kb;
    eprintln!("{before_kb} KB before, at most {growth_kb} KB more");
    assert!(before_kb > 0 && growth_kb < GROWTH_KB_MAX, "memory grew by {growth_kb} KB from {before_kb} KB");
}

/// Imports files of plain messages while they are being sent.
#[cfg(target_os = "linux")]
#[test]
fn memory_does_not_grow_with_the_size_of_imports_or_unread_feeds() {
    const CLIENTS: usize = 4;
    const LINES: usize = 1_500;
    const LINE_BYTES: usize = 32 << 10;
    /// Three quarters of the data sent. A server that buffered the files would need more than the whole data.
    const GROWTH_KB_MAX: u64 = (CLIENTS * LINES * LINE_BYTES / 4 * 3) as u64 >> 10;
    let world = World::new("sqlite");
    let served = serve(&world, "127.0.0.1:0");
    let import = &|name: &str, lines: usize| {
        let mut stream = TcpStream::connect(&served.addr).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let line = |number: usize| {
            let text = format!("{number:08} ").repeat(LINE_BYTES / 9);
            format!("{{\"role\":\"user\",\"content\":\"{text}\"}}\n")
        };
        let bytes = lines * line(0).len();
        let head = format!("POST /v1/import?name={name} HTTP/1.0\r\nhost: 127.0.0.1\r\n");
        write!(stream, "{head}content-length: {bytes}\r\n\r\n").unwrap();
        for number in 0..lines {
            stream.write_all(line(number).as_bytes()).unwrap();
        }
        let (status, mut rest) = answer_of(stream);
        let mut text = String::new();
        rest.read_to_string(&mut text).unwrap();
        let imported: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((status, imported["items"][0]["added"].as_u64()), (200, Some(lines as u64)), "{imported}");
        imported["items"][0]["session"].as_str().unwrap().to_owned()
    };
    let import_all = |name: &str, lines: usize| -> Vec<String> {
        std::thread::scope(|scope| {
            let begin = |client: usize| scope.spawn(move || import(&format!("{name}{client}"), lines));
            let clients: Vec<_> = (0..CLIENTS).map(begin).collect();
            clients.into_iter().map(|client| client.join().unwrap()).collect()
        })
    };
    import_all("small", LINES / 5);
    let before_kb = peak_kb(&served);
    let sessions = import_all("large", LINES);
    let imported_kb = peak_kb(&served) - before_kb;
    let stalled: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let path = format!("/v1/sessions/{}/feed", sessions[client]);
            open(&served.addr, "GET", &path, &[], "").unwrap()
        })
        .collect();
    std::thread::sleep(Duration::from_secs(1));
    let growth_kb = peak_kb(&served) - before_kb;
    eprintln!("{before_kb} KB before, {imported_kb} KB more for imports, {growth_kb} KB in total");
    assert!(stalled.iter().all(|(status, _)| *status == 200));
    assert!(growth_kb < GROWTH_KB_MAX, "memory grew by {growth_kb} KB from {before_kb} KB");
}

/// Imports a conversation on one line of JSON, which needs many times its size in memory if parsed completely.
#[cfg(target_os = "linux")]
#[test]
fn memory_does_not_grow_with_the_number_of_messages_on_a_line() {
    const MESSAGES: usize = 300_000;
    /// A third of the memory needed to hold all messages as import steps at once.
    const GROWTH_KB_MAX: u64 = 160 << 10;
    let world = World::new("sqlite");
    let served = serve(&world, "127.0.0.1:0");
    let import = |name: &str, messages: usize| {
        let mut line = String::from("[");
        for number in 0..messages {
            line.push_str(&format!("{{\"role\":\"user\",\"content\":\"{number}\"}},"));
        }
        line.pop();
        line.push_str("]\n");
        let (status, imported) =
            request(&served.addr, "POST", &format!("/v1/import?name={name}"), None, &line);
        assert_eq!(
            (status, imported["items"][0]["added"].as_u64()),
            (200, Some(messages as u64)),
            "{imported}"
        );
        line.len()
    };
    import("small", MESSAGES / 100);
    let before_kb = peak_kb(&served);
    let bytes = import("large", MESSAGES);
    let growth_kb = peak_kb(&served) - before_kb;
    eprintln!("{before_kb} KB before, {growth_kb} KB more for {bytes} bytes");
    assert!(growth_kb < GROWTH_KB_MAX, "memory grew by {growth_kb} KB from {before_kb} KB");
}

/// Returns the peak memory of the server.
#[cfg(target_os = "linux")]
fn peak_kb(served: &Served) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", served.child.id())).unwrap();
    let high = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    high.trim().strip_suffix(" kB").unwrap().parse().unwrap()
}

/// Kills the server after half of the upload was sent.
#[test]
fn an_upload_interrupted_by_a_kill_leaves_nothing_and_can_be_repeated() {
    const CHUNKS: usize = 128;
    for scheme in ["sqlite", "jsonl", "postgres"] {
        let world = World::new(scheme);
        let mut served = serve(&world, "127.0.0.1:0");
        let made = request(&served.addr, "POST", "/v1/sessions", None, "{\"id\":\"s\"}");
        assert_eq!(made.0, 201);
        let message = json!({ "role": "user", "content": "hello" }).to_string();
        assert_eq!(request(&served.addr, "POST", "/v1/sessions/s/entries", None, &message).0, 201);
        for pause_ms in [0, 5, 50, 400] {
            let (mut stream, mut noise) = (begin_upload(&served.addr, "s", "cut.bin", CHUNKS), Noise(7));
            for _ in 0..CHUNKS / 2 {
                stream.write_all(&noise.chunk()).unwrap();
            }
            std::thread::sleep(Duration::from_millis(pause_ms));
            served.child.kill().unwrap();
            served.child.wait().unwrap();
            drop(stream);
            assert_healthy(&world);
            served = serve(&world, "127.0.0.1:0");
            assert_eq!(artifacts(&served, "s"), [] as [Value; 0], "{scheme}");
        }
        assert_eq!(upload(&served.addr, "whole.bin", 7, CHUNKS).0, 201);
        assert_download_matches(&served.addr, "whole.bin", 7, CHUNKS);
        assert_healthy(&world);
    }
}

/// A client that disconnects leaves no data in the store, and other writers do not wait for its upload.
#[test]
fn an_upload_interrupted_by_its_client_leaves_nothing_and_blocks_no_writer() {
    on_each_store(|world| {
        let session = seed(world);
        let served = serve(world, "127.0.0.1:0");
        let path = format!("/v1/sessions/{session}/entries");
        let mut stream = begin_upload(&served.addr, &session, "cut.bin", 256);
        let mut noise = Noise(3);
        for _ in 0..128 {
            stream.write_all(&noise.chunk()).unwrap();
        }
        let uploads = world.path("store.jsonl/uploads");
        let count = || std::fs::read_dir(&uploads).map_or(0, Iterator::count);
        if world.url.starts_with("jsonl:") {
            wait_until(|| count() == 1);
        }
        let message = json!({ "role": "user", "content": "hello" }).to_string();
        let began = Instant::now();
        assert_eq!(request(&served.addr, "POST", &path, None, &message).0, 201);
        assert!(began.elapsed() < DEADLINE, "a stalled upload blocked another writer");
        drop(stream);
        wait_until(|| count() == 0);
        assert_eq!(artifacts(&served, &session), [] as [Value; 0]);
        assert_healthy(world);
    });
}

fn wait_until(condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < DEADLINE, "timed out");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_large_artifact_survives_exports_and_migrations() {
    /// Large enough for several chunks in a store and several lines in an export.
    const CHUNKS: usize = 130;
    let worlds = ["sqlite", "jsonl", "postgres"].map(World::new);
    let [first, ..] = &worlds;
    first.ok(&["new", "--id", "s"]);
    let served = serve(first, "127.0.0.1:0");
    assert_eq!(upload(&served.addr, "large.bin", 5, CHUNKS).0, 201);
    let exported = first.run(&["export", "s"]).stdout;
    let request_body = r#"{"format":"jsonl"}"#;
    let (status, mut body) = open(&served.addr, "POST", "/v1/sessions/s/export", &[], request_body).unwrap();
    let mut streamed = Vec::new();
    body.read_to_end(&mut streamed).unwrap();
    assert!(status == 200 && streamed == exported, "the server and the command line export different bytes");
    drop(served);
    let file = first.path("s.jsonl");
    std::fs::write(&file, &exported).unwrap();
    for (from, to) in [(0, 1), (1, 2)] {
        let (from, to) = (&worlds[from], &worlds[to]);
        from.ok(&["migrate", "--from", &from.url, "--to", &to.url]);
        let imported = World::new("sqlite");
        imported.ok(&["import", file.to_str().unwrap()]);
        for world in [to, &imported] {
            let served = serve(world, "127.0.0.1:0");
            assert_download_matches(&served.addr, "large.bin", 5, CHUNKS);
            assert_healthy(world);
        }
    }
}
