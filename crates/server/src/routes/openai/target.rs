//! Where a response is to be: in its conversation, behind the response it follows, or in a session of its own. A response that
//! follows another goes on in that one's session as long as nobody else has gone on from there; after that it is a fork.

use std::sync::Arc;

use sapwood::core::entry::Stance;
use sapwood::core::{Entry, Right};
use sapwood::engine::turn::StartOptions;
use sapwood::engine::write::ForkAt;
use sapwood::formats::responses::ResponseId;
use sapwood::formats::responses::response::{Mark, is_deleted};
use sapwood::{OpenOptions, Scope, Seq, SessionId};
use tokio::task::JoinHandle;

use super::{mint_id, plain_agent};
use crate::auth::Caller;
use crate::problem::{Problem, Result};
use crate::state::State;
use crate::wire::openai as wire;

/// The agent of sessions that were made for responses.
pub const AGENT: &str = "response";

/// Whether a session was there before the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Made {
    Before,
    /// Only for this: it goes if nothing comes of it.
    Now,
}

/// Where a response begins.
pub struct ResponseTarget {
    pub session: SessionId,
    pub expected_leaf: Option<Seq>,
    made: Made,
    /// Where to go instead if somebody else was quicker.
    fork_at: Option<Seq>,
}

impl ResponseTarget {
    pub async fn find(state: &State, caller: &Caller, new: &wire::NewResponse) -> Result<Self> {
        match (&new.conversation, &new.previous_response_id) {
            (Some(_), Some(_)) => {
                Err(Problem::invalid("give either conversation or previous_response_id, not both"))
            }
            (Some(conversation), None) => {
                let session: SessionId = conversation.id().parse()?;
                // Whoever may not write here leaves no bytes behind either.
                state.engine.check_right(&caller.scope, &session, Right::Write).await?;
                Ok(Self { session, expected_leaf: None, made: Made::Before, fork_at: None })
            }
            (None, Some(previous)) => Self::behind(state, caller, previous, new.store.unwrap_or(true)).await,
            (None, None) => {
                let open = OpenOptions { id: Some(mint_id()?), ..OpenOptions::default() };
                let options = StartOptions { open, agent: plain_agent(AGENT), ..StartOptions::default() };
                let (session, _) = state.engine.start(&caller.scope, options).await?;
                Ok(Self { session, expected_leaf: None, made: Made::Now, fork_at: None })
            }
        }
    }

    async fn behind(state: &State, caller: &Caller, previous: &str, store: bool) -> Result<Self> {
        let (id, entries) = find_response(state, caller, previous).await?;
        if !entries.iter().any(|entry| entry.meta.kind == sapwood::core::Kind::TurnEnded) {
            return Err(Problem::new("turn.running", "the response before has not ended yet"));
        }
        let in_tree = entries.iter().filter(|entry| entry.meta.kind.stance() == Stance::InTree);
        let last = in_tree.map(|entry| entry.meta.seq).max().unwrap_or(Seq::ZERO);
        let place =
            Self { session: id.session, expected_leaf: Some(last), made: Made::Before, fork_at: Some(last) };
        let head = state.engine.summary(&caller.scope, &place.session).await?.head;
        // A conversation goes on by itself, and what is not to be stored must be erasable as a whole.
        if head.leaf != Some(last) || Mark::of(&entries).conversation || !store {
            return place.forked(state, caller).await;
        }
        Ok(place)
    }

    /// The same place in a session of its own; none if there is nothing to fork from.
    pub async fn forked(&self, state: &State, caller: &Caller) -> Result<Self> {
        let at = self.fork_at.ok_or_else(|| Problem::new("turn.running", "a response is under way here"))?;
        let open =
            OpenOptions { id: Some(mint_id()?), agent: Some(AGENT.to_owned()), ..OpenOptions::default() };
        let session = state.engine.fork(&caller.scope, &self.session, ForkAt::Entry(at), open).await?;
        Ok(Self { session, expected_leaf: None, made: Made::Now, fork_at: None })
    }

    /// A session that was made for a response of which nothing came goes again.
    pub async fn keep_if<T>(&self, state: &State, caller: &Caller, done: Result<T>) -> Result<T> {
        if done.is_err() && self.made == Made::Now {
            erase_made(state, &caller.scope, &self.session).await;
        }
        done
    }

    pub fn can_fork(&self) -> bool {
        self.fork_at.is_some()
    }
}

/// Takes back a session that was made for what then failed. What it failed with is what has to be told.
pub async fn erase_made(state: &State, scope: &Scope, session: &SessionId) {
    if let Err(error) = state.engine.erase(scope, session).await {
        tracing::warn!(%session, %error, "a session that was made for nothing could not be erased");
    }
}

/// A response and its turn's entries. One that was deleted, or not stored, is not there.
pub async fn find_response(state: &State, caller: &Caller, id: &str) -> Result<(ResponseId, Vec<Entry>)> {
    let unknown = || Problem::new("response.not_found", format!("there is no response {id:.200}"));
    let id = ResponseId::parse(id).ok_or_else(unknown)?;
    let found = state.engine.turn_entries(&caller.scope, &id.session, id.turn).await;
    let entries = match found {
        Err(error) if error.code() == "session.not_found" => return Err(unknown()),
        entries => entries?,
    };
    if entries.is_empty() || is_deleted(&entries) || !Mark::of(&entries).store {
        return Err(unknown());
    }
    Ok((id, entries))
}

/// A session that nobody asked to keep: it is erased when the last who needs it is done, and its turn is.
#[derive(Clone)]
pub struct Passing(#[allow(dead_code)] Arc<Erased>);

struct Erased {
    state: State,
    scope: Scope,
    session: SessionId,
    ended: Option<JoinHandle<()>>,
}

impl Passing {
    pub fn new(state: &State, scope: &Scope, session: &SessionId, ended: JoinHandle<()>) -> Self {
        let (state, scope, session) = (state.clone(), scope.clone(), session.clone());
        Self(Arc::new(Erased { state, scope, session, ended: Some(ended) }))
    }
}

impl Drop for Erased {
    fn drop(&mut self) {
        let (state, scope, session) = (self.state.clone(), self.scope.clone(), self.session.clone());
        let ended = self.ended.take();
        tokio::spawn(async move {
            if let Some(ended) = ended {
                let _ = ended.await;
            }
            if let Err(error) = state.engine.erase(&scope, &session).await {
                tracing::warn!(%session, %error, "a response that was not to be stored could not be erased");
            }
        });
    }
}
