//! Settings: the last change on the path wins, an answer sets the model, and settings are located by links, without
//! walking the path.

use std::collections::BTreeMap;

use sapwood_core::entry::ContextChanged;
use sapwood_core::fixture::MemLog;
use sapwood_core::settings::Settings;
use sapwood_core::tree::{Lookup, settings_at};

fn model(script: &str) -> Option<String> {
    let log = MemLog::of(script);
    assert_eq!(log.context().model, log.summary().model, "the context and the summary of {script:?}");
    log.context().model
}

#[test]
fn the_last_model_on_the_path_wins() {
    assert_eq!(model("u1"), None);
    assert_eq!(model("M(a) u1 M(b) u2").as_deref(), Some("b"));
}

#[test]
fn an_answer_sets_the_model_that_actually_answered() {
    assert_eq!(model("M(a) u1 a2@b").as_deref(), Some("b"));
    assert_eq!(model("u1 a2@b M(c)").as_deref(), Some("c"));
    assert_eq!(model("M(a) u1 a2").as_deref(), Some("a"));
}

#[test]
fn branching_before_a_change_undoes_it() {
    assert_eq!(model("M(a) u1 M(b) u2 L→1").as_deref(), Some("a"));
    assert_eq!(model("M(a) u1 L→none"), None);
    assert_eq!(model("M(a) u1 L→none u2"), None);
    assert_eq!(model("M(a) u1 M(b) u2 L→1 a3@b L→2 a4@b").as_deref(), Some("b"));
}

#[test]
fn settings_from_before_a_compaction_still_apply() {
    let log = MemLog::of("M(a) H(high) S(sql, git) Y(be brief) u1 a2 K3(s) u4");
    let context = log.context();
    assert_eq!((context.model.as_deref(), context.thinking.as_str()), (Some("a"), "high"));
    assert_eq!(
        (context.skills.as_slice(), context.system.as_deref()),
        (["sql", "git"].map(String::from).as_slice(), Some("be brief"))
    );
}

#[test]
fn thinking_is_off_by_default() {
    assert_eq!(MemLog::of("u1").context().thinking, "off");
    assert_eq!(MemLog::of("u1 H(low)").context().thinking, "low");
}

#[test]
fn a_context_change_replaces_only_the_fields_it_names() {
    let mut log = MemLog::of("Y(be brief)");
    let variables = Some(BTreeMap::from([("a".to_owned(), "1".to_owned())]));
    log.push(ContextChanged { variables, ..ContextChanged::default() }).unwrap();
    log.push(ContextChanged { cwd: Some("/x".to_owned()), ..ContextChanged::default() }).unwrap();
    let settings = settings_at(log.head().leaf.unwrap(), &mut log).unwrap();
    assert_eq!((settings.system.as_deref(), settings.cwd.as_deref()), (Some("be brief"), Some("/x")));
    assert_eq!(settings.variables["a"], "1");
    log.push(ContextChanged { variables: Some(BTreeMap::new()), ..ContextChanged::default() }).unwrap();
    assert!(settings_at(log.head().leaf.unwrap(), &mut log).unwrap().variables.is_empty());
}

#[test]
fn a_snapshot_is_kept_only_where_something_changed() {
    let log = MemLog::of("u1 a2@m a3@m M(m) M(m) H(off) H(off) a4@k");
    let kept: Vec<bool> = log.placed().iter().map(|placed| placed.snapshot.is_some()).collect();
    assert_eq!(kept, [false, true, false, true, false, true, false, true]);
}

#[test]
fn a_fork_finds_the_settings_of_its_source() {
    let source = MemLog::of("u1 L→none M(a) u2 H(high) u3 L→2 u4");
    let mut fork = source.fork(Some(source.seq(4)));
    assert_eq!(fork.inherited(), 3);
    fork.write("u5");
    let a = Some("a".to_owned());
    let expected = Settings { model: a.clone(), model_asked: a, ..Settings::default() };
    assert_eq!(settings_at(fork.seq(5), &mut fork).unwrap(), expected);
    fork.write("H(low) u6");
    assert_eq!(settings_at(fork.seq(6), &mut fork).unwrap().thinking_level(), "low");
    assert_eq!(fork.context().thinking, "low");
}
