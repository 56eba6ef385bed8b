//! Placing drafts in a log: which drafts are refused (I2, I13), and that a refusal changes nothing (I4).

use proptest::prelude::*;
use sapwood_core::entry::{Kind, LeafMoved, Stance};
use sapwood_core::fixture::{Dice, MemError, MemLog, drafts, random_drafts, random_script};
use sapwood_core::tree::{Head, PlaceError, Tip, place};
use sapwood_core::{Draft, EntryId, Principal, Seq, TimestampMs};

#[track_caller]
fn refusal(script: &str) -> PlaceError {
    match MemLog::default().try_write(script) {
        Err(MemError::Place(error)) => error,
        other => panic!("{script:?} gave {other:?}"),
    }
}

#[test]
fn a_referenced_entry_must_be_in_the_session() {
    assert!(matches!(refusal("u1 9=x"), PlaceError::UnknownTarget { kind: Kind::Label, .. }));
    assert!(matches!(refusal("u1 9="), PlaceError::UnknownTarget { kind: Kind::Label, .. }));
    assert!(matches!(refusal("u1 L→9"), PlaceError::UnknownTarget { kind: Kind::LeafMoved, .. }));
    assert!(matches!(refusal("u1 K2(s,9)"), PlaceError::UnknownTarget { kind: Kind::Compaction, .. }));
}

#[test]
fn a_referenced_entry_must_be_in_the_tree() {
    assert!(matches!(refusal("N1(title) 1=x"), PlaceError::TargetOutsideTree { kind: Kind::Label, .. }));
    assert!(matches!(
        refusal("u2 N1(title) L→1"),
        PlaceError::TargetOutsideTree { kind: Kind::LeafMoved, .. }
    ));
    assert!(matches!(
        refusal("u2 N1(title) K3(s,1)"),
        PlaceError::TargetOutsideTree { kind: Kind::Compaction, .. }
    ));
}

#[test]
fn a_compaction_must_keep_from_its_own_path() {
    assert!(matches!(refusal("u1 a2 L→1 u3 K4(s,2)"), PlaceError::KeptOffPath { .. }));
    assert!(matches!(refusal("u1 a2 L→1 K3(s,2)"), PlaceError::KeptOffPath { .. }));
    assert!(matches!(refusal("u1 L→none K2(s,1)"), PlaceError::KeptOffPath { .. }));
    MemLog::of("u1 a2 L→1 u3 K4(s,1)");
}

#[test]
fn a_forward_reference_is_refused() {
    let draft = drafts("u1").remove(0);
    let moved = Draft::new(draft.at, LeafMoved { to: draft.id });
    let error = MemLog::default().append(vec![moved, draft]).unwrap_err();
    assert!(matches!(error, MemError::Place(PlaceError::UnknownTarget { .. })));
}

#[test]
fn an_entry_may_reference_another_entry_of_its_batch() {
    let log = MemLog::of("u1 a2 1=x L→1 u3 K4(s,1)");
    assert_eq!(log.entry(log.seq(3)).meta.parent, Some(log.seq(1)));
}

#[test]
fn ids_must_increase() {
    let mut log = MemLog::of("u1 a2");
    let last = log.id(2);
    for id in [log.id(1), last] {
        let draft = Draft { id: Some(id), ..drafts("u1").remove(0) };
        assert_eq!(log.append(vec![draft]), Err(MemError::Place(PlaceError::IdNotNewer { id, last })));
    }
}

#[test]
fn a_log_with_exhausted_ids_refuses_new_entries() {
    let mut log = MemLog::default();
    let last = EntryId::from_bytes([0xff; 16]);
    log.append(vec![Draft { id: Some(last), ..drafts("u1").remove(0) }]).unwrap();
    let error = log.append(vec![Draft { id: None, ..drafts("u1").remove(0) }]).unwrap_err();
    assert!(matches!(error, MemError::Place(PlaceError::IdNotNewer { .. })));
}

#[test]
fn a_full_log_is_refused() {
    let mut tip = Tip { head: Head { seq: Seq(u32::MAX), leaf: None }, ..Tip::default() };
    let error = place(&mut tip, drafts("u1"), &Principal::System, &mut MemLog::default(), || 0).unwrap_err();
    assert_eq!(error, MemError::Place(PlaceError::Full));
}

#[test]
fn a_refused_batch_leaves_the_tip_unchanged() {
    let mut log = MemLog::of("u1 a2");
    let before = log.summary().tip();
    let mut tip = before.clone();
    let batch = drafts("M(m) u1 N(x) L→9").into_iter().map(|draft| Draft { id: None, ..draft }).collect();
    place(&mut tip, batch, &Principal::System, &mut log, || 0).unwrap_err();
    assert_eq!(tip, before);
}

