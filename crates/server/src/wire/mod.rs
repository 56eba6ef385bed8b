//! Wire types. Handlers serialize the engine's types; these types generate the OpenAPI document, and Rust clients can
//! deserialize responses into them. The tests validate every response against the document.

mod approvals;
mod memory;
pub mod openai;
mod personal_data;
mod requests;
mod responses;
mod skills_triggers;

pub use approvals::*;
pub use memory::*;
pub use personal_data::*;
pub use requests::*;
pub use responses::*;
pub use skills_triggers::*;
