//! Blobs that are written and read in chunks. Any chunking produces the same blob, any range is a slice of
//! its bytes, and an unfinished upload leaves no data.

use sapwood_core::port::store::{BLOB_BYTES_MAX, BLOB_CHUNK_BYTES_MAX, BlobSink, Repair, Result};
use sapwood_core::{BlobHash, Role, Scope};

use super::Harness;
use super::world::{World, ana, bob, code, foreign_ana, message_with_blob, operator, shared, user};

/// Number of random ranges read from each blob.
const RANGES: u64 = 40;

/// Pseudo-random bytes for a seed. The second half is compressible.
fn noise(seed: u64, size: usize) -> Vec<u8> {
    let mut dice = Dice(seed);
    let draw = |at: usize| if at < size / 2 { dice.roll() as u8 } else { (at / 100) as u8 };
    (0..size).map(draw).collect()
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
}

async fn put_in(world: &World, scope: &Scope, bytes: &[u8], width: usize) -> Result<BlobHash> {
    let mut sink = world.store.begin_blob(scope).await?;
    for chunk in bytes.chunks(width) {
        sink.write(chunk).await?;
    }
    sink.finish().await
}

/// Start an upload and write these bytes, without finishing it.
async fn begin<'w>(world: &'w World, scope: &Scope, bytes: &[u8]) -> Box<dyn BlobSink + 'w> {
    let mut sink = world.store.begin_blob(scope).await.unwrap();
    sink.write(bytes).await.unwrap();
    sink
}

async fn assert_no_findings(world: &World) {
    let findings = world.store.check(&operator(), Repair::No).await.unwrap();
    assert_eq!(findings, []);
}

pub async fn any_chunking_gives_the_same_blob(harness: &impl Harness) {
    let world = World::open(harness).await;
    for size in [
        0,
        1,
        BLOB_CHUNK_BYTES_MAX - 1,
        BLOB_CHUNK_BYTES_MAX,
        BLOB_CHUNK_BYTES_MAX + 1,
        2 * BLOB_CHUNK_BYTES_MAX + 777,
    ] {
        let bytes = noise(size as u64, size);
        for width in [size.max(1), 65_537, 3 * BLOB_CHUNK_BYTES_MAX / 2] {
            let blob = put_in(&world, &ana(), &bytes, width).await.unwrap();
            assert_eq!(blob, BlobHash::of(&bytes));
            assert_eq!(world.store.blob_size(&ana(), blob).await.unwrap(), size as u64);
            assert!(world.store.get_blob(&ana(), blob).await.unwrap() == bytes, "{size} bytes by {width}");
        }
    }
    assert_no_findings(&world).await;
}

pub async fn any_range_is_a_slice_of_the_bytes(harness: &impl Harness) {
    let world = World::open(harness).await;
    for size in [10, BLOB_CHUNK_BYTES_MAX, 3 * BLOB_CHUNK_BYTES_MAX + 5] {
        let bytes = noise(7, size);
        let blob = put_in(&world, &ana(), &bytes, 100_000).await.unwrap();
        let mut dice = Dice(size as u64);
        let mut ranges: Vec<(usize, usize)> = vec![
            (0, 0),
            (0, usize::MAX),
            (size - 1, 5),
            (size, 5),
            (size + 1, 5),
            (usize::MAX, 1),
            (BLOB_CHUNK_BYTES_MAX - 2, 4),
            (BLOB_CHUNK_BYTES_MAX, BLOB_CHUNK_BYTES_MAX),
        ];
        for _ in 0..RANGES {
            let [from, limit] =
                [size + size / 8, BLOB_CHUNK_BYTES_MAX * 2].map(|most| dice.roll() as usize % (most + 1));
            ranges.push((from, limit));
        }
        for (from, limit) in ranges {
            let first = from.min(size);
            let last = first.saturating_add(limit.min(BLOB_CHUNK_BYTES_MAX)).min(size);
            let read = world.store.read_blob(&ana(), blob, from as u64, limit).await.unwrap();
            assert!(read == bytes[first..last], "{limit} bytes from {from} of {size}");
        }
    }
}

pub async fn an_unfinished_upload_is_not_visible(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create(&ana(), "s").await;
    for size in [100, 2 * BLOB_CHUNK_BYTES_MAX + 9] {
        let bytes = noise(3, size);
        let blob = BlobHash::of(&bytes);
        let sink = begin(&world, &ana(), &bytes).await;
        for scope in [ana(), operator()] {
            assert_eq!(code(world.store.blob_size(&scope, blob).await), "blob.not_found");
            assert_eq!(code(world.store.read_blob(&scope, blob, 0, 1).await), "blob.not_found");
        }
        assert_eq!(
            code(world.try_append(&ana(), &session, vec![message_with_blob(blob)]).await),
            "blob.not_found"
        );
        drop(sink);
        assert_eq!(code(world.store.get_blob(&operator(), blob).await), "blob.not_found");
        assert_eq!(put_in(&world, &ana(), &bytes, 1_000_000).await.unwrap(), blob);
        assert!(world.store.get_blob(&ana(), blob).await.unwrap() == bytes);
    }
    assert_no_findings(&world).await;
}

