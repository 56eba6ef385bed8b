//! What a client can do about an error, in terms of the HTTP API. The command line has its own hints.

/// The hint for an error code; `None` if the error's detail is sufficient.
pub fn hint_for(code: &str) -> Option<&'static str> {
    Some(match code {
        "auth.required" => "send an API key as `Authorization: Bearer KEY`",
        "auth.invalid" => "ask the server's operator for a new key",
        "key.scope" => "use a key with the required scope",
        "rate.limited" | "share.exceeded" | "server.busy" | "server.full" => {
            "retry after the time in the Retry-After header"
        }
        "server.stopping" | "store.busy" | "store.unreachable" => "retry later",
        "input.role" => r#"send a message as {"role": "user", "content": "…"}"#,
        "input.unknown_key" => "remove the key or correct it: unknown keys are never dropped silently",
        "input.inline_media" => "include the media as base64, or upload it to /v1/sessions/{session}/inputs",
        "input.too_large" => "split it, or upload large content to /v1/sessions/{session}/inputs",
        "input.media_type" => "send the body as application/json",
        "session.not_found" => "list your sessions with GET /v1/sessions",
        "session.exists" => "choose another id, or omit it to generate one",
        "session.conflict" => "read the session again, then retry with its current head",
        "session.key_reused" => "use a new Idempotency-Key for each new request",
        "session.denied" => "ask the session's owner to do it, or to share it with you as a collaborator",
        "session.leased" | "session.stale_fence" => "another process is writing to this session: retry later",
        "session.held" => "an operator can list the legal holds with GET /v1/holds and release them",
        "hold.not_found" => "list the legal holds with GET /v1/holds",
        "operator.required" => "use a key with the scope operate",
        "model.denied" => "use an allowed model, or ask the server's operator to allow this one",
        "allowance.exceeded" => {
            "wait until the next day (UTC), or ask the server's operator for a larger allowance"
        }
        "session.archived" => {
            "the owner can reopen it with PATCH /v1/sessions/{session} and {\"state\": \"active\"}"
        }
        "session.not_compacted" => "list the compactions with GET /v1/sessions/{session}/archives",
        "session.configured" => "import the session again under another id",
        "session.not_configured" => "ask the server's operator to configure a default agent",
        "entry.not_found" => "list the entries with GET /v1/sessions/{session}/entries",
        "artifact.not_found" => {
            "list the names with GET /v1/sessions/{session}/inputs or GET /v1/sessions/{session}/artifacts"
        }
        "blob.not_found" => "upload the file first: an entry can only refer to a stored blob",
        "agent.not_found" => "list the agents with GET /v1/agents",
        "skill.not_found" => "list the skills with GET /v1/skills",
        "trigger.not_found" => "list the triggers with GET /v1/triggers",
        "flow.not_found" => "list the runs with GET /v1/flows",
        "memory.not_found" => "list the memories with GET /v1/memory",
        "memory.conflict" => "read the memory again, then retry with its current version",
        "graft.not_found" => "list the rounds and artifacts with GET /v1/sessions/{session}/digest",
        "graft.withheld" => "ask the owner of the source session to share it",
        "turn.running" => "wait for it, cancel it, or send with \"if_running\": \"queue\"",
        "turn.interrupted" => "continue it with POST /v1/sessions/{session}/resume, or cancel it",
        "turn.none" => "start a turn with POST /v1/sessions/{session}/turns",
        "turn_limit" => "raise turns_max with PATCH /v1/sessions/{session}, or start a new session",
        "budget_exceeded" => "raise budget_usd with PATCH /v1/sessions/{session}, or start a new session",
        "approval.not_found" => "it was already answered, or its turn has ended",
        "model.none" | "model.no_key" => "ask the server's operator to configure a model",
        "model.not_allowed" | "model.unknown" => "choose another model, as PROVIDER/NAME",
        "compact.no_model" => "use the strategy observation_mask, which needs no model",
        "compact.failed" => "retry, or use the strategy observation_mask; the session was not changed",
        "context_overflow" => "shrink the context with POST /v1/sessions/{session}/compact",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::hint_for;

    /// A client of the HTTP API cannot use the command line.
    #[test]
    fn hints_and_details_do_not_mention_the_command_line() {
        let source = include_str!("hint.rs");
        let table = source.split("mod tests").next().unwrap_or_default();
        for line in table.lines().filter(|line| line.contains("=>")) {
            assert!(!line.contains("`sapwood ") && !line.contains(" --"), "{line}");
        }
        let others =
            [include_str!("problem.rs"), include_str!("routes/import.rs"), include_str!("extract.rs")];
        for line in others.iter().flat_map(|source| source.lines()) {
            let is_comment = line.trim_start().starts_with("//");
            assert!(is_comment || !line.contains("`sapwood "), "{line}");
        }
        assert!(hint_for("session.not_found").is_some_and(|hint| hint.contains("/v1/sessions")));
    }
}
