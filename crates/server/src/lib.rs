//! Sapwood over HTTP. It knows HTTP and the shapes on the wire, and decides nothing about sessions: every handler proves
//! who is calling, calls one verb of the engine with that scope, and says what came of it.
//!
//! A tour: [`listen`] takes connections and ends gracefully; [`middleware`] stands before every request (who, how often, how
//! long, and what if it panics); [`admission`] limits what each caller holds; [`auth`] proves who is calling; [`routes`] has a file per noun; [`sse`] and [`ws`] are
//! the streams; [`problem`] is everything that can go wrong, with its status; [`wire`] has the shapes clients see.

mod admission;
pub mod auth;
mod cookie;
mod download;
mod extract;
mod health;
mod json;
mod listen;
mod metrics;
mod middleware;
pub mod oidc;
mod problem;
mod rate;
mod request_id;
mod routes;
mod share;
mod slots;
mod sniff;
mod sse;
mod state;
mod upload_quota;
pub mod wire;
mod ws;

pub use listen::{Listening, Stop, serve, serve_empty};
pub use problem::{Problem, status_of};
pub use rate::Rate;
pub use routes::document;
pub use state::{ServedTrigger, Settings, State};
