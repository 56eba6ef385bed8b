//! What a store has to do, in executable form. Every store passes this one suite.
//!
//! ```ignore
//! struct MyHarness(tempfile::TempDir);
//! impl Harness for MyHarness { … }
//! sapwood_store::conformance_tests!(MyHarness(tempfile::tempdir().unwrap()));
//! ```
//!
//! The macro makes one test of each case, so that a failure has a name; [`run_all`] runs them one after another. The
//! expression is evaluated for each case: every case gets a place of its own. Names and comments cite the invariants
//! of `docs/spec/log-format.md`.

// This module is a test that other crates run, too.
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
pub mod read;
pub mod rights;
pub mod search;
mod world;

/// A place that holds one store.
pub trait Harness: Send + Sync {
    /// Opens the store of this place: an empty one the first time, and later, if [`Harness::persists`], what was left.
    /// It may be called while an earlier store of the same place is still open.
    fn open(&self) -> impl Future<Output = Arc<dyn Store>> + Send;
    /// Whether a session that holds a message is there again after the store was dropped and opened.
    fn persists(&self) -> bool;
    /// Lets time pass for leases, in every store of this place.
    fn pass_time(&self, ms: i64);
}

/// Hands the list of all cases to another macro.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_cases {
    ($then:ident, $harness:expr) => {
        $crate::$then! { $harness;
            append: seqs_are_1_2_3_without_gaps_i1, ids_grow_even_when_the_clock_goes_back_i13,
                parents_are_older_than_their_children_i2, a_batch_with_one_bad_draft_writes_nothing_i4,
                a_wrong_head_conflicts_and_writes_nothing_i5, of_two_writers_one_wins_i5, limits_are_kept,
                references_are_checked, an_archived_session_refuses_until_it_is_reopened,
                a_closed_session_opens_with_a_message, drafts_keep_their_id_time_author_and_turn,
                every_kind_of_body_reads_back_byte_for_byte;
            idempotency: a_key_gives_the_first_answer_i5, a_key_belongs_to_one_session_i5,
                a_key_is_remembered_after_reopening_i5, a_key_with_another_request_is_refused_i5,
                a_refused_append_does_not_use_its_key_up_i5;
            lease: a_lease_guards_the_leaf, a_fence_grows_when_the_lease_changes_hands, a_stale_fence_is_refused,
                a_lease_ends_by_time, a_callers_clock_neither_ends_nor_extends_a_lease, a_holder_renews_and_keeps_its_fence, a_released_lease_is_free,
                a_lease_without_holder_or_time_is_refused, fences_live_on_after_reopening;
            read: read_after_gives_pages_in_order, a_page_ends_with_the_record_that_fills_it, read_kinds_gives_only_those, read_entry_finds_each_and_no_other,
                find_entries_by_prefix, nth_message_counts_along_the_path,
                heads_say_where_logs_end_and_hide_what_is_not_yours, the_change_mark_is_another_after_a_write;
            path: until_root_entries_and_context_start, dead_branches_do_not_show, a_reset_empties_the_path,
                only_the_latest_compaction_counts, settings_before_are_those_of_the_path,
                a_path_to_nowhere_is_an_error, ended_turns_and_the_open_turn_come_along;
            list: newest_first_in_pages, an_append_moves_a_session_to_the_front,
                filters_by_cwd_state_and_prefix, the_cursor_is_stable_under_appends, a_made_up_cursor_is_refused,
                create_is_idempotent, the_summary_has_what_was_given;
            narrow: filters_by_agent, filters_by_owner, filters_by_title, filters_by_time,
                a_session_that_is_written_to_at_once_is_in_the_time_of_its_last_entry,
                a_narrowed_list_pages_to_its_end_from_either_side, no_filter_shows_what_is_somebody_elses_i9;
            search: words_phrases_and_prefixes, long_words_are_found_whole, newest_first_with_a_cursor, within_one_session,
                special_characters_are_never_an_error, tool_calls_are_found, names_and_summaries_are_found,
                a_fork_does_not_find_shared_entries_twice, shared_entries_are_found_in_forks_of_the_erased,
                a_fork_is_searched_where_its_source_cannot_be_seen;
            blob: put_and_get, an_unknown_blob_is_refused_i4, a_blob_is_erased_with_its_last_reference,
                a_blob_stays_while_a_fork_refers_to_it, every_reference_counts, a_blob_is_read_through_a_session, the_same_bytes_can_be_put_by_two;
            pieces: however_it_is_cut_it_is_the_same_blob, any_range_is_the_slice, what_is_not_finished_is_not_there,
                a_blob_that_is_too_large_is_refused_while_it_comes, the_same_bytes_twice_at_once_are_one_blob,
                a_blob_in_pieces_is_read_through_a_session_and_erased_with_it_i9, a_blob_in_pieces_lives_on_i3;
            erase: nothing_is_left_to_find, forks_are_intact_i8, a_chain_of_erased_sources_still_reads_i8,
                an_erased_id_can_be_used_again, the_audit_says_so_without_content;
            audit: lines_are_chained, lines_of_appends_are_written_with_them, a_line_has_the_time_it_was_written,
                pages_and_sessions, the_latest_lines_of_a_session_are_read_from_the_end,
                only_the_operator_sees_all;
            authority: what_callers_write_is_own, what_is_imported_is_marked_and_stays_so,
                a_turn_that_was_imported_is_not_open, a_fork_shares_the_marks_of_its_path,
                a_fork_begins_with_what_its_maker_gives_it, a_named_model_is_recorded_and_nothing_else_changes,
                an_erased_session_leaves_no_record;
            keys: a_key_is_found_by_its_hash_and_listed_to_whom_it_concerns,
                a_revoked_key_stays_revoked_and_only_its_own_can_revoke_it, tenants_are_known_once_they_were_made;
            memories: a_memory_reads_back_as_it_was_put, a_change_needs_the_version_it_looked_at,
                limits_of_memories_are_kept, lists_are_newest_first_in_pages,
                memories_are_filtered_by_words_kind_and_session, memories_stay_with_their_tenant_and_owner_i9,
                everybody_reads_what_is_the_tenants_and_its_maker_changes_it,
                what_is_forgotten_is_gone_and_the_audit_says_so,
                what_was_superseded_is_not_current_until_the_newer_is_gone,
                erasing_a_session_erases_what_only_it_supports;
            isolation: another_tenants_id_answers_as_an_unknown_one_i9,
                an_unshared_id_answers_as_an_unknown_one_i9, the_same_id_in_two_tenants_is_two_sessions_i9,
                lists_and_searches_stay_inside_i9, blobs_stay_inside_i9;
            rights: a_reader_reads_and_does_not_write, a_collaborator_writes_and_does_not_own,
                a_member_that_was_removed_sees_nothing, the_operator_may_everything;
            fork: of_ten_entries_at_any_depth_i8, lengths_are_independent_i8, of_a_fork_of_a_fork_i8,
                at_a_shared_entry_i8, with_a_branch_inside_the_shared_part, labels_come_as_drafts,
                the_source_goes_on_below_i8, of_an_empty_session, onto_itself_or_an_existing_id_is_refused,
                at_nothing_is_refused, labels_of_unshared_entries_are_left_out, children_and_lineage,
                nothing_but_the_path_is_inherited, compactions_reach_into_the_shared_part;
            lives_on: a_store_that_is_well_can_be_written, summaries_are_equal_after_reopening_i3, logs_are_equal_after_reopening_i3,
                forks_live_on_i3, erased_stays_erased_i3, blobs_and_audit_live_on_i3,
                appending_goes_on_after_reopening_i3, two_open_stores_see_each_others_appends;
            model: random_sessions_equal_the_naive_model, random_forks_equal_the_naive_model,
                random_batches_of_any_size_are_the_same_log_i4, the_summary_is_the_fold_of_the_log_i10,
                a_long_session_has_the_right_links;
            history: what_clients_were_told_is_what_the_log_says;
        }
    };
}

/// One test for each case.
#[macro_export]
macro_rules! conformance_tests {
    ($harness:expr) => {
        $crate::conformance_cases!(__conformance_test_fns, $harness);
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_test_fns {
    ($harness:expr; $($noun:ident: $($case:ident),*;)*) => {
        $(mod $noun {
            #[allow(unused_imports)]
            use super::*;
            $(#[test]
            fn $case() {
                let harness = $harness;
                $crate::conformance::block_on($crate::conformance::$noun::$case(&harness));
            })*
        })*
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_run_all {
    ($harness:expr; $($noun:ident: $($case:ident),*;)*) => {
        $($({
            let harness = $harness.await;
            $noun::$case(&harness).await;
        })*)*
    };
}

/// Runs every case, each in a place of its own. Panics at the first that fails.
pub async fn run_all<H: Harness, F: Future<Output = H>>(make: impl Fn() -> F) {
    crate::conformance_cases!(__conformance_run_all, make());
}

/// A runtime of its own for one case.
pub fn block_on<T>(case: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(case)
}
