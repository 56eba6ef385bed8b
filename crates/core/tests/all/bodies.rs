//! Random bodies of every kind.

use proptest::collection::{btree_map, vec};
use proptest::option::of;
use proptest::prelude::{BoxedStrategy, Just, Strategy, any, prop_oneof};
use sapwood_core::content::{BlobRef, Json, Part, Reasoning};
use sapwood_core::entry::*;
use sapwood_core::{BlobHash, Body, EntryId, Principal, Role, SessionId, TimestampMs, TurnId};

/// A random body of this kind. The match has no wildcard, so that a new kind must be added.
pub fn body_of(kind: Kind) -> BoxedStrategy<Body> {
    match kind {
        Kind::UserMessage => user_message().boxed(),
        Kind::AssistantMessage => assistant_message().boxed(),
        Kind::ToolResult => tool_result().boxed(),
        Kind::SystemNote => {
            (text(), of(text())).prop_map(|(text, reason)| SystemNote { text, reason }.into()).boxed()
        }
        Kind::CustomMessage => custom_message().boxed(),
        Kind::Compaction => compaction().boxed(),
        Kind::BranchSummary => branch_summary().boxed(),
        Kind::ModelChanged => text().prop_map(|model| ModelChanged { model }.into()).boxed(),
        Kind::ThinkingChanged => text().prop_map(|level| ThinkingChanged { level }.into()).boxed(),
        Kind::SkillsChanged => texts().prop_map(|active| SkillsChanged { active }.into()).boxed(),
        Kind::ContextChanged => context_changed().boxed(),
        Kind::Graft => graft().boxed(),
        Kind::LeafMoved => of(entry_id()).prop_map(|to| LeafMoved { to }.into()).boxed(),
        Kind::Label => {
            (entry_id(), of(text())).prop_map(|(target, text)| Label { target, text }.into()).boxed()
        }
        Kind::SessionNamed => text().prop_map(|title| SessionNamed { title }.into()).boxed(),
        Kind::CustomInfo => {
            (text(), json()).prop_map(|(custom_type, data)| CustomInfo { custom_type, data }.into()).boxed()
        }
        Kind::TurnStarted => of(text()).prop_map(|trace_id| TurnStarted { trace_id }.into()).boxed(),
        Kind::TurnEnded => turn_ended().boxed(),
        Kind::Round => round().boxed(),
        Kind::ApprovalAsked => approval_asked().boxed(),
        Kind::ApprovalAnswered => approval_answered().boxed(),
        Kind::ArtifactPut => artifact_put().boxed(),
        Kind::MemberChanged => member_changed().boxed(),
        Kind::StateChanged => state_changed().boxed(),
        Kind::Exported => {
            (text(), any::<u32>()).prop_map(|(format, entries)| Exported { format, entries }.into()).boxed()
        }
        Kind::InputQueued => {
            let queue = prop_oneof![Just(Queue::Steer), Just(Queue::Next)];
            (queue, parts()).prop_map(|(queue, parts)| InputQueued { queue, parts }.into()).boxed()
        }
        Kind::InputTaken => entry_id().prop_map(|input| InputTaken { input }.into()).boxed(),
        Kind::CancelAsked => {
            any::<[u8; 16]>().prop_map(|bytes| CancelAsked { turn: TurnId::from_bytes(bytes) }.into()).boxed()
        }
        Kind::TurnTerms => json().prop_map(|data| TurnTerms { data }.into()).boxed(),
        Kind::UsageReported => json().prop_map(|data| UsageReported { data }.into()).boxed(),
        Kind::PressureChanged => json().prop_map(|data| PressureChanged { data }.into()).boxed(),
        Kind::FlowEvent => json().prop_map(|data| FlowEvent { data }.into()).boxed(),
        Kind::FlowAssigned => json().prop_map(|data| FlowAssigned { data }.into()).boxed(),
        Kind::HookRan => json().prop_map(|data| HookRan { data }.into()).boxed(),
        Kind::TriggerEvent => json().prop_map(|data| TriggerEvent { data }.into()).boxed(),
        Kind::MemoryLearned => json().prop_map(|data| MemoryLearned { data }.into()).boxed(),
        Kind::Configured => configured().boxed(),
        Kind::ContextSet => session_context().prop_map(|context| ContextSet { context }.into()).boxed(),
        Kind::LimitsChanged => (of(any::<u32>()), of(any::<u64>()), of(any::<u64>()))
            .prop_map(|(turns_max, token_budget, budget_nano_usd)| {
                LimitsChanged { turns_max, token_budget, budget_nano_usd }.into()
            })
            .boxed(),
    }
}

