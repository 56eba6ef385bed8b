//! Behaviour specific to the JSONL store: its files, crash recovery, and manual edits.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sapwood_core::entry::{AssistantMessage, Label, LeafMoved, ModelChanged, Stop, UserMessage};
use sapwood_core::port::store::{
    Append, Appended, Audit, AuditAction, AuditNote, Blobs, Expect, Fork, ListFilter, Log, NewSession,
    Repair, Sessions, Until, Upkeep,
};
use sapwood_core::{
    BlobHash, Body, Draft, Part, Principal, Scope, Seq, SessionId, StoreError, TenantId, TimestampMs,
};
use sapwood_store::Durability;
use sapwood_store::conformance::block_on;
use sapwood_store::jsonl::{JsonlOptions, JsonlStore, PersistFrom};

const NOW: TimestampMs = TimestampMs(1_800_000_000_000);

fn ana() -> Scope {
    Scope::user(TenantId::local(), "ana".parse().unwrap())
}

fn operator() -> Scope {
    Scope::operator(TenantId::local(), Principal::System)
}

fn id(name: &str) -> SessionId {
    name.parse().unwrap()
}

fn user_message(text: &str) -> Body {
    UserMessage { parts: vec![Part::text(text)], origin: None }.into()
}

fn assistant_message(text: &str) -> Body {
    let (parts, stop) = (vec![Part::text(text)], Stop::Stop);
    AssistantMessage { parts, model: None, usage: None, cost_nano_usd: None, stop }.into()
}

fn open(dir: &Path) -> JsonlStore {
    let options = JsonlOptions { durability: Durability::Normal, ..JsonlOptions::default() };
    JsonlStore::open(dir, options).unwrap()
}

fn append_of(name: &str, bodies: Vec<Body>) -> Append {
    Append::new(id(name), NOW, bodies.into_iter().map(|body| Draft::new(NOW, body)).collect())
}

async fn append(store: &JsonlStore, name: &str, bodies: Vec<Body>) -> Appended {
    store.append(&ana(), append_of(name, bodies)).await.unwrap()
}

async fn create(store: &JsonlStore, name: &str) {
    store.create(&ana(), NewSession::new(id(name), NOW)).await.unwrap();
}

async fn create_with(store: &JsonlStore, name: &str, texts: &[&str]) {
    create(store, name).await;
    for text in texts {
        append(store, name, vec![user_message(text)]).await;
    }
}

async fn fork(store: &JsonlStore, source: &str, at: Option<u32>, name: &str) {
    let new = NewSession::new(id(name), NOW);
    store.fork(&ana(), Fork { source: id(source), at: at.map(Seq), new, drafts: Vec::new() }).await.unwrap();
}

async fn texts(store: &JsonlStore, name: &str) -> Vec<String> {
    let slice = store.read_path(&ana(), &id(name), None, Until::Root).await.unwrap();
    slice.entries.iter().map(|entry| entry.body.text()).collect()
}

/// List the session files whose names have this ending, sorted.
fn files(dir: &Path, ending: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    let is_session = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().contains('_');
    found.retain(|path| path.to_str().unwrap().ends_with(ending) && is_session(path));
    found.sort();
    found
}

fn log_file(dir: &Path) -> PathBuf {
    let mut logs = files(dir, ".jsonl");
    assert_eq!(logs.len(), 1, "{logs:?}");
    logs.remove(0)
}

/// Remove the checksums and hashes of lines, as if an earlier version had written them.
pub fn without_sums(text: &str) -> String {
    let strip = |line: &str| match serde_json::from_str::<serde_json::Value>(line) {
        Ok(mut value) => {
            for field in ["sum", "salt", "hash"] {
                let member = value[field].as_str().map(|text| format!(",\"{field}\":\"{text}\""));
                value["line"] =
                    value["line"].as_str().unwrap_or(line).replace(&member.unwrap_or_default(), "").into();
            }
            value["line"].as_str().unwrap().to_owned()
        }
        Err(_) => line.to_owned(),
    };
    text.lines().map(|line| strip(line) + "\n").collect()
}

/// Return the content of all files in the directory as one text.
fn all_bytes(dir: &Path) -> String {
    let mut all = String::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.push_str(&all_bytes(&path));
        } else {
            all.push_str(&String::from_utf8_lossy(&fs::read(path).unwrap()));
        }
    }
    all
}

