//! Cache of token counts. Entries never change, so each entry is counted once per tokenizer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sapwood_core::EntryId;
use sapwood_core::port::tokens::{Tokenizer, Tokenizers};
use sapwood_core::project::context::Message;
use sapwood_core::tokens::{Count, Estimate, count_parts, text_bytes};

/// Size of one cache generation. The cache has at most two: when the current one is full, the previous one is dropped.
const GENERATION_COUNTS: usize = 100_000;
/// Maximum number of bytes that one counter tokenizes exactly. Beyond that, tokens are estimated: such a context
/// exceeds any window, so precision does not matter.
pub(crate) const EXACT_BYTES_MAX: usize = 4 << 20;

/// Entry, length of its shown text, and tokenizer name. The length is included because a compaction can
/// shorten an entry's text.
type TokenKey = (EntryId, usize, &'static str);

pub(crate) struct TokenCache {
    tokenizers: Arc<dyn Tokenizers>,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    current: HashMap<TokenKey, u64>,
    previous: HashMap<TokenKey, u64>,
}

impl Counts {
    fn get(&self, key: &TokenKey) -> Option<u64> {
        self.current.get(key).or_else(|| self.previous.get(key)).copied()
    }

    fn insert(&mut self, key: TokenKey, tokens: u64) {
        if self.current.len() >= GENERATION_COUNTS {
            self.previous = std::mem::take(&mut self.current);
        }
        self.current.insert(key, tokens);
    }
}

impl Default for TokenCache {
    fn default() -> Self {
        Self::new(Arc::new(Estimate))
    }
}

impl TokenCache {
    pub(crate) fn new(tokenizers: Arc<dyn Tokenizers>) -> Self {
        Self { tokenizers, counts: Mutex::default() }
    }

    pub(crate) fn counter(&self, model: Option<&str>) -> Counter<'_> {
        self.counter_up_to(model, EXACT_BYTES_MAX)
    }

    /// A counter that tokenizes at most this many bytes exactly.
    pub(crate) fn counter_up_to(&self, model: Option<&str>, exact_bytes: usize) -> Counter<'_> {
        let tokenizer = self.tokenizers.for_model(model);
        Counter { cache: self, tokenizer, exact_bytes: AtomicUsize::new(exact_bytes) }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Counts> {
        // Each insert is independent, so the map is consistent even if a thread panicked while holding the
        // lock.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts tokens with one model's tokenizer.
pub(crate) struct Counter<'a> {
    cache: &'a TokenCache,
    tokenizer: Arc<dyn Tokenizer>,
    /// The remaining number of bytes that may be tokenized exactly.
    exact_bytes: AtomicUsize,
}

impl Counter<'_> {
    pub(crate) fn exact_bytes_left(&self) -> usize {
        self.exact_bytes.load(Ordering::Relaxed)
    }

    fn reserve_exact(&self, bytes: usize) -> bool {
        let take = |left: usize| left.checked_sub(bytes);
        self.exact_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }
}

impl Count for Counter<'_> {
    fn message(&self, message: &Message) -> u64 {
        let bytes = text_bytes(&message.parts);
        let key = message.entry.map(|(_, id)| (id, bytes, self.tokenizer.name()));
        if let Some(cached) = key.and_then(|key| self.cache.lock().get(&key)) {
            return cached;
        }
        if !self.reserve_exact(bytes) {
            return count_parts(&Estimate, &message.parts);
        }
        let tokens = count_parts(self.tokenizer.as_ref(), &message.parts);
        if let Some(key) = key {
            self.cache.lock().insert(key, tokens);
        }
        tokens
    }

    fn text(&self, text: &str) -> u64 {
        if self.reserve_exact(text.len()) { self.tokenizer.count(text) } else { Estimate.count(text) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sapwood_core::project::context::Role;
    use sapwood_core::{Part, Seq, TimestampMs};

    struct Letters(AtomicUsize);

    impl Tokenizer for Letters {
        fn name(&self) -> &'static str {
            "letters"
        }
        fn count(&self, text: &str) -> u64 {
            self.0.fetch_add(1, Ordering::Relaxed);
            text.len() as u64
        }
    }

    struct SameForAll(Arc<Letters>);

    impl Tokenizers for SameForAll {
        fn for_model(&self, _: Option<&str>) -> Arc<dyn Tokenizer> {
            self.0.clone()
        }
    }

    fn message(id: u128, text: &str) -> Message {
        let entry = Some((Seq(1), EntryId::mint(TimestampMs(1), id)));
        Message { role: Role::User, parts: vec![Part::text(text)], entry, answers: None, summary: None }
    }

    #[test]
    fn counts_an_entry_once_and_again_only_when_it_is_shortened() {
        let letters = Arc::new(Letters(AtomicUsize::new(0)));
        let cache = TokenCache::new(Arc::new(SameForAll(letters.clone())));
        for _ in 0..3 {
            assert_eq!(cache.counter(None).message(&message(1 << 64, "hello")), 5);
        }
        assert_eq!(letters.0.load(Ordering::Relaxed), 1);
        assert_eq!(cache.counter(None).message(&message(1 << 64, "hell")), 4);
        assert_eq!(letters.0.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn cache_size_is_bounded() {
        let mut counts = Counts::default();
        for n in 0..(3 * GENERATION_COUNTS) {
            counts.insert((EntryId::mint(TimestampMs(n as i64), 0), 0, "x"), 1);
        }
        assert!(counts.current.len() + counts.previous.len() <= 2 * GENERATION_COUNTS);
    }

    #[test]
    fn estimates_tokens_beyond_the_exact_limit() {
        let letters = Arc::new(Letters(AtomicUsize::new(0)));
        let cache = TokenCache::new(Arc::new(SameForAll(letters)));
        let counter = cache.counter(None);
        let long = "x".repeat(EXACT_BYTES_MAX);
        assert_eq!(counter.text(&long), EXACT_BYTES_MAX as u64);
        assert_eq!(counter.text("12345678"), 2);
    }
}
