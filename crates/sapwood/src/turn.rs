//! Turns: the processing of one message, with model calls and tool calls, until the model has answered. A turn runs as a
//! separate task. If its process dies, any process can resume it.

use sapwood_core::TurnId;

pub use sapwood_core::entry::{ApprovalAnswer, Outcome, TurnEnded};
pub use sapwood_engine::sessions::StartOptions;
pub use sapwood_engine::turn::{IfRunning, OnWait, PendingApproval, Running, SendOptions, Sent, TurnReport};
pub use sapwood_engine::{Fragment, FragmentKind, Listener, SessionEvent, Subscription};

use crate::storage::StoreOptions;
use crate::{Agent, EntryId, Error, Part, Result, Sapwood, Seq, SessionId, open_engine};

/// Operations on turns and events.
impl Sapwood {
    /// Start a session with an agent, which cannot be replaced later. Example: [`send`](Sapwood::send).
    pub async fn start(&self, agent: Agent) -> Result<SessionId> {
        self.start_with(StartOptions { agent, ..StartOptions::default() }).await
    }

    /// Start a session with an id, a title, a directory, variables, or fewer rights than the agent allows.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), sapwood::Error> {
    /// use sapwood::{OpenOptions, Sapwood, StartOptions};
    ///
    /// let sapwood = Sapwood::open("memory:")?;
    /// let open = OpenOptions { id: Some("report".parse()?), ..OpenOptions::default() };
    /// let session = sapwood.start_with(StartOptions { open, ..StartOptions::default() }).await?;
    /// assert_eq!(session.as_str(), "report");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn start_with(&self, options: StartOptions) -> Result<SessionId> {
        Ok(self.engine.sessions().start(&self.scope, options).await?.0)
    }

    /// Send a message and wait until the turn ends or waits for an answer: see [`TurnReport::waiting`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), sapwood::Error> {
    /// use sapwood::{Agent, Sapwood};
    ///
    /// let sapwood = Sapwood::open("memory:")?;
    /// let session = sapwood.start(Agent::default()).await?;
    /// let report = sapwood.send(&session, "Hello!").await?;
    /// println!("{}", report.text);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn send(&self, session: &SessionId, text: impl Into<String>) -> Result<TurnReport> {
        let options = SendOptions { on_wait: OnWait::Leave, ..SendOptions::default() };
        match self.send_with(session, vec![Part::text(text)], options).await? {
            Sent::Started(running) => running.ended().await,
            Sent::Queued(_) => Err(Error::TurnRunning { session: session.clone() }),
        }
    }

    /// Send parts and return when the turn has started or the input is queued. The turn continues even if no caller
    /// waits for it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), sapwood::Error> {
    /// use sapwood::model::model_fn;
    /// use sapwood::turn::{Outcome, SendOptions, Sent};
    /// use sapwood::{Agent, Part, Sapwood};
    ///
    /// let slow = model_fn(|_| async { std::future::pending().await });
    /// let sapwood = Sapwood::builder("memory:")?.model("slow", slow).default_model("slow").build()?;
    /// let session = sapwood.start(Agent::default()).await?;
    /// let sent = sapwood.send_with(&session, vec![Part::text("Think.")], SendOptions::default()).await?;
    /// sapwood.steer(&session, "Think harder.").await?; // the model sees this in its next call
    /// sapwood.cancel(&session).await?;
    /// if let Sent::Started(running) = sent {
    ///     let ended = running.ended().await?.ended.expect("the turn is not waiting");
    ///     assert_eq!(ended.outcome, Outcome::Cancelled);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn send_with(
        &self,
        session: &SessionId,
        parts: Vec<Part>,
        options: SendOptions,
    ) -> Result<Sent> {
        self.engine.turns().send(&self.scope, session, parts, options).await
    }

    /// Get one answer without a session. The turn runs on a temporary in-memory store, and nothing is stored
    /// permanently.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), sapwood::Error> {
    /// let sapwood = sapwood::Sapwood::open("memory:")?;
    /// println!("{}", sapwood.ask(sapwood::Agent::default(), "Hello!").await?.text);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn ask(&self, agent: Agent, text: impl Into<String>) -> Result<TurnReport> {
        let engine = open_engine("memory:", StoreOptions::default())?;
        let temporary = Self {
            engine: engine.configured(|config| *config = self.engine.config().clone()),
            scope: self.scope.clone(),
        };
        let session = temporary.start(agent).await?;
        temporary.send(&session, text).await
    }

    /// Resume a turn that was interrupted or is waiting, or start a turn from queued input; `None` if there is neither.
    /// Example: [`answer`](Sapwood::answer).
    pub async fn resume(&self, session: &SessionId) -> Result<Option<TurnReport>> {
        match self.engine.turns().resume(&self.scope, session, OnWait::Leave).await? {
            Some(running) => Ok(Some(running.ended().await?)),
            None => Ok(None),
        }
    }

    /// Request cancellation of the open turn, even if another process runs it. Example:
    /// [`send_with`](Sapwood::send_with).
    pub async fn cancel(&self, session: &SessionId) -> Result<TurnId> {
        self.engine.turn_control().cancel(&self.scope, session).await
    }

    /// Add a message to the running turn. Example: [`send_with`](Sapwood::send_with).
    pub async fn steer(&self, session: &SessionId, text: impl Into<String>) -> Result<EntryId> {
        self.engine.turn_control().steer(&self.scope, session, vec![Part::text(text)]).await
    }

    /// The pending approvals of a session. Example: [`answer`](Sapwood::answer).
    pub async fn approvals(&self, session: &SessionId) -> Result<Vec<PendingApproval>> {
        self.engine.turn_control().approvals(&self.scope, session).await
    }

    /// Answer a pending approval. The first answer counts. The turn continues when it is resumed, unless it still runs.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), sapwood::Error> {
    /// use sapwood::model::{Role, model_fn};
    /// use sapwood::tool::ToolSpec;
    /// use sapwood::{Agent, ApprovalAnswer, Part, Sapwood};
    /// use serde_json::json;
    ///
    /// let clerk = model_fn(|request| async move {
    ///     Ok(vec![match request.last_role() {
    ///         Some(Role::Tool) => Part::text(request.last_text()),
    ///         _ => Part::tool_call("call-1", "order", json!({})),
    ///     }])
    /// });
    /// let order = ToolSpec::new("order", "Orders a book.", &json!({"type": "object"})); // acts: needs an approval
    /// let sapwood = Sapwood::builder("memory:")?
    ///     .model("clerk", clerk)
    ///     .tool(order, |_| async { "ordered" })
    ///     .build()?;
    /// let session = sapwood.start(Agent::default().with_model("clerk").with_tool("order")).await?;
    ///
    /// assert_eq!(sapwood.send(&session, "Order it.").await?.waiting.len(), 1);
    /// let pending = &sapwood.approvals(&session).await?[0];
    /// sapwood.answer(&pending.approval, ApprovalAnswer::Approved, None).await?;
    /// let report = sapwood.resume(&session).await?.expect("the turn was waiting");
    /// assert_eq!(report.text, "ordered");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn answer(
        &self,
        approval: &str,
        answer: ApprovalAnswer,
        reason: Option<String>,
    ) -> Result<SessionId> {
        self.engine.turn_control().answer(&self.scope, approval, answer, reason).await
    }

    /// Subscribe to all events after the cursor: first those in the log, once and in order, then live events. The
    /// subscription is a [`Stream`](crate::Stream), and has its own method [`Subscription::next`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), sapwood::Error> {
    /// use futures_util::TryStreamExt;
    /// use sapwood::{Agent, FragmentKind, Sapwood, Seq, SessionEvent};
    ///
    /// let sapwood = Sapwood::open("memory:")?;
    /// let session = sapwood.start(Agent::default()).await?;
    /// let events = sapwood.subscribe(&session, Seq::ZERO).await?;
    /// let report = sapwood.send(&session, "Hello!").await?;
    ///
    /// let tokens = events.try_filter_map(|event| async move {
    ///     Ok(match event {
    ///         SessionEvent::Fragment(fragment) => match &fragment.kind {
    ///             FragmentKind::Token { text } => Some(text.clone()),
    ///             _ => None,
    ///         },
    ///         SessionEvent::Entry(_) => None,
    ///     })
    /// });
    /// let first = std::pin::pin!(tokens).try_next().await?.expect("the answer has text");
    /// assert!(report.text.starts_with(&first));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn subscribe(&self, session: &SessionId, after: Seq) -> Result<Subscription> {
        self.engine.events().subscribe(&self.scope, session, after).await
    }

    /// Call a closure for every event after the cursor, until the listener is dropped.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), sapwood::Error> {
    /// use sapwood::{Agent, Sapwood, Seq, SessionEvent};
    ///
    /// let sapwood = Sapwood::open("memory:")?;
    /// let session = sapwood.start(Agent::default()).await?;
    /// let _listener = sapwood
    ///     .listen(&session, Seq::ZERO, |event| match event {
    ///         SessionEvent::Entry(record) => println!("{} {}", record.meta.seq, record.meta.kind.as_str()),
    ///         SessionEvent::Fragment(fragment) => println!("… {:?}", fragment.kind),
    ///     })
    ///     .await?;
    /// sapwood.send(&session, "Hello!").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn listen(
        &self,
        session: &SessionId,
        after: Seq,
        listener: impl FnMut(SessionEvent) + Send + 'static,
    ) -> Result<Listener> {
        self.engine.events().listen(&self.scope, session, after, listener).await
    }
}
