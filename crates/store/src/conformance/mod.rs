//! The conformance suite: every store implementation passes the same cases.
//!
//! ```ignore
//! struct MyHarness(tempfile::TempDir);
//! impl Harness for MyHarness { … }
//! sapwood_store::conformance_tests!(MyHarness(tempfile::tempdir().unwrap()));
//! ```
//!
//! The macro generates one test per case, so that a failure identifies its case. [`run_all`] runs the
//! cases one after another. The harness expression is evaluated once per case, so every case gets its own
//! location. Names and comments cite the invariants of `docs/spec/log-format.md`.

// This module is test code that other crates also run.
#![allow(clippy::unwrap_used)]

use std::future::Future;
use std::sync::Arc;

use sapwood_core::Store;

pub mod append;
pub mod audit;
pub mod authority;
pub mod blob;
pub mod clock;
pub mod cluster;
pub mod erase;
pub mod fork;
pub mod history;
pub mod idempotency;
pub mod isolation;
pub mod keys;
pub mod lease;
pub mod list;
pub mod lives_on;
pub mod memories;
pub mod model;
pub mod narrow;
pub mod path;
pub mod pieces;
pub mod proof;
pub mod read;
pub mod records;
pub mod rights;
pub mod search;
pub mod sqlite_file;
mod world;

/// A location that contains one store.
pub trait Harness: Send + Sync {
    /// Open the store at this location. The first call opens an empty store. Later calls open the stored
    /// data, if [`Harness::persists`]. May be called while an earlier store of the same location is still
    /// open.
    fn open(&self) -> impl Future<Output = Arc<dyn Store>> + Send;
    /// Whether a session with a message survives dropping and reopening the store.
    fn persists(&self) -> bool;
    /// Advance the lease clock of every store at this location.
    fn pass_time(&self, ms: i64);
}

