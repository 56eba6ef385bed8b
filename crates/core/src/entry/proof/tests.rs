//! Any change of a log is found, and dropped content and forks stay verifiable.

use proptest::prelude::*;

use super::*;
use crate::entry::{Kind, LOG_VERSION};
use crate::id::{TimestampMs, TurnId};

/// How each entry of a random log is made: how far above the leaf its parent is, whether it is in the tree, its text.
type Plan = Vec<(u32, bool, String)>;

fn plans() -> impl Strategy<Value = Plan> {
    proptest::collection::vec((0_u32..4, any::<bool>(), "[ -~]{0,40}"), 1..24)
}

fn session() -> SessionId {
    "s".parse().unwrap()
}

/// Build a log in which every entry is proven.
fn log_of(plan: &Plan) -> Vec<StoredEntry> {
    let mut log: Vec<StoredEntry> = Vec::new();
    for (number, (above, is_in_tree, text)) in (1_u32..).zip(plan) {
        let in_tree: Vec<&StoredEntry> =
            log.iter().filter(|entry| entry.meta.kind.stance() == Stance::InTree).collect();
        let parent = in_tree.len().checked_sub(1 + *above as usize).map(|at| in_tree[at]);
        let link =
            parent.map_or(ParentLink::Root, |parent| ParentLink::to(parent.meta.id, parent.proof.as_ref()));
        let at = TimestampMs(1_000 + i64::from(number));
        let meta = Meta {
            seq: Seq(number),
            id: EntryId::mint(at, u128::from(number)),
            parent: parent.map(|parent| parent.meta.seq),
            at,
            by: "user:ana".parse().unwrap(),
            turn: (number % 3 == 0).then(|| TurnId::mint(at, 7)),
            kind: if *is_in_tree { Kind::UserMessage } else { Kind::CustomInfo },
        };
        let body = text.clone().into_bytes();
        let mut entry = StoredEntry { meta, version: LOG_VERSION, body, proof: None };
        entry.proof = Some(entry.prove(link, Salt::new(u128::from(number) << 64 | 9)));
        log.push(entry);
    }
    log
}

fn verify(log: &[StoredEntry]) -> Result<Option<LogHead>, Mismatch> {
    let mut verifier = Verifier::new(&session());
    for entry in log {
        verifier.check(entry)?;
    }
    Ok(verifier.head())
}

fn flip(bytes: &mut [u8], at: usize, bit: u8) -> bool {
    let len = bytes.len();
    if len > 0 {
        bytes[at % len] ^= 1 << bit;
    }
    len > 0
}

/// Change one thing of an entry. Returns false if there is nothing to change.
fn change(entry: &mut StoredEntry, what: u8, at: usize, bit: u8) -> bool {
    let meta = &mut entry.meta;
    match what {
        0 => {
            // A line break and a space between two tokens are the same content.
            let before = entry.body.clone();
            return flip(&mut entry.body, at, bit)
                && Salt::new(1).commit(&before) != Salt::new(1).commit(&entry.body);
        }
        1 | 2 => {
            let mut bytes = entry.proof.unwrap().to_bytes();
            let part = if what == 1 { 0..SALT_BYTES } else { SALT_BYTES..SALT_BYTES + HASH_BYTES };
            flip(&mut bytes[part], at, bit);
            entry.proof = Proof::from_bytes(&bytes);
        }
        3 => meta.at.0 ^= 1 << bit,
        4 => meta.by = "user:bob".parse().unwrap(),
        5 => meta.turn = meta.turn.is_none().then(|| TurnId::mint(TimestampMs(1), 1)),
        6 => {
            let mut bytes = *meta.id.as_bytes();
            flip(&mut bytes, at, bit);
            meta.id = EntryId::from_bytes(bytes);
        }
        7 => meta.parent = if meta.parent.is_none() { Some(Seq(1)) } else { None },
        8 => meta.parent = meta.parent.map(|parent| Seq(parent.0 ^ 1)),
        9 => entry.version ^= 1,
        10 => {
            meta.kind = if meta.kind == Kind::UserMessage { Kind::SystemNote } else { Kind::Label };
        }
        _ => meta.seq = Seq(meta.seq.0 ^ (1 << bit)),
    }
    what != 8 || meta.parent.is_some()
}

