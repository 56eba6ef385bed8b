//! Decodes rows into entries. While the caller reads a long path, up to [`WORKERS_MAX`] worker
//! threads decode its rows. After the last row, the caller decodes chunks as well.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Scope;

use sapwood_core::entry::proof::{Proof, StoredEntry};
use sapwood_core::entry::{Entry, Meta, codec};
use sapwood_core::port::store::{BODY_BYTES_MAX, Result};
use sapwood_core::{Body, Kind, Record, Seq, StoreError};

use crate::compression::{unpack, with_unpacked};

/// Rows per chunk. A path with fewer rows is decoded without a worker.
const CHUNK_ROWS: usize = 512;
/// Maximum number of workers. More workers would only wait for the reader.
const WORKERS_MAX: usize = 3;

/// An entry whose body is still in its stored form.
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

    /// Decompresses the body and upgrades it to the current format. `session` is the pk of the session, for the error message.
    pub fn into_record(self, session: i64) -> Result<Record, String> {
        let place = format!("entry {} of session {session}", self.meta.seq);
        let body =
            unpack(self.packing, &self.bytes, BODY_BYTES_MAX).map_err(|what| format!("{place}: {what}"))?;
        let record = Record { meta: self.meta, version: self.version, body };
        record.upgraded().map_err(|error| format!("{place}: {error}"))
    }

    /// Decompresses the body and leaves it in its format version.
    pub fn into_stored(self, proof: Option<Proof>) -> Result<StoredEntry, String> {
        let body = unpack(self.packing, &self.bytes, BODY_BYTES_MAX)
            .map_err(|what| format!("entry {}: {what}", self.meta.id))?;
        Ok(StoredEntry { meta: self.meta, version: self.version, body, proof })
    }

    fn into_entry(self) -> Result<Entry> {
        match self.body() {
            Ok(body) => Ok(Entry::of(self.meta, body)),
            Err(what) => Err(StoreError::Damaged { place: format!("entry {}", self.meta.id), what }),
        }
    }
}

/// Returns the kind of entry `seq`, which its row contains as a code.
pub(crate) fn kind_of(code: u8, seq: Seq) -> Result<Kind, String> {
    Kind::from_code(code).ok_or_else(|| format!("entry {seq} has the unknown kind {code}"))
}

/// Returns the parent of an entry that a fork shares with its source. Shared entries are numbered by
/// their depth.
pub(crate) fn parent_of_shared(seq: Seq) -> Option<Seq> {
    (seq.0 > 1).then(|| Seq(seq.0 - 1))
}

/// Decodes all rows and returns the entries in the order of the rows.
pub(crate) fn decode_all(raws: Vec<RawEntry>) -> Result<Vec<Entry>> {
    let decoder = Decoder::default();
    std::thread::scope(|scope| {
        let mut input = decoder.input(scope);
        for raw in raws {
            input.push(raw);
        }
        input.close();
    });
    decoder.finish()
}

/// Decodes rows in parallel and returns the entries in the order of the rows.
#[derive(Default)]
pub(crate) struct Decoder {
    state: Mutex<DecoderState>,
    changed: Condvar,
}

#[derive(Default)]
struct DecoderState {
    waiting: VecDeque<(usize, Vec<RawEntry>)>,
    done: Vec<(usize, Result<Vec<Entry>>)>,
    closed: bool,
}

/// The input side of a [`Decoder`], for the thread that reads the rows.
pub(crate) struct DecoderInput<'s, 'e> {
    decoder: &'s Decoder,
    scope: &'s Scope<'s, 'e>,
    chunk: Vec<RawEntry>,
    chunks: usize,
}

impl Decoder {
    pub fn input<'s, 'e>(&'s self, scope: &'s Scope<'s, 'e>) -> DecoderInput<'s, 'e> {
        DecoderInput { decoder: self, scope, chunk: Vec::new(), chunks: 0 }
    }

    fn state(&self) -> MutexGuard<'_, DecoderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decodes chunks until the input is closed and no chunk is left.
    fn decode_chunks(&self) {
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

impl DecoderInput<'_, '_> {
    pub fn push(&mut self, raw: RawEntry) {
        self.chunk.push(raw);
        if self.chunk.len() == CHUNK_ROWS {
            self.send_chunk();
            let workers =
                std::thread::available_parallelism().map_or(0, |cores| cores.get() - 1).min(WORKERS_MAX);
            if self.chunks <= workers {
                let decoder = self.decoder;
                self.scope.spawn(move || decoder.decode_chunks());
            }
        }
    }

    fn send_chunk(&mut self) {
        let chunk = std::mem::replace(&mut self.chunk, Vec::with_capacity(CHUNK_ROWS));
        self.decoder.state().waiting.push_back((self.chunks, chunk));
        self.decoder.changed.notify_one();
        self.chunks += 1;
    }

    /// Ends the input and decodes remaining chunks on this thread.
    pub fn close(mut self) {
        self.send_chunk();
        self.decoder.state().closed = true;
        self.decoder.changed.notify_all();
        self.decoder.decode_chunks();
    }
}
