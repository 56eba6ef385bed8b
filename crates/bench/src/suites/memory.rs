//! Memory while a huge session is appended to, exported and imported: memory use should be the same after a
//! tenth of the entries and at the end.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter};
use std::path::Path;

use sapwood::core::Draft;
use sapwood::core::port::store::Expect;
use sapwood::formats::export::jsonl::Exporter;
use sapwood::formats::import::sapwood::Importer;
use sapwood::store::Durability;
use sapwood::{Engine, Seq};

use crate::measure::Peak;
use crate::stage::{HUGE, Stage};
use crate::table::{Figure, Goal};

const AXIS: &str = "memory";
/// Maximum memory growth after the first tenth, in MB.
const GROWTH_MB_MAX: f64 = 32.0;
const PAGE: usize = 1_000;

/// Peak memory in the first tenth of the run, and overall.
#[derive(Default)]
struct Growth {
    tenth: Peak,
    all: Peak,
}

impl Growth {
    fn sample(&mut self, done: usize, total: usize) {
        self.all.sample();
        if done <= total / 10 {
            self.tenth = self.all;
        }
    }

    fn figures(&self, what: &str, total: usize) -> [Figure; 3] {
        let growth = self.all.resident - self.tenth.resident;
        let anonymous = self.all.anonymous - self.tenth.anonymous;
        let steps = format!("from {} to {total}", total / 10);
        [
            Figure::new(AXIS, format!("{what} {total} entries, peak"), self.all.resident, "MB"),
            Figure::new(AXIS, format!("{what}: growth {steps}"), growth, "MB")
                .goal(Goal::AtMost(GROWTH_MB_MAX)),
            Figure::new(AXIS, format!("{what}: growth {steps}, without mapped files"), anonymous, "MB"),
        ]
    }
}

pub async fn run(stage: &mut Stage) -> anyhow::Result<Vec<Figure>> {
    let total = stage.sizes.huge;
    let file = stage.scratch.file("huge.jsonl");
    let mut appending = Growth::default();
    let engine = stage.huge(|done| appending.sample(done, total)).await?;
    let exporting = export(stage, &engine, &file).await?;
    stage.close("huge.db", engine)?;
    let importing = import(stage, &file).await?;
    stage.scratch.remove("huge.jsonl");
    stage.scratch.remove("copy.db");
    let all = [("appending", appending), ("exporting", exporting), ("importing", importing)];
    Ok(all.iter().flat_map(|(what, growth)| growth.figures(what, total)).collect())
}

async fn export(stage: &Stage, engine: &Engine, to: &Path) -> anyhow::Result<Growth> {
    let session = HUGE.parse()?;
    let summary = engine.directory().summary(&stage.scope, &session).await?;
    let total = summary.head.seq.0 as usize;
    let mut exporter = Exporter::new(BufWriter::new(File::create(to)?));
    exporter.header(&summary)?;
    let (mut after, mut growth) = (Seq::ZERO, Growth::default());
    while after < summary.head.seq {
        for record in engine.store().read_after(&stage.scope, &session, after, PAGE).await? {
            exporter.line(&record)?;
            after = record.meta.seq;
        }
        growth.sample(after.0 as usize, total);
    }
    exporter.finish()?;
    Ok(growth)
}

async fn import(stage: &Stage, from: &Path) -> anyhow::Result<Growth> {
    let engine = stage.open("copy.db", Durability::Normal)?;
    let mut reader = BufReader::new(File::open(from)?);
    let mut importer = Importer::default();
    let (mut line, mut drafts, mut number) = (Vec::new(), Vec::<Draft>::new(), 0);
    let mut growth = Growth::default();
    let mut target = None;
    while reader.read_until(b'\n', &mut line)? > 0 {
        number += 1;
        importer.push_line(&line, number, &mut drafts);
        line.clear();
        if let (None, Some(header)) = (&target, importer.header()) {
            target = Some(engine.imports().begin(&stage.scope, header.new_session(), Expect::Any).await?);
        }
        let Some(target) = &mut target else { anyhow::bail!("the export has no header") };
        for draft in drafts.drain(..) {
            target.push(draft).await?;
        }
        if number.is_multiple_of(PAGE as u64) {
            growth.sample(number as usize, stage.sizes.huge);
        }
    }
    anyhow::ensure!(
        importer.problems().is_empty(),
        "the export has problems: {:?}",
        importer.problems().first()
    );
    if let Some(target) = target {
        target.finish().await?;
    }
    stage.close("copy.db", engine)?;
    Ok(growth)
}
