//! Tree navigation: jump pointers compared with the naive walk, on trees, forks, and forks of forks.

use proptest::prelude::*;
use sapwood_core::Seq;
use sapwood_core::entry::{LeafMoved, ModelChanged, SessionNamed, Stance, UserMessage};
use sapwood_core::fixture::{Dice, MemLog, drafts};
use sapwood_core::settings::Settings;
use sapwood_core::tree::{Lookup, ancestor_at, is_on_path, nth_message, settings_at};

/// One operation on a session. A number picks an entry, modulo the number of entries.
#[derive(Debug, Clone)]
enum Operation {
    Message,
    Model(u8),
    Name,
    Branch(usize),
    Reset,
    Fork(usize),
}

fn operations(len: usize) -> impl Strategy<Value = Vec<Operation>> {
    let any_operation = prop_oneof![
        10 => Just(Operation::Message),
        2 => (0_u8..3).prop_map(Operation::Model),
        1 => Just(Operation::Name),
        3 => any::<usize>().prop_map(Operation::Branch),
        1 => Just(Operation::Reset),
        1 => any::<usize>().prop_map(Operation::Fork),
    ];
    prop::collection::vec(any_operation, 0..len)
}

fn tree_seqs(log: &MemLog) -> Vec<Seq> {
    let in_tree = log.entries().filter(|entry| entry.meta.kind.stance() == Stance::InTree);
    in_tree.map(|entry| entry.meta.seq).collect()
}

fn log_after(operations: &[Operation]) -> MemLog {
    let mut log = MemLog::default();
    for step in operations {
        let seqs = tree_seqs(&log);
        let pick = |number: &usize| (!seqs.is_empty()).then(|| seqs[number % seqs.len()]);
        match step {
            Operation::Message => log.push(UserMessage { parts: Vec::new(), origin: None }).map(drop),
            Operation::Model(model) => log.push(ModelChanged { model: model.to_string() }).map(drop),
            Operation::Name => log.push(SessionNamed { title: "x".to_owned() }).map(drop),
            Operation::Reset => log.push(LeafMoved { to: None }).map(drop),
            Operation::Branch(number) => {
                let to = pick(number).map(|seq| log.entry(seq).meta.id);
                log.push(LeafMoved { to }).map(drop)
            }
            Operation::Fork(number) => {
                log = log.fork(pick(number));
                Ok(())
            }
        }
        .unwrap();
    }
    log
}

#[test]
fn an_ancestor_is_found_by_its_depth() {
    let mut log = MemLog::of("u1 a2 u3 L→2 u4 a5");
    let from = log.seq(5);
    let found = |depth, log: &mut MemLog| ancestor_at(from, depth, log).unwrap();
    assert_eq!(found(0, &mut log), None);
    assert_eq!(found(1, &mut log), Some(log.seq(1)));
    assert_eq!(found(3, &mut log), Some(log.seq(4)));
    assert_eq!(found(4, &mut log), Some(from));
    assert_eq!(found(5, &mut log), None);
}

#[test]
fn inside_a_fork_shared_entries_are_numbered_by_their_depth() {
    let source = MemLog::of("u1 L→none u2 N(x) a3 u4 L→3 u5");
    let mut fork = source.fork(None);
    assert_eq!(fork.inherited(), 3);
    assert_eq!([fork.seq(2), fork.seq(3), fork.seq(5)], [Seq(1), Seq(2), Seq(3)]);
    fork.write("u6 L→3 u7");
    assert_eq!(fork.path_seqs(fork.head().leaf), [Seq(1), Seq(2), fork.seq(7)]);
    assert_eq!(ancestor_at(fork.seq(7), 2, &mut fork).unwrap(), Some(Seq(2)));
    assert!(!is_on_path(fork.seq(5), Some(fork.seq(7)), &mut fork).unwrap());
}

/// A session with long paths, built by branching and forking at random entries.
fn deep_log(seed: u64) -> MemLog {
    let mut dice = Dice::new(seed);
    let mut log = MemLog::default();
    log.append(drafts(&"u ".repeat(3_000))).unwrap();
    for _ in 0..8 {
        let at = Seq(1 + dice.below(3_000) as u32);
        if dice.one_in(3) {
            log = log.fork(Some(at));
        } else {
            let to = Some(log.entry(at).meta.id);
            log.push(LeafMoved { to }).unwrap();
        }
        log.write(&"u ".repeat(3_000 - at.0 as usize / 2));
    }
    log
}