#[test]
fn a_file_has_a_header_and_one_line_per_entry() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let store = open(dir.path());
        let new = NewSession { cwd: Some("/work".to_owned()), ..NewSession::new(id("s_1"), NOW) };
        store.create(&ana(), new).await.unwrap();
        append(&store, "s_1", vec![user_message("hello")]).await;
        append(&store, "s_1", vec![assistant_message("hi")]).await;
        let path = log_file(dir.path());
        assert_eq!(path.file_name().unwrap().to_str().unwrap(), "2027-01-15T08-00-00-000Z_s_1.jsonl");
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(
            text.starts_with(
                r#"{"type":"session_header","id":"s_1","timestamp":1800000000000,"cwd":"/work""#
            )
        );
        assert_eq!(lines.len(), 3);
        assert_eq!((lines[1]["type"].as_str(), lines[1]["seq"].as_u64()), (Some("user_message"), Some(1)));
        assert_eq!(
            (&lines[1]["parent_id"], &lines[2]["parent_id"]),
            (&serde_json::Value::Null, &lines[1]["id"])
        );
        assert_eq!(lines[2]["parts"][0]["text"], "hi");
    });
}

#[test]
fn nothing_is_written_before_the_first_message() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("sessions");
    block_on(async {
        let store = open(&root);
        create(&store, "s").await;
        append(&store, "s", vec![ModelChanged { model: "m".to_owned() }.into()]).await;
        assert_eq!(store.list(&ana(), &ListFilter::default()).await.unwrap().items.len(), 1);
        fork(&store, "s", None, "f").await;
        assert!(files(&root, ".jsonl").is_empty(), "neither the session nor its fork is written");
        append(&store, "f", vec![user_message("hello")]).await;
        assert_eq!(files(&root, ".jsonl").len(), 1, "the fork's file includes its shared entries");
        store.erase(&ana(), &id("s"), NOW).await.unwrap();
        let before = store.summary(&ana(), &id("f")).await.unwrap();
        let again = open(&root);
        assert_eq!(again.summary(&ana(), &id("f")).await.unwrap(), before);
        let slice = again.read_path(&ana(), &id("f"), None, Until::Root).await.unwrap();
        assert_eq!((slice.entries.len(), slice.inherited), (2, 1));
        append(&again, "f", vec![user_message("more")]).await;
        assert_eq!(open(&root).summary(&ana(), &id("f")).await.unwrap().model.as_deref(), Some("m"));
    });
}

#[test]
fn earlier_entries_are_written_with_the_first_message() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let store = open(dir.path());
        create(&store, "s").await;
        let early = Append {
            idempotency_key: Some("k".to_owned()),
            ..append_of(
                "s",
                vec![
                    ModelChanged { model: "a".to_owned() }.into(),
                    ModelChanged { model: "b".to_owned() }.into(),
                ],
            )
        };
        let first = store.append(&ana(), early.clone()).await.unwrap();
        use sapwood_core::port::store::Leases;
        let lease = store.take_lease(&ana(), &id("s"), "h", 1_000).await.unwrap();
        let fenced = Append { fence: Some(lease.fence), ..append_of("s", vec![user_message("hello")]) };
        assert_eq!(store.append(&ana(), fenced).await.unwrap().head.seq, Seq(3));
        let before = store.summary(&ana(), &id("s")).await.unwrap();
        let again = open(dir.path());
        assert_eq!(again.summary(&ana(), &id("s")).await.unwrap(), before);
        assert_eq!(again.append(&ana(), early).await.unwrap(), first, "the key is remembered");
        let error = again.append(&ana(), append_of("s", vec![user_message("x")])).await.unwrap_err();
        assert_eq!(error.code(), "session.leased", "the lease is remembered, too");
        let audit = again.read_audit(&operator(), None, 0, 10).await.unwrap();
        assert_eq!(audit.len(), 1, "the creation is audited exactly once");
    });
}

