//! Any text as a workflow: it is refused, or written again it reads as the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sapwood_formats::workflow;

fuzz_target!(|text: &str| {
    let Ok(document) = workflow::parse(text) else { return };
    let written = workflow::serialise(&document);
    let read = workflow::parse(&written).expect("what was written can be read");
    assert_eq!(workflow::serialise(&read), written);
});
