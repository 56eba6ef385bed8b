//! How much of what clients have sent is held in memory at a time, all of them together. What does not fit is refused and can
//! be sent again: nobody waits for somebody else who sends slowly.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::problem::{Problem, Result};

/// After how long it is worth another try.
const RETRY_AFTER_S: u64 = 5;

pub struct Room {
    held_bytes: AtomicUsize,
    bytes_max: usize,
}

/// What one of them holds; dropping this gives it back.
pub struct Held<'r> {
    room: &'r Room,
    bytes: usize,
}

impl Room {
    pub fn new(bytes_max: usize) -> Self {
        Self { held_bytes: AtomicUsize::new(0), bytes_max }
    }

    pub fn enter(&self) -> Held<'_> {
        Held { room: self, bytes: 0 }
    }

    fn take(&self, bytes: usize) -> bool {
        let fits = |held: usize| held.checked_add(bytes).filter(|held| *held <= self.bytes_max);
        self.held_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }
}

impl Held<'_> {
    pub fn grow(&mut self, bytes: usize) -> Result<()> {
        if !self.room.take(bytes) {
            return Err(Problem::busy(
                "the server holds too much at the moment: send it again",
                RETRY_AFTER_S,
            ));
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Gives back all but this much.
    pub fn shrink_to(&mut self, bytes: usize) {
        let freed = self.bytes.saturating_sub(bytes);
        self.bytes -= freed;
        self.room.held_bytes.fetch_sub(freed, Ordering::Relaxed);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_can_be_had_again() {
        let room = Room::new(10);
        let (mut one, mut two) = (room.enter(), room.enter());
        one.grow(6).unwrap();
        assert_eq!(two.grow(5).unwrap_err().code, "server.busy");
        two.grow(4).unwrap();
        one.shrink_to(2);
        two.grow(4).unwrap();
        drop((one, two));
        room.enter().grow(10).unwrap();
        assert!(room.enter().grow(11).is_err());
    }
}
