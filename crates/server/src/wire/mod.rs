//! The shapes clients see. Handlers send what the engine gives; these types are what the OpenAPI document is made of, and
//! what a client in Rust can read answers into. The tests hold every answer against the document.

mod memory;
pub mod openai;
mod requests;
mod responses;
mod skills_triggers;

pub use memory::*;
pub use requests::*;
pub use responses::*;
pub use skills_triggers::*;
