//! Decoding rows into entries. The caller reads a long path while up to [`WORKERS_MAX`] worker
//! threads decode it, and helps to decode once it has read all rows. [`Goal`] decides how far a
//! context has to be read.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Scope;

use sapwood_core::entry::{Entry, Meta, codec};
use sapwood_core::port::store::{BODY_BYTES_MAX, Result};
use sapwood_core::{Body, EntryId, StoreError};

use crate::compression::with_unpacked;

/// Rows handed to a worker at a time. A shorter path uses no worker.
const CHUNK_ROWS: usize = 512;
/// More workers would only wait for the reader.
const WORKERS_MAX: usize = 3;

/// An entry as it is stored in its row.
pub(crate) struct RawEntry {
    pub meta: Meta,
    pub version: u32,
    pub packing: u8,
    pub bytes: Vec<u8>,
}

impl RawEntry {
    pub fn body(&self) -> Result<Body, String> {
        let decode = |json: &[u8]| codec::decode(self.version, self.meta.kind, json);
        with_unpacked(self.packing, &self.bytes, BODY_BYTES_MAX, decode)?.map_err(|error| error.to_string())
    }

    fn into_entry(self) -> Result<Entry> {
        match self.body() {
            Ok(body) => Ok(Entry { meta: self.meta, body }),
            Err(what) => Err(StoreError::Damaged { place: format!("entry {}", self.meta.id), what }),
        }
    }
}

/// The entry that a walk towards the start of the context searches for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Goal {
    /// The latest compaction.
    Searching,
    /// The oldest entry that the compaction keeps.
    Kept(EntryId),
    /// The compaction keeps no entry before itself.
    Reached,
}

impl Goal {
    pub fn of(body: &Body) -> Self {
        match body {
            Body::Compaction(compaction) => compaction.first_kept.map_or(Goal::Reached, Goal::Kept),
            _ => Goal::Searching,
        }
    }
}

/// Decodes rows that have been read.
pub(crate) fn decode_all(raws: Vec<RawEntry>) -> Result<Vec<Entry>> {
    let decoder = Decoder::default();
    std::thread::scope(|scope| {
        let mut feed = decoder.feed(scope);
        for raw in raws {
            feed.push(raw);
        }
        feed.close();
    });
    decoder.finish()
}

/// Decodes rows in parallel and returns the entries in the order of the rows.
#[derive(Default)]
pub(crate) struct Decoder {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<(usize, Vec<RawEntry>)>,
    done: Vec<(usize, Result<Vec<Entry>>)>,
    closed: bool,
}

/// The reader's end of a decoder.
pub(crate) struct Feed<'s, 'e> {
    decoder: &'s Decoder,
    scope: &'s Scope<'s, 'e>,
    chunk: Vec<RawEntry>,
    chunks: usize,
}

impl Decoder {
    pub fn feed<'s, 'e>(&'s self, scope: &'s Scope<'s, 'e>) -> Feed<'s, 'e> {
        Feed { decoder: self, scope, chunk: Vec::new(), chunks: 0 }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decodes chunks until the feed is closed and no chunk is left.
    fn work(&self) {
        let mut state = self.state();
        loop {
            if let Some((number, chunk)) = state.waiting.pop_front() {
                drop(state);
                let entries = chunk.into_iter().map(RawEntry::into_entry).collect();
                state = self.state();
                state.done.push((number, entries));
            } else if state.closed {
                return;
            } else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Returns all entries in row order. Call it after every worker has ended.
    pub fn finish(self) -> Result<Vec<Entry>> {
        let mut done = self.state.into_inner().unwrap_or_else(PoisonError::into_inner).done;
        done.sort_by_key(|(number, _)| *number);
        let mut all = Vec::with_capacity(done.len() * CHUNK_ROWS);
        for (_, entries) in done {
            all.append(&mut entries?);
        }
        Ok(all)
    }
}

impl Feed<'_, '_> {
    pub fn len(&self) -> usize {
        self.chunks * CHUNK_ROWS + self.chunk.len()
    }

    pub fn push(&mut self, raw: RawEntry) {
        self.chunk.push(raw);
        if self.chunk.len() == CHUNK_ROWS {
            self.hand_over();
            let workers =
                std::thread::available_parallelism().map_or(0, |cores| cores.get() - 1).min(WORKERS_MAX);
            if self.chunks <= workers {
                let decoder = self.decoder;
                self.scope.spawn(move || decoder.work());
            }
        }
    }

    fn hand_over(&mut self) {
        let chunk = std::mem::replace(&mut self.chunk, Vec::with_capacity(CHUNK_ROWS));
        self.decoder.state().waiting.push_back((self.chunks, chunk));
        self.decoder.changed.notify_one();
        self.chunks += 1;
    }

    /// Marks the end of the input and helps to decode the remaining chunks.
    pub fn close(mut self) {
        self.hand_over();
        self.decoder.state().closed = true;
        self.decoder.changed.notify_all();
        self.decoder.work();
    }
}
