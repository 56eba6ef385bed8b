//! Reads the items of a request and stores their blobs.

use sapwood::formats::responses::read::{ITEMS_MAX, Incoming, read_items};
use serde_json::{Map, Value};

use crate::auth::Caller;
use crate::problem::{Problem, Result};
use crate::state::State;

pub fn read_new_items(items: Vec<Map<String, Value>>) -> Result<Incoming> {
    if items.len() > ITEMS_MAX {
        return Err(Problem::invalid(format!("at most {ITEMS_MAX} items can be added at a time")));
    }
    let items: Vec<Value> = items.into_iter().map(Value::Object).collect();
    Ok(read_items(&items, "items", ITEMS_MAX)?)
}

/// Stores the blobs that the entries will refer to.
pub async fn store_blobs(state: &State, caller: &Caller, blobs: Vec<Vec<u8>>) -> Result<()> {
    for bytes in blobs {
        state.engine.store().put_blob(&caller.scope, bytes).await?;
    }
    Ok(())
}
