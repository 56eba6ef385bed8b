//! Live fragments of a turn: chunks of a streaming answer, and tool starts. Fragments are for display only: they
//! are not durable, a lagging reader loses some, and no decision depends on them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use sapwood_core::{Seq, SessionId, TenantId, TimestampMs, TurnId};
use serde::Serialize;
use tokio::sync::broadcast;

/// Maximum number of fragments that a reader may lag before it loses some. Each watched session has a buffer of
/// this size.
const FRAGMENTS_BUFFERED_MAX: usize = 512;

/// An event of a running turn that creates no entry.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Fragment {
    /// What happened.
    #[serde(flatten)]
    pub kind: FragmentKind,
    /// The session.
    pub session: SessionId,
    /// When it happened.
    pub at: TimestampMs,
    /// The last entry at the time of the event; orders the fragment among the entries.
    #[serde(skip)]
    pub after: Seq,
    /// The turn, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// Index among the chunks of one reply, from 0. A gap means that the reader lost a fragment.
    #[serde(skip)]
    pub index: Option<u32>,
}

/// The event that a fragment reports.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "type")]
pub enum FragmentKind {
    /// The next fragment of the answer.
    #[serde(rename = "agent:token")]
    Token { text: String },
    /// The next fragment of the reasoning.
    #[serde(rename = "agent:reasoning")]
    Reasoning { text: String },
    /// The model has started a tool call, whose input is still streaming.
    #[serde(rename = "agent:tool_call")]
    ToolCall { call_id: String, name: String },
    /// A tool has started to run.
    #[serde(rename = "agent:tool_running")]
    ToolRunning { call_id: String, name: String },
    /// The model failed, and the next model of the chain is called.
    #[serde(rename = "agent:failover")]
    Failover { from: String, to: String, why: String },
    /// The model call failed and is retried.
    #[serde(rename = "agent:retrying")]
    Retrying { model: String, after_ms: u64, why: String },
    /// The context is being compacted.
    #[serde(rename = "session:compacting")]
    Compacting,
    /// The context's token pressure has changed.
    #[serde(rename = "session:pressure")]
    Pressure { level: String, used_tokens: u64, window_tokens: u64 },
    /// The session has spent its budget and continues.
    #[serde(rename = "cost:warning")]
    OverBudget { text: String },
    /// The turn waits for these approvals.
    #[serde(rename = "session:waiting")]
    Waiting { approvals: Vec<String> },
}

impl FragmentKind {
    /// Whether the fragment is a chunk of a reply, as opposed to an event about the reply.
    pub(crate) fn is_reply_chunk(&self) -> bool {
        matches!(
            self,
            FragmentKind::Token { .. } | FragmentKind::Reasoning { .. } | FragmentKind::ToolCall { .. }
        )
    }
}

type SessionKey = (TenantId, SessionId);

/// One broadcast channel per watched session.
#[derive(Default)]
pub(crate) struct FragmentHub {
    channels: Mutex<HashMap<SessionKey, broadcast::Sender<Arc<Fragment>>>>,
}

impl FragmentHub {
    pub(crate) fn watch(&self, tenant: &TenantId, session: &SessionId) -> broadcast::Receiver<Arc<Fragment>> {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        // Clean up only when the map would grow: a scan on every call would make many watchers quadratic.
        if channels.len() >= channels.capacity() {
            channels.retain(|_, sender| sender.receiver_count() > 0);
        }
        let key = (tenant.clone(), session.clone());
        channels.entry(key).or_insert_with(|| broadcast::channel(FRAGMENTS_BUFFERED_MAX).0).subscribe()
    }

    /// Send a fragment to the session's watchers. Without watchers, the usual case, this costs one map lookup.
    pub(crate) fn send(&self, tenant: &TenantId, fragment: Fragment) {
        let key = (tenant.clone(), fragment.session.clone());
        let channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = channels.get(&key) {
            let _ = sender.send(Arc::new(fragment));
        }
    }
}
