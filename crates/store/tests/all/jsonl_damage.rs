//! Damage of a JSONL store's files: every changed bit is found, and no read returns other data than was written.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use sapwood_core::entry::UserMessage;
use sapwood_core::id::MemoryId;
use sapwood_core::port::keys::{ApiKey, Grant, Keys};
use sapwood_core::port::memory::{Belongs, Learned, Memories, Memory, MemoryFilter, MemoryKind};
use sapwood_core::port::store::{
    Append, Audit, Blobs, Fork, Leases, ListFilter, Log, NewSession, Repair, Result, Sessions, Upkeep,
};
use sapwood_core::{BlobHash, Body, Draft, Part, Principal, Scope, Seq, SessionId, TenantId, TimestampMs};
use sapwood_store::Durability;
use sapwood_store::conformance::block_on;
use sapwood_store::jsonl::{JsonlOptions, JsonlStore};

use super::jsonl_files::without_sums;

const NOW: TimestampMs = TimestampMs(1_800_000_000_000);
/// Flips per run. `FLIPS=5000` runs more.
const FLIPS: u64 = 160;

fn ana() -> Scope {
    Scope::user(TenantId::local(), "ana".parse().unwrap())
}

fn operator() -> Scope {
    Scope::operator(TenantId::local(), Principal::System)
}

fn id(name: &str) -> SessionId {
    name.parse().unwrap()
}

fn open(dir: &Path) -> JsonlStore {
    let options = JsonlOptions { durability: Durability::Normal, ..JsonlOptions::default() };
    JsonlStore::open(dir, options).unwrap()
}

fn message(text: &str) -> Body {
    UserMessage { parts: vec![Part::text(text)], origin: None }.into()
}

async fn append(store: &JsonlStore, session: &str, texts: &[&str]) {
    let drafts = texts.iter().map(|text| Draft::new(NOW, message(text))).collect();
    store.append(&ana(), Append::new(id(session), NOW, drafts)).await.unwrap();
}

/// Write a store with every kind of file.
async fn fill(dir: &Path) {
    let store = open(dir);
    for name in ["a", "b"] {
        store.create(&ana(), NewSession::new(id(name), NOW)).await.unwrap();
        append(&store, name, &["one", "two", "three"]).await;
        append(&store, name, &["four"]).await;
    }
    let fork =
        Fork { source: id("a"), at: Some(Seq(2)), new: NewSession::new(id("f"), NOW), drafts: Vec::new() };
    store.fork(&ana(), fork).await.unwrap();
    append(&store, "f", &["own"]).await;
    let second =
        Fork { source: id("b"), at: Some(Seq(3)), new: NewSession::new(id("g"), NOW), drafts: Vec::new() };
    store.fork(&ana(), second).await.unwrap();
    store.erase(&ana(), &id("b"), NOW).await.unwrap();
    let lease = store.take_lease(&ana(), &id("a"), "holder", 5_000).await.unwrap();
    store.release_lease(&ana(), &lease).await.unwrap();
    store.put_blob(&ana(), b"blob".to_vec()).await.unwrap();
    store.put_memory(&ana(), memory(), 0, NOW).await.unwrap();
    store.put_key(&ana(), key()).await.unwrap();
    store.list(&ana(), &ListFilter::default()).await.unwrap();
}

fn memory() -> Memory {
    Memory {
        id: MemoryId::mint(NOW, 1),
        belongs: Belongs::To(ana().principal),
        kind: MemoryKind::Fact,
        text: "remember this".to_owned(),
        sources: Vec::new(),
        learned: Learned::ByHand,
        by: Principal::System,
        version: 0,
        created_at: NOW,
        updated_at: NOW,
        superseded_by: None,
        embedding: None,
    }
}

fn key() -> ApiKey {
    ApiKey {
        id: "k1".to_owned(),
        tenant: TenantId::local(),
        user: "ana".parse().unwrap(),
        hash: BlobHash::of(b"secret"),
        label: None,
        grants: vec![Grant::Read],
        created_at: NOW,
        expires_at: None,
        revoked_at: None,
    }
}