#[test]
fn an_ancestor_is_found_in_logarithmically_many_steps() {
    let mut log = deep_log(7);
    let seqs = tree_seqs(&log);
    let mut dice = Dice::new(1);
    for _ in 0..2_000 {
        let from = dice.pick(&seqs).unwrap();
        let depth = log.node(from).unwrap().links.depth;
        let wanted = 1 + dice.below(depth as usize) as u32;
        let before = log.lookups();
        assert!(ancestor_at(from, wanted, &mut log).unwrap().is_some());
        let lookups = log.lookups() - before;
        let most = 4 * u64::from(depth.ilog2()) + 8;
        assert!(lookups <= most, "{lookups} lookups from depth {depth} to {wanted}, at most {most} expected");
    }
}

#[test]
fn placing_an_entry_takes_the_same_few_lookups_at_any_depth() {
    let mut log = deep_log(3);
    let before = log.lookups();
    log.write("u");
    assert!(log.lookups() - before <= 6, "{} lookups", log.lookups() - before);
}

#[test]
fn the_nth_message_of_a_deep_path_is_found_in_few_lookups() {
    let mut log = deep_log(5);
    let leaf = log.head().leaf.unwrap();
    let messages = log.node(leaf).unwrap().links.messages;
    let before = log.lookups();
    let found = nth_message(leaf, messages / 2, &mut log).unwrap().unwrap();
    assert_eq!(log.node(found).unwrap().links.messages, messages / 2);
    assert!(log.lookups() - before <= 1_000, "{} lookups", log.lookups() - before);
}

proptest! {
    #![proptest_config(super::cases_of(300))]

    #[test]
    fn an_ancestor_is_the_one_a_walk_finds(operations in operations(60)) {
        let mut log = log_after(&operations);
        for from in tree_seqs(&log) {
            let path = log.path_seqs(Some(from));
            prop_assert_eq!(log.node(from).unwrap().links.depth, path.len() as u32);
            for depth in 0..path.len() as u32 + 2 {
                let walked = depth.checked_sub(1).and_then(|index| path.get(index as usize)).copied();
                prop_assert_eq!(ancestor_at(from, depth, &mut log).unwrap(), walked);
            }
        }
    }

    #[test]
    fn an_entry_is_on_a_path_if_a_walk_visits_it(operations in operations(50)) {
        let mut log = log_after(&operations);
        let seqs = tree_seqs(&log);
        for leaf in &seqs {
            let path = log.path_seqs(Some(*leaf));
            for seq in &seqs {
                prop_assert_eq!(is_on_path(*seq, Some(*leaf), &mut log).unwrap(), path.contains(seq));
            }
        }
        for seq in &seqs {
            prop_assert!(!is_on_path(*seq, None, &mut log).unwrap());
        }
    }

    #[test]
    fn the_nth_message_is_the_one_a_walk_counts(operations in operations(60)) {
        let mut log = log_after(&operations);
        for leaf in tree_seqs(&log) {
            let path = log.path_seqs(Some(leaf));
            let messages: Vec<Seq> =
                path.into_iter().filter(|seq| log.entry(*seq).meta.kind.is_message()).collect();
            prop_assert_eq!(log.node(leaf).unwrap().links.messages, messages.len() as u32);
            for count in 0..messages.len() as u32 + 2 {
                let walked = count.checked_sub(1).and_then(|index| messages.get(index as usize)).copied();
                prop_assert_eq!(nth_message(leaf, count, &mut log).unwrap(), walked);
            }
        }
    }

    #[test]
    fn settings_by_link_equal_those_of_the_whole_path(operations in operations(60)) {
        let mut log = log_after(&operations);
        for seq in tree_seqs(&log) {
            let mut walked = Settings::default();
            for on_path in log.path_seqs(Some(seq)) {
                walked.apply(&log.entry(on_path).body);
            }
            prop_assert_eq!(settings_at(seq, &mut log).unwrap(), walked);
        }
        let leaf = log.head().leaf;
        let model = leaf.and_then(|leaf| settings_at(leaf, &mut log).unwrap().model);
        prop_assert_eq!(&log.summary().model, &model);
    }

    #[test]
    fn no_pointer_of_a_fork_crosses_its_boundary(operations in operations(60)) {
        let log = log_after(&operations);
        let inherited = log.inherited();
        for placed in &log.placed()[inherited as usize..] {
            prop_assert!(placed.links.is_none_or(|links| links.jump.0 > inherited));
        }
        for (index, placed) in log.placed()[..inherited as usize].iter().enumerate() {
            prop_assert_eq!(placed.links.unwrap().depth, index as u32 + 1);
        }
    }
}
