//! Sapwood's HTTP server. It implements HTTP and the wire types and makes no decisions about sessions: every handler
//! receives an authenticated caller, calls the engine with the caller's scope, and maps the result to a response.
//!
//! Tour: [`listen`] accepts connections and shuts down gracefully. [`middleware`] wraps every request: authentication,
//! rate limit, timeout, panic handling. [`admission`] limits each caller's requests. [`auth`] authenticates callers.
//! [`routes`] has one file per resource. [`sse`] and [`ws`] implement the streams. [`problem`] maps every error to its
//! status, and [`wire`] defines the types that clients see.

mod admission;
pub mod auth;
mod byte_quota;
mod chunked;
mod client_stream;
mod cookie;
mod download;
mod extract;
mod health;
mod held_body;
mod hint;
mod json;
mod listen;
mod metrics;
mod middleware;
pub mod oidc;
mod problem;
mod projection;
mod projection_slots;
mod rate;
mod request_id;
mod routes;
mod session_config;
mod settings;
mod share;
mod slots;
mod sniff;
mod sse;
mod state;
mod tracked_body;
mod turn_start;
pub mod wire;
mod ws;

pub use listen::{ListenError, Listening, serve};
pub use problem::{Problem, status_of};
pub use rate::Rate;
pub use routes::document;
pub use settings::Settings;
pub use state::{ServedTrigger, State};
