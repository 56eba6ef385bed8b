//! Hooks outside of this program: a command that gets the event on its standard input ([`command`]), and a server that gets
//! it over https ([`http`]). Both answer with the JSON that `docs/spec/hooks.md` describes. [`signature`] proves to a server,
//! and to our own webhooks, who is speaking.

pub mod command;
pub mod http;
pub mod signature;

pub use command::CommandHook;
pub use http::HttpHook;
