//! Blobs: addressed by hash, retained while referenced, and read through sessions.

use sapwood_core::entry::{ArtifactPut, ArtifactUse, Origin, ToolResult, UserMessage};
use sapwood_core::{BlobHash, Body, Part, Role, Seq};

use super::Harness;
use super::world::{
    World, ana, blob_ref, bob, code, message_with_blob, operator, shared, user, user_message,
};

pub async fn put_and_get(harness: &impl Harness) {
    let world = World::open(harness).await;
    for bytes in [b"".to_vec(), b"abc".to_vec(), vec![0, 255, 10, 13], vec![7; 1 << 20]] {
        let blob = world.store.put_blob(&ana(), bytes.clone()).await.unwrap();
        assert_eq!(blob, BlobHash::of(&bytes));
        assert_eq!(world.store.put_blob(&ana(), bytes.clone()).await.unwrap(), blob);
        assert_eq!(world.store.get_blob(&ana(), blob).await.unwrap(), bytes);
    }
    assert_eq!(code(world.store.get_blob(&ana(), BlobHash::of(b"never put")).await), "blob.not_found");
}

pub async fn an_unknown_blob_is_refused_i4(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create_with(&ana(), "s", &["one"]).await;
    let unknown = message_with_blob(BlobHash::of(b"never put"));
    let refused = world.try_append(&ana(), &session, vec![user_message("two"), unknown]).await;
    assert_eq!(code(refused), "blob.not_found");
    assert_eq!(world.summary(&ana(), &session).await.head.seq, Seq(1));
}

pub async fn a_blob_is_erased_with_its_last_reference(harness: &impl Harness) {
    let world = World::open(harness).await;
    let (one, two) = (world.create(&ana(), "one").await, world.create(&ana(), "two").await);
    let both = world.store.put_blob(&ana(), b"both".to_vec()).await.unwrap();
    let only = world.store.put_blob(&ana(), b"only".to_vec()).await.unwrap();
    world
        .append(&ana(), &one, vec![message_with_blob(both), message_with_blob(only), message_with_blob(only)])
        .await;
    world.append(&ana(), &two, vec![message_with_blob(both)]).await;
    world.store.erase(&ana(), &one, world.now()).await.unwrap();
    assert_eq!(code(world.store.get_blob(&operator(), only).await), "blob.not_found");
    assert_eq!(world.store.get_blob(&ana(), both).await.unwrap(), b"both");
    let again = world.try_append(&ana(), &two, vec![message_with_blob(only)]).await;
    assert_eq!(code(again), "blob.not_found", "an erased blob cannot be referenced");
    world.store.erase(&ana(), &two, world.now()).await.unwrap();
    assert_eq!(code(world.store.get_blob(&operator(), both).await), "blob.not_found");
}

pub async fn a_blob_stays_while_a_fork_refers_to_it(harness: &impl Harness) {
    let world = World::open(harness).await;
    let source = world.create(&ana(), "source").await;
    let kept = world.store.put_blob(&ana(), b"kept".to_vec()).await.unwrap();
    let gone = world.store.put_blob(&ana(), b"gone".to_vec()).await.unwrap();
    world.append(&ana(), &source, vec![message_with_blob(kept), message_with_blob(gone)]).await;
    let fork = world.fork(&ana(), &source, Some(1), "fork").await;
    let deeper = world.fork(&ana(), &fork, None, "deeper").await;
    world.store.erase(&ana(), &source, world.now()).await.unwrap();
    assert_eq!(world.store.get_blob(&ana(), kept).await.unwrap(), b"kept");
    assert_eq!(code(world.store.get_blob(&operator(), gone).await), "blob.not_found");
    world.store.erase(&ana(), &fork, world.now()).await.unwrap();
    assert_eq!(world.store.get_blob(&ana(), kept).await.unwrap(), b"kept");
    world.store.erase(&ana(), &deeper, world.now()).await.unwrap();
    assert_eq!(code(world.store.get_blob(&operator(), kept).await), "blob.not_found");
}

pub async fn every_reference_counts(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create(&ana(), "s").await;
    let bodies: [fn(BlobHash) -> Body; 4] = [message_with_blob, as_attachment, as_full_output, as_artifact];
    for (number, body) in bodies.into_iter().enumerate() {
        let bytes = vec![number as u8; 3];
        let hash = BlobHash::of(&bytes);
        assert_eq!(code(world.try_append(&ana(), &session, vec![body(hash)]).await), "blob.not_found");
        world.store.put_blob(&ana(), bytes).await.unwrap();
        world.append(&ana(), &session, vec![body(hash)]).await;
    }
    world.store.erase(&ana(), &session, world.now()).await.unwrap();
    for number in 0..4 {
        let hash = BlobHash::of(&[number; 3]);
        assert_eq!(code(world.store.get_blob(&operator(), hash).await), "blob.not_found");
    }
}

fn as_attachment(blob: BlobHash) -> Body {
    let origin = Origin { channel: "mail".to_owned(), reply_to: None, attachments: vec![blob_ref(blob)] };
    UserMessage { parts: vec![Part::text("x")], origin: Some(origin) }.into()
}

fn as_full_output(blob: BlobHash) -> Body {
    ToolResult {
        call_id: "c".to_owned(),
        tool: None,
        parts: Vec::new(),
        is_error: false,
        duration_ms: None,
        interrupted: false,
        full: Some(blob_ref(blob)),
    }
    .into()
}

fn as_artifact(blob: BlobHash) -> Body {
    ArtifactPut::new("a", ArtifactUse::Input, blob_ref(blob)).into()
}

pub async fn a_blob_is_read_through_a_session(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create(&ana(), "s").await;
    let blob = world.store.put_blob(&ana(), b"abc".to_vec()).await.unwrap();
    assert_eq!(
        world.store.get_blob(&ana(), blob).await.unwrap(),
        b"abc",
        "the uploader can read it before it is referenced"
    );
    assert_eq!(code(world.store.get_blob(&bob(), blob).await), "blob.not_found");
    world
        .append(&ana(), &session, vec![message_with_blob(blob), shared(&bob(), Some(Role::Collaborator))])
        .await;
    assert_eq!(world.store.get_blob(&bob(), blob).await.unwrap(), b"abc");
    assert_eq!(code(world.store.get_blob(&user("carl"), blob).await), "blob.not_found");
    // After bob is removed from the session, he can still read the blob through his fork.
    world.fork(&bob(), &session, Some(1), "fork").await;
    world.append(&ana(), &session, vec![shared(&bob(), None)]).await;
    assert_eq!(world.store.get_blob(&bob(), blob).await.unwrap(), b"abc");
}

pub async fn two_users_can_put_the_same_bytes(harness: &impl Harness) {
    let world = World::open(harness).await;
    let (hers, his) = (world.create(&ana(), "hers").await, world.create(&bob(), "his").await);
    let blob = world.store.put_blob(&ana(), b"abc".to_vec()).await.unwrap();
    world.append(&ana(), &hers, vec![message_with_blob(blob)]).await;
    let stolen = world.try_append(&bob(), &his, vec![message_with_blob(blob)]).await;
    assert_eq!(code(stolen), "blob.not_found", "the hash alone grants no access (I9)");
    world.store.put_blob(&bob(), b"abc".to_vec()).await.unwrap();
    assert_eq!(world.store.get_blob(&bob(), blob).await.unwrap(), b"abc");
    world.append(&bob(), &his, vec![message_with_blob(blob)]).await;
    world.store.erase(&ana(), &hers, world.now()).await.unwrap();
    assert_eq!(world.store.get_blob(&bob(), blob).await.unwrap(), b"abc");
}