pub async fn a_blob_that_is_too_large_is_refused_during_the_upload(harness: &impl Harness) {
    let world = World::open(harness).await;
    let chunk = vec![0; 16 * BLOB_CHUNK_BYTES_MAX];
    let mut sink = world.store.begin_blob(&ana()).await.unwrap();
    for _ in 0..BLOB_BYTES_MAX / chunk.len() {
        sink.write(&chunk).await.unwrap();
    }
    assert_eq!(code(sink.write(&[0]).await), "input.too_large");
    drop(sink);
    assert_no_findings(&world).await;
}

pub async fn concurrent_uploads_of_the_same_bytes_are_one_blob(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create(&ana(), "s").await;
    let bytes = noise(5, 2 * BLOB_CHUNK_BYTES_MAX + 1);
    let (half, rest) = bytes.split_at(BLOB_CHUNK_BYTES_MAX + 10);
    let mut hers = begin(&world, &ana(), half).await;
    let mut his = begin(&world, &bob(), half).await;
    hers.write(rest).await.unwrap();
    his.write(rest).await.unwrap();
    let blob = hers.finish().await.unwrap();
    assert_eq!(
        code(world.store.blob_size(&bob(), blob).await),
        "blob.not_found",
        "bob's upload is not finished"
    );
    assert_eq!(his.finish().await.unwrap(), blob);
    for scope in [ana(), bob()] {
        assert!(world.store.get_blob(&scope, blob).await.unwrap() == bytes);
    }
    world.append(&ana(), &session, vec![message_with_blob(blob)]).await;
    world.store.erase(&ana(), &session, world.now()).await.unwrap();
    assert_eq!(
        code(world.store.get_blob(&operator(), blob).await),
        "blob.not_found",
        "both uploads share one blob"
    );
    assert_no_findings(&world).await;
}

pub async fn a_chunked_blob_is_read_through_a_session_and_erased_with_it_i9(harness: &impl Harness) {
    let world = World::open(harness).await;
    let session = world.create(&ana(), "s").await;
    let bytes = noise(9, 2 * BLOB_CHUNK_BYTES_MAX);
    let blob = put_in(&world, &ana(), &bytes, BLOB_CHUNK_BYTES_MAX).await.unwrap();
    let stays = put_in(&world, &ana(), &noise(10, BLOB_CHUNK_BYTES_MAX + 1), 99_999).await.unwrap();
    let strangers = [bob(), user("carl"), foreign_ana()];
    for scope in &strangers {
        assert_eq!(code(world.store.blob_size(scope, blob).await), "blob.not_found");
        assert_eq!(code(world.store.read_blob(scope, blob, 0, 10).await), "blob.not_found");
    }
    world
        .append(&ana(), &session, vec![message_with_blob(blob), shared(&bob(), Some(Role::Collaborator))])
        .await;
    let middle = BLOB_CHUNK_BYTES_MAX - 5;
    let read = world.store.read_blob(&bob(), blob, middle as u64, 10).await.unwrap();
    assert_eq!(read, bytes[middle..middle + 10]);
    for scope in &strangers[1..] {
        assert_eq!(code(world.store.read_blob(scope, blob, 0, 10).await), "blob.not_found");
    }
    world.store.erase(&ana(), &session, world.now()).await.unwrap();
    for scope in [ana(), bob(), operator()] {
        assert_eq!(code(world.store.read_blob(&scope, blob, 0, 10).await), "blob.not_found");
        assert_eq!(code(world.store.blob_size(&scope, blob).await), "blob.not_found");
    }
    assert_eq!(world.store.blob_size(&ana(), stays).await.unwrap(), BLOB_CHUNK_BYTES_MAX as u64 + 1);
    assert_no_findings(&world).await;
}

pub async fn a_chunked_blob_survives_reopening_i3(harness: &impl Harness) {
    if !harness.persists() {
        return;
    }
    let bytes = noise(11, 3 * BLOB_CHUNK_BYTES_MAX);
    let world = World::open(harness).await;
    let blob = put_in(&world, &ana(), &bytes, 700_000).await.unwrap();
    drop(world);
    let world = World::open(harness).await;
    assert!(world.store.get_blob(&ana(), blob).await.unwrap() == bytes);
    assert_no_findings(&world).await;
}
