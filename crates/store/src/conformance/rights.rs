//! Permissions of readers, collaborators, owners and the operator.

use sapwood_core::entry::SessionState;
use sapwood_core::port::store::{ListFilter, SearchQuery, Until};
use sapwood_core::{Role, Scope, Seq, SessionId};

use super::Harness;
use super::world::{World, ana, archived, bob, code, id, operator, reopened, shared, user, user_message};

async fn shared_with_bob(world: &World, role: Role) -> SessionId {
    let session = world.create_with(&ana(), "s", &["one"]).await;
    world.append(&ana(), &session, vec![shared(&bob(), Some(role))]).await;
    session
}

/// Check that every read method works for this caller.
async fn check_reads(world: &World, scope: &Scope, session: &SessionId) {
    let store = &world.store;
    assert_eq!(store.summary(scope, session).await.unwrap().id, *session);
    assert!(store.children(scope, session).await.is_ok());
    assert!(!store.read_after(scope, session, Seq::ZERO, 10).await.unwrap().is_empty());
    assert_eq!(store.read_path(scope, session, None, Until::Root).await.unwrap().entries.len(), 1);
    assert_eq!(store.nth_message(scope, session, Seq(1), 1).await.unwrap(), Some(Seq(1)));
    assert!(store.read_entry(scope, session, Seq(1)).await.is_ok());
    assert_eq!(store.list(scope, &ListFilter::default()).await.unwrap().items.len(), 1);
    let find = SearchQuery { text: "one".to_owned(), ..SearchQuery::default() };
    assert_eq!(store.search(scope, &find).await.unwrap().items.len(), 1);
}

pub async fn a_reader_reads_and_does_not_write(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = shared_with_bob(&world, Role::Reader).await;
    check_reads(&world, &bob(), &session).await;
    let denied = "session.denied";
    assert_eq!(code(world.try_append(&bob(), &session, vec![user_message("x")]).await), denied);
    assert_eq!(
        code(world.try_append(&bob(), &session, Vec::new()).await),
        denied,
        "permissions are checked first"
    );
    assert_eq!(code(world.store.fork(&bob(), world.fork_of(&session, None, "f")).await), denied);
    assert_eq!(code(world.store.take_lease(&bob(), &session, "b", 10).await), denied);
    assert_eq!(code(world.store.erase(&bob(), &session, world.now()).await), denied);
    assert_eq!(world.summary(&ana(), &session).await.head.seq, Seq(2));
}

pub async fn a_collaborator_writes_and_does_not_own(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = shared_with_bob(&world, Role::Collaborator).await;
    check_reads(&world, &bob(), &session).await;
    let appended = world.append_text(&bob(), &session, "his words").await;
    let entry = world.store.read_entry(&ana(), &session, appended.entries[0].0).await.unwrap();
    assert_eq!(entry.meta.by, bob().principal);
    let denied = "session.denied";
    for bodies in [
        vec![shared(&user("carl"), Some(Role::Reader))],
        vec![shared(&bob(), Some(Role::Owner))],
        vec![archived()],
        vec![user_message("x"), archived(), reopened()],
    ] {
        assert_eq!(code(world.try_append(&bob(), &session, bodies).await), denied);
    }
    assert_eq!(code(world.store.erase(&bob(), &session, world.now()).await), denied);
    let lease = world.store.take_lease(&bob(), &session, "b", 10).await.unwrap();
    world.store.release_lease(&bob(), &lease).await.unwrap();
    let fork = world.fork(&bob(), &session, None, "his").await;
    assert_eq!(world.summary(&bob(), &fork).await.owner, bob().principal);
    assert_eq!(
        code(world.store.summary(&ana(), &fork).await),
        "session.not_found",
        "a fork belongs to its creator"
    );
    world.append(&ana(), &session, vec![archived()]).await;
    assert_eq!(code(world.try_append(&bob(), &session, vec![reopened()]).await), denied);
    assert_eq!(code(world.try_append(&bob(), &session, vec![user_message("x")]).await), "session.archived");
}

pub async fn a_removed_member_sees_nothing(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = shared_with_bob(&world, Role::Collaborator).await;
    world.append(&ana(), &session, vec![shared(&bob(), None)]).await;
    assert_eq!(code(world.store.summary(&bob(), &session).await), "session.not_found");
    assert_eq!(code(world.try_append(&bob(), &session, vec![user_message("x")]).await), "session.not_found");
    assert!(world.store.list(&bob(), &ListFilter::default()).await.unwrap().items.is_empty());
    // A member promoted to owner can do what the first owner can.
    world.append(&ana(), &session, vec![shared(&bob(), Some(Role::Owner))]).await;
    world.append(&bob(), &session, vec![archived()]).await;
    world.store.erase(&bob(), &session, world.now()).await.unwrap();
}

pub async fn the_operator_may_do_everything(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create_with(&ana(), "s", &["one"]).await;
    check_reads(&world, &operator(), &session).await;
    world.append(&operator(), &session, vec![shared(&bob(), Some(Role::Reader)), archived()]).await;
    assert_eq!(world.summary(&bob(), &session).await.state, SessionState::Archived);
    world.append(&operator(), &session, vec![reopened()]).await;
    world.store.erase(&operator(), &session, world.now()).await.unwrap();
    assert_eq!(code(world.store.summary(&ana(), &id("s")).await), "session.not_found");
}
