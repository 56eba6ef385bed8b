//! External hooks: a command that reads the event from its standard input ([`command`]), and a server that receives
//! the event over https ([`http`]). Both answer with the JSON that `docs/spec/hooks.md` describes. A [`signature`]
//! authenticates the sender of a hook request and of a webhook.

pub mod command;
pub mod http;
pub mod signature;

pub use command::CommandHook;
pub use http::HttpHook;