#[test]
fn persist_from_assistant_waits_for_the_first_answer() {
    let dir = tempfile::tempdir().unwrap();
    let options = JsonlOptions { persist_from: PersistFrom::Assistant, durability: Durability::Full };
    block_on(async {
        let store = JsonlStore::open(dir.path(), options).unwrap();
        create_with(&store, "s", &["one", "two"]).await;
        fork(&store, "s", Some(1), "f").await;
        assert!(files(dir.path(), ".jsonl").is_empty());
        append(&store, "s", vec![assistant_message("three")]).await;
        assert_eq!(files(dir.path(), ".jsonl").len(), 1);
        append(&store, "f", vec![assistant_message("2")]).await;
        fork(&store, "s", Some(2), "g").await;
        assert_eq!(files(dir.path(), ".jsonl").len(), 3, "a fork with messages is written immediately");
        let again = JsonlStore::open(dir.path(), options).unwrap();
        assert_eq!(texts(&again, "s").await, ["one", "two", "three"]);
        assert_eq!(texts(&again, "f").await, ["one", "2"]);
        assert_eq!(texts(&again, "g").await, ["one", "two"]);
    });
}

/// A file truncated at any byte opens with every complete batch, and the next append works (I3, I4).
#[test]
fn a_torn_end_is_cut_off_at_any_position() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, cuts) = block_on(async {
        let store = open(dir.path());
        create_with(&store, "s", &["one"]).await;
        let first = fs::metadata(log_file(dir.path())).unwrap().len();
        append(&store, "s", vec![user_message("two"), user_message("three"), user_message("four")]).await;
        (fs::read(log_file(dir.path())).unwrap(), first as usize)
    });
    let name = log_file(dir.path()).file_name().unwrap().to_owned();
    for cut in cuts..whole.len() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(&name), &whole[..cut]).unwrap();
        block_on(async {
            let store = open(dir.path());
            // A missing final line break loses no data.
            let expected = if cut + 1 == whole.len() { 4 } else { 1 };
            assert_eq!(texts(&store, "s").await.len(), expected, "cut at {cut}");
            let is_torn = cut != cuts && expected == 1;
            assert_eq!(files(dir.path(), ".torn").len(), usize::from(is_torn), "cut at {cut}");
            assert_eq!(store.warnings(&ana()).len(), usize::from(is_torn));
            append(&store, "s", vec![user_message("next")]).await;
            assert_eq!(
                open(dir.path()).summary(&ana(), &id("s")).await.unwrap().messages,
                expected as u32 + 1
            );
            let findings = store.check(&operator(), Repair::No).await.unwrap();
            assert_eq!(
                findings.iter().filter(|finding| finding.rule == "torn").count(),
                usize::from(is_torn)
            );
        });
    }
}

#[test]
fn a_torn_end_is_saved_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let store = open(dir.path());
        create_with(&store, "s", &["one"]).await;
        let path = log_file(dir.path());
        let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(br#"{"type":"user_message","seq":2,"id":"0"#).unwrap();
        // Read with a store that is already open, and with a newly opened store.
        assert_eq!(texts(&store, "s").await, ["one"]);
        assert_eq!(texts(&open(dir.path()), "s").await, ["one"]);
        let torn = fs::read_to_string(&files(dir.path(), ".torn")[0]).unwrap();
        assert_eq!(torn, "{\"type\":\"user_message\",\"seq\":2,\"id\":\"0\n");
        append(&store, "s", vec![user_message("two")]).await;
        assert_eq!(texts(&store, "s").await, ["one", "two"]);
    });
}

/// Check that damage is reported and the file is left unchanged.
async fn check_damage(dir: &Path, line: usize) {
    let path = log_file(dir);
    let before = fs::read(&path).unwrap();
    let store = open(dir);
    let error = store.summary(&ana(), &id("s")).await.unwrap_err();
    let StoreError::Damaged { place, .. } = &error else { panic!("{error:?}") };
    assert!(place.ends_with(&format!("_s.jsonl:{line}")), "{place}");
    let error = store.append(&ana(), append_of("s", vec![user_message("x")])).await.unwrap_err();
    assert_eq!(error.code(), "store.damaged");
    assert_eq!(fs::read(&path).unwrap(), before);
    assert!(files(dir, ".torn").is_empty());
    let findings = store.check(&operator(), Repair::Yes).await.unwrap();
    assert!(findings.iter().any(|finding| finding.rule == "damaged" && finding.place == *place));
    // Listing still works, without the damaged session.
    assert!(store.list(&ana(), &ListFilter::default()).await.unwrap().items.is_empty());
    assert_eq!(store.warnings(&ana())[0].rule, "damaged");
}

