//! Acceptance cases of the tree, the context and resuming.

use sapwood_core::fixture::{MemLog, check_context, check_context_at, check_resume};
use sapwood_core::project::context::OpenTurn::{Keep, LeaveOut};
use sapwood_core::project::outline::Outline;
use sapwood_core::settings::Labels;
use sapwood_core::tree::nth_message;
use sapwood_core::{Draft, Seq};

/// The log, rebuilt from its entries.
fn reopened(log: &MemLog) -> MemLog {
    let mut again = MemLog::default();
    for entry in log.entries() {
        let (meta, body) = (entry.meta.clone(), entry.body.clone());
        let draft = Draft { id: Some(meta.id), at: meta.at, by: Some(meta.by), turn: meta.turn, body };
        again.append(vec![draft]).unwrap();
    }
    again
}

#[test]
fn context_is_the_summary_then_kept_messages_then_later_messages() {
    check_context("u1 a2 u3 a4 K5(s, 3) u6 a7", "s u3 a4 u6 a7");
}

#[test]
fn only_the_latest_compaction_shows() {
    check_context("u1 a2 K3(s1, 1) u4 a5 K6(s2, 4) u7", "s2 u4 a5 u7");
    check_context("u1 a2 K3(s1, 1) u4 a5 K6(s2, 2) u7", "s2 a2 u4 a5 u7");
    check_context("u1 a2 K3(s1, 2) K4(s2) u5", "s2 u5");
}

#[test]
fn a_branch_summary_shows_on_its_branch_only() {
    let script = "u1 a2 u3 L→2 B4(s) u5";
    check_context(script, "u1 a2 s u5");
    check_context_at(script, 3, "u1 a2 u3");
}

#[test]
fn a_moved_leaf_survives_a_restart_and_the_tree_shows_both_branches() {
    let mut log = reopened(&MemLog::of("u1 a2 u3 a4 L→2"));
    assert_eq!(log.head().leaf, Some(Seq(2)));
    log.write("u6");
    let outline = Outline::fold(log.entries(), log.head().leaf);
    let children = |seq| &outline.nodes[outline.index_of(Seq(seq)).unwrap()].children;
    assert_eq!(children(2), &[Seq(3), Seq(6)]);
    assert_eq!(children(3), &[Seq(4)]);
}

#[test]
fn a_reset_empties_the_context_and_keeps_the_log() {
    let mut log = MemLog::of("u1 a2 L→none");
    assert_eq!(log.show(&log.context()), "");
    assert_eq!(log.summary().messages, 0);
    assert_eq!(log.placed().len(), 3);
    log.write("u3");
    assert_eq!(log.show(&log.context()), "u3");
    let outline = Outline::fold(log.entries(), log.head().leaf);
    assert_eq!(outline.roots, [log.seq(1), log.seq(3)]);
}

#[test]
fn a_fork_has_every_ancestor_with_its_labels() {
    let source = MemLog::of("u1 a2 2=good u3 a4 L→2 u5 5=elsewhere");
    let fork = source.fork(Some(source.seq(4)));
    assert_eq!(fork.show(&fork.context()), "u1 a2 u3 a4");
    let labels = Labels::fold(fork.entries());
    assert_eq!(labels.get(fork.id(2)), Some("good"));
    assert_eq!(labels.iter().count(), 1);
}

#[test]
fn the_last_label_wins_and_an_empty_label_removes_it() {
    let log = MemLog::of("u1 a2 1=first 1=second 2=gone 2=");
    let labels = Labels::fold(log.entries());
    assert_eq!(labels.iter().collect::<Vec<_>>(), [(log.id(1), "second")]);
    assert_eq!(labels.find("second").collect::<Vec<_>>(), [log.id(1)]);
}

#[test]
fn labels_and_names_are_never_in_the_context() {
    check_context("u1 1=x N(title) a2 2=y", "u1 a2");
}

#[test]
fn a_fork_and_its_source_do_not_see_each_other() {
    let mut source = MemLog::of("u1 a2 u3 a4");
    let mut fork = source.fork(Some(source.seq(2)));
    source.write("u5");
    fork.write("u6 a7");
    assert_eq!((source.summary().messages, fork.summary().messages), (5, 4));
    assert_eq!(source.show(&source.context()), "u1 a2 u3 a4 u5");
    assert_eq!(fork.show(&fork.context()), "u1 a2 u6 a7");
}

#[test]
fn a_fork_that_keeps_the_first_two_of_three_messages_has_two() {
    let mut source = MemLog::of("M(m) u1 H(high) u2 u3");
    let leaf = source.head().leaf.unwrap();
    let at = nth_message(leaf, 2, &mut source).unwrap();
    assert_eq!(at, Some(source.seq(2)));
    let fork = source.fork(at);
    assert_eq!(fork.show(&fork.context()), "u1 u2");
    assert_eq!(nth_message(leaf, 0, &mut source).unwrap(), None);
    assert_eq!(nth_message(leaf, 4, &mut source).unwrap(), None);
}

