//! Export and import of Sapwood's JSONL: nothing is lost (I11), damage is reported by line, and imported
//! drafts are always valid.

use proptest::prelude::*;
use sapwood_core::entry::{
    ArtifactPut, ArtifactUse, CustomInfo, Graft, GraftWhat, LOG_VERSION, MemberChanged, Meta, Round,
    SessionState, StateChanged, codec,
};
use sapwood_core::fixture::{Dice, MemLog, random_script};
use sapwood_core::project::summary::{Origin, Summary};
use sapwood_core::{BlobHash, BlobRef, Body, Draft, Json, Principal, Record, Seq};
use sapwood_formats::export::jsonl::Exporter;
use sapwood_formats::header::Header;
use sapwood_formats::import::sapwood::Importer;
use sapwood_formats::import::{LineSplitter, Problem, ProblemKind};

fn export(summary: &Summary, log: &MemLog) -> Vec<u8> {
    let mut exporter = Exporter::new(Vec::new());
    exporter.header(summary).unwrap();
    for entry in log.entries() {
        exporter.line(&entry.to_record()).unwrap();
    }
    exporter.finish().unwrap()
}

struct ImportResult {
    header: Option<Header>,
    drafts: Vec<Draft>,
    problems: Vec<Problem>,
}

fn import(bytes: &[u8]) -> ImportResult {
    let mut importer = Importer::default();
    let mut drafts = Vec::new();
    let mut splitter = LineSplitter::default();
    splitter.push(bytes, |line, number| importer.push_line(line, number, &mut drafts));
    splitter.finish(|line, number| importer.push_line(line, number, &mut drafts));
    assert_eq!(importer.entries(), drafts.len());
    ImportResult { header: importer.header().cloned(), drafts, problems: importer.problems().to_vec() }
}

/// Append drafts in batches of uneven sizes.
fn append_all(drafts: &[Draft]) -> MemLog {
    let mut log = MemLog::default();
    let mut rest = drafts;
    let mut size = 1;
    while !rest.is_empty() {
        let (chunk, remaining) = rest.split_at(rest.len().min(size));
        log.append(chunk.to_vec()).unwrap_or_else(|error| panic!("an imported draft was refused: {error}"));
        (rest, size) = (remaining, size % 7 + 3);
    }
    log
}

/// Return the summary that a store would have after the import.
fn summary_of(header: &Header, log: &MemLog) -> Summary {
    let mut summary = Summary::new(&header.new_session(), Principal::System);
    log.entries().for_each(|entry| summary.apply(entry));
    summary
}

fn check_round_trip(summary: &Summary, log: &MemLog) {
    let first = export(summary, log);
    let imported = import(&first);
    assert_eq!(imported.problems, []);
    let copy = append_all(&imported.drafts);
    let metas = |log: &MemLog| log.entries().map(|entry| entry.meta.clone()).collect::<Vec<Meta>>();
    assert_eq!(metas(&copy), metas(log));
    assert_eq!(copy.head(), log.head());
    let header = imported.header.expect("there was a header");
    let second = export(&summary_of(&header, &copy), &copy);
    assert_eq!(String::from_utf8(second).unwrap(), String::from_utf8(first).unwrap());
}

fn random_log(seed: u64, len: usize) -> MemLog {
    MemLog::of(&random_script(seed, len))
}

fn lines(text: &[u8]) -> Vec<Vec<u8>> {
    text.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
}

fn codes(imported: &ImportResult) -> Vec<(u64, &'static str)> {
    imported.problems.iter().map(|problem| (problem.line, problem.what.code())).collect()
}

/// Export a log in fixture notation (`u1 a2 …`) as lines. The header is line 1, and the first entry is line 2.
fn file_of(script: &str) -> Vec<Vec<u8>> {
    let log = MemLog::of(script);
    lines(&export(log.summary(), &log))
}