#[test]
fn a_damaged_line_or_header_is_reported_and_not_changed() {
    type Damage = fn(&mut Vec<String>);
    let damages: [(Damage, usize); 8] = [
        (|lines| lines[2] = "not json".to_owned(), 3),
        (|lines| lines[2] = "{}".to_owned(), 3),
        (|lines| drop(lines.remove(2)), 3),
        (|lines| lines.swap(2, 3), 3),
        (|lines| lines[2] = lines[2].replace("user_message", "mystery"), 3),
        (|lines| lines[0] = "not a header".to_owned(), 1),
        (|lines| lines[0] = lines[0].replace("session_header", "other"), 1),
        (|lines| lines[0] = lines[0].replace("\"id\":\"s\"", "\"id\":\"t\""), 1),
    ];
    for (damage, line) in damages {
        let dir = tempfile::tempdir().unwrap();
        block_on(async {
            create_with(&open(dir.path()), "s", &["one", "two", "three", "four"]).await;
            let path = log_file(dir.path());
            let mut lines: Vec<String> =
                fs::read_to_string(&path).unwrap().lines().map(str::to_owned).collect();
            damage(&mut lines);
            fs::write(&path, lines.join("\n") + "\n").unwrap();
            check_damage(dir.path(), line).await;
        });
    }
}

#[test]
fn a_newer_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        create_with(&open(dir.path()), "s", &["one"]).await;
        let path = log_file(dir.path());
        let text = fs::read_to_string(&path).unwrap().replace("\"version\":3", "\"version\":99");
        fs::write(&path, without_sums(&text)).unwrap();
        let error = open(dir.path()).summary(&ana(), &id("s")).await.unwrap_err();
        assert!(matches!(error, StoreError::TooNew { found: 99, .. }), "{error:?}");
    });
}

#[test]
fn old_and_handwritten_files_are_read_and_extended() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let one = sapwood_core::EntryId::mint(TimestampMs(1), 1);
        let two = sapwood_core::EntryId::mint(TimestampMs(2), 1);
        let text = format!(
            r#"{{"type":"session_header","id":"s","timestamp":1,"version":1,"owner":"user:ana"}}

{{ "id": "{one}", "timestamp": 1, "type": "user_message", "text": "hello" }}
{{"type":"assistant_message","id":"{two}","parent_id":"{one}","timestamp":2,"text":"hi"}}"#
        );
        fs::write(dir.path().join("1970-01-01T00-00-00-001Z_s.jsonl"), text).unwrap();
        let store = open(dir.path());
        assert_eq!(texts(&store, "s").await, ["hello", "hi"]);
        // The last line has no line break, but the next entry still starts on its own line.
        append(&store, "s", vec![user_message("three"), user_message("four")]).await;
        append(&store, "s", vec![user_message("five")]).await;
        for store in [store, open(dir.path())] {
            assert_eq!(texts(&store, "s").await, ["hello", "hi", "three", "four", "five"]);
            let record = store.read_entry(&ana(), &id("s"), Seq(1)).await.unwrap();
            assert_eq!(record.body, br#"{"type":"user_message","parts":[{"type":"text","text":"hello"}]}"#);
            assert_eq!(record.meta.by, ana().principal);
        }
    });
}