pub fn any_body() -> impl Strategy<Value = Body> {
    proptest::sample::select(Kind::ALL).prop_flat_map(body_of)
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![any::<String>(), Just(String::new()), Just("\u{2028}\"\\\n\t\u{0}{}".to_owned())]
}

fn texts() -> impl Strategy<Value = Vec<String>> {
    vec(text(), 0..3)
}

fn entry_id() -> impl Strategy<Value = EntryId> {
    any::<[u8; 16]>().prop_map(EntryId::from_bytes)
}

/// Foreign JSON with spaces, unusual numbers, escapes and repeated keys, all of which must be preserved.
fn json() -> impl Strategy<Value = Json> {
    let fixed = [
        "null",
        "true",
        "-0.0",
        "1e400",
        "1.10",
        "123456789012345678901234567890",
        r#""\u00e9\/""#,
        r#"{ "z" : 1.0 , "a":[ ] , "a" : { } }"#,
        "[\n  1,\n  2\n]",
    ];
    let made = text().prop_map(|text| Json::from_value(&serde_json::json!({ "b": text, "a": [1, null] })));
    prop_oneof![proptest::sample::select(fixed.to_vec()).prop_map(|text| Json::parse(text).unwrap()), made]
}

fn blob_ref() -> impl Strategy<Value = BlobRef> {
    let fields = (any::<[u8; 32]>(), text(), of(text()), any::<u64>(), of(any::<u64>()));
    fields.prop_map(|(hash, mime, name, bytes, duration_ms)| BlobRef {
        blob: BlobHash::from_bytes(hash),
        mime,
        name,
        bytes,
        duration_ms,
    })
}

fn parts() -> impl Strategy<Value = Vec<Part>> {
    let part = prop_oneof![
        text().prop_map(Part::text),
        (text(), any::<bool>()).prop_map(|(text, redacted)| Part::Reasoning(Reasoning { text, redacted })),
        (text(), text(), json()).prop_map(|(call_id, name, input)| Part::tool_call(call_id, name, input)),
        blob_ref().prop_map(Part::Media),
    ];
    vec(part, 0..4)
}

fn usage() -> impl Strategy<Value = Usage> {
    let fields = (any::<u64>(), 0_u64..3, 0_u64..3, 0_u64..3, any::<u64>());
    fields.prop_map(|(input, output, cache_read, cache_write, reasoning)| Usage {
        input,
        output,
        cache_read,
        cache_write,
        reasoning,
    })
}

fn details() -> impl Strategy<Value = Details> {
    (texts(), texts(), texts(), texts(), texts()).prop_map(
        |(files_read, files_changed, facts, decisions, open_items)| Details {
            files_read,
            files_changed,
            facts,
            decisions,
            open_items,
        },
    )
}

fn user_message() -> impl Strategy<Value = Body> {
    let origin = (text(), of(text()), vec(blob_ref(), 0..2))
        .prop_map(|(channel, reply_to, attachments)| Origin { channel, reply_to, attachments });
    (parts(), of(origin)).prop_map(|(parts, origin)| UserMessage { parts, origin }.into())
}

fn assistant_message() -> impl Strategy<Value = Body> {
    let stops = [Stop::Stop, Stop::Length, Stop::ToolUse, Stop::ContentFilter, Stop::Error, Stop::Aborted];
    let fields =
        (parts(), of(text()), of(usage()), of(any::<u64>()), proptest::sample::select(stops.to_vec()));
    fields.prop_map(|(parts, model, usage, cost_nano_usd, stop)| {
        AssistantMessage { parts, model, usage, cost_nano_usd, stop }.into()
    })
}

fn tool_result() -> impl Strategy<Value = Body> {
    let fields = (text(), of(text()), parts(), any::<[bool; 2]>(), of(any::<u64>()), of(blob_ref()));
    fields.prop_map(|(call_id, tool, parts, [is_error, interrupted], duration_ms, full)| {
        ToolResult { call_id, tool, parts, is_error, duration_ms, interrupted, full }.into()
    })
}