#[test]
fn a_refused_script_leaves_the_log_unchanged() {
    let mut log = MemLog::of("u1 a2");
    let before = log.summary().clone();
    log.try_write("u3 L→9").unwrap_err();
    assert_eq!((log.summary(), log.placed().len()), (&before, 2));
    log.write("u3");
    assert_eq!(log.show(&log.context()), "u1 a2 u3");
}

#[test]
fn entries_outside_the_tree_keep_the_leaf_and_have_no_links() {
    let log = MemLog::of("u1 N(x) 1=y [ ] L→1 a2");
    for placed in log.placed() {
        assert_eq!(placed.links.is_some(), placed.entry.meta.kind.stance() == Stance::InTree);
        let parent = (placed.entry.meta.seq > Seq(1)).then_some(log.seq(1));
        assert_eq!(placed.entry.meta.parent, parent, "{:?}", placed.entry.meta.kind);
    }
    assert_eq!(log.head().leaf, Some(log.seq(2)));
}

#[test]
fn an_imported_author_is_kept() {
    let mut log = MemLog::default();
    let ana: Principal = "user:ana".parse().unwrap();
    let mut batch = drafts("u1 a2");
    batch[0].by = Some(ana.clone());
    let mut tip = Tip::default();
    let placed = place(&mut tip, batch, &Principal::System, &mut log, || 0).unwrap();
    assert_eq!(placed[0].entry.meta.by, ana);
    assert_eq!(placed[1].entry.meta.by, Principal::System);
}

#[test]
fn a_fork_refuses_references_to_entries_that_only_its_source_has() {
    let source = MemLog::of("u1 a2 u3");
    let mut fork = source.fork(Some(source.seq(2)));
    let to = Some(source.id(3));
    let error = fork.push(LeafMoved { to }).unwrap_err();
    assert!(matches!(error, MemError::Place(PlaceError::UnknownTarget { .. })));
    fork.write("u4 K5(s,2)");
    assert_eq!(fork.show(&fork.context()), "s a2 u4");
    let fork_of_fork = fork.fork(None);
    assert_eq!(fork_of_fork.show(&fork_of_fork.context()), "s a2 u4");
}

proptest! {
    #![proptest_config(super::cases_of(300))]

    #[test]
    fn placing_leaves_no_gaps_and_no_entry_is_older_than_its_parent(seed: u64, len in 0_usize..100) {
        let log = MemLog::of(&random_script(seed, len));
        for (index, entry) in log.entries().enumerate() {
            prop_assert_eq!(entry.meta.seq, Seq(index as u32 + 1));
            prop_assert!(entry.meta.parent.is_none_or(|parent| parent < entry.meta.seq));
            let in_tree = |seq: Seq| log.entry(seq).meta.kind.stance() == Stance::InTree;
            prop_assert!(entry.meta.parent.is_none_or(in_tree));
        }
        let ids: Vec<EntryId> = log.entries().map(|entry| entry.meta.id).collect();
        prop_assert!(ids.is_sorted_by(|a, b| a < b));
        prop_assert_eq!(log.head().seq, Seq(log.placed().len() as u32));
    }

    #[test]
    fn batches_of_any_size_build_the_same_tree(seed: u64, len in 0_usize..100) {
        let whole = MemLog::of(&random_script(seed, len));
        let mut batched = MemLog::default();
        let mut drafts = random_drafts(seed, len);
        let mut dice = Dice::new(seed);
        while !drafts.is_empty() {
            let rest = drafts.split_off(drafts.len().min(1 + dice.below(5)));
            batched.append(std::mem::replace(&mut drafts, rest)).unwrap();
        }
        prop_assert_eq!(whole.placed(), batched.placed());
        prop_assert_eq!(whole.summary(), batched.summary());
    }

    #[test]
    fn minted_ids_increase_with_any_clock(times in prop::collection::vec(0_i64..50, 1..40), seed: u64) {
        let mut dice = Dice::new(seed);
        let draft_at = |at: &i64| Draft { id: None, at: TimestampMs(*at), ..drafts("u1").remove(0) };
        let batch = times.iter().map(draft_at).collect();
        let mut log = MemLog::default();
        let random = || u128::from(dice.roll()) << 64;
        let placed = place(&mut Tip::default(), batch, &Principal::System, &mut log, random).unwrap();
        prop_assert!(placed.is_sorted_by(|a, b| a.entry.meta.id < b.entry.meta.id));
    }
}
