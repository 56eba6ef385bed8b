//! Audit lines for reads.

use sapwood::core::port::store::{AuditAction, AuditNote};
use sapwood::core::{Role, TimestampMs};
use sapwood::{Sapwood, Scope, TenantId};

fn user(name: &str) -> Scope {
    Scope::user("acme".parse::<TenantId>().unwrap(), name.parse().unwrap())
}

#[tokio::test]
async fn one_line_covers_repeated_reads_in_a_long_audit() {
    let dir = tempfile::tempdir().unwrap();
    for url in ["memory:".to_owned(), format!("jsonl:{}", dir.path().display())] {
        let ana = Sapwood::open(&url).unwrap().with_scope(user("ana"));
        let session = ana.open_session(Default::default()).await.unwrap();
        ana.inject(&session, vec![sapwood::user_text("one")]).await.unwrap();
        let engine = ana.engine();
        engine
            .sessions()
            .share(ana.scope(), &session, user("bob").principal, Some(Role::Reader))
            .await
            .unwrap();
        let note = AuditNote { action: AuditAction::Edit, session: Some(session.clone()), detail: None };
        let lines = if url == "memory:" { 10_100 } else { 100 };
        for _ in 0..lines {
            engine.store().write_audit(ana.scope(), note.clone(), TimestampMs(1)).await.unwrap();
        }
        for _ in 0..3 {
            engine.directory().note_read(&user("bob"), &session).await.unwrap();
        }
        let end = engine.directory().audit(ana.scope(), Some(&session), lines, 1_000).await.unwrap();
        let reads = end.iter().filter(|line| line.action == AuditAction::Read).count();
        assert_eq!(reads, 1, "{url}");
    }
}
