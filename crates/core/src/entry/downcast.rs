//! Encodes bodies in the previous format version, for a store that servers of that version still use.

use serde_json::Value;

use super::codec::encode;
use super::engine_records::as_custom_info;
use super::upcast::LOG_VERSION;
use super::{Body, CustomInfo, Kind, Round, RoundStatus};

/// Encode a body in a format version that stores write: the current one or the one before. Returns the kind under which
/// that version stores it.
pub fn encode_in(version: u32, body: &Body) -> (Kind, Vec<u8>) {
    match version {
        LOG_VERSION.. => (body.kind(), encode(body)),
        _ => encode_in_version_2(body),
    }
}

/// Encode a body as version 2 stores it, and return its kind there. A round's status that version 2 does not have is
/// replaced by the closest one.
fn encode_in_version_2(body: &Body) -> (Kind, Vec<u8>) {
    if let Some((custom_type, data)) = as_custom_info(body) {
        let info = CustomInfo { custom_type: custom_type.to_owned(), data: data.clone() };
        return (Kind::CustomInfo, encode(&info.into()));
    }
    let json = encode(body);
    match body {
        Body::Round(round) => (Kind::Round, with_status_of_version_2(round, json)),
        _ => (body.kind(), json),
    }
}

fn with_status_of_version_2(round: &Round, json: Vec<u8>) -> Vec<u8> {
    let status = match round.result.as_ref().map(|result| result.status) {
        None | Some(RoundStatus::Ok | RoundStatus::Interrupted) => return json,
        Some(RoundStatus::Asked | RoundStatus::Backtracked) => "ok",
        Some(RoundStatus::Failed) => "error",
        Some(RoundStatus::Refused) => "malformed",
        Some(RoundStatus::Cancelled) => "interrupted",
    };
    let mut body: Value = serde_json::from_slice(&json).expect("an encoded body is valid JSON");
    body["result"]["status"] = status.into();
    serde_json::to_vec(&body).expect("an encoded body is valid JSON")
}
