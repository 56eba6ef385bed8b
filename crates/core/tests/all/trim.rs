//! Trimming: which messages leave the context, and that no result loses its call.

use proptest::prelude::*;
use sapwood_core::entry::Strategy as CompactionStrategy;
use sapwood_core::fixture::{MemLog, random_script};
use sapwood_core::trim::plan_trim;

fn trimmed(script: &str, keep_last: usize) -> String {
    let mut log = MemLog::of(script);
    if let Some(compaction) = plan_trim(&log.context(), keep_last) {
        log.push(compaction).unwrap();
    }
    log.show(&log.context())
}

#[test]
fn trimming_to_more_messages_than_exist_changes_nothing() {
    assert_eq!(trimmed("u1", 100), "u1");
    assert!(plan_trim(&MemLog::of("u1 u2").context(), 2).is_none());
    assert!(plan_trim(&MemLog::of("").context(), 0).is_none());
}

#[test]
fn trimming_leaves_the_last_messages() {
    assert_eq!(trimmed("u1(one) u2(two) u3(three)", 2), "u2 u3");
    assert_eq!(trimmed("u1 u2 u3", 0), "");
}

#[test]
fn trimming_keeps_the_call_of_a_result_it_keeps() {
    assert_eq!(trimmed("u1 C2(x) t3(x) a4", 2), "C2 t3 a4");
    assert_eq!(trimmed("u1 C2(x,y) t3(x) t4(y)", 1), "C2 t3 t4");
    assert_eq!(trimmed("u1 C2(x) u3", 2), "C2 ?(x) u3");
    assert_eq!(trimmed("C1(x) u2 t3(x) a4", 2), "u2 a4");
}

#[test]
fn trimming_to_the_first_message_changes_nothing() {
    assert_eq!(trimmed("C1(x) t2(x)", 1), "C1 t2");
    assert!(plan_trim(&MemLog::of("C1(x) t2(x)").context(), 1).is_none());
}

#[test]
fn trimming_removes_an_older_summary() {
    assert_eq!(trimmed("u1 a2 K3(s,2) u4", 2), "a2 u4");
    assert_eq!(trimmed("u1 a2 K3(s,2) u4", 3), "s a2 u4");
}

#[test]
fn a_trim_is_a_compaction_with_token_counts_and_no_summary() {
    let log = MemLog::of("u1(12345678) u2(1234)");
    let plan = plan_trim(&log.context(), 1).unwrap();
    assert_eq!((plan.strategy, plan.summary), (CompactionStrategy::Trim, None));
    assert_eq!((plan.tokens_before, plan.tokens_after), (Some(3), Some(1)));
    assert_eq!(plan.first_kept, Some(log.id(2)));
}

proptest! {
    #![proptest_config(super::cases_of(300))]

    #[test]
    fn the_trimmed_context_is_a_suffix_of_the_original(seed: u64, len in 0_usize..60, keep_last in 0_usize..20) {
        // A cut inside a failed turn makes its user message visible again, so failed turns have separate tests.
        let mut log = MemLog::of(&random_script(seed, len).replace("]failed", "]"));
        let before = log.context();
        let Some(plan) = plan_trim(&before, keep_last) else {
            let first_call_reaches_the_cut = before.messages.len() > keep_last;
            prop_assert!(!first_call_reaches_the_cut || before.messages[1].answers.is_some());
            return Ok(());
        };
        let tokens_after = plan.tokens_after;
        log.push(plan).unwrap();
        let after = log.context();
        let cut = before.messages.len() - after.messages.len();
        prop_assert!(cut > 0 && after.messages.len() >= keep_last);
        prop_assert_eq!(&after.messages[..], &before.messages[cut..]);
        prop_assert_eq!(Some(after.messages.iter().map(|m| m.tokens()).sum()), tokens_after);
        // Only the results of the call at the cut may be kept in addition.
        let extra = after.messages.len() - keep_last;
        prop_assert!(after.messages.iter().skip(1).take(extra).all(|message| message.answers.is_some()));
    }
}