/// Everything that a caller can read, or the code of the error.
async fn read_all(dir: &Path) -> BTreeMap<&'static str, Result<String, &'static str>> {
    let store = open(dir);
    let mut seen = BTreeMap::new();
    for name in ["a", "f", "g"] {
        let log = store.read_after(&ana(), &id(name), Seq::ZERO, 100).await;
        let summary = store.summary(&ana(), &id(name)).await;
        let read = log.and_then(|log| summary.map(|summary| format!("{log:?} {summary:?}")));
        seen.insert(name, read.map_err(|error| error.code()));
    }
    let list = store.list(&ana(), &ListFilter::default()).await;
    let mut out = list.map(|page| format!("{:?}", page.items)).map_err(|error| error.code());
    if !store.unreadable(&ana()).await.unwrap().is_empty() {
        out = Err("incomplete");
    }
    seen.insert("list", out);
    let audit = store.read_audit(&operator(), None, 0, 100).await;
    seen.insert("audit", audit.map(|lines| format!("{lines:?}")).map_err(|error| error.code()));
    let recent = store.read_audit_since(&operator(), &id("a"), TimestampMs(0), 100).await;
    seen.insert("recent", recent.map(|lines| format!("{lines:?}")).map_err(|error| error.code()));
    let keys = store.list_keys(&operator()).await;
    seen.insert("keys", keys.map(|keys| format!("{keys:?}")).map_err(|error| error.code()));
    let memories = store.list_memories(&ana(), &MemoryFilter::default()).await;
    seen.insert("memories", memories.map(|page| format!("{:?}", page.items)).map_err(|error| error.code()));
    let blob = store.get_blob(&ana(), BlobHash::of(b"blob")).await;
    seen.insert("blob", blob.map(|bytes| format!("{bytes:?}")).map_err(|error| error.code()));
    let lease = store.take_lease(&ana(), &id("a"), "other", 1_000).await;
    seen.insert("lease", lease.map(|lease| format!("{}", lease.fence >= 2)).map_err(|error| error.code()));
    seen
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}

