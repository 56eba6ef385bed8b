//! `sapwood serve` while one caller opens as many connections and streams as it can: other callers, operators and
//! health checks are still served, on every store.

use std::io::{BufReader, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::harness::World;
use crate::serve::{Served, open, request, serve};

/// Deadline for every wait in a test.
const DEADLINE: Duration = Duration::from_secs(60);
const CONNECTIONS_MAX: usize = 16;
const RESERVED: usize = 4;
/// More streams than the server in these tests accepts.
const ATTEMPTS: usize = 300;
const EVENTS: &str = "/v1/sessions/s/events";

fn configure(world: &World, more: &str) {
    world.configure(&format!(
        "[server]\nconnections_max = {CONNECTIONS_MAX}\noperate_connections_reserved = {RESERVED}\n{more}"
    ));
}

fn new_key(world: &World, user: &str, scope: &str) -> String {
    world.json(&["key", "new", "--user", user, "--scope", scope])["key"].as_str().unwrap().to_owned()
}

fn follow(served: &Served, key: &str) -> (u16, BufReader<TcpStream>) {
    let bearer = format!("Bearer {key}");
    open(&served.addr, "GET", EVENTS, &[("authorization", &bearer)], "").unwrap()
}

/// Opens event streams until a stream is refused. Returns the open streams, and the status and body of the refusal.
fn open_all(served: &Served, key: &str) -> (Vec<BufReader<TcpStream>>, u16, String) {
    let mut streams = Vec::new();
    while streams.len() < ATTEMPTS {
        let (status, mut reader) = follow(served, key);
        if status != 200 {
            let mut body = String::new();
            reader.read_to_string(&mut body).unwrap();
            return (streams, status, body);
        }
        streams.push(reader);
    }
    panic!("{ATTEMPTS} streams were opened, and none was refused");
}

fn assert_probes_answer(served: &Served) {
    for path in ["/healthz", "/readyz"] {
        assert_eq!(request(&served.addr, "GET", path, None, "").0, 200, "{path}");
    }
}

fn await_stream(served: &Served, key: &str) -> BufReader<TcpStream> {
    let end = Instant::now() + DEADLINE;
    loop {
        match follow(served, key) {
            (200, reader) => return reader,
            (status, _) => assert!(Instant::now() < end, "the stream is refused with {status}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn one_key_is_limited_to_its_share_and_others_are_served_on_every_store() {
    for scheme in ["sqlite", "jsonl", "postgres"] {
        eprintln!("--- {scheme}");
        let world = World::new(scheme);
        configure(&world, "");
        world.ok(&["new", "--id", "s"]);
        let hog = new_key(&world, "tester", "read");
        let (ana, olga) = (new_key(&world, "ana", "read,write"), new_key(&world, "olga", "operate"));
        let served = serve(&world, "127.0.0.1:0");
        let (streams, status, body) = open_all(&served, &hog);
        assert_eq!((streams.len(), status), (CONNECTIONS_MAX / 4, 429));
        assert!(body.contains("\"share.exceeded\""), "{body}");
        assert_probes_answer(&served);
        assert_eq!(request(&served.addr, "POST", "/v1/sessions", Some(&ana), "{}").0, 201);
        let operated: Vec<_> = (0..RESERVED).map(|_| follow(&served, &olga)).collect();
        assert!(operated.iter().all(|(status, _)| *status == 200));
        drop(streams);
        await_stream(&served, &hog);
    }
}

#[test]
fn a_server_filled_by_one_key_still_answers_health_checks_and_operators_on_every_store() {
    for scheme in ["sqlite", "jsonl", "postgres"] {
        eprintln!("--- {scheme}");
        let world = World::new(scheme);
        configure(&world, "connections_per_principal_max = 0\nstreams_per_principal_max = 0\n");
        world.ok(&["new", "--id", "s"]);
        let (hog, olga) = (new_key(&world, "tester", "read"), new_key(&world, "olga", "operate"));
        let served = serve(&world, "127.0.0.1:0");
        let (streams, status, body) = open_all(&served, &hog);
        assert_eq!((streams.len(), status), (CONNECTIONS_MAX, 503));
        assert!(body.contains("\"server.full\""), "{body}");
        let silent: Vec<_> = (0..ATTEMPTS).map(|_| TcpStream::connect(&served.addr).unwrap()).collect();
        assert_probes_answer(&served);
        let (operated, status, _) = open_all(&served, &olga);
        assert_eq!((operated.len(), status), (RESERVED, 503));
        assert_probes_answer(&served);
        drop((streams, silent));
        await_stream(&served, &hog);
    }
}

#[test]
fn without_keys_health_checks_are_answered_while_the_local_user_uses_its_whole_share() {
    let world = World::new("sqlite");
    configure(&world, "");
    world.ok(&["new", "--id", "s"]);
    let served = serve(&world, "127.0.0.1:0");
    let (streams, status, _) = open_all(&served, "none");
    assert_eq!((streams.len(), status), (CONNECTIONS_MAX / 4, 429));
    assert_probes_answer(&served);
    assert_eq!(request(&served.addr, "GET", "/v1/sessions", None, "").0, 200);
}

#[test]
fn an_invalid_connection_limit_is_refused() {
    let world = World::new("sqlite");
    world.configure("[server]\nconnections_max = 0\n");
    let error = world.fail(2, &["serve", "--addr", "127.0.0.1:0"]);
    assert_eq!(error["code"], "config.invalid");
}
