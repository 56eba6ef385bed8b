//! Concurrent openers create the same store, or the same session.

use std::sync::{Arc, Barrier};

use sapwood_core::port::store::{Created, NewSession, Result};
use sapwood_core::{Store, TimestampMs};
use sapwood_store::conformance::{block_on, cluster};
use sapwood_store::{Durability, OpenOptions, open};

use super::postgres::{ana, database_of};

const OPENERS: usize = 8;

/// Open the store from all openers at the same time, and let each create a session with its name.
fn create_at_once(url: &str, name: impl Fn(usize) -> String + Sync) -> Vec<Result<Created>> {
    let start = Barrier::new(OPENERS);
    std::thread::scope(|scope| {
        let opener = |number: usize| {
            let (start, name) = (&start, &name);
            scope.spawn(move || {
                start.wait();
                let options = OpenOptions { durability: Durability::Normal, ..OpenOptions::default() };
                let store: Arc<dyn Store> = open(url, options)?;
                let new = NewSession::new(name(number).parse().unwrap(), TimestampMs(1));
                block_on(store.create(&ana(), new))
            })
        };
        let running: Vec<_> = (0..OPENERS).map(opener).collect();
        running.into_iter().map(|opener| opener.join().unwrap()).collect()
    })
}

fn count_new(answers: Vec<Result<Created>>, url: &str) -> usize {
    let answers = answers.into_iter().map(|answer| answer.unwrap_or_else(|error| panic!("{url}: {error}")));
    answers.filter(|created| *created == Created::New).count()
}

/// Run the check with a new URL per round, in one directory.
fn in_files(scheme: &str, rounds: usize, check: impl Fn(&str)) {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..rounds {
        check(&format!("{scheme}:{}", dir.path().join(format!("{round}")).display()));
    }
}

#[test]
fn concurrent_openers_of_a_new_file_store_each_create_a_session() {
    for scheme in ["sqlite", "jsonl"] {
        in_files(scheme, 30, |url| {
            let answers = create_at_once(url, |number| format!("s{number}"));
            assert_eq!(count_new(answers, url), OPENERS);
        });
    }
}

#[test]
fn concurrent_openers_of_a_new_file_store_create_one_session_per_name() {
    for scheme in ["sqlite", "jsonl"] {
        in_files(scheme, 30, |url| {
            assert_eq!(count_new(create_at_once(url, |_| "same".to_owned()), url), 1);
        });
    }
}

/// Use two databases of one server at a time: the role is shared by all databases of the server, and the
/// first opener creates it.
#[test]
fn concurrent_openers_of_an_empty_database_create_one_schema() {
    for _ in 0..4 {
        let urls = [cluster::shared().new_database(), cluster::shared().new_database()];
        std::thread::scope(|scope| {
            for url in &urls {
                scope.spawn(move || {
                    assert_eq!(count_new(create_at_once(url, |_| "same".to_owned()), url), 1);
                });
            }
        });
        for url in &urls {
            let steps = "SELECT count(*) = max(step) FROM sapwood.layout";
            assert_eq!(cluster::shared().sql(database_of(url), steps).trim(), "t");
        }
    }
}
