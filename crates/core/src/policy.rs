//! Whether a tool call may run: a pure decision from what the tool touches and how much the session lets it do alone.

use serde::{Deserialize, Serialize};

use crate::port::tool::{FsScope, ToolSpec, Touch};

/// How much happens without a person. The order is the order of freedom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ApprovalMode {
    /// Nothing is changed: what would change something is refused, and the model is told to plan instead.
    Plan,
    /// A person agrees to every change.
    #[default]
    Ask,
    /// Files in scope change freely, a person agrees to the rest.
    AcceptEdits,
    /// Whatever the lists allow.
    Auto,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Run,
    Ask,
    Refuse {
        why: String,
    },
    /// Whoever began the turn runs it.
    HandOver,
}

/// Decides one call. Scratch files are nobody's loss, so edits in the sandbox need no person.
pub fn decide(spec: &ToolSpec, mode: ApprovalMode, fs_scope: FsScope) -> Decision {
    match (spec.touch, mode) {
        // The question itself is what a person is asked, in every mode.
        (Touch::Asks, _) => Decision::Ask,
        (Touch::Callers, _) => Decision::HandOver,
        (Touch::Reads, _) | (_, ApprovalMode::Auto) => Decision::Run,
        (Touch::Edits, _) if fs_scope == FsScope::Sandboxed => Decision::Run,
        (Touch::Edits | Touch::Acts | Touch::Commits, ApprovalMode::Plan) => Decision::Refuse {
            why: format!(
                "{} changes things, and this session only plans: describe what you would do instead",
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
    fn each_mode_lets_through_what_the_stricter_ones_do() {
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
    fn a_commit_waits_for_a_person_unless_all_is_automatic() {
        assert_eq!(decided(Touch::Commits, ApprovalMode::AcceptEdits, FsScope::Project), Decision::Ask);
        assert_eq!(decided(Touch::Commits, ApprovalMode::Auto, FsScope::Project), Decision::Run);
    }

    #[test]
    fn a_plan_changes_nothing_outside_the_sandbox() {
        let refused =
            |touch, scope| matches!(decided(touch, ApprovalMode::Plan, scope), Decision::Refuse { .. });
        assert!(refused(Touch::Edits, FsScope::Project) && refused(Touch::Acts, FsScope::Sandboxed));
        assert!(!refused(Touch::Edits, FsScope::Sandboxed) && !refused(Touch::Reads, FsScope::Full));
    }
}
