//! Any text as a workflow: it is refused, or written again it reads as the same.

use sapwood_formats::workflow;

pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(document) = workflow::parse(text) else { return };
    let written = workflow::serialise(&document);
    let read = workflow::parse(&written).expect("what was written can be read");
    assert_eq!(workflow::serialise(&read), written);
}
