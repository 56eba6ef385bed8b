//! The shapes clients see. Handlers send what the engine gives; these types are what the OpenAPI document is made of, and
//! what a client in Rust can read answers into. The tests hold every answer against the document.

mod answer;
mod around;
mod ask;
mod memory;
pub mod openai;

pub use answer::*;
pub use around::*;
pub use ask::*;
pub use memory::*;
