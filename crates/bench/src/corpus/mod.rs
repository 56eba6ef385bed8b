//! Generates a coding agent's transcript from a seed: any number of messages, one at a time.
//!
//! The corpus resembles real transcripts in the properties that matter to a store:
//!
//! - Lengths: short user messages, answers of about a page, tool output of 0.5 to 20 KB.
//! - Words: a few very frequent words, thousands of identifiers, and unique numbers and hashes.
//! - Repetition: messages read, search, patch and quote the same few files for a while, then other files.
//!
//! `zstd -3` compresses a single message to about 0.4 of its size, and the whole transcript to about 0.2.
//!
//! Two marker words occur exactly in the messages selected by [`has_rare`] and [`has_common`].

mod rng;
mod words;
mod world;

use world::World;

/// Occurs in about 10 of 100,000 messages.
pub const RARE_WORD: &str = "quillwort";
/// Occurs in about 30 % of the messages.
pub const COMMON_WORD: &str = "invariant";

pub fn has_rare(number: u64) -> bool {
    number % 10_000 == 1_531
}

pub fn has_common(number: u64) -> bool {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 < (u64::from(u32::MAX) / 10) * 3
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CorpusMessage {
    User { text: String },
    Assistant { text: String, call: Option<CorpusCall> },
    Tool { call_id: String, tool: &'static str, text: String },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CorpusCall {
    pub call_id: String,
    pub tool: &'static str,
    /// The input as JSON text.
    pub input: String,
}

impl CorpusMessage {
    fn text_mut(&mut self) -> &mut String {
        match self {
            CorpusMessage::User { text }
            | CorpusMessage::Tool { text, .. }
            | CorpusMessage::Assistant { text, .. } => text,
        }
    }
}

/// An endless iterator over messages.
pub struct Corpus {
    world: World,
    number: u64,
    /// Remaining rounds of this turn. The next message is the user's if no rounds remain.
    rounds: usize,
    open: Option<(String, &'static str)>,
}

impl Corpus {
    pub fn new(seed: u64) -> Self {
        Self { world: World::new(seed), number: 0, rounds: 0, open: None }
    }

    fn next_message(&mut self) -> CorpusMessage {
        if let Some((call_id, tool)) = self.open.take() {
            return CorpusMessage::Tool { call_id, tool, text: self.world.output(tool) };
        }
        if self.rounds == 0 {
            self.rounds = self.world.rng.between(2, 8);
            return CorpusMessage::User { text: self.world.user_message() };
        }
        self.rounds -= 1;
        let call = (self.rounds > 0).then(|| self.world.call(self.number));
        self.open = call.as_ref().map(|call| (call.call_id.clone(), call.tool));
        CorpusMessage::Assistant { text: self.world.assistant_message(), call }
    }
}

impl Iterator for Corpus {
    type Item = CorpusMessage;

    fn next(&mut self) -> Option<CorpusMessage> {
        let mut message = self.next_message();
        if has_rare(self.number) {
            message.text_mut().push_str("\nSee the note on ");
            message.text_mut().push_str(RARE_WORD);
            message.text_mut().push('.');
        }
        if has_common(self.number) {
            message.text_mut().push_str("\nThe ");
            message.text_mut().push_str(COMMON_WORD);
            message.text_mut().push_str(" holds.");
        }
        self.number += 1;
        self.world.advance(self.number);
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Size of text and tool input, without the envelope.
    fn content_bytes(message: &CorpusMessage) -> usize {
        match message {
            CorpusMessage::User { text } | CorpusMessage::Tool { text, .. } => text.len(),
            CorpusMessage::Assistant { text, call } => {
                text.len() + call.as_ref().map_or(0, |call| call.input.len())
            }
        }
    }

    #[test]
    fn equal_seeds_generate_equal_text() {
        let first: Vec<CorpusMessage> = Corpus::new(7).take(200).collect();
        assert_eq!(first, Corpus::new(7).take(200).collect::<Vec<_>>());
        assert_ne!(first, Corpus::new(8).take(200).collect::<Vec<_>>());
    }

    #[test]
    fn marker_words_occur_only_in_the_selected_messages() {
        for (number, mut message) in Corpus::new(1).take(20_000).enumerate() {
            let number = number as u64;
            assert_eq!(message.text_mut().contains(RARE_WORD), has_rare(number), "message {number}");
            assert_eq!(message.text_mut().contains(COMMON_WORD), has_common(number), "message {number}");
        }
        let common = (0..100_000).filter(|number| has_common(*number)).count();
        assert!((29_000..31_000).contains(&common), "{common}");
        assert_eq!((0..100_000).filter(|number| has_rare(*number)).count(), 10);
    }

    #[test]
    fn a_message_has_a_realistic_length() {
        let total: usize = Corpus::new(3).take(20_000).map(|message| content_bytes(&message)).sum();
        let mean = total / 20_000;
        assert!((1_550..1_900).contains(&mean), "{mean} bytes a message");
    }

    #[test]
    fn every_result_answers_the_call_before_it() {
        let mut open: Option<String> = None;
        for message in Corpus::new(2).take(1_000) {
            match message {
                CorpusMessage::Tool { call_id, .. } => assert_eq!(open.take(), Some(call_id)),
                CorpusMessage::Assistant { call, .. } => open = call.map(|call| call.call_id),
                CorpusMessage::User { .. } => assert_eq!(open, None),
            }
        }
    }
}
