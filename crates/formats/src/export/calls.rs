//! Tool names by call id. Needed for results without a tool name: Claude Code and Codex write the name only in the
//! call.

use std::collections::HashMap;

use sapwood_core::Body;
use sapwood_core::content::Part;
use sapwood_core::entry::ToolResult;

/// Maximum number of remembered call names.
const NAMES_MAX: usize = 10_000;

#[derive(Default)]
pub(super) struct ToolNames {
    names: HashMap<String, String>,
}

impl ToolNames {
    pub(super) fn record(&mut self, body: &Body) {
        for call in body.parts().iter().filter_map(Part::as_tool_call) {
            if self.names.len() >= NAMES_MAX {
                self.names.clear();
            }
            self.names.insert(call.call_id.clone(), call.name.clone());
        }
    }

    pub(super) fn tool_of<'a>(&'a self, result: &'a ToolResult) -> Option<&'a str> {
        let own = result.tool.as_deref().filter(|tool| !tool.is_empty());
        own.or_else(|| self.names.get(&result.call_id).map(String::as_str).filter(|name| !name.is_empty()))
    }
}
