//! A list of the items in a store with a hash of each, to compare the store with an earlier state.

use sapwood_core::port::store::{ListFilter, Store};
use sapwood_core::project::summary::Summary;
use sapwood_core::{BlobHash, Entry, Principal, Record, Scope, Seq, SessionId, TenantId};
use serde::{Deserialize, Serialize};

use super::PAGE_ROWS;
use super::tenant_data::{audit_of, memories_of};
use crate::{EngineError, Result};

/// One item of a store and the hash of its content.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Item {
    pub tenant: TenantId,
    /// `session ID`, `keys`, `memories` or `audit`.
    pub name: String,
    /// The number of entries, keys, memories or lines.
    pub count: u64,
    /// The hash of the item's content.
    pub hash: String,
}

/// List the sessions, keys, memories and audit log of every tenant. A session's hash covers its entries, owner, creation
/// time and authority record.
pub async fn inventory(store: &dyn Store) -> Result<Vec<Item>> {
    let mut items = Vec::new();
    for tenant in store.list_tenants().await? {
        let scope = Scope::operator(tenant.clone(), Principal::System);
        for summary in sessions_of(store, &scope).await? {
            items.push(session_item(store, &scope, &summary).await?);
        }
        let mut keys = store.list_keys(&scope).await?;
        keys.sort_by(|one, two| one.id.cmp(&two.id));
        items.push(item(&tenant, "keys", keys.len(), &keys));
        let mut memories = memories_of(store, &scope).await?;
        memories.sort_by_key(|memory| memory.id);
        items.push(item(&tenant, "memories", memories.len(), &memories));
        let lines = audit_of(store, &scope).await?;
        items.push(item(&tenant, "audit", lines.len(), &lines));
    }
    items.sort_unstable();
    Ok(items)
}

fn item(tenant: &TenantId, name: &str, count: usize, content: &impl Serialize) -> Item {
    let json = serde_json::to_vec(content).expect("the data of a store can be encoded");
    let hash = BlobHash::of(&json).to_string();
    Item { tenant: tenant.clone(), name: name.to_owned(), count: count as u64, hash }
}

async fn session_item(store: &dyn Store, scope: &Scope, summary: &Summary) -> Result<Item> {
    let id = &summary.id;
    let authority = match &summary.authority {
        Some(authority) => authority.clone(),
        None => store.settle_authority(scope, id).await?,
    };
    let log = hash_of(store, scope, id, summary.head.seq).await?;
    let content = (log, &summary.owner, summary.created_at, authority);
    Ok(item(&scope.tenant, &format!("session {id}"), summary.head.seq.0 as usize, &content))
}

/// List all sessions of a tenant.
pub(super) async fn sessions_of(store: &dyn Store, scope: &Scope) -> Result<Vec<Summary>> {
    let mut sessions = Vec::new();
    let mut filter = ListFilter { limit: PAGE_ROWS, ..ListFilter::default() };
    loop {
        let page = store.list(scope, &filter).await?;
        sessions.extend(page.items);
        match page.next {
            Some(next) => filter.cursor = Some(next),
            None => return Ok(sessions),
        }
    }
}

pub(super) fn decode_entry(session: &SessionId, record: Record) -> Result<Entry> {
    record.into_entry().map_err(|source| EngineError::Unreadable { session: session.clone(), source })
}

/// Hash every entry up to a seq, in the encoding of the current version.
pub(super) async fn hash_of(store: &dyn Store, scope: &Scope, id: &SessionId, last: Seq) -> Result<String> {
    let mut all = Vec::new();
    let mut after = Seq::ZERO;
    while after < last {
        let limit = PAGE_ROWS.min((last.0 - after.0) as usize);
        let records = store.read_after(scope, id, after, limit).await?;
        let Some(newest) = records.last() else { break };
        after = newest.meta.seq;
        for record in records {
            let entry = decode_entry(id, record)?;
            let meta = &entry.meta;
            all.extend(
                format!(
                    "{} {} {:?} {} {} {:?} ",
                    meta.seq, meta.id, meta.parent, meta.at.0, meta.by, meta.turn
                )
                .into_bytes(),
            );
            all.extend(entry.to_record().body);
            all = BlobHash::of(&all).as_bytes().to_vec();
        }
    }
    Ok(BlobHash::of(&all).to_string())
}