fn custom_message() -> impl Strategy<Value = Body> {
    let fields = (text(), parts(), any::<bool>(), of(json()));
    fields.prop_map(|(custom_type, parts, display, details)| {
        CustomMessage { custom_type, parts, display, details }.into()
    })
}

fn compaction() -> impl Strategy<Value = Body> {
    use sapwood_core::entry::Strategy as CompactionStrategy;
    let strategies = [
        CompactionStrategy::Truncate,
        CompactionStrategy::ObservationMask,
        CompactionStrategy::Llm,
        CompactionStrategy::Custom,
        CompactionStrategy::Trim,
        CompactionStrategy::Prune,
        CompactionStrategy::Imported,
    ];
    let triggers =
        [Trigger::Manual, Trigger::Pressure, Trigger::Overflow, Trigger::Inactivity, Trigger::Imported];
    let how = (proptest::sample::select(strategies.to_vec()), proptest::sample::select(triggers.to_vec()));
    let counts = (of(any::<u64>()), of(any::<u64>()), of(any::<u32>()));
    let instead_of = of(proptest::sample::select(strategies.to_vec()));
    let shortened = (entry_id(), text()).prop_map(|(entry, text)| Shortened { entry, text });
    let shortened = proptest::collection::vec(shortened, 0..3);
    let fields = (
        of(text()),
        of(entry_id()),
        how,
        counts,
        details(),
        any::<bool>(),
        (instead_of, shortened, of(written_by())),
    );
    fields.prop_map(|(summary, first_kept, (strategy, trigger), counts, details, from_hook, rest)| {
        let (instead_of, shortened, written_by) = rest;
        let (tokens_before, tokens_after, archived) = counts;
        Compaction {
            summary,
            first_kept,
            strategy,
            trigger,
            tokens_before,
            tokens_after,
            details,
            from_hook,
            archived,
            instead_of,
            shortened,
            written_by,
        }
        .into()
    })
}

fn written_by() -> impl Strategy<Value = WrittenBy> {
    let fields = (text(), any::<u32>(), usage(), of(any::<u64>()));
    fields.prop_map(|(model, calls, usage, cost_nano_usd)| WrittenBy { model, calls, usage, cost_nano_usd })
}

fn branch_summary() -> impl Strategy<Value = Body> {
    let fields = (text(), of(entry_id()), details(), any::<bool>(), of(written_by()));
    fields.prop_map(|(summary, from, details, from_hook, written_by)| {
        BranchSummary { summary, from, details, from_hook, written_by }.into()
    })
}

fn context_changed() -> impl Strategy<Value = Body> {
    let variables = btree_map(text(), text(), 0..3);
    (of(text()), of(text()), of(variables), of(json()))
        .prop_map(|(system, cwd, variables, agent)| ContextChanged { system, cwd, variables, agent }.into())
}

fn graft() -> impl Strategy<Value = Body> {
    let what = prop_oneof![
        text().prop_map(|name| GraftWhat::Artifact { name }),
        Just(GraftWhat::Digest),
        any::<(u32, u32)>().prop_map(|(first, last)| GraftWhat::Rounds { first, last }),
    ];
    (session_id(), entry_id(), what).prop_map(|(source, upto, what)| Graft { source, upto, what }.into())
}

fn session_id() -> impl Strategy<Value = SessionId> {
    "[a-z0-9][a-zA-Z0-9._:@+-]{0,20}".prop_map(|name| name.parse().unwrap())
}

fn principal() -> impl Strategy<Value = Principal> {
    let names = || "[a-z0-9][a-z.:@+-]{0,9}";
    prop_oneof![
        names().prop_map(|name| Principal::User(name.parse().unwrap())),
        names().prop_map(|name| Principal::Agent(name.parse().unwrap())),
        Just(Principal::System),
    ]
}