fn copy_to(from: &Path, to: &Path) {
    for file in files(from) {
        let target = to.join(file.strip_prefix(from).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(&file, target).unwrap();
    }
}

/// A small pseudo-random generator, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[test]
fn no_changed_bit_of_any_file_changes_an_answer() {
    let dir = tempfile::tempdir().unwrap();
    block_on(fill(dir.path()));
    let right = block_on(read_all(dir.path()));
    assert!(right.values().all(|read| read.is_ok()), "{right:#?}");
    let flips = std::env::var("FLIPS").ok().and_then(|text| text.parse().ok()).unwrap_or(FLIPS);
    let originals = files(dir.path());
    let total: u64 = originals.iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    let mut random = Random(42);
    for flip in 0..flips {
        let copy = tempfile::tempdir().unwrap();
        copy_to(dir.path(), copy.path());
        // Every byte of all files is equally likely.
        let (mut at, bit) = (random.below(total), random.below(8));
        let file = originals.iter().find(|file| {
            let len = fs::metadata(file).unwrap().len();
            let is_here = at < len;
            at -= if is_here { 0 } else { len };
            is_here
        });
        let path = copy.path().join(file.unwrap().strip_prefix(dir.path()).unwrap());
        let mut bytes = fs::read(&path).unwrap();
        bytes[at as usize] ^= 1 << bit;
        fs::write(&path, bytes).unwrap();
        let place = format!("flip {flip}: bit {bit} of byte {at} of {}", path.display());
        block_on(check_damaged(copy.path(), &right, &place));
    }
}

/// Check that each read returns what was written or fails, that `doctor` reports the damage, and that a repair restores it.
async fn check_damaged(
    dir: &Path,
    right: &BTreeMap<&'static str, Result<String, &'static str>>,
    place: &str,
) {
    for (what, read) in read_all(dir).await {
        match read {
            Ok(read) => assert_eq!(Ok(read), right[what], "{place}: {what}"),
            Err("store.damaged" | "incomplete") => {}
            Err(code) => panic!("{place}: {what} fails with {code}"),
        }
    }
    let is_cache = place.ends_with("index.jsonl") || place.ends_with(".head");
    let findings = open(dir).check(&operator(), Repair::No).await.unwrap();
    assert!(is_cache || !findings.is_empty(), "{place}: doctor finds nothing");
    let findings = open(dir).check(&operator(), Repair::Yes).await.unwrap();
    let is_blob = place.contains("/blobs/") && !place.ends_with(".by");
    let unrepaired: Vec<_> = findings.iter().filter(|finding| !finding.repaired).collect();
    assert!(is_blob || unrepaired.is_empty(), "{place}: {unrepaired:?}");
    if !is_blob {
        for (what, read) in read_all(dir).await {
            assert_eq!(read, right[what], "{place}: {what} after the repair");
        }
    }
}

#[test]
fn a_lost_end_is_found_even_at_a_line_boundary() {
    let names = ["_a.jsonl", "_f.jsonl", "audit.jsonl", "keys.jsonl", "memories.jsonl"];
    for name in names {
        let dir = tempfile::tempdir().unwrap();
        block_on(fill(dir.path()));
        let path = files(dir.path()).into_iter().find(|file| file.to_str().unwrap().ends_with(name)).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let keep = text.trim_end().rfind('\n').map_or(0, |at| at + 1);
        fs::write(&path, &text[..keep]).unwrap();
        let damaged: Vec<_> =
            block_on(read_all(dir.path())).into_iter().filter(|(_, read)| read.is_err()).collect();
        assert!(damaged.iter().any(|(_, read)| *read == Err("store.damaged")), "{name}: {damaged:?}");
        let findings = block_on(open(dir.path()).check(&operator(), Repair::No)).unwrap();
        assert!(!findings.is_empty(), "{name}");
        let findings = block_on(open(dir.path()).check(&operator(), Repair::Yes)).unwrap();
        assert!(findings.iter().any(|finding| !finding.repaired), "{name}: a lost line cannot be repaired");
        let again = block_on(open(dir.path()).check(&operator(), Repair::No)).unwrap();
        assert!(again.iter().all(|finding| finding.rule == "audit"), "{name}: {again:?}");
    }
}

#[test]
fn a_repair_accepts_a_lost_end_after_reporting_it() {
    let dir = tempfile::tempdir().unwrap();
    block_on(fill(dir.path()));
    let path =
        files(dir.path()).into_iter().find(|file| file.to_str().unwrap().ends_with("_f.jsonl")).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, &text[..text.trim_end().rfind('\n').unwrap() + 1]).unwrap();
    block_on(async {
        let findings = open(dir.path()).check(&operator(), Repair::Yes).await.unwrap();
        assert!(findings.iter().any(|finding| !finding.repaired && finding.what.contains("end is missing")));
        assert!(path.with_extension("jsonl.head.lost").exists());
        assert_eq!(open(dir.path()).read_after(&ana(), &id("f"), Seq::ZERO, 9).await.unwrap().len(), 2);
        assert!(open(dir.path()).check(&operator(), Repair::No).await.unwrap().is_empty());
    });
}

/// A file that was closed, and then cut by a power failure during a later append, is only torn.
#[test]
fn a_torn_append_after_a_clean_close_is_no_lost_end() {
    let dir = tempfile::tempdir().unwrap();
    block_on(fill(dir.path()));
    let path =
        files(dir.path()).into_iter().find(|file| file.to_str().unwrap().ends_with("_a.jsonl")).unwrap();
    let whole = fs::read(&path).unwrap();
    let half = &whole[..whole.len() / 2];
    for torn in [half, &vec![0; 700][..], &[half, &[0; 64], b"\n"].concat()] {
        let line_start = torn.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        fs::write(&path, [&whole[..], &torn[line_start.min(torn.len())..]].concat()).unwrap();
        fs::write(path.with_extension("jsonl.head.tmp"), b"").unwrap();
        block_on(async {
            let store = open(dir.path());
            let read = store.read_after(&ana(), &id("a"), Seq::ZERO, 9).await;
            assert!(read.is_ok() || torn.len() == half.len(), "{read:?}");
        });
        fs::write(&path, &whole).unwrap();
    }
    // A head that a power failure left empty is ignored.
    fs::write(path.with_extension("jsonl.head"), b"").unwrap();
    block_on(async {
        assert!(open(dir.path()).summary(&ana(), &id("a")).await.is_ok());
        let findings = open(dir.path()).check(&operator(), Repair::No).await.unwrap();
        assert!(findings.iter().all(|finding| finding.rule == "torn"), "{findings:?}");
    });
}

