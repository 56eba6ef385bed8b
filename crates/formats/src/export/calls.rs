//! What tools were called by, for results that came without a name: Claude Code and Codex name a call only where it is made.

use std::collections::HashMap;

use sapwood_core::Body;
use sapwood_core::content::Part;
use sapwood_core::entry::ToolResult;

/// Calls whose names are remembered.
const NAMES_MAX: usize = 10_000;

#[derive(Default)]
pub(super) struct Calls {
    names: HashMap<String, String>,
}

impl Calls {
    /// Remembers the calls of an answer.
    pub(super) fn learn(&mut self, body: &Body) {
        for call in body.parts().iter().filter_map(Part::as_tool_call) {
            if self.names.len() >= NAMES_MAX {
                self.names.clear();
            }
            self.names.insert(call.call_id.clone(), call.name.clone());
        }
    }

    /// The tool that a result is of, as far as anybody said.
    pub(super) fn tool_of<'a>(&'a self, result: &'a ToolResult) -> Option<&'a str> {
        let own = result.tool.as_deref().filter(|tool| !tool.is_empty());
        own.or_else(|| self.names.get(&result.call_id).map(String::as_str).filter(|name| !name.is_empty()))
    }
}
