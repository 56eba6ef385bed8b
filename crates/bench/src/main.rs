//! `sapwood-bench`, which `sapwood bench` runs: the project's own benchmark. Figures are compared with the
//! machine's baseline, measured with the same bytes, in the same directory and run. Only the ratio is
//! comparable between machines.
//!
//! | file | content |
//! |---|---|
//! | [`corpus`], [`bodies`] | the data to write: a coding agent's transcript from a seed |
//! | [`floor`] | the baseline of plain files; the baseline of plain SQLite is in `sapwood_store::baseline` |
//! | [`suites`] | one file per axis |
//! | [`stage`] | the stores that several axes share, created on first use |
//! | [`measure`], [`table`], [`failure`], [`scratch`] | measuring, output, errors, and the working directory |
//! | [`program`] | the programs that an axis starts |
//!
//! The benchmark works in a temporary directory, which it removes afterwards. It never opens the user's store.

mod bodies;
mod corpus;
mod failure;
mod floor;
mod measure;
mod program;
mod scratch;
mod sizes;
mod stage;
mod suites;
mod table;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};

use failure::Failure;
use sizes::{FULL, QUICK};
use stage::Stage;
use table::Figure;

/// The allocator of the `sapwood` binary, so that memory and speed are comparable.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Benchmark this build on this machine, compared with the machine's baseline
#[derive(Debug, Parser)]
#[command(
    name = "sapwood-bench",
    bin_name = "sapwood bench",
    version,
    after_help = "\
Examples:
  sapwood bench --quick
  sapwood bench --axis append --axis search --dir /var/tmp"
)]
struct BenchArgs {
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
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Serve an empty route instead: the baseline of the axis http
    #[arg(long, hide = true)]
    serve_empty: bool,
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
    /// The engine's own time per round of a turn
    Turn,
    /// Control verbs in a short and in a huge session
    Control,
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
    /// A server's memory with long documents and stalled readers, and its health with 10,000 subscribers; runs only if named
    Load,
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
    Axis::Control,
    Axis::Compaction,
    Axis::Import,
    Axis::Stream,
    Axis::Postgres,
    Axis::Http,
    Axis::Load,
    Axis::Memories,
];

fn main() -> ExitCode {
    let args = match BenchArgs::try_parse() {
        Ok(args) => args,
        Err(error) if error.use_stderr() && std::env::args_os().any(|arg| arg == "--json") => {
            return Failure::usage(&error).report(true);
        }
        Err(error) => error.exit(),
    };
    let is_json = args.json;
    match start(args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => Failure::missed_goals().report(is_json),
        Err(error) => Failure::failed(&error).report(is_json),
    }
}

fn start(args: BenchArgs) -> anyhow::Result<bool> {
    // The baseline of the axis http needs the same kind of runtime as `sapwood serve`.
    let mut builder = if args.serve_empty {
        tokio::runtime::Builder::new_multi_thread()
    } else {
        tokio::runtime::Builder::new_current_thread()
    };
    let mut out = std::io::stdout().lock();
    builder.enable_all().build()?.block_on(async {
        if args.serve_empty {
            return suites::http::serve_empty(&mut out).await.map(|()| true);
        }
        run(args, &mut out).await
    })
}

/// Print one JSON line per figure after each axis, or a table at the end. Returns whether every goal was met.
async fn run(args: BenchArgs, out: &mut dyn Write) -> anyhow::Result<bool> {
    let sizes = if args.quick { QUICK } else { FULL };
    let wanted = [args.axis, args.only].concat();
    let axes = if wanted.is_empty() { ALL } else { &wanted };
    // One axis needs a database server, the other one thousands of connections.
    let is_run = |axis: &Axis| match axis {
        Axis::Postgres => args.postgres.is_some() || wanted.contains(axis),
        Axis::Load => wanted.contains(axis),
        _ => true,
    };
    let mut stage = Stage::make(args.dir.as_deref(), sizes)?;
    let mut figures: Vec<Figure> = Vec::new();
    for axis in ALL.iter().filter(|axis| axes.contains(axis) && is_run(axis)) {
        eprintln!(
            "bench: {}",
            axis.to_possible_value().map_or_else(String::new, |name| name.get_name().to_owned())
        );
        let measured = Box::pin(run_axis(*axis, &mut stage, args.postgres.as_deref())).await?;
        if args.json {
            measured.iter().try_for_each(|figure| table::write_json(figure, out))?;
            out.flush()?;
        }
        figures.extend(measured);
    }
    if !args.json {
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
        Axis::Control => suites::control::run(stage).await,
        Axis::Compaction => suites::compaction::run(stage).await,
        Axis::Import => suites::import::run(stage).await,
        Axis::Stream => suites::stream::run(stage).await,
        Axis::Postgres => suites::postgres::run(stage, postgres).await,
        Axis::Http => suites::http::run(stage).await,
        Axis::Load => suites::load::run(stage).await,
        Axis::Memories => suites::memories::run(stage).await,
    }
}
