//! The user texts that a compaction without a history repeats.

use std::collections::VecDeque;

/// Maximum size of the user texts that an old compaction repeats. Codex itself stops at 20,000 tokens.
const REPEATED_BYTES_MAX: usize = 80_000;
/// Maximum total size of repeated texts in a file. A limit is needed because a short line can cause a large
/// repetition.
const REPEATED_IN_ALL_BYTES_MAX: usize = 64 << 20;
/// Approximate size of a repeated message in addition to its text.
const MESSAGE_BYTES: usize = 200;

#[derive(Default)]
pub(super) struct UserTexts {
    texts: VecDeque<String>,
    bytes: usize,
    repeated_bytes: usize,
}

impl UserTexts {
    /// Remember a text, and drop the oldest texts beyond the size that a compaction repeats.
    pub(super) fn push(&mut self, text: String) {
        self.bytes += text.len();
        self.texts.push_back(text);
        while self.bytes > REPEATED_BYTES_MAX {
            let Some(oldest) = self.texts.pop_front() else { break };
            self.bytes -= oldest.len();
        }
    }

    pub(super) fn drop_last(&mut self, count: usize) {
        for _ in 0..count {
            let Some(text) = self.texts.pop_back() else { break };
            self.bytes -= text.len();
        }
    }

    pub(super) fn clear(&mut self) {
        self.texts.clear();
        self.bytes = 0;
    }

    /// Return the texts that a compaction repeats, or `None` if the file repeats too much text in total.
    pub(super) fn repeat(&mut self) -> Option<Vec<String>> {
        self.texts.retain(|text| !text.is_empty());
        self.repeated_bytes += self.bytes + self.texts.len() * MESSAGE_BYTES;
        (self.repeated_bytes <= REPEATED_IN_ALL_BYTES_MAX).then(|| self.texts.iter().cloned().collect())
    }
}