fn turn_ended() -> impl Strategy<Value = Body> {
    let outcomes = [Outcome::Completed, Outcome::Cancelled, Outcome::Failed, Outcome::Limited];
    let fields =
        (proptest::sample::select(outcomes.to_vec()), of(text()), of(text()), of(usage()), of(any::<u64>()));
    fields.prop_map(|(outcome, code, message, usage, cost_nano_usd)| {
        TurnEnded { outcome, code, message, usage, cost_nano_usd }.into()
    })
}

fn round() -> impl Strategy<Value = Body> {
    let kinds = [ActionKind::Answer, ActionKind::Tool, ActionKind::Delegate, ActionKind::AskUser];
    let action =
        (proptest::sample::select(kinds.to_vec()), text()).prop_map(|(kind, what)| Action { kind, what });
    use RoundStatus::{Asked, Backtracked, Cancelled, Failed, Interrupted, Ok, Refused};
    let states = [Ok, Failed, Refused, Asked, Backtracked, Interrupted, Cancelled];
    let result = (proptest::sample::select(states.to_vec()), any::<u64>(), of(any::<u64>()))
        .prop_map(|(status, tokens, cost_nano_usd)| RoundResult { status, tokens, cost_nano_usd });
    let confidence = prop_oneof![0.0_f32..=1.0, Just(0.0), Just(1.0), Just(0.1)];
    let fields = (any::<u32>(), action, of(result), of(text()), of(confidence), of(text()));
    fields.prop_map(|(number, action, result, reason, confidence, trace_id)| {
        Round { number, action, result, reason, confidence, trace_id }.into()
    })
}

fn session_context() -> impl Strategy<Value = SessionContext> {
    let selection = (text(), any::<u32>(), any::<u32>()).prop_map(|(file, start_line, end_line)| Selection {
        file,
        start_line,
        end_line,
    });
    let fields = (of(text()), of(text()), of(selection), of(text()), btree_map(text(), text(), 0..3));
    fields.prop_map(|(working_dir, active_file, selection, git_ref, variables)| SessionContext {
        working_dir,
        active_file,
        selection,
        git_ref,
        variables,
    })
}

fn configured() -> impl Strategy<Value = Body> {
    let source = (any::<u32>(), any::<u64>(), any::<u64>()).prop_map(|(turns, cost_nano_usd, tokens)| {
        let (session, owner) = ("source".parse().unwrap(), Principal::System);
        ConfigSource { session, owner, turns, cost_nano_usd, tokens }
    });
    (json(), of(text()), session_context(), of(source)).prop_map(|(agent, system, context, inherited)| {
        Configured { agent, system, context, inherited }.into()
    })
}

fn approval_asked() -> impl Strategy<Value = Body> {
    let at = || of(any::<i64>().prop_map(TimestampMs));
    let deadlines = (at(), of(text()), at()).prop_map(|(escalates_at, escalate_to, expires_at)| {
        ApprovalDeadlines { escalates_at, escalate_to, expires_at }
    });
    let fields = (text(), text(), of(text()), of(json()), of(deadlines));
    fields.prop_map(|(approval, question, call_id, details, deadlines)| {
        ApprovalAsked { approval, question, call_id, details, deadlines }.into()
    })
}

fn approval_answered() -> impl Strategy<Value = Body> {
    let answer = prop_oneof![Just(ApprovalAnswer::Approved), Just(ApprovalAnswer::Denied)];
    (text(), answer, of(text()))
        .prop_map(|(approval, answer, reason)| ApprovalAnswered { approval, answer, reason }.into())
}

fn artifact_put() -> impl Strategy<Value = Body> {
    let usage = prop_oneof![Just(ArtifactUse::Input), Just(ArtifactUse::Artifact)];
    (text(), usage, blob_ref(), of(text()))
        .prop_map(|(name, usage, content, source)| ArtifactPut { name, usage, content, source }.into())
}

fn member_changed() -> impl Strategy<Value = Body> {
    let role = prop_oneof![Just(Role::Reader), Just(Role::Collaborator), Just(Role::Owner)];
    (principal(), of(role)).prop_map(|(member, role)| MemberChanged::new(member, role).into())
}

fn state_changed() -> impl Strategy<Value = Body> {
    let states = [SessionState::Created, SessionState::Active, SessionState::Closed, SessionState::Archived];
    (proptest::sample::select(states.to_vec()), of(text()))
        .prop_map(|(state, reason)| StateChanged { state, reason }.into())
}
