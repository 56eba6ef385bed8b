//! The session in which a response is created: its conversation, the session of the previous response, or a new
//! session. A response continues in a fork of the previous response's session if that session has newer input or is a
//! conversation, or if the response must not be stored.

use std::sync::Arc;

use sapwood::core::entry::Stance;
use sapwood::core::{Entry, Right};
use sapwood::engine::sessions::ForkAt;
use sapwood::engine::sessions::StartOptions;
use sapwood::formats::responses::ResponseId;
use sapwood::formats::responses::response::{RequestParams, is_deleted};
use sapwood::{OpenOptions, Scope, Seq, SessionId};
use tokio::task::JoinHandle;

use super::{mint_id, plain_agent};
use crate::auth::Caller;
use crate::problem::{Problem, Result};
use crate::state::State;
use crate::wire::openai as wire;

/// The agent id of sessions that were created for responses.
pub const AGENT: &str = "response";

/// Whether the session existed before the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionOrigin {
    Existing,
    /// Created by this request, and erased if the request fails.
    Created,
}

/// The starting point of a response.
pub struct ResponseTarget {
    pub session: SessionId,
    pub expected_leaf: Option<Seq>,
    origin: SessionOrigin,
    /// The entry to fork at if another request continues first.
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
                // Check the right to write before blobs are stored.
                state.engine.directory().check_right(&caller.scope, &session, Right::Write).await?;
                Ok(Self { session, expected_leaf: None, origin: SessionOrigin::Existing, fork_at: None })
            }
            (None, Some(previous)) => {
                Self::after_response(state, caller, previous, new.store.unwrap_or(true)).await
            }
            (None, None) => {
                let open = OpenOptions { id: Some(mint_id()?), ..OpenOptions::default() };
                let options = StartOptions { open, agent: plain_agent(AGENT), ..StartOptions::default() };
                let (session, _) = state.engine.sessions().start(&caller.scope, options).await?;
                Ok(Self { session, expected_leaf: None, origin: SessionOrigin::Created, fork_at: None })
            }
        }
    }

    async fn after_response(state: &State, caller: &Caller, previous: &str, store: bool) -> Result<Self> {
        let (id, entries) = find_response(state, caller, previous).await?;
        if !entries.iter().any(|entry| entry.meta.kind == sapwood::core::Kind::TurnEnded) {
            return Err(Problem::new("turn.running", "the previous response has not ended yet"));
        }
        let in_tree = entries.iter().filter(|entry| entry.meta.kind.stance() == Stance::InTree);
        let last = in_tree.map(|entry| entry.meta.seq).max().unwrap_or(Seq::ZERO);
        let target = Self {
            session: id.session,
            expected_leaf: Some(last),
            origin: SessionOrigin::Existing,
            fork_at: Some(last),
        };
        let head = state.engine.directory().summary(&caller.scope, &target.session).await?.head;
        // If the previous response belongs to a conversation, the new one must not extend that conversation. An
        // unstored response needs a separate session, which can be erased.
        if head.leaf != Some(last) || RequestParams::of(&entries).conversation || !store {
            return target.forked(state, caller).await;
        }
        Ok(target)
    }

    /// Forks the session at the target's entry. Fails if this target cannot fork.
    pub async fn forked(&self, state: &State, caller: &Caller) -> Result<Self> {
        let at = self
            .fork_at
            .ok_or_else(|| Problem::new("turn.running", "another response is in progress here"))?;
        let open =
            OpenOptions { id: Some(mint_id()?), agent: Some(AGENT.to_owned()), ..OpenOptions::default() };
        let session =
            state.engine.sessions().fork(&caller.scope, &self.session, ForkAt::Entry(at), open).await?;
        Ok(Self { session, expected_leaf: None, origin: SessionOrigin::Created, fork_at: None })
    }

    /// Returns `result`. If it is an error, erases the session that was created for the response.
    pub async fn erase_on_error<T>(&self, state: &State, caller: &Caller, result: Result<T>) -> Result<T> {
        if result.is_err() && self.origin == SessionOrigin::Created {
            erase_created(state, &caller.scope, &self.session).await;
        }
        result
    }

    pub fn can_fork(&self) -> bool {
        self.fork_at.is_some()
    }
}

/// Erases a session that was created for a failed request. Errors are only logged, because the client needs the
/// original error.
pub async fn erase_created(state: &State, scope: &Scope, session: &SessionId) {
    if let Err(error) = state.engine.sessions().erase(scope, session).await {
        tracing::warn!(%session, %error, "failed to erase the session of a failed request");
    }
}

/// Returns a response and the entries of its turn. Deleted and unstored responses are not found.
pub async fn find_response(state: &State, caller: &Caller, id: &str) -> Result<(ResponseId, Vec<Entry>)> {
    let unknown = || Problem::new("response.not_found", format!("no response `{id:.200}`"));
    let id = ResponseId::parse(id).ok_or_else(unknown)?;
    let found = state.engine.turn_control().turn_entries(&caller.scope, &id.session, id.turn).await;
    let entries = match found {
        Err(error) if error.code() == "session.not_found" => return Err(unknown()),
        entries => entries?,
    };
    if entries.is_empty() || is_deleted(&entries) || !RequestParams::of(&entries).store {
        return Err(unknown());
    }
    Ok((id, entries))
}

/// The session of an unstored response. Erased when the last reference is dropped and the turn has ended.
#[derive(Clone)]
pub struct UnstoredSession(#[allow(dead_code)] Arc<EraseOnDrop>);

struct EraseOnDrop {
    state: State,
    scope: Scope,
    session: SessionId,
    ended: Option<JoinHandle<()>>,
}

impl UnstoredSession {
    pub fn new(state: &State, scope: &Scope, session: &SessionId, ended: JoinHandle<()>) -> Self {
        let (state, scope, session) = (state.clone(), scope.clone(), session.clone());
        Self(Arc::new(EraseOnDrop { state, scope, session, ended: Some(ended) }))
    }
}

impl Drop for EraseOnDrop {
    fn drop(&mut self) {
        let (state, scope, session) = (self.state.clone(), self.scope.clone(), self.session.clone());
        let ended = self.ended.take();
        tokio::spawn(async move {
            if let Some(ended) = ended {
                let _ = ended.await;
            }
            if let Err(error) = state.engine.sessions().erase(&scope, &session).await {
                tracing::warn!(%session, %error, "failed to erase an unstored response");
            }
        });
    }
}