#[test]
fn a_fork_records_the_session_and_the_entry_it_was_created_from() {
    let source = MemLog::of("u1 a2 u3");
    let fork = source.fork(Some(source.seq(2)));
    let parent = fork.summary().parent.clone().unwrap();
    assert_eq!((parent.session, parent.at), (source.summary().id.clone(), Some(source.id(2))));
    let empty = MemLog::of("u1 L→none").fork(None);
    assert_eq!((empty.summary().inherited, empty.summary().messages), (0, 0));
}

#[test]
fn a_fork_inherits_neither_the_open_turn_nor_the_usage() {
    let source = MemLog::of("[ u1 a2@m");
    assert!(source.summary().open_turn.is_some());
    let fork = source.fork(None);
    assert_eq!(fork.summary().open_turn, None);
    assert_eq!(fork.summary().spend.total().calls, 0);
    assert_eq!(fork.summary().model.as_deref(), Some("m"));
    assert_eq!(fork.show(&fork.resumed(LeaveOut)), "u1 a2");
}

#[test]
fn shared_entries_do_not_depend_on_later_changes_in_the_source() {
    let mut source = MemLog::of("[ u1");
    let fork = source.fork(None);
    source.write("]failed");
    assert_eq!(source.show(&source.context()), "");
    assert_eq!(fork.show(&fork.context()), "u1");
    let late = source.fork(Some(source.seq(1)));
    assert_eq!(late.show(&late.context()), "u1");
}

#[test]
fn a_call_without_a_result_gets_one_interrupted_result() {
    check_context("u1 C2(x)", "u1 C2 ?(x)");
    check_context("u1 C2(x) u3 a4", "u1 C2 ?(x) u3 a4");
    check_context("u1 C2(x,y) t3(y) u4", "u1 C2 ?(x) t3 u4");
}

#[test]
fn a_stray_result_is_left_out() {
    check_context("u1 t2(x)", "u1");
    check_context("u1 t2(x) a3", "u1 a3");
    check_context("t1(x) u2 C3(x)", "u2 C3 ?(x)");
}

#[test]
fn moving_the_leaf_back_before_a_compaction_undoes_it() {
    let mut log = MemLog::of("u1 a2 u3 C4(x)");
    let before = log.context();
    log.write("K5(s,3)");
    assert_eq!(log.show(&log.context()), "s u3 C4 ?(x)");
    log.write("L→4");
    assert_eq!(log.context(), before);
}

#[test]
fn a_turn_that_died_before_an_answer_is_kept_or_rolled_back() {
    let script = "[ u0 a1 ] [ u2 |";
    check_resume(script, LeaveOut, "u0 a1");
    check_resume(script, Keep, "u0 a1 u2");
    check_resume("[ u0 a1 ] [ u2 | n3(you were interrupted)", Keep, "u0 a1 u2 n3");
}

#[test]
fn a_turn_that_died_in_its_first_call_rolls_back_to_nothing() {
    check_resume("[ u0 C1(x) |", LeaveOut, "");
    check_resume("[ u0 C1(x) |", Keep, "u0 C1 ?(x)");
}

#[test]
fn a_turn_that_ended_is_never_rolled_back() {
    for script in ["[ u0 C1(x) t2(x) a3 ]", "[ u0 C1(x) t2(x) a3 ]cancelled", "[ u0 C1(x) t2(x) a3 ]limited"]
    {
        check_resume(script, LeaveOut, "u0 C1 t2 a3");
        check_resume(script, Keep, "u0 C1 t2 a3");
    }
    assert_eq!(MemLog::of("[ u0 C1(x) t2(x) a3 ]").summary().open_turn, None);
}

#[test]
fn a_turn_that_died_between_rounds_rolls_back_as_a_whole() {
    check_resume("[ u0 a1 ] [ u2 C3(x) t4(x) |", LeaveOut, "u0 a1");
    check_resume("[ u0 a1 ] [ u2 C3(x) t4(x) |", Keep, "u0 a1 u2 C3 t4");
}

#[test]
fn totals_continue_after_a_restart_and_count_nothing_twice() {
    let mut log = reopened(&MemLog::of("[ u0 a1@m | "));
    log.write("]cancelled [ u2 a3@m a4@k ]");
    let total = log.summary().spend.total();
    assert_eq!(
        (total.calls, total.usage.input, total.usage.output, total.cost_nano_usd),
        (3, 300, 30, 3_000)
    );
}
