//! Any bytes into any importer: it ends, and what it gives can be placed. The first byte chooses the format.
//! `cargo +nightly fuzz run import crates/formats/tests/fixtures`

#![no_main]

use libfuzzer_sys::fuzz_target;
use sapwood_core::fixture::MemLog;
use sapwood_formats::import::grow::Grower;
use sapwood_formats::import::harvest::Harvest;
use sapwood_formats::import::{Format, LineSplitter, detect, reader};

fuzz_target!(|data: &[u8]| {
    let Some((first, bytes)) = data.split_first() else { return };
    let _ = detect::detect(bytes);
    let format = Format::ALL[usize::from(*first) % Format::ALL.len()];
    let Some(mut reader) = reader(format, "-") else { return };
    let mut harvest = Harvest::default();
    if format.is_document(bytes.first().copied().unwrap_or_default()) {
        reader.push_document(bytes, &mut harvest);
    } else {
        let mut splitter = LineSplitter::default();
        splitter.push(bytes, |line, number| reader.push_line(line, number, &mut harvest));
        splitter.finish(|line, number| reader.push_line(line, number, &mut harvest));
    }
    reader.finish(&mut harvest);
    let (mut grower, mut drafts) = (Grower::new(format.agent()), Vec::new());
    for step in harvest.steps {
        grower.take(step, &mut drafts, &mut harvest.problems);
    }
    grower.finish(&mut drafts);
    MemLog::default().append(drafts).expect("whatever was read can be placed");
});