#[test]
fn an_erased_word_is_nowhere_in_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let store = open(dir.path());
        let new = NewSession { title: Some("zebra title".to_owned()), ..NewSession::new(id("s"), NOW) };
        store.create(&ana(), new).await.unwrap();
        let first = append(&store, "s", vec![user_message("shared"), user_message("dead zebra")]).await;
        let blob = store.put_blob(&ana(), b"zebra blob".to_vec()).await.unwrap();
        let media = sapwood_core::BlobRef {
            blob,
            mime: "text/plain".to_owned(),
            name: Some("zebra.txt".to_owned()),
            bytes: 10,
            duration_ms: None,
        };
        let with_blob = UserMessage { parts: vec![Part::Media(media)], origin: None };
        append(&store, "s", vec![with_blob.into(), LeafMoved { to: Some(first.entries[0].1) }.into()]).await;
        fork(&store, "s", None, "f").await;
        store.list(&ana(), &ListFilter::default()).await.unwrap();
        // The fork inherited the title, so the title may remain.
        assert!(all_bytes(dir.path()).contains("dead zebra"));
        store.erase(&ana(), &id("s"), NOW).await.unwrap();
        let left = all_bytes(dir.path()).replace("zebra title", "");
        assert!(!left.contains("zebra"), "{left}");
        assert_eq!((files(dir.path(), ".jsonl").len(), files(dir.path(), ".erased").len()), (1, 1));
        assert_eq!(texts(&open(dir.path()), "f").await, ["shared"]);
        store.erase(&ana(), &id("f"), NOW).await.unwrap();
        assert!(files(dir.path(), "").iter().all(|path| !path.exists()), "{:?}", files(dir.path(), ""));
        assert!(!all_bytes(dir.path()).contains("zebra"));
        assert_eq!(
            store.get_blob(&operator(), BlobHash::of(b"zebra blob")).await.unwrap_err().code(),
            "blob.not_found"
        );
    });
}

#[test]
fn a_list_does_not_read_indexed_logs() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let store = open(dir.path());
        for number in 0..5 {
            create_with(&store, &format!("s{number}"), &["hello"]).await;
        }
        let before = store.list(&ana(), &ListFilter::default()).await.unwrap();
        // Make a log unreadable without changing its length, so that its line in the index stays valid.
        let path = files(dir.path(), ".jsonl").remove(0);
        let length = fs::metadata(&path).unwrap().len() as usize;
        fs::write(&path, vec![b'x'; length]).unwrap();
        let again = open(dir.path());
        assert_eq!(again.list(&ana(), &ListFilter::default()).await.unwrap(), before);
        assert!(again.summary(&ana(), &id("s0")).await.is_err());
        // Without an index, every log is read.
        fs::remove_file(dir.path().join("index.jsonl")).unwrap();
        assert_eq!(open(dir.path()).list(&ana(), &ListFilter::default()).await.unwrap().items.len(), 4);
    });
}

#[test]
fn a_wrong_index_is_detected_and_rebuilt() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let store = open(dir.path());
        create_with(&store, "s", &["hello"]).await;
        let right = store.list(&ana(), &ListFilter::default()).await.unwrap();
        let index = dir.path().join("index.jsonl");
        let wrong =
            fs::read_to_string(&index).unwrap().replace("\"preview\":\"hello\"", "\"preview\":\"forged\"");
        fs::write(&index, format!("{wrong}half a li")).unwrap();
        let store = open(dir.path());
        assert_eq!(store.list(&ana(), &ListFilter::default()).await.unwrap(), right, "a bad line is ignored");
        fs::write(&index, wrong).unwrap();
        let findings = open(dir.path()).check(&operator(), Repair::No).await.unwrap();
        assert!(findings.iter().any(|finding| finding.rule == "cache" && !finding.repaired), "{findings:?}");
        let findings = open(dir.path()).check(&operator(), Repair::Yes).await.unwrap();
        assert!(findings.iter().any(|finding| finding.rule == "cache" && finding.repaired), "{findings:?}");
        let store = open(dir.path());
        assert_eq!(store.list(&ana(), &ListFilter::default()).await.unwrap(), right);
        assert!(store.check(&operator(), Repair::No).await.unwrap().is_empty());
    });
}

#[test]
fn a_broken_audit_chain_is_detected() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let store = open(dir.path());
        create_with(&store, "a", &["x"]).await;
        create_with(&store, "b", &["x"]).await;
        let path = dir.path().join("audit.jsonl");
        // A partial line left by a crash was never acknowledged and does not break the chain.
        let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"number\":3").unwrap();
        create_with(&store, "c", &["x"]).await;
        assert_eq!(store.read_audit(&operator(), None, 0, 10).await.unwrap().len(), 3);
        assert!(store.check(&operator(), Repair::No).await.unwrap().is_empty());
        let text = fs::read_to_string(&path).unwrap();
        let without_first = text.split_once('\n').unwrap().1;
        fs::write(&path, without_first).unwrap();
        let findings = store.check(&operator(), Repair::No).await.unwrap();
        assert!(findings.iter().any(|finding| finding.rule == "audit"), "{findings:?}");
    });
}

