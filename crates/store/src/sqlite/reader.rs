//! Connections that read, kept for the next caller. Work runs on the caller's own thread, on one consistent view.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use sapwood_core::port::store::Result;

use super::desk::{Desk, Mode};
use super::fault::Fault;
use super::writer::blocking;
use crate::Key;

/// Connections kept open while nobody uses them.
const IDLE_MAX: usize = 8;

pub(super) struct Readers {
    idle: Mutex<Vec<Desk>>,
    mode: Mode,
    path: PathBuf,
    key: Option<Key>,
}

impl Readers {
    pub fn new(mode: Mode, path: PathBuf, key: Option<Key>) -> Self {
        Self { idle: Mutex::default(), mode, path, key }
    }

    pub fn read<T>(&self, work: impl FnOnce(&Desk) -> Result<T>) -> Result<T> {
        blocking(|| self.glance(|desk| in_snapshot(desk, work)))
    }

    /// For a single small statement: that is a snapshot in itself, and takes less time than moving a runtime's other tasks
    /// out of the way.
    pub fn glance<T>(&self, work: impl FnOnce(&Desk) -> Result<T>) -> Result<T> {
        let desk = self.take()?;
        let outcome = work(&desk);
        self.give_back(desk);
        outcome
    }

    fn take(&self) -> Result<Desk> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match idle {
            Some(desk) => Ok(desk),
            None => Desk::open(&self.path, self.mode, self.key.as_ref()),
        }
    }

    fn give_back(&self, desk: Desk) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(desk);
        }
    }
}

pub(super) fn in_snapshot<T>(desk: &Desk, work: impl FnOnce(&Desk) -> Result<T>) -> Result<T> {
    desk.prepare("BEGIN")?.execute([]).at(&desk.path)?;
    let outcome = work(desk);
    desk.prepare("COMMIT")?.execute([]).at(&desk.path)?;
    outcome
}
