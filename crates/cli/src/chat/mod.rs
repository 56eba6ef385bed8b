//! `sapwood chat`: a conversation in the terminal.

mod command;
mod keys;
mod markdown;
mod prompt;
mod screen;
