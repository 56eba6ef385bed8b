//! Opens stores in this process, which is faster than the binary for tests that open hundreds of stores.

use std::path::Path;

use sapwood::core::port::store::Repair;
use sapwood::engine::doctor::diagnose;
use sapwood::store::OpenOptions;
use sapwood::{Principal, Scope, TenantId};

use crate::actors::{Ack, LoggedMessage};

/// The messages of a session and the findings of the doctor.
pub struct StoreContents {
    pub log: Vec<LoggedMessage>,
    /// The rule and the description of each finding.
    pub findings: Vec<(&'static str, String)>,
}

/// Returns the URL of a store of this kind.
pub fn url(scheme: &str, path: &Path) -> String {
    format!("{scheme}:{}", path.display())
}

/// Opens a store, reads a session, runs the doctor, and closes the store.
pub fn inspect(url: &str, session: &str) -> Result<StoreContents, sapwood::Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let engine = sapwood::open_engine(url, OpenOptions::default())?;
        let scope = Scope::operator(TenantId::local(), Principal::System);
        let diagnosis = diagnose(&engine, &scope, Repair::No, |_| {}).await?;
        let findings = diagnosis.findings.into_iter().map(|found| (found.rule, format!("{found:?}")));
        let context = engine.views().context(&scope, &session.parse().unwrap(), None).await?;
        let messages = context.messages.iter().map(|message| {
            let (seq, id) = message.entry.unwrap();
            LoggedMessage { ack: Ack { seq: u64::from(seq.0), id: id.to_string() }, text: message.text() }
        });
        Ok(StoreContents { log: messages.collect(), findings: findings.collect() })
    })
}

/// Appends messages as one batch.
pub fn append(url: &str, session: &str, texts: &[&str]) -> Result<(), sapwood::Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let sapwood = sapwood::Sapwood::open(url)?;
        let bodies = texts.iter().map(|text| sapwood::user_text(*text)).collect();
        sapwood.inject(&session.parse().unwrap(), bodies).await
    })
}
