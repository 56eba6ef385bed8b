//! Damaged session files of the JSONL store.

use std::path::{Path, PathBuf};

use super::{assert_refused, assert_reported};
use crate::actors::{assert_healthy, read_log, seed};
use crate::harness::World;
use crate::library::{append, inspect, url};

/// Returns a session whose last batch has three lines, and its file.
fn session_file() -> (World, String, PathBuf) {
    let world = World::new("jsonl");
    let session = seed(&world);
    world.add_messages(&session, &["u:the second", "a:the third"]);
    append(&world.url, &session, &["batch one", "batch two", "batch three"]).unwrap();
    let dir = world.path("store.jsonl");
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let file = files.into_iter().find(|path| path.to_string_lossy().ends_with("_seeded.jsonl")).unwrap();
    (world, session, file)
}

/// Returns the offset of each line start, and of the end.
fn line_starts(bytes: &[u8]) -> Vec<usize> {
    let ends = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    std::iter::once(0).chain(ends).collect()
}

/// Writes the bytes to a file of the same name in an empty directory.
fn cut_copy(file: &Path, bytes: &[u8], into: &Path) -> PathBuf {
    let _ = std::fs::remove_dir_all(into);
    std::fs::create_dir(into).unwrap();
    let copy = into.join(file.file_name().unwrap());
    std::fs::write(&copy, bytes).unwrap();
    copy
}

#[test]
fn a_torn_batch_is_truncated_and_saved_at_every_offset() {
    let (world, session, file) = session_file();
    let whole = std::fs::read(&file).unwrap();
    let starts = line_starts(&whole);
    let batch = starts[starts.len() - 4];
    let texts = ["the first", "the second", "the third", "batch one", "batch two", "batch three"];
    for end in batch + 1..whole.len() {
        let dir = world.path("torn");
        let copy = cut_copy(&file, &whole[..end], &dir);
        let (url, torn) = (url("jsonl", &dir), PathBuf::from(format!("{}.torn", copy.display())));
        let found = inspect(&url, &session).unwrap();
        // If only the line break is missing, the line and its batch are complete.
        let is_whole = end + 1 == whole.len();
        let kept = if is_whole { 6 } else { 3 };
        assert!(found.log.iter().map(|message| &message.text).eq(&texts[..kept]), "cut at {end}");
        assert_eq!(found.findings.iter().any(|(rule, _)| *rule == "torn"), !is_whole, "cut at {end}");
        if !is_whole {
            assert_eq!(std::fs::read(&torn).unwrap(), [&whole[batch..end], b"\n"].concat());
        }
        append(&url, &session, &["after the crash"]).unwrap();
        let found = inspect(&url, &session).unwrap();
        assert_eq!((found.log.len(), found.log[kept].text.as_str()), (kept + 1, "after the crash"));
    }
}

#[test]
fn a_torn_end_is_reported_by_the_doctor_and_the_next_append_works() {
    let (world, session, file) = session_file();
    let whole = std::fs::read(&file).unwrap();
    let starts = line_starts(&whole);
    let half_a_line = &whole[starts[starts.len() - 2]..whole.len() - 20];
    std::fs::write(&file, [&whole[..], half_a_line].concat()).unwrap();
    let ran = world.run(&["doctor", "--json"]);
    assert_eq!((ran.status, ran.error()["code"].as_str()), (Some(1), Some("doctor.findings")));
    assert!(ran.out().contains("\"torn\"") && ran.out().contains("_seeded.jsonl.torn"), "{}", ran.out());
    assert_healthy(&world);
    world.add_messages(&session, &["u:after the crash"]);
    let log = read_log(&world, &session);
    assert_eq!((log.len(), log[6].text.as_str()), (7, "after the crash"));
}

#[test]
fn a_lost_end_of_a_closed_file_is_damage_and_is_accepted_only_by_a_repair() {
    let (world, session, file) = session_file();
    let whole = std::fs::read(&file).unwrap();
    let starts = line_starts(&whole);
    for end in [starts[starts.len() - 2], starts[starts.len() - 4], whole.len() - 20] {
        std::fs::write(&file, &whole[..end]).unwrap();
        assert_refused(&world, &world.path("store.jsonl"), &session, "store.damaged");
        assert!(assert_reported(&world, &world.path("store.jsonl")).contains("its end is missing"));
    }
    std::fs::write(&file, &whole[..starts[starts.len() - 4]]).unwrap();
    assert_eq!(world.run(&["doctor", "--repair", "--json"]).error()["code"], "doctor.findings");
    assert_eq!(read_log(&world, &session).len(), 3);
    world.ok(&["doctor"]);
}

#[test]
fn a_bad_line_before_other_lines_is_reported_and_left_unchanged() {
    let (world, session, file) = session_file();
    let whole = std::fs::read(&file).unwrap();
    let starts = line_starts(&whole);
    let without = |line: usize| [&whole[..starts[line - 1]], &whole[starts[line]..]].concat();
    let overwritten = |line: usize, with: u8| {
        let mut bytes = whole.clone();
        bytes[starts[line - 1] + 10..starts[line] - 1].fill(with);
        bytes
    };
    for (line, bytes) in [
        (1, overwritten(1, b'?')),
        (1, without(1)),
        (2, overwritten(2, b'?')),
        (2, overwritten(2, 0)),
        (3, overwritten(3, b'?')),
        (3, without(3)),
        (4, overwritten(4, 0xff)),
        (5, overwritten(5, b' ')),
    ] {
        std::fs::write(&file, &bytes).unwrap();
        let place = format!("{}:{line}: ", file.display());
        for message in assert_refused(&world, &world.path("store.jsonl"), &session, "store.damaged") {
            assert!(message.contains(&place), "{message} does not name {place}");
        }
        assert!(assert_reported(&world, &world.path("store.jsonl")).contains(&place[..place.len() - 2]));
    }
}

#[test]
fn one_damaged_session_does_not_hide_the_others() {
    let (world, session, file) = session_file();
    let other = world.path("other.log");
    let text = crate::harness::log_file("other", &[(None, crate::harness::user("still here"))]);
    std::fs::write(&other, text).unwrap();
    world.ok(&["import", other.to_str().unwrap()]);
    std::fs::write(&file, "no header\n").unwrap();
    assert_eq!(world.fail(1, &["info", &session])["code"], "store.damaged");
    let ran = world.run(&["ls", "--json"]);
    assert_eq!((ran.status, ran.error()["code"].as_str()), (Some(1), Some("store.incomplete")));
    let listed = crate::harness::parse_lines(&ran.out());
    assert_eq!((listed.len(), &listed[0]["id"]), (1, &serde_json::Value::from("other")));
    assert_eq!(world.texts("other", None), ["still here"]);
}
