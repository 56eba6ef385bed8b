//! What is happening right now: pieces of an answer as they stream, tools as they start. Fragments are for those who
//! watch; they are not durable, a reader that lags loses some, and nothing is ever decided by them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use sapwood_core::{Seq, SessionId, TenantId, TimestampMs, TurnId};
use serde::Serialize;
use tokio::sync::broadcast;

/// How far a reader may lag behind before it loses fragments. Room for so many is made for each session that is watched.
const FRAGMENTS_HELD_MAX: usize = 512;

/// Something that happened and leaves no entry of its own.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fragment {
    #[serde(flatten)]
    pub news: News,
    pub session: SessionId,
    pub at: TimestampMs,
    /// The last entry when this happened: where it belongs among them.
    #[serde(skip)]
    pub after: Seq,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// Its place among the pieces of one reply, from 0: whoever lost one notices.
    #[serde(skip)]
    pub place: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type")]
pub enum News {
    #[serde(rename = "agent:token")]
    Token { text: String },
    #[serde(rename = "agent:reasoning")]
    Reasoning { text: String },
    /// The model has begun to call a tool; its input still comes.
    #[serde(rename = "agent:tool_call")]
    ToolCall { call_id: String, name: String },
    #[serde(rename = "agent:tool_running")]
    ToolRunning { call_id: String, name: String },
    #[serde(rename = "agent:failover")]
    Failover { from: String, to: String, why: String },
    #[serde(rename = "agent:retrying")]
    Retrying { model: String, after_ms: u64, why: String },
    #[serde(rename = "session:compacting")]
    Compacting,
    #[serde(rename = "session:pressure")]
    Pressure { level: String, used_tokens: u64, window_tokens: u64 },
    #[serde(rename = "cost:warning")]
    OverBudget { text: String },
    #[serde(rename = "session:waiting")]
    Waiting { approvals: Vec<String> },
}

impl News {
    /// A piece of a reply, rather than something about it.
    pub(crate) fn is_piece(&self) -> bool {
        matches!(self, News::Token { .. } | News::Reasoning { .. } | News::ToolCall { .. })
    }
}

type SessionKey = (TenantId, SessionId);

/// One channel per session that somebody watches.
#[derive(Default)]
pub(crate) struct FragmentHub {
    channels: Mutex<HashMap<SessionKey, broadcast::Sender<Arc<Fragment>>>>,
}

impl FragmentHub {
    pub(crate) fn watch(&self, tenant: &TenantId, session: &SessionId) -> broadcast::Receiver<Arc<Fragment>> {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        // Looked through now and then, not each time: two thousand watchers would look at each other.
        if channels.len() >= channels.capacity() {
            channels.retain(|_, sender| sender.receiver_count() > 0);
        }
        let key = (tenant.clone(), session.clone());
        channels.entry(key).or_insert_with(|| broadcast::channel(FRAGMENTS_HELD_MAX).0).subscribe()
    }

    /// Tells whoever watches; nobody watching is the ordinary case, and costs a look.
    pub(crate) fn tell(&self, tenant: &TenantId, fragment: Fragment) {
        let key = (tenant.clone(), fragment.session.clone());
        let channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = channels.get(&key) {
            let _ = sender.send(Arc::new(fragment));
        }
    }
}
