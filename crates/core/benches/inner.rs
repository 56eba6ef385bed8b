//! Benchmarks of core without a store: encoding and decoding entries, and the folds. Run with
//! `cargo bench -p sapwood-core`. `sapwood bench` measures the whole system relative to the machine's baseline.

use divan::Bencher;
use divan::counter::ItemsCount;
use sapwood_core::Body;
use sapwood_core::entry::{LOG_VERSION, codec};
use sapwood_core::fixture::{MemLog, random_drafts};
use sapwood_core::project::context::{OpenTurn, build_context};
use sapwood_core::project::feed::Feed;
use sapwood_core::project::ledger::Ledger;

const SEED: u64 = 7;
const SIZES: [usize; 2] = [100, 10_000];

fn main() {
    divan::main();
}

fn log_of(len: usize) -> MemLog {
    let mut log = MemLog::of("");
    log.append(random_drafts(SEED, len)).expect("a random session is valid");
    log
}

fn bodies_of(len: usize) -> Vec<Body> {
    random_drafts(SEED, len).into_iter().map(|draft| draft.body).collect()
}

#[divan::bench(args = SIZES)]
fn place(bencher: Bencher<'_, '_>, len: usize) {
    let drafts = random_drafts(SEED, len);
    bencher
        .counter(ItemsCount::new(drafts.len()))
        .with_inputs(|| (MemLog::of(""), drafts.clone()))
        .bench_values(|(mut log, drafts)| log.append(drafts).map(|placed| (log, placed)));
}

#[divan::bench]
fn encode(bencher: Bencher<'_, '_>) {
    let bodies = bodies_of(1_000);
    bencher
        .counter(ItemsCount::new(bodies.len()))
        .bench(|| bodies.iter().map(|body| codec::encode(body).len()).sum::<usize>());
}

#[divan::bench]
fn decode(bencher: Bencher<'_, '_>) {
    let encoded: Vec<_> = bodies_of(1_000).iter().map(|body| (body.kind(), codec::encode(body))).collect();
    bencher.counter(ItemsCount::new(encoded.len())).bench(|| {
        encoded.iter().filter(|(kind, json)| codec::decode(LOG_VERSION, *kind, json).is_ok()).count()
    });
}

#[divan::bench(args = SIZES)]
fn context(bencher: Bencher<'_, '_>, len: usize) {
    let log = log_of(len);
    bencher
        .with_inputs(|| log.path(log.head().leaf))
        .bench_values(|path| build_context(path, OpenTurn::Keep));
}

#[divan::bench(args = SIZES)]
fn feed(bencher: Bencher<'_, '_>, len: usize) {
    let log = log_of(len);
    bencher.bench(|| Feed::fold(log.entries()));
}

#[divan::bench(args = SIZES)]
fn ledger(bencher: Bencher<'_, '_>, len: usize) {
    let log = log_of(len);
    bencher.bench(|| {
        let mut ledger = Ledger::default();
        log.entries().for_each(|entry| ledger.apply(entry));
        ledger
    });
}