#[test]
fn the_audit_chain_continues_after_lines_of_any_length() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let store = open(dir.path());
        for number in 0..120_usize {
            let detail = Some("x".repeat(if number % 40 == 30 { 40_000 } else { number * 10 }));
            let note = AuditNote { action: AuditAction::Edit, session: None, detail };
            store.write_audit(&operator(), note, TimestampMs(1)).await.unwrap();
        }
        assert_eq!(store.read_audit(&operator(), None, 0, 200).await.unwrap().len(), 120);
        assert!(store.check(&operator(), Repair::No).await.unwrap().is_empty());
    });
}

/// Each writer opens its own store, like a separate process. Every acknowledged message is in the log
/// exactly once, on one path (I1, I5).
#[test]
fn concurrent_writers_of_one_file_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    block_on(create_with(&open(dir.path()), "s", &["start"]));
    let root = Arc::new(dir.path().to_owned());
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let root = Arc::clone(&root);
            std::thread::spawn(move || block_on(write_many(&root, writer)))
        })
        .collect();
    for writer in writers {
        writer.join().unwrap();
    }
    block_on(async {
        let mut messages = texts(&open(dir.path()), "s").await;
        assert_eq!(messages.len(), 101);
        messages.sort();
        messages.dedup();
        assert_eq!(messages.len(), 101);
        assert!(open(dir.path()).check(&operator(), Repair::No).await.unwrap().is_empty());
    });
}

async fn write_many(root: &Path, writer: u32) {
    let store = open(root);
    for number in 0..25 {
        loop {
            let head = store.summary(&ana(), &id("s")).await.unwrap().head.seq;
            let append = Append {
                expect: Expect::Head(head),
                ..append_of("s", vec![user_message(&format!("{writer} {number}"))])
            };
            match store.append(&ana(), append).await {
                Ok(_) => break,
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
    }
}

#[test]
fn a_fork_writes_a_header_and_no_copy() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let store = open(dir.path());
        create(&store, "s").await;
        append(&store, "s", (0..500).map(|number| user_message(&format!("message {number}"))).collect())
            .await;
        fork(&store, "s", None, "f").await;
        let forked = files(dir.path(), "_f.jsonl").remove(0);
        assert!(fs::metadata(&forked).unwrap().len() < 600);
        append(&store, "f", vec![user_message("own")]).await;
        assert_eq!(texts(&open(dir.path()), "f").await.len(), 501);
        fs::remove_file(files(dir.path(), "_s.jsonl").remove(0)).unwrap();
        let error = open(dir.path()).summary(&ana(), &id("f")).await.unwrap_err();
        assert_eq!(error.code(), "store.damaged", "a manually deleted source is reported: {error}");
    });
}

#[test]
fn a_very_deep_fork_copies_its_shared_entries() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let store = open(dir.path());
        create_with(&store, "g0", &["m0"]).await;
        for generation in 1..=140 {
            fork(&store, &format!("g{}", generation - 1), None, &format!("g{generation}")).await;
            append(&store, &format!("g{generation}"), vec![user_message(&format!("m{generation}"))]).await;
        }
        let again = open(dir.path());
        let expected: Vec<String> = (0..=140).map(|generation| format!("m{generation}")).collect();
        assert_eq!(texts(&again, "g140").await, expected);
        let summary = again.summary(&ana(), &id("g140")).await.unwrap();
        assert_eq!((summary.inherited, summary.messages), (140, 141));
        let is_whole = |path: &PathBuf| !fs::read_to_string(path).unwrap().contains("\"base\"");
        assert_eq!(
            files(dir.path(), ".jsonl").into_iter().filter(is_whole).count(),
            3,
            "the first session and two of its forks"
        );
    });
}

#[cfg(unix)]
#[test]
fn a_read_only_log_is_readable() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        create_with(&open(dir.path()), "s", &["one"]).await;
        let path = log_file(dir.path());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
        if fs::OpenOptions::new().append(true).open(&path).is_ok() {
            return; // Permissions do not restrict the superuser.
        }
        let store = open(dir.path());
        assert_eq!(texts(&store, "s").await, ["one"]);
        let error = store.append(&ana(), append_of("s", vec![user_message("x")])).await.unwrap_err();
        assert_eq!(error.code(), "store.read_only");
    });
}