fn context_of(imported: &ImportResult) -> Vec<String> {
    append_all(&imported.drafts).context().messages.iter().map(|message| message.text()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn export_import_export_is_byte_identical(seed in any::<u64>(), len in 0usize..120) {
        let log = random_log(seed, len);
        check_round_trip(log.summary(), &log);
    }

    #[test]
    fn the_file_of_a_fork_is_self_contained(seed in any::<u64>(), len in 1usize..80, more in any::<u64>()) {
        let source = random_log(seed, len);
        let tree: Vec<Seq> = source.placed().iter().filter(|placed| placed.links.is_some()).map(|placed| placed.entry.meta.seq).collect();
        let at = tree.get(more as usize % tree.len().max(1)).copied();
        let mut fork = source.fork(at);
        fork.write("u9001 a9002 K9003(s,9001) L→9001 u9004").write("9002=here");
        check_round_trip(fork.summary(), &fork);
    }

    #[test]
    fn drafts_of_a_damaged_file_are_valid(seed in any::<u64>(), len in 1usize..60, damage in 1usize..6) {
        let log = random_log(seed, len);
        let mut file = lines(&export(log.summary(), &log));
        let mut dice = Dice::new(seed ^ 0x5eed);
        for _ in 0..damage {
            damage_lines(&mut file, &mut dice);
        }
        let imported = import(&file.concat());
        append_all(&imported.drafts);
        // The same file produces the same drafts, so importing it twice adds nothing.
        prop_assert_eq!(import(&file.concat()).drafts, imported.drafts);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        append_all(&import(&bytes).drafts);
    }
}

fn damage_lines(file: &mut Vec<Vec<u8>>, dice: &mut Dice) {
    let at = dice.below(file.len());
    let other = dice.below(file.len());
    match dice.below(7) {
        0 if file.len() > 1 => drop(file.remove(at)),
        1 => file.swap(at, other),
        2 => file.insert(at, file[other].clone()),
        3 if !file[at].is_empty() => {
            let byte = dice.below(file[at].len());
            file[at][byte] = dice.below(256) as u8;
        }
        4 => file[at] = b"{\"type\":\"from_the_future\",\"id\":1}\n".to_vec(),
        5 => {
            let text = String::from_utf8_lossy(&file[at]).replace("\"type\":\"", "\"type\":\"new_");
            file[at] = text.into_bytes();
        }
        _ => {
            let keep = dice.below(file[at].len() + 1);
            file[at].truncate(keep);
        }
    }
}

#[test]
fn every_kind_of_body_round_trips() {
    let blob =
        BlobRef { blob: BlobHash::of(b"x"), mime: "a/b".to_owned(), name: None, bytes: 1, duration_ms: None };
    let ana: Principal = "user:ana".parse().unwrap();
    let mut log = MemLog::of(
        "[ u1 A2(c)@m t3(c)! n4 x5 ] M(m) H(high) S(a,b) Y(be brief) K6(sum,4) B7(left,2) 2=name N(title)",
    );
    let bodies: Vec<Body> = vec![
        CustomInfo {
            custom_type: "x".to_owned(),
            data: Json::parse("{\n\t\"z\" : [1.50, 1e3],\r\n \"a\": \"\\u00e9\\n\"}").unwrap(),
        }
        .into(),
        Graft {
            source: "other".parse().unwrap(),
            upto: log.id(1),
            what: GraftWhat::Rounds { first: 1, last: 2 },
        }
        .into(),
        ArtifactPut::new("out \"1\"", ArtifactUse::Artifact, blob).into(),
        MemberChanged::new(ana, None).into(),
        StateChanged { state: SessionState::Archived, reason: Some("done".to_owned()) }.into(),
        Round {
            number: 1,
            action: sapwood_core::entry::Action {
                kind: sapwood_core::entry::ActionKind::Tool,
                what: "ls".to_owned(),
            },
            result: None,
            reason: None,
            confidence: Some(0.1),
            trace_id: None,
        }
        .into(),
    ];
    for body in bodies {
        log.push(body).unwrap();
    }
    let mut summary = log.summary().clone();
    summary.cwd = Some("/home/ana/ü".to_owned());
    summary.agent = Some("coder".to_owned());
    summary.origin = Some(Origin { format: "pi".to_owned(), id: "0".to_owned() });
    check_round_trip(&summary, &log);
}

#[test]
fn the_first_line_is_a_header_and_entries_are_flat() {
    let file = file_of("u1 a2 L→1 u3");
    let header = String::from_utf8(file[0].clone()).unwrap();
    assert!(
        header.starts_with(r#"{"type":"session_header","version":3,"id":"fixture","timestamp":0"#),
        "{header}"
    );
    let moved = String::from_utf8(file[3].clone()).unwrap();
    assert!(moved.starts_with(r#"{"type":"leaf_moved","seq":3,"id":""#), "{moved}");
    let id_of = |line: &[u8]| serde_json::from_slice::<serde_json::Value>(line).unwrap()["id"].clone();
    let parent_of =
        |line: &[u8]| serde_json::from_slice::<serde_json::Value>(line).unwrap()["parent_id"].clone();
    assert_eq!(parent_of(&file[4]), id_of(&file[1]));
    assert_eq!(parent_of(&file[3]), id_of(&file[2]));
}

#[test]
fn older_records_are_exported_in_the_current_format() {
    let log = MemLog::of("u1");
    let mut record: Record = log.entry(Seq(1)).to_record();
    record.version = 1;
    record.body = br#"{"type":"user_message","text":"hello"}"#.to_vec();
    let mut exporter = Exporter::new(Vec::new());
    exporter.header(log.summary()).unwrap();
    exporter.line(&record).unwrap();
    let imported = import(&exporter.finish().unwrap());
    assert_eq!(imported.problems, []);
    assert_eq!(imported.drafts[0].body.text(), "hello");
    assert_eq!(codec::encode(&imported.drafts[0].body)[..20], br#"{"type":"user_message""#[..20]);
}

#[test]
fn an_exporter_refuses_an_inconsistent_log() {
    let log = MemLog::of("u1 a2 u3");
    let mut exporter = Exporter::new(Vec::new());
    assert_eq!(exporter.line(&log.entry(Seq(2)).to_record()).unwrap_err().code(), "store.damaged");
    exporter.line(&log.entry(Seq(1)).to_record()).unwrap();
    let mut stray = log.entry(Seq(2)).to_record();
    stray.meta.parent = None;
    assert_eq!(exporter.line(&stray).unwrap_err().code(), "store.damaged");
}

#[test]
fn a_bad_line_is_reported_and_its_children_are_reattached() {
    let mut file = file_of("u1 a2 u3 a4");
    file[3] = b"{\"type\":\"user_message\", oops\n".to_vec();
    let imported = import(&file.concat());
    assert_eq!(codes(&imported), [(4, "import.bad_line"), (5, "import.missing_parent")]);
    assert_eq!(context_of(&imported), ["u1", "a2", "a4"]);
}

#[test]
fn invalid_utf8_and_huge_numbers_are_bad_lines() {
    let mut file = file_of("u1 a2 u3 a4");
    let at = file[2].windows(2).position(|pair| pair == b"a2").unwrap();
    file[2][at] = 0xff;
    file[3] = String::from_utf8(file[3].clone())
        .unwrap()
        .replace("\"seq\":3", "\"seq\":99999999999999999999")
        .into_bytes();
    let imported = import(&file.concat());
    assert!(matches!(&imported.problems[0], Problem { line: 3, what: ProblemKind::BadLine { .. } }));
    assert!(matches!(&imported.problems[1], Problem { line: 4, what: ProblemKind::BadLine { .. } }));
    assert_eq!(context_of(&imported), ["u1", "a4"]);
}

#[test]
fn deep_nesting_does_not_overflow_the_stack() {
    let mut file = file_of("u1 a2");
    for depth in [50, 1_000_000] {
        let data = "[".repeat(depth) + &"]".repeat(depth);
        let id = "ffffffff-ffff-7fff-bfff-fffffffffff0";
        file.truncate(3);
        file.push(
            format!("{{\"type\":\"user_message\",\"id\":\"{id}\",\"timestamp\":1,\"parts\":{data}}}\n")
                .into_bytes(),
        );
        let imported = import(&file.concat());
        assert_eq!(imported.drafts.len(), 2, "depth {depth}");
        assert_eq!(imported.problems[0].line, 4);
    }
}

#[test]
fn a_line_with_deep_json_is_lost_and_reported() {
    let id = "ffffffff-ffff-7fff-bfff-fffffffffff0";
    for (depth, entries) in [(200, 3), (300, 2), (200_000, 2)] {
        let mut file = file_of("u1 a2");
        let data = "[".repeat(depth) + &"]".repeat(depth);
        file.truncate(3);
        let line = format!(
            "{{\"type\":\"custom_info\",\"custom_type\":\"x\",\"id\":\"{id}\",\"timestamp\":1,\"data\":{data}}}\n"
        );
        file.push(line.into_bytes());
        let imported = import(&file.concat());
        assert_eq!(imported.drafts.len(), entries, "depth {depth}: {:?}", imported.problems);
        if entries == 2 {
            assert_eq!(codes(&imported), [(4, "import.bad_line")], "depth {depth}");
        }
    }
}

#[test]
fn a_torn_last_line_is_distinguished_from_a_bad_line() {
    let mut file = file_of("u1 a2 u3");
    let keep = file[3].len() - 5;
    file[3].truncate(keep);
    assert_eq!(codes(&import(&file.concat())), [(4, "import.torn")]);
    file[3].push(b'\n');
    assert_eq!(codes(&import(&file.concat())), [(4, "import.bad_line")]);
}

#[test]
fn missing_final_line_breaks_blank_lines_and_carriage_returns_are_accepted() {
    let mut file = file_of("u1 a2");
    file[2].pop();
    file[1].pop();
    file[1].extend(b"\r\n\r\n\n");
    file[0].splice(0..0, *b"\xef\xbb\xbf");
    let imported = import(&file.concat());
    assert_eq!(codes(&imported), []);
    assert_eq!(context_of(&imported), ["u1", "a2"]);
}

#[test]
fn a_lost_leaf_moved_is_restored() {
    let mut file = file_of("u1 a2 u3 L→1 u4 a5");
    file.remove(4);
    let imported = import(&file.concat());
    assert_eq!(codes(&imported), [(5, "import.gap"), (5, "import.rehung")]);
    assert_eq!(context_of(&imported), ["u1", "u4", "a5"]);
}

#[test]
fn a_branch_from_a_lost_entry_continues_from_the_entry_before_it() {
    let mut file = file_of("u1 a2 u3 L→2 u4 L→3 u5");
    file[3] = b"garbage\n".to_vec();
    let imported = import(&file.concat());
    assert_eq!(context_of(&imported), ["u1", "a2", "u5"]);
    let mut file = file_of("u1 a2 L→none u3 L→1 u4");
    file[1] = b"garbage\n".to_vec();
    let imported = import(&file.concat());
    assert_eq!(context_of(&imported), ["u4"]);
}

#[test]
fn duplicates_and_lines_out_of_order_are_skipped_and_reported() {
    let mut file = file_of("u1 a2 u3");
    file.insert(3, file[2].clone());
    let imported = import(&file.concat());
    assert_eq!(codes(&imported), [(4, "import.gap"), (4, "import.duplicate")]);
    assert_eq!(context_of(&imported), ["u1", "a2", "u3"]);
    let mut file = file_of("u1 a2 u3");
    file.swap(2, 3);
    let imported = import(&file.concat());
    assert!(codes(&imported).contains(&(4, "import.wrong_order")), "{:?}", codes(&imported));
    assert_eq!(context_of(&imported), ["u1", "u3"]);
}

#[test]
fn an_unknown_type_is_kept_as_custom_info() {
    let mut file = file_of("u1 a2 u3");
    let text = String::from_utf8(file[2].clone()).unwrap();
    file[2] = text.replace("assistant_message", "hologram").into_bytes();
    let imported = import(&file.concat());
    assert_eq!(codes(&imported), [(3, "import.unknown_type")]);
    assert_eq!(context_of(&imported), ["u1", "u3"]);
    assert!(
        matches!(&imported.drafts[1].body, Body::CustomInfo(info) if info.custom_type == "unknown:hologram")
    );
}

#[test]
fn references_to_missing_entries_are_skipped() {
    let mut file = file_of("u1 a2 u3 2=name K4(sum,2) a5");
    file[2] = b"garbage\n".to_vec();
    let imported = import(&file.concat());
    let codes = codes(&imported);
    assert!(
        codes.contains(&(5, "import.unknown_target")) && codes.contains(&(6, "import.unknown_target")),
        "{codes:?}"
    );
    assert_eq!(context_of(&imported), ["u1", "u3", "a5"]);
}

/// The header with the version after the current one.
fn newer(header: &str) -> String {
    let version = |number: u32| format!("\"version\":{number}");
    header.replace(&version(LOG_VERSION), &version(LOG_VERSION + 1))
}

#[test]
fn a_newer_file_is_refused_and_a_file_without_a_header_is_not() {
    let mut file = file_of("u1 a2");
    let header = String::from_utf8(file[0].clone()).unwrap();
    file[0] = newer(&header).into_bytes();
    let imported = import(&file.concat());
    assert_eq!((codes(&imported), imported.drafts.len()), (vec![(1, "import.too_new")], 0));
    let imported = import(&file[1..].concat());
    assert_eq!((codes(&imported), imported.drafts.len()), (vec![(1, "import.no_header")], 2));
    assert!(imported.header.is_none());
    file[0] = b"{\"type\":\"session_header\",\"id\":\"../etc\"}\n".to_vec();
    assert_eq!(codes(&import(&file.concat())), [(1, "import.bad_header")]);
}

#[test]
fn a_second_header_ends_the_file() {
    let one = file_of("u1 a2").concat();
    let imported = import(&[one.clone(), one].concat());
    assert_eq!((codes(&imported), imported.drafts.len()), (vec![(4, "import.second_header")], 2));
}

#[test]
fn the_session_after_a_refused_session_is_found() {
    let mut refused = file_of("u1 a2");
    let header = String::from_utf8(refused[0].clone()).unwrap();
    refused[0] = newer(&header).into_bytes();
    let imported = import(&[refused.concat(), file_of("u1").concat(), file_of("u1").concat()].concat());
    assert_eq!(codes(&imported), [(1, "import.too_new"), (4, "import.second_header")]);
}

#[test]
fn the_import_of_a_garbage_file_stops() {
    let imported = import("garbage\n".repeat(5_000).as_bytes());
    assert_eq!(imported.problems.len(), sapwood_formats::import::PROBLEMS_MAX);
    assert_eq!(imported.problems.last().map(|problem| problem.what.code()), Some("import.given_up"));
}