/// Pass the list of all cases to another macro.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_cases {
    ($then:ident, $harness:expr) => {
        $crate::$then! { $harness;
            append: seqs_are_1_2_3_without_gaps_i1, ids_grow_even_when_the_clock_goes_back_i13,
                parents_are_older_than_their_children_i2, a_batch_with_one_bad_draft_writes_nothing_i4,
                a_wrong_head_conflicts_and_writes_nothing_i5, one_of_two_concurrent_writers_wins_i5,
                limits_are_enforced, references_are_checked, an_archived_session_refuses_writes_until_reopened,
                a_message_reopens_a_closed_session, drafts_keep_their_id_time_author_and_turn,
                every_kind_of_body_reads_back_byte_for_byte;
            idempotency: a_repeated_key_returns_the_first_answer_i5, a_key_belongs_to_one_session_i5,
                a_key_is_remembered_after_reopening_i5, a_key_with_another_request_is_refused_i5,
                a_refused_append_does_not_consume_its_key_i5;
            lease: a_lease_guards_the_leaf, a_new_holder_gets_a_higher_fence, a_stale_fence_is_refused,
                a_lease_expires, the_callers_clock_does_not_affect_a_lease,
                a_holder_renews_and_keeps_its_fence, a_released_lease_is_free,
                a_lease_needs_a_holder_and_a_valid_ttl, fences_survive_reopening;
            read: read_after_returns_pages_in_order, a_page_ends_with_the_record_that_fills_it,
                read_kinds_returns_only_those_kinds, read_entry_finds_exactly_the_existing_entries,
                find_entries_by_prefix, the_first_entry_at_or_after_an_id_equals_a_scan,
                nth_message_counts_along_the_path,
                heads_returns_only_sessions_the_caller_can_read, the_change_mark_changes_after_a_write;
            path: until_root_entries_and_context_start, dead_branches_are_not_on_the_path,
                a_reset_empties_the_path, only_the_latest_compaction_counts,
                settings_before_come_from_the_path, a_path_to_an_unknown_entry_is_an_error,
                a_path_includes_ended_turns_and_the_open_turn;
            list: newest_first_in_pages, an_append_moves_a_session_to_the_front,
                filters_by_cwd_state_and_prefix, the_cursor_is_stable_under_appends,
                an_invalid_cursor_is_refused, create_is_idempotent, the_summary_has_the_creation_fields;
            narrow: filters_by_agent, filters_by_owner, filters_by_title, filters_by_time,
                the_time_filter_uses_the_last_entry, a_filtered_list_pages_to_its_end_in_both_orders,
                no_filter_reveals_other_users_sessions_i9;
            search: words_phrases_and_prefixes, long_words_are_found_whole, newest_first_with_a_cursor,
                within_one_session, special_characters_are_never_an_error, tool_calls_are_found,
                names_and_summaries_are_found, a_fork_does_not_find_shared_entries_twice,
                shared_entries_of_an_erased_source_are_found_in_forks,
                a_fork_finds_entries_of_an_unreadable_source;
            blob: put_and_get, an_unknown_blob_is_refused_i4, a_blob_is_erased_with_its_last_reference,
                a_blob_stays_while_a_fork_refers_to_it, every_reference_counts,
                a_blob_is_read_through_a_session, two_users_can_put_the_same_bytes;
            pieces: any_chunking_gives_the_same_blob, any_range_is_a_slice_of_the_bytes,
                an_unfinished_upload_is_not_visible, a_blob_that_is_too_large_is_refused_during_the_upload,
                concurrent_uploads_of_the_same_bytes_are_one_blob,
                a_chunked_blob_is_read_through_a_session_and_erased_with_it_i9,
                a_chunked_blob_survives_reopening_i3;
            erase: an_erased_session_is_not_found, forks_are_intact_i8, forks_of_erased_forks_are_readable_i8,
                an_erased_id_can_be_used_again, the_audit_records_an_erasure_without_content;
            proof: every_entry_has_a_hash_that_verifies, a_fork_shares_the_hashes_of_its_path,
                an_erased_source_leaves_its_forks_verifiable,
                hashes_survive_reopening_and_appends_continue_them, given_salts_reproduce_the_hashes,
                a_changed_entry_does_not_verify, pages_of_proofs_are_in_order;
            audit: lines_are_chained, audit_lines_are_written_with_their_append,
                a_line_has_the_time_it_was_written, pages_and_sessions,
                the_latest_lines_of_a_session_are_read_from_the_end, only_the_operator_reads_all_lines;
            authority: entries_written_by_callers_are_own, imported_entries_stay_marked,
                an_imported_turn_is_not_open, the_summary_has_the_positions_of_turns, a_fork_shares_the_marks_of_its_path,
                a_fork_starts_with_its_drafts, a_named_model_is_recorded_and_nothing_else_changes,
                an_erased_session_leaves_no_record;
            keys: a_key_is_found_by_its_hash_and_listed_for_its_owner,
                a_key_is_revoked_by_its_owner_and_stays_revoked, tenants_are_listed_after_creation;
            records: records_are_put_replaced_removed_and_audited, a_record_that_is_too_large_is_refused,
                spending_is_added_up_per_day_and_holder, concurrent_spending_is_not_lost;
            memories: a_memory_reads_back_as_it_was_put, an_update_needs_the_current_version,
                memory_limits_are_enforced, lists_are_newest_first_in_pages,
                memories_are_filtered_by_words_kind_and_session, memories_stay_with_their_tenant_and_owner_i9,
                tenant_memories_are_readable_by_all_and_changed_by_their_creator,
                a_forgotten_memory_is_deleted_and_audited,
                a_superseded_memory_becomes_current_when_the_newer_is_deleted,
                erasing_a_session_erases_memories_with_no_other_source;
            isolation: another_tenants_session_looks_unknown_i9, an_unshared_session_looks_unknown_i9,
                the_same_id_in_two_tenants_is_two_sessions_i9, lists_and_searches_stay_inside_the_tenant_i9,
                blobs_stay_inside_the_tenant_i9;
            rights: a_reader_reads_and_does_not_write, a_collaborator_writes_and_does_not_own,
                a_removed_member_sees_nothing, the_operator_may_do_everything;
            fork: a_fork_shares_the_entries_before_it_at_any_depth_i8,
                a_fork_and_its_source_have_independent_lengths_i8, a_fork_of_a_fork_i8,
                a_fork_at_a_shared_entry_i8, a_fork_of_a_branched_source, labels_are_copied_as_drafts,
                the_source_and_the_fork_grow_independently_i8, a_fork_of_an_empty_session,
                a_fork_onto_an_existing_id_is_refused, a_fork_at_an_unknown_entry_is_refused,
                labels_of_unshared_entries_are_left_out, children_and_lineage,
                nothing_but_the_path_is_inherited, compactions_reach_into_the_shared_part;
            lives_on: a_healthy_store_is_writable, summaries_are_equal_after_reopening_i3,
                logs_are_equal_after_reopening_i3, forks_survive_reopening_i3,
                an_erased_session_stays_erased_i3, blobs_and_audit_survive_reopening_i3,
                appends_continue_after_reopening_i3, two_open_stores_see_each_others_appends;
            model: random_sessions_equal_the_naive_model, random_forks_equal_the_naive_model,
                any_batch_size_gives_the_same_log_i4, the_summary_is_the_fold_of_the_log_i10,
                a_long_session_has_the_right_links;
            history: the_log_matches_what_clients_observed;
        }
    };
}

/// Generate one test per case.
#[macro_export]
macro_rules! conformance_tests {
    ($harness:expr) => {
        $crate::conformance_cases!(__conformance_test_fns, $harness);
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_test_fns {
    ($harness:expr; $($module:ident: $($case:ident),*;)*) => {
        $(mod $module {
            #[allow(unused_imports)]
            use super::*;
            $(#[test]
            fn $case() {
                let harness = $harness;
                $crate::conformance::block_on($crate::conformance::$module::$case(&harness));
            })*
        })*
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_run_all {
    ($harness:expr; $($module:ident: $($case:ident),*;)*) => {
        $($({
            let harness = $harness.await;
            $module::$case(&harness).await;
        })*)*
    };
}

/// Run every case, each at its own location. Panics at the first failure.
pub async fn run_all<H: Harness, F: Future<Output = H>>(make: impl Fn() -> F) {
    crate::conformance_cases!(__conformance_run_all, make());
}

/// Run one case on its own runtime.
pub fn block_on<T>(case: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(case)
}
