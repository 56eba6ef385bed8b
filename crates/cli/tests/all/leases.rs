//! Leases of a process of the previous build, which died and whose clock was wrong by an hour.

use std::time::{SystemTime, UNIX_EPOCH};

use sapwood_store::conformance::{cluster, sqlite_file};

use crate::harness::World;

const HOUR_MS: i64 = 3_600_000;

fn now_ms() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

/// Writes a lease as the previous build did: a holder, a fence, and an expiry by its wall clock.
fn leave_lease(world: &World, session: &str, until_ms: i64) {
    let (scheme, location) = world.url.split_once(':').unwrap();
    match scheme {
        "sqlite" => {
            let sql = format!(
                "INSERT OR REPLACE INTO leases (session, holder, fence, expires_at)
                 SELECT pk, 'dead', coalesce((SELECT fence FROM leases WHERE session = pk), 0) + 1, {until_ms}
                 FROM sessions WHERE id = '{session}'"
            );
            sqlite_file::execute(location.as_ref(), &sql);
        }
        "jsonl" => {
            let mut files = std::fs::read_dir(location).unwrap().map(|file| file.unwrap().path());
            let log = files.find(|path| path.to_string_lossy().ends_with(&format!("_{session}.jsonl")));
            let lease = format!(r#"{{"holder":"dead","fence":50,"expires_at":{until_ms}}}"#);
            std::fs::write(log.unwrap().with_extension("lease"), lease).unwrap();
        }
        _ => {
            let sql = format!(
                "UPDATE sapwood.sessions SET version = version + 1, lease_holder = 'dead',
                   lease_fence = lease_fence + 1, lease_until = {until_ms} WHERE id = '{session}'"
            );
            cluster::shared().sql(world.url.rsplit('/').next().unwrap(), &sql);
        }
    }
}

#[test]
fn a_session_leased_by_a_dead_process_with_a_wrong_clock_can_be_used() {
    for scheme in ["sqlite", "jsonl", "postgres"] {
        let world = World::new(scheme);
        let session = world.session(&["u:hello", "a:hi"]);
        for off_ms in [-HOUR_MS, HOUR_MS] {
            let leave = || leave_lease(&world, &session, now_ms() + off_ms);
            leave();
            world.ok(&["inject", &session, "--role", "user", "--text", "still here"]);
            leave();
            world.ok(&["send", &session, "hello"]);
            leave();
            world.ok(&["branch", &session, "1"]);
        }
    }
}
