//! `sapwood chat`: a conversation in the terminal.

mod markdown;
