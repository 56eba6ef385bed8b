//! Whether a tool call may run: a pure decision based on the tool's side effects and the session's approval mode.

use serde::{Deserialize, Serialize};

use crate::port::tool::{FsScope, ToolSpec, Touch};

/// Which calls may run without a person's approval, from strictest to most permissive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ApprovalMode {
    /// Refuse all changes except edits in the sandbox, and instruct the model to plan instead.
    Plan,
    /// Every change needs a person's approval, except edits in the sandbox.
    #[default]
    Ask,
    /// Edits of files in scope need no approval; other changes do.
    AcceptEdits,
    /// Run everything that the allow lists permit. Only commits need approval.
    Auto,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Run,
    Ask,
    Refuse {
        why: String,
    },
    /// The caller of the turn runs the tool.
    HandOver,
}

/// Decide one call. Edits in the sandbox need no approval, because its files are temporary.
pub fn decide(spec: &ToolSpec, mode: ApprovalMode, fs_scope: FsScope) -> Decision {
    match (spec.touch, mode) {
        // A question needs a person's answer in every mode, and so does a commit unless the mode refuses it.
        (Touch::Asks, _) | (Touch::Commits, ApprovalMode::Auto) => Decision::Ask,
        (Touch::Callers, _) => Decision::HandOver,
        (Touch::Reads, _) | (_, ApprovalMode::Auto) => Decision::Run,
        (Touch::Edits, _) if fs_scope == FsScope::Sandboxed => Decision::Run,
        (Touch::Edits | Touch::Acts | Touch::Commits, ApprovalMode::Plan) => Decision::Refuse {
            why: format!(
                "{} makes changes, but this session only plans: describe what you would do instead",
                spec.name
            ),
        },
        (Touch::Edits, ApprovalMode::AcceptEdits) => Decision::Run,
        (Touch::Edits | Touch::Acts | Touch::Commits, _) => Decision::Ask,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::Json;
    use crate::port::tool::Replay;

    fn decided(touch: Touch, mode: ApprovalMode, fs_scope: FsScope) -> Decision {
        let spec = ToolSpec {
            name: "t".into(),
            description: String::new(),
            input_schema: Json::parse("{}").unwrap(),
            touch,
            replay: Replay::Never,
        };
        decide(&spec, mode, fs_scope)
    }

    #[test]
    fn each_mode_allows_what_stricter_modes_allow() {
        use ApprovalMode::*;
        let freedom = |decision| match decision {
            Decision::Refuse { .. } => 0,
            Decision::Ask => 1,
            Decision::Run | Decision::HandOver => 2,
        };
        for touch in [Touch::Reads, Touch::Edits, Touch::Acts, Touch::Commits] {
            for fs_scope in [FsScope::Sandboxed, FsScope::Project, FsScope::Full] {
                let row: Vec<u8> =
                    [Plan, Ask, AcceptEdits, Auto].map(|mode| freedom(decided(touch, mode, fs_scope))).into();
                assert!(row.is_sorted(), "{touch:?} {fs_scope:?}: {row:?}");
            }
        }
    }

    #[test]
    fn a_commit_never_runs_without_a_person() {
        for scope in [FsScope::Sandboxed, FsScope::Project, FsScope::Full] {
            for mode in [ApprovalMode::Ask, ApprovalMode::AcceptEdits, ApprovalMode::Auto] {
                assert_eq!(decided(Touch::Commits, mode, scope), Decision::Ask);
            }
            let planned = decided(Touch::Commits, ApprovalMode::Plan, scope);
            assert!(matches!(planned, Decision::Refuse { .. }));
        }
    }

    #[test]
    fn a_plan_changes_nothing_outside_the_sandbox() {
        let refused =
            |touch, scope| matches!(decided(touch, ApprovalMode::Plan, scope), Decision::Refuse { .. });
        assert!(refused(Touch::Edits, FsScope::Project) && refused(Touch::Acts, FsScope::Sandboxed));
        assert!(!refused(Touch::Edits, FsScope::Sandboxed) && !refused(Touch::Reads, FsScope::Full));
    }
}