#[test]
fn files_of_an_earlier_version_are_read_and_sealed() {
    let dir = tempfile::tempdir().unwrap();
    block_on(fill(dir.path()));
    let right = block_on(read_all(dir.path()));
    for file in files(dir.path()) {
        let name = file.to_str().unwrap().to_owned();
        if name.ends_with(".head") {
            fs::remove_file(&file).unwrap();
        } else if !name.contains("/blobs/") && !name.ends_with("store.lock") {
            let text = fs::read_to_string(&file).unwrap();
            // An audit line has a field `hash` of its own.
            let old = if name.ends_with("audit.jsonl") || name.ends_with("keys.jsonl") {
                text.lines().map(|line| line[..line.len() - 26].to_owned() + "}\n").collect()
            } else {
                without_sums(&text)
            };
            fs::write(&file, old.replace("{\"memories\":1}\n", "")).unwrap();
        }
    }
    block_on(async {
        let before = read_all(dir.path()).await;
        assert_eq!(before, right, "unproven lines are read");
        let unproven = open(dir.path()).read_proofs(&ana(), &id("f"), Seq::ZERO, 9).await.unwrap();
        assert!(unproven.iter().all(|entry| entry.proof.is_none()));
        append(&open(dir.path()), "f", &["after the upgrade"]).await;
        let before = read_all(dir.path()).await;
        let report = open(dir.path()).seal_entries(&operator()).await.unwrap();
        assert!(
            report.entries >= 5 && report.lines > report.entries && report.findings.is_empty(),
            "{report:?}"
        );
        assert_eq!(read_all(dir.path()).await, before, "sealing changes no data");
        for name in ["a", "f", "g"] {
            let mut verifier = sapwood_core::entry::proof::Verifier::new(&id(name));
            for entry in open(dir.path()).read_proofs(&ana(), &id(name), Seq::ZERO, 99).await.unwrap() {
                verifier.check(&entry).unwrap();
            }
            assert!(verifier.head().is_some(), "{name}");
        }
        let again = open(dir.path()).seal_entries(&operator()).await.unwrap();
        assert_eq!((again.entries, again.lines), (0, 0));
        assert!(open(dir.path()).check(&operator(), Repair::No).await.unwrap().is_empty());
    });
}

#[test]
fn a_damaged_session_is_named_by_lists_and_searches() {
    let dir = tempfile::tempdir().unwrap();
    block_on(fill(dir.path()));
    fs::remove_file(dir.path().join("index.jsonl")).unwrap();
    let path =
        files(dir.path()).into_iter().find(|file| file.to_str().unwrap().ends_with("_f.jsonl")).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("\"own\"", "\"0wn\"")).unwrap();
    block_on(async {
        use sapwood_core::port::store::{Search, SearchQuery};
        let store = open(dir.path());
        let listed = store.list(&ana(), &ListFilter::default()).await.unwrap().items;
        assert_eq!(listed.len(), 2);
        let left_out = store.unreadable(&operator()).await.unwrap();
        assert!(left_out.len() == 1 && left_out[0].place.ends_with("_f.jsonl:2"), "{left_out:?}");
        let for_user = store.unreadable(&ana()).await.unwrap();
        assert!(for_user.len() == 1 && !for_user[0].place.contains("_f"), "{for_user:?}");
        let store = open(dir.path());
        let query = SearchQuery { text: "one".to_owned(), limit: 9, ..SearchQuery::default() };
        store.search(&ana(), &query).await.unwrap();
        assert_eq!(store.unreadable(&operator()).await.unwrap().len(), 1);
    });
}
