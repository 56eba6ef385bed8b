//! Triggers with real servers: two servers on one store, restarts, and `kill -9` at any time. Each firing sends its
//! prompt once.

use std::io::Read;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sapwood::effects::hook::signature::{SKEW_MS_MAX, sign};
use sapwood::effects::secret::Secret;
use serde_json::{Value, json};

use crate::harness::{World, on_each_store};
use crate::serve::{open, request, serve, serve_with};

/// Deadline for every wait in a test.
const DEADLINE: Duration = Duration::from_secs(180);
/// Number of servers that are killed while they work.
const KILLS: u64 = 6;

fn trigger(world: &World, name: &str) -> Value {
    let all = world.lines(&["trigger", "ls"]);
    all.into_iter().find(|one| one["name"] == name).unwrap_or_else(|| panic!("no trigger {name}"))
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < DEADLINE, "timed out waiting for {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Returns the notes of one kind in a trigger's log.
fn notes(world: &World, name: &str, what: &str) -> Vec<Value> {
    let events = world.lines(&["events", &format!("trigger.{name}")]);
    let notes = events.into_iter().map(|event| {
        let mut note = event["entry"]["data"].clone();
        note["seq"] = event["seq"].clone();
        note
    });
    notes.filter(|note| note["what"] == what).collect()
}

fn turns(world: &World, session: &str) -> usize {
    let events = world.lines(&["events", session]);
    events.iter().filter(|event| event["type"] == "session:turn_started").count()
}

#[test]
fn a_trigger_fired_manually_sends_its_prompt_once_per_key() {
    on_each_store(|world| {
        world.configure(
            "[[triggers]]\nname = \"build\"\nwebhook = {}\nprompt = \"Look at {{payload.branch}}.\"\n",
        );
        let payload = r#"{"branch": "main"}"#;
        let fired = world.json(&["trigger", "fire", "build", "--payload", payload, "--key", "1"]);
        assert_eq!(fired["outcome"], "completed");
        let session = fired["session"].as_str().unwrap();
        assert_eq!(world.texts(session, None)[0], "Look at main.");
        world.ok(&["trigger", "fire", "build", "--payload", payload, "--key", "1"]);
        assert_eq!((turns(world, session), notes(world, "build", "due").len()), (1, 1));
        world.ok(&["trigger", "fire", "build", "--payload", payload, "--key", "2"]);
        assert_eq!(notes(world, "build", "ended").len(), 2);
        assert_eq!(world.fail(3, &["trigger", "fire", "nothing"])["code"], "trigger.not_found");
    });
}

#[test]
fn only_one_of_two_servers_fires_at_each_scheduled_time() {
    let world = World::new("sqlite");
    world.configure(
        "[[triggers]]\nname = \"tick\"\ncron = \"* * * * * *\"\ntime_zone = \"UTC\"\nsession = \"ticks\"\nprompt = \"{{payload.scheduled_at}}\"\n\
         [[triggers]]\nname = \"after\"\nevent = { session = \"ticks\", types = [\"session:turn_completed\"] }\nprompt = \"{{payload.turn}}\"\n\
         [[triggers]]\nname = \"files\"\nwatch = { directory = \"in\", files = [\"*.txt\"], poll_ms = 100 }\nprompt = \"{{payload.added.0}}\"\n",
    );
    let inbox = world.path(".local/share/sapwood/in");
    std::fs::create_dir_all(&inbox).unwrap();
    let servers = [serve(&world, "127.0.0.1:0"), serve(&world, "127.0.0.1:0")];
    wait_until("the watch", || !world.run(&["events", "trigger.files"]).stdout.is_empty());
    wait_until("the armed watch", || notes(&world, "files", "armed").len() == 1);
    std::fs::write(inbox.join("a.txt"), "a").unwrap();
    wait_until("four ticks", || notes(&world, "tick", "ended").len() >= 4);
    wait_until("the firings that follow them", || notes(&world, "after", "ended").len() >= 3);
    wait_until("the file", || notes(&world, "files", "ended").len() == 1);
    drop(servers);
    let texts = world.texts("ticks", None);
    let mut times: Vec<&String> =
        texts.iter().filter(|text| text.len() == 13 && text.starts_with('1')).collect();
    let count = times.len();
    times.dedup();
    assert_eq!(times.len(), count, "a time fired twice: {texts:?}");
    let mut seqs: Vec<u64> =
        notes(&world, "after", "due").iter().map(|note| note["payload"]["seq"].as_u64().unwrap()).collect();
    let count = seqs.len();
    seqs.dedup();
    assert_eq!(seqs.len(), count, "an event fired twice");
    let file = notes(&world, "files", "sent")[0]["session"].as_str().unwrap().to_owned();
    assert_eq!(world.texts(&file, None)[0], "a.txt");
}

/// Writes an agent with a slow model and a tool that appends a line on each run.
fn slow_agent(world: &World) {
    let cassette = world.path("cassette.toml");
    let calls = "by = \"history\"\n[[calls]]\npieces = [{ wait_ms = 800 }, { call = { id = \"c1\", name = \"run_command\", input = { command = \"sh add.sh\" } } }]\n\
                 [[calls]]\npieces = [{ wait_ms = 800 }, { text = \"Done.\" }]\n";
    std::fs::write(&cassette, calls).unwrap();
    std::fs::write(world.path("add.sh"), "echo ran >> ran.txt\nsleep 0.2\n").unwrap();
    std::fs::create_dir_all(world.path("agents")).unwrap();
    let agent = format!(
        "id: slow\nmodel: \"scripted:{}\"\ntools: [run_command]\nfs_scope: project\nallowed_commands: [\"sh add.sh\"]\napprovals: auto\n",
        cassette.display()
    );
    std::fs::write(world.path("agents/slow.yaml"), agent).unwrap();
}

fn configure_slow(world: &World, more: &str) {
    slow_agent(world);
    let dir = world.dir.path().display();
    world.configure(&format!(
        "[[triggers]]\nname = \"job\"\nwebhook = {{}}\nagent = \"slow\"\ncwd = \"{dir}\"\nprompt = \"Do {{{{payload.n}}}}.\"\n{more}\n"
    ));
}

fn fire(addr: &str, n: u64) -> u64 {
    let (status, fired) = request(addr, "POST", "/v1/triggers/job", None, &json!({ "n": n }).to_string());
    assert_eq!(status, 202, "{fired}");
    fired["firing"].as_u64().unwrap()
}

#[test]
fn servers_killed_at_any_time_lose_and_repeat_no_firing() {
    let world = World::new("sqlite");
    configure_slow(&world, "conflict = \"parallel\"\n");
    let mut firings = Vec::new();
    for round in 0..KILLS {
        let mut served = serve(&world, "127.0.0.1:0");
        wait_until("the trigger", || {
            request(&served.addr, "GET", "/v1/triggers", None, "").1["items"]
                .as_array()
                .is_some_and(|items| !items.is_empty())
        });
        firings.push(fire(&served.addr, round));
        // The kills are spread from before the prompt is queued to after the turn has ended.
        std::thread::sleep(Duration::from_millis(round * 1_400 / KILLS));
        served.child.kill().unwrap();
        served.child.wait().unwrap();
    }
    let _served = serve(&world, "127.0.0.1:0");
    wait_until("every firing", || {
        trigger(&world, "job")["waiting"] == 0 && trigger(&world, "job")["running"] == 0
    });
    let ended = notes(&world, "job", "ended");
    assert_eq!((ended.len(), notes(&world, "job", "sent").len()), (firings.len(), firings.len()));
    for (round, firing) in firings.iter().enumerate() {
        let session = format!("trigger.job.{firing}");
        let texts = world.texts(&session, None);
        assert_eq!(texts.iter().filter(|text| **text == format!("Do {round}.")).count(), 1, "{texts:?}");
        assert_eq!(turns(&world, &session), 1, "{session}");
        assert_eq!(texts.last().unwrap(), "Done.", "{texts:?}");
    }
    let ran = std::fs::read_to_string(world.path("ran.txt")).unwrap_or_default().lines().count();
    assert!(ran <= firings.len(), "the tool ran {ran} times for {} firings", firings.len());
}

#[test]
fn a_second_firing_is_queued_or_skipped() {
    for (conflict, outcomes) in [("queue", 3), ("skip", 1)] {
        let world = World::new("sqlite");
        configure_slow(&world, &format!("conflict = \"{conflict}\"\n"));
        // The first turn runs until the other firings have been requested.
        std::fs::write(world.path("add.sh"), "until [ -e fired ]; do sleep 0.05; done\n").unwrap();
        let served = serve(&world, "127.0.0.1:0");
        wait_until("the trigger", || {
            request(&served.addr, "GET", "/v1/triggers", None, "").1["items"]
                .as_array()
                .is_some_and(|items| !items.is_empty())
        });
        let first = fire(&served.addr, 0);
        // Poll over HTTP, because a command would take longer than the turn.
        wait_until("the first turn", || {
            request(&served.addr, "GET", "/v1/triggers", None, "").1["items"][0]["running"] == 1
        });
        let _ = (fire(&served.addr, 1), fire(&served.addr, 2));
        wait_until("both firings", || notes(&world, "job", "due").len() == 3);
        std::fs::write(world.path("fired"), "").unwrap();
        wait_until("the remaining firings", || {
            trigger(&world, "job")["waiting"] == 0 && trigger(&world, "job")["running"] == 0
        });
        assert_eq!(notes(&world, "job", "ended").len(), outcomes, "{conflict}");
        assert_eq!(notes(&world, "job", "skipped").len(), 3 - outcomes, "{conflict}");
        assert_eq!(notes(&world, "job", "sent")[0]["firing"].as_u64(), Some(first));
        // Firings do not overlap: each prompt is sent after the previous turn has ended.
        let order: Vec<u64> = [notes(&world, "job", "sent"), notes(&world, "job", "ended")]
            .concat()
            .iter()
            .map(|note| note["seq"].as_u64().unwrap())
            .collect();
        let (sent, ended) = order.split_at(outcomes);
        assert!(sent[1..].iter().zip(ended).all(|(sent, ended)| sent > ended), "{order:?}");
    }
}

#[test]
fn firings_close_together_are_merged_into_one() {
    let world = World::new("sqlite");
    world.configure(
        "[[triggers]]\nname = \"job\"\nwebhook = {}\nprompt = \"{{payload.n}}\"\ndebounce_ms = 6000\n",
    );
    let served = serve(&world, "127.0.0.1:0");
    wait_until("the trigger", || {
        request(&served.addr, "GET", "/v1/triggers", None, "").1["items"]
            .as_array()
            .is_some_and(|items| !items.is_empty())
    });
    let firings = [fire(&served.addr, 0), fire(&served.addr, 1), fire(&served.addr, 2)];
    wait_until("one firing", || notes(&world, "job", "ended").len() == 1);
    assert_eq!(notes(&world, "job", "skipped").len(), 2);
    assert_eq!(world.texts(&format!("trigger.job.{}", firings[2]), None)[0], "2");
}

#[test]
fn times_missed_while_no_server_ran_fire_once() {
    let world = World::new("sqlite");
    world.configure(
        "[[triggers]]\nname = \"tick\"\ncron = \"* * * * * *\"\ntime_zone = \"Europe/Berlin\"\nmissed = \"once\"\nprompt = \"{{payload.passed}}\"\n",
    );
    let first = serve(&world, "127.0.0.1:0");
    wait_until("a tick", || {
        world.run(&["events", "trigger.tick"]).status == Some(0) && !notes(&world, "tick", "ended").is_empty()
    });
    drop(first);
    let before = notes(&world, "tick", "due").len();
    std::thread::sleep(Duration::from_secs(4));
    let _second = serve(&world, "127.0.0.1:0");
    wait_until("the next tick", || notes(&world, "tick", "due").len() > before);
    let passed = notes(&world, "tick", "due")[before]["payload"]["passed"].as_u64().unwrap();
    assert!(passed >= 3, "only {passed} missed times fired as one");
}

#[test]
fn a_mistake_in_a_trigger_is_reported_with_its_name() {
    let world = World::new("sqlite");
    for (text, why) in [
        ("name = \"a\"\n", "exactly one"),
        ("name = \"a\"\ncron = \"0 3 * * *\"\n", "time_zone"),
        ("name = \"a\"\ncron = \"never\"\ntime_zone = \"UTC\"\n", "never"),
        ("name = \"a\"\ncron = \"0 3 * * *\"\ntime_zone = \"Mars\"\n", "Mars"),
        ("name = \"A\"\nwebhook = {}\n", "lower-case"),
        ("name = \"a\"\nwebhook = { secret = \"hunter2hunter2\" }\n", "secret:NAME"),
        ("name = \"a\"\nwebhook = {}\nsession = \"s\"\nconflict = \"parallel\"\n", "parallel"),
        ("name = \"a\"\nevent = { session = \"s\" }\nsession = \"s\"\n", "itself"),
        ("name = \"a\"\nwebhook = {}\nprompt = \"{{env.HOME}}\"\n", "env.HOME"),
        ("name = \"a\"\nwebhook = {}\nagent = \"ghost\"\n", "ghost"),
        ("name = \"a\"\nwebhook = {}\nretries = 1\n", "retries"),
    ] {
        world.configure(&format!("[[triggers]]\n{text}"));
        let ran = world.run(&["trigger", "ls", "--json"]);
        assert_ne!(ran.status, Some(0), "{text}");
        assert!(ran.error()["message"].as_str().unwrap().contains(why), "{text}: {}", ran.stderr);
    }
}

#[test]
fn only_callers_with_write_access_or_its_secret_can_fire_a_trigger() {
    let world = World::new("sqlite");
    world.configure("[[triggers]]\nname = \"job\"\nwebhook = {}\nprompt = \"x\"\nuser = \"ana\"\n");
    let key = |user: &str| {
        let made = world.json(&["key", "new", "--tenant", "local", "--user", user]);
        made["key"].as_str().unwrap().to_owned()
    };
    let (ana, bob) = (key("ana"), key("bob"));
    let served = serve(&world, "127.0.0.1:0");
    let items = |key: &str| {
        request(&served.addr, "GET", "/v1/triggers", Some(key), "").1["items"].as_array().map_or(0, Vec::len)
    };
    wait_until("the trigger", || items(&ana) == 1);
    assert_eq!(items(&bob), 0);
    let post = |key: Option<&str>, name: &str| {
        request(&served.addr, "POST", &format!("/v1/triggers/{name}"), key, "{}")
    };
    assert_eq!(post(Some(&ana), "job").0, 202);
    let (foreign, unknown) = (post(Some(&bob), "job"), post(Some(&bob), "nothing"));
    assert_eq!((foreign.0, &foreign.1["code"]), (404, &json!("trigger.not_found")));
    assert_eq!(unknown.0, 404);
    assert_eq!(post(None, "job").0, 401);
}

const SECRET: &str = "correct horse battery";

/// Calls a trigger with a signature created at `at_ms`. Returns the status and the answer.
fn call_signed(addr: &str, name: &str, secret: &str, at_ms: i64, body: &str) -> (u16, Value) {
    let (time, signature) = (at_ms.to_string(), sign(&Secret::new(secret), at_ms, body.as_bytes()));
    let headers = [("sapwood-timestamp", time.as_str()), ("sapwood-signature", signature.as_str())];
    let (status, mut reader) = open(addr, "POST", &format!("/v1/triggers/{name}"), &headers, body).unwrap();
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    (status, serde_json::from_str(&text).unwrap_or_default())
}

#[test]
fn a_signature_fires_its_trigger_once_and_grants_nothing_else() {
    let world = World::new("sqlite");
    let env = [("SAPWOOD_SECRET_BUILD", SECRET)];
    world.configure(
        "[[triggers]]\nname = \"build\"\nwebhook = { secret = \"secret:BUILD\" }\nprompt = \"{{payload.n}}\"\n\
         [[triggers]]\nname = \"keys-only\"\nwebhook = {}\n",
    );
    world.json(&["key", "new", "--tenant", "local", "--user", "ana"]);
    let served = serve_with(&world, &[], "127.0.0.1:0", &env);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
    let body = r#"{"n": 7}"#;
    wait_until("the trigger", || call_signed(&served.addr, "build", SECRET, now, body).0 == 202);
    let (first, again) = (
        call_signed(&served.addr, "build", SECRET, now, body),
        call_signed(&served.addr, "build", SECRET, now, body),
    );
    assert_eq!(first, again, "a replayed call fired again");
    let refused = [
        call_signed(&served.addr, "build", "another secret", now, body),
        call_signed(&served.addr, "build", SECRET, now - SKEW_MS_MAX - 60_000, body),
        call_signed(&served.addr, "keys-only", SECRET, now, body),
        call_signed(&served.addr, "nothing", SECRET, now, body),
    ];
    for answer in &refused {
        assert_eq!((answer.0, &answer.1), (401, &refused[0].1));
        assert_eq!(answer.1["code"], "auth.invalid");
    }
    // The signature is valid only for its trigger, not for other routes.
    let headers = [("sapwood-timestamp", "1"), ("sapwood-signature", "v1=00")];
    assert_eq!(open(&served.addr, "GET", "/v1/triggers/build", &headers, "").unwrap().0, 401);
    assert_eq!(open(&served.addr, "POST", "/v1/sessions", &headers, "{}").unwrap().0, 401);
    let session = format!("trigger.build.{}", first.1["firing"]);
    wait_until("the turn", || {
        world.command(&["context", &session]).envs(env).output().unwrap().status.success()
    });
    let events = world.command(&["events", "trigger.build"]).envs(env).output().unwrap();
    let dues = String::from_utf8(events.stdout).unwrap().matches("\"what\":\"due\"").count();
    assert_eq!(dues, 1);
}
