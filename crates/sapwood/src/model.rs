//! Models. A closure in [`model_fn`] returns whole replies. An implementation of [`Model`] streams them and reports usage
//! and limits. Register a model with [`SapwoodBuilder::model`](crate::SapwoodBuilder::model):
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), sapwood::Error> {
//! use futures_util::stream;
//! use sapwood::model::{Model, ModelError, ReplyEvent, ReplyStream, Request, Stop};
//! use sapwood::{Agent, Sapwood};
//!
//! /// Repeats the last message, word by word.
//! struct Parrot;
//!
//! #[sapwood::async_trait]
//! impl Model for Parrot {
//!     async fn call(&self, request: &Request) -> Result<ReplyStream, ModelError> {
//!         let text = request.last_text();
//!         let words = text.split_inclusive(' ').map(|word| Ok(ReplyEvent::Text(word.to_owned())));
//!         let events: Vec<_> = words.chain([Ok(ReplyEvent::Stop(Stop::Stop))]).collect();
//!         Ok(Box::pin(stream::iter(events)))
//!     }
//! }
//!
//! let sapwood = Sapwood::builder("memory:")?.model("parrot", Parrot).build()?;
//! let report = sapwood.ask(Agent::default().with_model("parrot"), "hello there").await?;
//! assert_eq!(report.text, "hello there");
//! # Ok(())
//! # }
//! ```

pub use sapwood_core::entry::{Stop, Usage};
pub use sapwood_core::port::model::{
    Model, ModelError, ModelFacts, Price, ReplyEvent, ReplyStream, Request, RequestMessage, RequestPart,
    Signature, Thinking,
};
pub use sapwood_core::project::context::Role;
pub use sapwood_effects::model::{ModelFn, model_fn};
