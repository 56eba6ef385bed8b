//! `sapwood bench`: the project's own benchmark. Figures are compared with the machine's baseline, measured with the
//! same bytes in the same directory in the same run. Only the ratio is comparable between machines.
//!
//! | file | content |
//! |---|---|
//! | [`corpus`], [`bodies`] | the data to write: a coding agent's transcript from a seed |
//! | [`floor`] | the baseline of plain files; the baseline of plain SQLite is in `sapwood_store::baseline` |
//! | [`suites`] | one file per axis |
//! | [`stage`] | the stores that several axes share, created on first use |
//! | [`measure`], [`table`], [`scratch`] | measuring, output, and the working directory |
//!
//! The benchmark works in a temporary directory, which it removes afterwards, and never opens the user's store.

mod bodies;
mod corpus;
mod floor;
mod measure;
mod scratch;
mod stage;
mod suites;
mod table;

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use stage::Stage;
use table::Figure;

/// Benchmark this build on this machine, compared with the machine's baseline
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sapwood bench --quick
  sapwood bench --axis append --axis search --dir /var/tmp")]
pub struct BenchArgs {
    /// Use smaller sizes; takes seconds, but the results are rough
    #[arg(long)]
    quick: bool,
    /// Run only these axes
    #[arg(value_enum, value_name = "AXIS")]
    only: Vec<Axis>,
    /// Run only this axis; can be repeated
    #[arg(long, value_enum, value_name = "NAME")]
    axis: Vec<Axis>,
    /// Directory to work in, on the disk to measure
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Server for the axis postgres, with a user who may create databases
    #[arg(long, value_name = "URL")]
    postgres: Option<String>,
    /// Serve an empty route instead: the baseline of the axis http
    #[arg(long, hide = true)]
    serve_empty: bool,
}

impl BenchArgs {
    /// Whether this process serves the HTTP baseline, which needs the same kind of runtime as `sapwood serve`.
    pub fn is_server(&self) -> bool {
        self.serve_empty
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Axis {
    /// Memory while appending, exporting and importing a long session
    Memory,
    /// Durable appends: one stream, many streams, a long log
    Append,
    /// The context of the last messages after a compaction
    Context,
    /// The whole context of a long session
    Full,
    /// A fork of a long session
    Fork,
    /// The newest of many sessions
    List,
    /// Full-text search
    Search,
    /// Bytes on disk per byte of content
    Disk,
    /// The engine's own part of a round of a turn
    Turn,
    /// What survives compaction, and the time to plan one
    Compaction,
    /// Importing other programs' files
    Import,
    /// Events over HTTP to 1, 100 and 2000 subscribers
    Stream,
    /// Appends, contexts and forks over PostgreSQL; needs --postgres
    Postgres,
    /// Reads and durable injects over HTTP, from another process
    Http,
    /// Recall of facts from fifty sessions by rephrased questions, and isolation between users
    Memories,
}

/// The memory axis runs first, because memory freed by other axes still counts towards the process.
const ALL: &[Axis] = &[
    Axis::Memory,
    Axis::Append,
    Axis::Context,
    Axis::Full,
    Axis::Fork,
    Axis::List,
    Axis::Search,
    Axis::Disk,
    Axis::Turn,
    Axis::Compaction,
    Axis::Import,
    Axis::Stream,
    Axis::Postgres,
    Axis::Http,
    Axis::Memories,
];

/// The sizes of a run.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    /// Number of messages of ordinary length in the long session.
    long: usize,
    /// Number of short messages in the huge session, and in the two sessions compared with it.
    huge: usize,
    small: usize,
    sessions: usize,
    /// Number of durable appends per measurement, and of repetitions.
    appends: usize,
    rounds: usize,
    /// Size of the imported file.
    import_bytes: u64,
}

const FULL: Sizes = Sizes {
    long: 100_000,
    huge: 1_000_000,
    small: 1_000,
    sessions: 10_000,
    appends: 2_000,
    rounds: 5,
    import_bytes: 1 << 30,
};
const QUICK: Sizes = Sizes {
    long: 5_000,
    huge: 50_000,
    small: 1_000,
    sessions: 1_000,
    appends: 400,
    rounds: 3,
    import_bytes: 48 << 20,
};

/// Print one JSON line per figure as soon as it is measured, or a table at the end. Returns whether every goal was met.
pub async fn run(args: BenchArgs, json: bool, out: &mut dyn Write) -> anyhow::Result<bool> {
    if args.serve_empty {
        suites::http::serve_empty(out).await?;
        return Ok(true);
    }
    let sizes = if args.quick { QUICK } else { FULL };
    let wanted = [args.axis, args.only].concat();
    let axes = if wanted.is_empty() { ALL } else { &wanted };
    // This axis needs a database server, so it runs only if a server is given or the axis is named.
    let is_run = |axis: &Axis| *axis != Axis::Postgres || args.postgres.is_some() || wanted.contains(axis);
    let mut stage = Stage::make(args.dir.as_deref(), sizes)?;
    let mut figures: Vec<Figure> = Vec::new();
    for axis in ALL.iter().filter(|axis| axes.contains(axis) && is_run(axis)) {
        eprintln!(
            "bench: {}",
            axis.to_possible_value().map_or_else(String::new, |name| name.get_name().to_owned())
        );
        let measured = Box::pin(run_axis(*axis, &mut stage, args.postgres.as_deref())).await?;
        if json {
            measured.iter().try_for_each(|figure| table::write_json(figure, out))?;
            out.flush()?;
        }
        figures.extend(measured);
    }
    if !json {
        table::write_table(&figures, out)?;
    }
    Ok(figures.iter().all(|figure| figure.met() != Some(false)))
}

async fn run_axis(axis: Axis, stage: &mut Stage, postgres: Option<&str>) -> anyhow::Result<Vec<Figure>> {
    match axis {
        Axis::Memory => suites::memory::run(stage).await,
        Axis::Append => suites::append::run(stage).await,
        Axis::Context => suites::context::run(stage).await,
        Axis::Full => suites::full::run(stage).await,
        Axis::Fork => suites::fork::run(stage).await,
        Axis::List => suites::list::run(stage).await,
        Axis::Search => suites::search::run(stage).await,
        Axis::Disk => suites::disk::run(stage).await,
        Axis::Turn => suites::turn::run(stage).await,
        Axis::Compaction => suites::compaction::run(stage).await,
        Axis::Import => suites::import::run(stage).await,
        Axis::Stream => suites::stream::run(stage).await,
        Axis::Postgres => suites::postgres::run(stage, postgres).await,
        Axis::Http => suites::http::run(stage).await,
        Axis::Memories => suites::memories::run(stage).await,
    }
}
