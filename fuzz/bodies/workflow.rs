//! Parse arbitrary text as a workflow. It must be refused, or serialising and parsing it must give the same
//! document.

use sapwood_formats::workflow;

pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(document) = workflow::parse(text) else { return };
    let written = workflow::serialise(&document);
    let read = workflow::parse(&written).expect("a serialised workflow can be parsed");
    assert_eq!(workflow::serialise(&read), written);
}