#[test]
fn sessions_are_found_by_working_directory() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let store = open(dir.path());
        let here = store.create_in(&ana(), "/here", NOW).await.unwrap();
        let there = store.create_in(&ana(), "/there", NOW).await.unwrap();
        assert_eq!(store.continue_recent(&ana(), "/nowhere").await.unwrap(), None);
        let first = append(&store, here.as_str(), vec![user_message("one")]).await;
        append(&store, there.as_str(), vec![user_message("two")]).await;
        assert_eq!(store.continue_recent(&ana(), "/here").await.unwrap(), Some(here.clone()));
        let label = Label { target: first.entries[0].1, text: Some("start".to_owned()) };
        append(&store, here.as_str(), vec![label.into()]).await;
        let forked = store.fork_from(&ana(), &here, "/there", TimestampMs(NOW.0 + 1)).await.unwrap();
        assert_eq!(store.continue_recent(&ana(), "/there").await.unwrap(), Some(forked.clone()));
        assert_eq!(
            store.read_after(&ana(), &forked, Seq::ZERO, 10).await.unwrap().len(),
            2,
            "the message and its label"
        );
        let options = JsonlOptions::default();
        let path = files(dir.path(), &format!("{here}.jsonl")).remove(0);
        let (opened, id) = JsonlStore::open_file(&path, &ana(), options).await.unwrap();
        assert_eq!((id, texts(&opened, here.as_str()).await.len()), (here, 1));
        assert!(JsonlStore::open_file(Path::new("notes.txt"), &ana(), options).await.is_err());
        let (memory, id) = JsonlStore::in_memory(&ana(), "/here", NOW).await.unwrap();
        assert_eq!(memory.summary(&ana(), &id).await.unwrap().cwd.as_deref(), Some("/here"));
    });
}

#[test]
fn each_tenant_has_its_own_directory() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let store = open(dir.path());
        let scope = Scope::user("acme".parse().unwrap(), "ana".parse().unwrap());
        store.create(&scope, NewSession::new(id("s"), NOW)).await.unwrap();
        store.append(&scope, append_of("s", vec![user_message("x")])).await.unwrap();
        assert!(files(dir.path(), ".jsonl").is_empty());
        assert_eq!(files(&dir.path().join("tenants/acme"), ".jsonl").len(), 1);
    });
}

/// Environment variable with the directory that the killed process writes to.
const KILLED_DIR: &str = "SAPWOOD_TEST_KILLED_DIR";

/// Not a test: the child process that is killed runs this. It prints each acknowledged append.
#[test]
fn writer_that_is_killed() {
    let Ok(dir) = std::env::var(KILLED_DIR) else { return };
    block_on(async {
        let store = open(Path::new(&dir));
        loop {
            let appended =
                append(&store, "s", (0..5).map(|_| user_message("a few words in each of them")).collect())
                    .await;
            println!("acknowledged {}", appended.head.seq);
        }
    });
}

#[test]
fn a_killed_writer_loses_no_acknowledged_append() {
    use std::io::{BufRead, BufReader};
    let dir = tempfile::tempdir().unwrap();
    block_on(create_with(&open(dir.path()), "s", &["start"]));
    for round in 0..10_u64 {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "jsonl_files::writer_that_is_killed", "--nocapture"])
            .env(KILLED_DIR, dir.path())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let reader = std::thread::spawn(move || {
            let lines = output.lines().map_while(Result::ok);
            lines.filter_map(|line| line.split_once("acknowledged ")?.1.trim().parse::<u32>().ok()).last()
        });
        std::thread::sleep(std::time::Duration::from_millis(60 + 7 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        let acknowledged = reader.join().unwrap();
        block_on(async {
            let store = open(dir.path());
            let head = store.summary(&ana(), &id("s")).await.unwrap().head.seq.0;
            assert!(
                Some(head) >= acknowledged,
                "round {round}: the log ends at {head}, but {acknowledged:?} was acknowledged"
            );
            let next = append(&store, "s", vec![user_message("after the crash")]).await;
            assert_eq!(next.head.seq.0, head + 1);
            let findings = store.check(&operator(), Repair::No).await.unwrap();
            assert!(findings.iter().all(|finding| finding.rule == "torn"), "{findings:?}");
        });
    }
}