proptest! {
    #[test]
    fn a_log_verifies_and_any_change_of_an_entry_is_found(
        plan in plans(), what in 0_u8..12, index in any::<prop::sample::Index>(), at in any::<usize>(), bit in 0_u8..8,
    ) {
        let mut log = log_of(&plan);
        prop_assert!(verify(&log).unwrap().is_some());
        let index = index.index(log.len());
        if change(&mut log[index], what, at, bit) {
            prop_assert!(verify(&log).is_err());
        }
    }

    #[test]
    fn two_entries_that_changed_places_are_found(
        plan in plans(), one in any::<prop::sample::Index>(), two in any::<prop::sample::Index>(),
    ) {
        let mut log = log_of(&plan);
        let (one, two) = (one.index(log.len()), two.index(log.len()));
        let (seq_one, seq_two) = (log[one].meta.seq, log[two].meta.seq);
        log.swap(one, two);
        (log[one].meta.seq, log[two].meta.seq) = (seq_one, seq_two);
        prop_assert_eq!(verify(&log).is_err(), one != two);
    }

    #[test]
    fn a_missing_entry_or_tail_gives_another_head(plan in plans(), index in any::<prop::sample::Index>()) {
        let log = log_of(&plan);
        let head = verify(&log).unwrap();
        let cut = &log[..index.index(log.len())];
        prop_assert_ne!(verify(cut).unwrap(), head);
    }

    #[test]
    fn dropped_content_leaves_every_entry_verifiable(plan in plans(), dropped in any::<u32>()) {
        let mut log = log_of(&plan);
        let head = verify(&log).unwrap();
        for (_, entry) in log.iter_mut().enumerate().filter(|(index, _)| dropped >> (index % 32) & 1 == 1) {
            let body = std::mem::take(&mut entry.body);
            entry.proof = entry.proof.map(|proof| proof.without_content(&body));
        }
        prop_assert_eq!(verify(&log).unwrap(), head);
    }

    #[test]
    fn a_path_verifies_alone_in_the_numbering_of_a_fork(plan in plans(), index in any::<prop::sample::Index>()) {
        let log = log_of(&plan);
        let mut path = Vec::new();
        let mut next = Some(log[index.index(log.len())].meta.seq);
        while let Some(seq) = next {
            let entry = &log[seq.0 as usize - 1];
            next = entry.meta.parent;
            path.push(entry.clone());
        }
        path.reverse();
        path.retain(|entry| entry.meta.kind.stance() == Stance::InTree);
        for (depth, entry) in (1_u32..).zip(&mut path) {
            (entry.meta.seq, entry.meta.parent) = (Seq(depth), (depth > 1).then_some(Seq(depth - 1)));
        }
        prop_assert!(verify(&path).is_ok());
    }

    #[test]
    fn entries_sealed_later_verify_and_cover_their_children(plan in plans(), old in 1_usize..12) {
        let mut log = log_of(&plan);
        let old = old.min(log.len());
        let mut links: HashMap<Seq, ParentLink> = HashMap::new();
        for (index, entry) in log.iter_mut().enumerate() {
            let link = entry.meta.parent.map_or(ParentLink::Root, |parent| links[&parent]);
            entry.proof = (index >= old).then(|| entry.prove(link, Salt::new(3)));
            links.insert(entry.meta.seq, ParentLink::to(entry.meta.id, entry.proof.as_ref()));
        }
        prop_assert_eq!(verify(&log).unwrap(), None, "a log with unproven entries has no head");
        links.clear();
        for entry in &mut log {
            let link = entry.meta.parent.map_or(ParentLink::Root, |parent| links[&parent]);
            entry.proof = entry.proof.or(Some(entry.prove(link, Salt::new(5))));
            links.insert(entry.meta.seq, ParentLink::to(entry.meta.id, entry.proof.as_ref()));
        }
        prop_assert!(verify(&log).unwrap().is_some());
    }
}

#[test]
fn a_proof_has_a_binary_form_and_fields() {
    let entry = &log_of(&vec![(0, true, "text".to_owned())])[0];
    let proof = entry.proof.unwrap();
    for proof in [proof, proof.without_content(&entry.body)] {
        assert_eq!(Proof::from_bytes(&proof.to_bytes()), Some(proof));
        assert_eq!(Proof::from_fields(&proof.to_fields()), Some(proof));
    }
    assert_eq!(proof.to_bytes().len(), 48);
    assert_eq!(Proof::from_bytes(&[0; 47]), None);
    assert_eq!(Proof::from_fields(&ProofFields { salt: None, ..proof.to_fields() }), None);
}

#[test]
fn the_hashes_are_those_of_earlier_builds() {
    let log = log_of(&vec![(0, true, "one".to_owned()), (0, false, "two\n".to_owned())]);
    let head = verify(&log).unwrap().unwrap();
    assert_eq!(head.to_string().parse::<LogHead>().unwrap(), head);
    assert_eq!(
        log.iter().map(|entry| entry.proof.unwrap().hash.to_string()).collect::<Vec<_>>(),
        [
            "d4013f00c6620be4f3b9ebe37718ca0bd50c78fd172398af1de55162892064b7",
            "1e8f59ebe769bd931984f0f7ec533d161857db6c9a777ff55c1fbabd85b401a8"
        ]
    );
}
