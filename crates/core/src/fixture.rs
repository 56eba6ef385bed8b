//! The notation tests write their sessions in, a log in memory to hold them, and random sessions from a seed.
//!
//! # Grammar
//!
//! ```text
//! script = { token }                                   blanks part tokens, but not inside parentheses
//! token  = entry | move | label | turn
//! entry  = letter [number] ["(" arguments ")"] ["@" model] ["!"]
//! move   = ("L→" | "L->") (number | "none")            the leaf moves there; none: the next entry is a new root
//! label  = number "=" [text]                           names an entry; without a text it takes the name away
//! turn   = "["                                         a turn starts: what follows belongs to it
//!        | "]" ["completed" | "cancelled" | "failed" | "limited"]      it ends (completed)
//!        | "|"                                         the process died: nothing is written, the turn stays open
//! ```
//!
//! | entry | is |
//! |---|---|
//! | `u1` `u1(text)` | a user message; without a text it says its own name, `u1` |
//! | `a2` `a2(text)` | an assistant's text |
//! | `C3(x,y)` | an assistant's tool calls, without text |
//! | `A4(x)` | an assistant's text and tool calls |
//! | `t5(x)` | the result of call `x`; `t5(x)!` is an error |
//! | `n6` `n6(text)` | a system note |
//! | `x7` `x7(text)` | a custom message |
//! | `K8(summary,3)` | a compaction that keeps from entry 3; `K8(summary)` keeps nothing; `K8(,3)` is a trim |
//! | `B9(summary)` `B9(summary,4)` | a branch summary that hangs from the leaf; 4 is the leaf of the branch it tells of |
//! | `M(model)` `H(level)` `S(a,b)` `Y(text)` | settings: model, thinking, skills, system prompt |
//! | `N(title)` | the session's name; stands beside the tree |
//!
//! `@model` names the model that served an assistant's message, which then also has usage (100 tokens in, 10 out) and a
//! cost (1000 nano-dollars). `!` on an assistant's message is `stop = error`.
//!
//! A number is a name by which later tokens refer to the entry. It is not a seq: `u1 N(x) a2` has `a2` at seq 3. A
//! number that nothing bears refers to an entry that is in no log, so a script can show what is refused.
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
//! In a shown context a message goes by its entry's letter and number, a summary by its text, and `?(x)` is the result
//! that was made up for call `x`, which has none.

mod log;
mod notation;
mod random;

pub use log::{MemError, MemLog};
pub use notation::{Notation, NotationError};
pub use random::{Dice, random_script, spoil};

use crate::entry::Draft;
use crate::project::context::OpenTurn;

/// The drafts of a script, each with an id of its own, so that any store can be given them in batches of any size.
pub fn drafts(script: &str) -> Vec<Draft> {
    Notation::default().read(script).unwrap_or_else(|error| panic!("{error}"))
}

/// A random valid session of about `len` tokens: the same for the same seed.
pub fn random_drafts(seed: u64, len: usize) -> Vec<Draft> {
    drafts(&random_script(seed, len))
}

/// What a model receives at the leaf of this session.
#[track_caller]
pub fn check_context(script: &str, expected: &str) {
    check_resume(script, OpenTurn::Keep, expected);
}

/// What a model receives when the session is taken up again after a crash.
#[track_caller]
pub fn check_resume(script: &str, open_turn: OpenTurn, expected: &str) {
    let log = MemLog::of(script);
    assert_eq!(
        log.show(&log.resumed(open_turn)),
        expected,
        "the context of {script:?}, open turn: {open_turn:?}"
    );
}

/// What a model receives at the entry that bears this number.
#[track_caller]
pub fn check_context_at(script: &str, number: u32, expected: &str) {
    let log = MemLog::of(script);
    assert_eq!(log.show(&log.context_at(log.seq(number))), expected, "the context of {script:?} at {number}");
}
