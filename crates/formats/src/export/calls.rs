//! Tool names by call id, for results without a tool name: Claude Code and Codex name the tool only in the
//! call.

use std::collections::HashMap;

use sapwood_core::Body;
use sapwood_core::content::Part;
use sapwood_core::entry::ToolResult;

/// Maximum number of remembered call names.
const NAMES_MAX: usize = 10_000;

#[derive(Default)]
pub(super) struct Calls {
    names: HashMap<String, String>,
}

impl Calls {
    /// Remember the calls of a message.
    pub(super) fn learn(&mut self, body: &Body) {
        for call in body.parts().iter().filter_map(Part::as_tool_call) {
            if self.names.len() >= NAMES_MAX {
                self.names.clear();
            }
            self.names.insert(call.call_id.clone(), call.name.clone());
        }
    }

    /// Return the tool of a result, if its name is known.
    pub(super) fn tool_of<'a>(&'a self, result: &'a ToolResult) -> Option<&'a str> {
        let own = result.tool.as_deref().filter(|tool| !tool.is_empty());
        own.or_else(|| self.names.get(&result.call_id).map(String::as_str).filter(|name| !name.is_empty()))
    }
}
