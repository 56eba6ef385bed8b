//! The audit log: one hash chain of lines per tenant.

use sapwood_core::TimestampMs;
use sapwood_core::port::store::{Append, AuditAction, AuditLine, AuditNote, Fork, NewSession};

use super::Harness;
use super::world::{World, ana, bob, code, foreign_ana, id, operator, user_message};

fn note(action: AuditAction, session: Option<&str>, detail: &str) -> AuditNote {
    AuditNote { action, session: session.map(id), detail: Some(detail.to_owned()) }
}

async fn all(world: &World) -> Vec<AuditLine> {
    world.store.read_audit(&operator(), None, 0, 1_000).await.unwrap()
}

/// Check that every line's hash covers the previous line, and that no number is missing.
pub(super) fn check_chain(lines: &[AuditLine]) {
    let mut previous = String::new();
    for (index, line) in lines.iter().enumerate() {
        assert_eq!(line.number, index as u64 + 1);
        assert_eq!(line.hash, line.expected_hash(&previous));
        previous.clone_from(&line.hash);
    }
}

pub async fn lines_are_chained(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create_with(&ana(), "s", &["one"]).await;
    world.fork(&ana(), &session, None, "fork").await;
    for number in 0..20 {
        let note = note(AuditAction::Read, Some("s"), &format!("number {number} \"quoted\" é"));
        world.store.write_audit(&bob(), note, world.now()).await.unwrap();
    }
    world.store.erase(&ana(), &session, world.now()).await.unwrap();
    let lines = all(&world).await;
    check_chain(&lines);
    assert_eq!(lines.len(), 23);
    let actions: Vec<AuditAction> = lines.iter().map(|line| line.action).collect();
    assert_eq!(
        (actions[0], actions[1], actions[22]),
        (AuditAction::Create, AuditAction::Fork, AuditAction::Erase)
    );
    assert_eq!(lines[1].session, Some(id("fork")));
    // A changed or missing line is detected.
    let mut forged = lines[5].clone();
    forged.detail = Some("nothing happened".to_owned());
    assert_ne!(forged.hash, forged.expected_hash(&lines[4].hash));
    assert_ne!(lines[6].hash, lines[6].expected_hash(&lines[4].hash));
}

pub async fn audit_lines_are_written_with_their_append(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create_with(&ana(), "s", &["one"]).await;
    let append = Append {
        audit: Some(note(AuditAction::Edit, Some("s"), "said two")),
        idempotency_key: Some("k".to_owned()),
        ..world.append_of(&session, vec![user_message("two")])
    };
    world.store.append(&ana(), append.clone()).await.unwrap();
    let lines = all(&world).await;
    let last = lines.last().unwrap();
    assert_eq!((last.action, last.at, &last.by), (AuditAction::Edit, append.now, &ana().principal));
    assert_eq!(last.detail.as_deref(), Some("said two"));
    // Neither a repeated nor a refused append writes an audit line.
    world.store.append(&ana(), append.clone()).await.unwrap();
    let refused = Append { idempotency_key: None, drafts: Vec::new(), ..append };
    assert_eq!(code(world.store.append(&ana(), refused).await), "input.invalid");
    assert_eq!(all(&world).await.len(), lines.len());
}

pub async fn a_line_has_the_time_it_was_written(harness: &impl Harness) {
    let world = World::open(harness).await;
    let long_ago = TimestampMs(1);
    let new = NewSession { at: long_ago, ..world.new_session("s") };
    world.store.create(&ana(), new.clone()).await.unwrap();
    world.append_text(&ana(), &id("s"), "one").await;
    let fork = NewSession { at: long_ago, ..world.new_session("fork") };
    let then = fork.now;
    let fork = Fork { source: id("s"), at: None, new: fork, drafts: Vec::new() };
    world.store.fork(&ana(), fork).await.unwrap();
    assert_eq!(world.store.summary(&ana(), &id("s")).await.unwrap().created_at, long_ago);
    let times: Vec<TimestampMs> = all(&world).await.iter().map(|line| line.at).collect();
    assert_eq!(times, [new.now, then]);
}

pub async fn pages_and_sessions(harness: &impl Harness) {
    let world = World::open(harness).await;
    for number in 0..10 {
        let session = if number % 2 == 0 { "even" } else { "odd" };
        world
            .store
            .write_audit(&ana(), note(AuditAction::Open, Some(session), "x"), world.now())
            .await
            .unwrap();
    }
    let read = async |session: Option<&str>, after, limit| -> Vec<u64> {
        let session = session.map(id);
        let lines = world.store.read_audit(&operator(), session.as_ref(), after, limit).await.unwrap();
        lines.iter().map(|line| line.number).collect()
    };
    assert_eq!(read(None, 0, 4).await, [1, 2, 3, 4]);
    assert_eq!(read(None, 4, 4).await, [5, 6, 7, 8]);
    assert_eq!(read(Some("odd"), 3, 10).await, [4, 6, 8, 10]);
    assert!(read(Some("nowhere"), 0, 10).await.is_empty());
    assert!(read(None, 10, 10).await.is_empty());
}

pub async fn the_latest_lines_of_a_session_are_read_from_the_end(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create_with(&ana(), "s", &["one"]).await;
    let mut times = Vec::new();
    for number in 0..300_usize {
        let about = if number % 3 == 0 { "s" } else { "another" };
        // Use lines of many lengths, so that a store that reads its file backwards starts inside a line.
        let line = note(AuditAction::Read, Some(about), &"x".repeat(number * 7 % 1_000));
        times.push(world.now());
        world.store.write_audit(&bob(), line, times[number]).await.unwrap();
    }
    let read = async |scope, since, limit| -> Vec<TimestampMs> {
        let lines = world.store.read_audit_since(&scope, &session, since, limit).await.unwrap();
        lines.iter().map(|line| line.at).collect()
    };
    assert_eq!(read(operator(), times[290], 10).await, [times[297], times[294], times[291]]);
    assert_eq!(
        read(operator(), times[297], 10).await,
        [times[297]],
        "a line at exactly that time is included"
    );
    assert_eq!(read(operator(), times[299], 10).await, []);
    assert_eq!(read(operator(), TimestampMs(0), 2).await, [times[297], times[294]]);
    assert_eq!(
        read(operator(), TimestampMs(0), 1_000).await.len(),
        101,
        "100 written lines and the line of the creation"
    );
    assert_eq!(read(foreign_ana(), TimestampMs(0), 1_000).await, []);
    let nowhere = world.store.read_audit_since(&operator(), &id("nowhere"), TimestampMs(0), 10).await;
    assert!(nowhere.unwrap().is_empty());
}

pub async fn only_the_operator_reads_all_lines(harness: &impl Harness) {
    let world = World::open(harness).await;
    world.create_with(&ana(), "s", &["one"]).await;
    world.store.write_audit(&bob(), note(AuditAction::Read, Some("s"), "x"), world.now()).await.unwrap();
    world
        .store
        .write_audit(&foreign_ana(), note(AuditAction::Read, Some("s"), "x"), world.now())
        .await
        .unwrap();
    let count = async |scope| world.store.read_audit(&scope, None, 0, 100).await.unwrap().len();
    assert_eq!(count(operator()).await, 2);
    assert_eq!(count(ana()).await, 2, "the actions of ana, and the actions on her session");
    assert_eq!(count(bob()).await, 1, "the actions of bob");
    assert_eq!(count(foreign_ana()).await, 1);
}
