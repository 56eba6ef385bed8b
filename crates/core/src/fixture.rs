//! Test fixtures: a notation for sessions, an in-memory log, and random sessions from a seed.
//!
//! # Grammar
//!
//! ```text
//! script = { token }                                   spaces separate tokens, except inside parentheses
//! token  = entry | move | label | turn
//! entry  = letter [number] ["(" arguments ")"] ["@" model] ["!"]
//! move   = ("L→" | "L->") (number | "none")            the leaf moves there; none: the next entry is a new root
//! label  = number "=" [text]                           labels an entry; without a text it removes the label
//! turn   = "["                                         a turn starts: later entries belong to it
//!        | "]" ["completed" | "cancelled" | "failed" | "limited"]      it ends, by default as completed
//!        | "|"                                         the process died: nothing is written, the turn stays open
//! ```
//!
//! | entry | is |
//! |---|---|
//! | `u1` `u1(text)` | a user message; the default text is the token itself, `u1` |
//! | `a2` `a2(text)` | an assistant's text |
//! | `C3(x,y)` | an assistant's tool calls, without text |
//! | `A4(x)` | an assistant's text and tool calls |
//! | `t5(x)` | the result of call `x`; `t5(x)!` is an error |
//! | `n6` `n6(text)` | a system note |
//! | `x7` `x7(text)` | a custom message |
//! | `K8(summary,3)` | a compaction that keeps from entry 3; `K8(summary)` keeps nothing; `K8(,3)` is a trim |
//! | `B9(summary)` `B9(summary,4)` | a branch summary, child of the leaf; 4 is the leaf of the summarised branch |
//! | `M(model)` `H(level)` `S(a,b)` `Y(text)` | settings: model, thinking, skills, system prompt |
//! | `N(title)` | the session's name; outside the tree |
//!
//! `@model` sets the model of an assistant message, which then also has usage (100 tokens in, 10 out) and a cost (1000
//! nano-dollars). `!` on an assistant message means `stop = error`.
//!
//! Later tokens refer to an entry by its number. The number is not a seq: `u1 N(x) a2` has `a2` at seq 3. An unused
//! number refers to an entry that does not exist, so that a script can test refusals.
//!
//! # Examples
//!
//! ```
//! use sapwood_core::fixture::{MemLog, check_context};
//!
//! check_context("u1 a2 u3 a4 K5(s,3) u6 a7", "s u3 a4 u6 a7");
//! check_context("u1 a2 u3 L→2 B4(lesson) u5", "u1 a2 lesson u5");
//! check_context("[ u1 C2(x) |", "u1 C2 ?(x)");
//! check_context("u1 a2 2=good L→none u3", "u3");
//!
//! let source = MemLog::of("u1 a2 u3 a4");
//! let mut fork = source.fork(Some(source.seq(2)));
//! fork.write("u5 a6");
//! assert_eq!(fork.show(&fork.context()), "u1 a2 u5 a6");
//! ```
//!
//! A shown context lists messages by letter and number, and summaries by text. `?(x)` is the synthesized result of a
//! call `x` without a result.

mod log;
mod notation;
mod random;

pub use log::{MemError, MemLog};
pub use notation::{Notation, NotationError};
pub use random::{Dice, corrupt, random_script};

use crate::entry::Draft;
use crate::project::context::OpenTurn;

/// The drafts of a script. Each has an id, so that they can be appended to any store in batches of any size.
pub fn drafts(script: &str) -> Vec<Draft> {
    Notation::default().read(script).unwrap_or_else(|error| panic!("{error}"))
}

/// A random valid session of about `len` tokens, deterministic for a seed.
pub fn random_drafts(seed: u64, len: usize) -> Vec<Draft> {
    drafts(&random_script(seed, len))
}

/// Check the context at the leaf of a session.
#[track_caller]
pub fn check_context(script: &str, expected: &str) {
    check_resume(script, OpenTurn::Keep, expected);
}

/// Check the context when a session is resumed after a crash.
#[track_caller]
pub fn check_resume(script: &str, open_turn: OpenTurn, expected: &str) {
    let log = MemLog::of(script);
    assert_eq!(
        log.show(&log.resumed(open_turn)),
        expected,
        "the context of {script:?}, open turn: {open_turn:?}"
    );
}

/// Check the context at the entry with this number.
#[track_caller]
pub fn check_context_at(script: &str, number: u32, expected: &str) {
    let log = MemLog::of(script);
    assert_eq!(log.show(&log.context_at(log.seq(number))), expected, "the context of {script:?} at {number}");
}
