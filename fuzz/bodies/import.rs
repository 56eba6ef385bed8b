//! Feed arbitrary bytes to an importer. It must terminate, and its entries must form a valid log with a context. Importing the
//! same file again must also result in a valid log and must not add more entries than the first import. No entry contains deep
//! JSON.

use sapwood_core::Draft;
use sapwood_core::entry::codec::encode;
use sapwood_core::fixture::MemLog;
use sapwood_core::nesting::{LINE_NESTING_MAX, nesting};
use sapwood_formats::import::reconcile::Reconciler;
use sapwood_formats::import::sapwood::Importer;
use sapwood_formats::import::steps::StepBatch;
use sapwood_formats::import::{Format, LineSplitter, detect, reader};

pub fn run(format: Format, bytes: &[u8]) {
    let _ = detect::detect(bytes);
    let mut log = MemLog::default();
    if format == Format::Sapwood {
        log.append(read_sapwood(bytes)).expect("imported entries can be appended");
    } else {
        let first = import_into(format, bytes, &mut log);
        let second = import_into(format, bytes, &mut log);
        assert!(
            second <= first,
            "the second import added {second} entries, but the first added only {first}"
        );
    }
    let _ = log.context();
    for entry in log.entries() {
        assert!(nesting(&encode(&entry.body)) <= LINE_NESTING_MAX, "an entry contains deep JSON");
    }
}

fn read_sapwood(bytes: &[u8]) -> Vec<Draft> {
    let (mut importer, mut drafts) = (Importer::default(), Vec::new());
    split(bytes, |line, number| importer.push_line(line, number, &mut drafts));
    assert_eq!(importer.entries(), drafts.len());
    drafts
}

/// Import a file into a log and return the number of added entries.
fn import_into(format: Format, bytes: &[u8], log: &mut MemLog) -> u64 {
    let Some(mut reader) = reader(format, "-") else { return 0 };
    let mut batch = StepBatch::default();
    if format.is_document(bytes.split(|byte| *byte == b'\n').next().unwrap_or_default()) {
        reader.push_document(bytes, &mut batch);
    } else {
        split(bytes, |line, number| reader.push_line(line, number, &mut batch));
    }
    reader.finish(&mut batch);
    let (mut reconciler, mut drafts) = (Reconciler::new(format.agent()), Vec::new());
    for entry in log.entries() {
        let meta = &entry.meta;
        reconciler.register(meta.id, meta.parent.map(|parent| parent.0), meta.kind.stance());
        reconciler.register_body(&entry.body);
    }
    if log.entries().next().is_some() {
        reconciler.register_leaf(log.head().leaf.map(|leaf| leaf.0));
    }
    for step in batch.steps {
        reconciler.take(step, &mut drafts, &mut batch.problems);
    }
    reconciler.finish(&mut drafts);
    log.append(drafts).expect("imported entries can be appended");
    reconciler.added
}

fn split(bytes: &[u8], mut each: impl FnMut(&[u8], u64)) {
    let mut splitter = LineSplitter::default();
    splitter.push(bytes, &mut each);
    splitter.finish(each);
}
