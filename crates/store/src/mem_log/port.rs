//! The port's `Log` for stores that keep sessions in memory.

/// Implements `Log` for a store with the methods `append_batch` and `with_log`. The latter calls a
/// function with the [`InMemoryLog`](super::InMemoryLog) of a session.
macro_rules! impl_log {
    ($store:ty) => {
        const _: () = {
            use sapwood_core::entry::Meta;
            use sapwood_core::entry::proof::StoredEntry;
            use sapwood_core::port::store::{Append, Appended, Log, PathSlice, Result, Until};
            use sapwood_core::{EntryId, Kind, Record, Right, Scope, Seq, SessionId};

            #[async_trait::async_trait]
            impl Log for $store {
                async fn append(&self, scope: &Scope, append: Append) -> Result<Appended> {
                    self.append_batch(scope, append)
                }

                async fn read_after(
                    &self,
                    scope: &Scope,
                    session: &SessionId,
                    after: Seq,
                    limit: usize,
                ) -> Result<Vec<Record>> {
                    self.with_log(scope, session, Right::Read, |log| log.read_after(None, after, limit))
                }

                async fn read_proofs(
                    &self,
                    scope: &Scope,
                    session: &SessionId,
                    after: Seq,
                    limit: usize,
                ) -> Result<Vec<StoredEntry>> {
                    self.with_log(scope, session, Right::Read, |log| log.read_proofs(after, limit))
                }

                async fn read_kinds(
                    &self,
                    scope: &Scope,
                    session: &SessionId,
                    kinds: &[Kind],
                    after: Seq,
                    limit: usize,
                ) -> Result<Vec<Record>> {
                    self.with_log(scope, session, Right::Read, |log| {
                        log.read_after(Some(kinds), after, limit)
                    })
                }

                async fn read_path(
                    &self,
                    scope: &Scope,
                    session: &SessionId,
                    at: Option<Seq>,
                    until: Until,
                ) -> Result<PathSlice> {
                    self.with_log(scope, session, Right::Read, |log| log.read_path(at, until))
                }

                async fn walk_path(
                    &self,
                    scope: &Scope,
                    session: &SessionId,
                    from: Option<Seq>,
                    limit: usize,
                ) -> Result<Vec<Meta>> {
                    self.with_log(scope, session, Right::Read, |log| log.walk_path(from, limit))
                }

                async fn nth_message(
                    &self,
                    scope: &Scope,
                    session: &SessionId,
                    leaf: Seq,
                    count: u32,
                ) -> Result<Option<Seq>> {
                    self.with_log(scope, session, Right::Read, |log| log.nth_message(leaf, count))
                }

                async fn read_entry(&self, scope: &Scope, session: &SessionId, seq: Seq) -> Result<Record> {
                    self.with_log(scope, session, Right::Read, |log| log.read_entry(seq))
                }

                async fn find_entries(
                    &self,
                    scope: &Scope,
                    session: &SessionId,
                    id_prefix: &str,
                ) -> Result<Vec<Record>> {
                    self.with_log(scope, session, Right::Read, |log| log.find_entries(id_prefix))
                }

                async fn first_at_or_after(
                    &self,
                    scope: &Scope,
                    session: &SessionId,
                    id: EntryId,
                ) -> Result<Seq> {
                    self.with_log(scope, session, Right::Read, |log| Ok(log.first_at_or_after(id)))
                }
            }
        };
    };
}
pub(crate) use impl_log;
