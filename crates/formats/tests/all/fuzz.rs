//! Runs the fuzz targets over their seeds and pseudorandom mutations of the seeds, so that the ordinary tests
//! compile and run the targets.

#[path = "../../../../fuzz/bodies/import.rs"]
mod import;
#[path = "../../../../fuzz/bodies/request.rs"]
mod request;
#[path = "../../../../fuzz/bodies/workflow.rs"]
mod workflow;

use std::path::{Path, PathBuf};

use sapwood_core::fixture::corrupt;
use sapwood_formats::import::Format;

/// Number of mutations per seed and target, unless `FUZZ_CHANGES` is set.
const CHANGES: u64 = 12;

fn changes() -> u64 {
    std::env::var("FUZZ_CHANGES").map_or(CHANGES, |number| number.parse().unwrap())
}

fn fuzz_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

fn files_of(dir: &Path) -> Vec<Vec<u8>> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} has no seeds", dir.display());
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

fn seeds_of(target: &str) -> Vec<Vec<u8>> {
    files_of(&fuzz_dir().join("seeds").join(target))
}

fn run_over(seeds: &[Vec<u8>], changes: u64, run: impl Fn(&[u8])) {
    for (number, seed) in seeds.iter().enumerate() {
        run(seed);
        for change in 0..changes {
            run(&corrupt(seed, change << 16 | number as u64));
        }
    }
}

#[test]
fn every_importer_survives_its_seeds_and_mutations() {
    let foreign = files_of(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures"));
    let seeds = [seeds_of("sapwood"), foreign].concat();
    for format in Format::ALL {
        run_over(&seeds, changes(), |bytes| import::run(*format, bytes));
    }
}

/// Replaces some of the strings of each seed by deep JSON.
#[test]
fn every_importer_survives_deep_json_in_place_of_any_value() {
    const PLACES_MAX: usize = 3;
    let foreign = files_of(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures"));
    let deep = |depth: usize| format!("{}1{}", "{\"a\":[".repeat(depth / 2), "]}".repeat(depth / 2));
    for seed in [seeds_of("sapwood"), foreign].concat() {
        let seed = String::from_utf8_lossy(&seed).into_owned();
        let values: Vec<usize> = seed.match_indices("\":\"").map(|(at, _)| at + 2).collect();
        for place in values.iter().step_by(values.len().div_ceil(PLACES_MAX).max(1)) {
            let Some(length) = seed[place + 1..].find('"') else { continue };
            let (before, after) = (&seed[..*place], &seed[place + length + 2..]);
            for depth in [150, 60_000] {
                let changed = format!("{before}{}{after}", deep(depth));
                Format::ALL.iter().for_each(|format| import::run(*format, changed.as_bytes()));
            }
        }
    }
}

#[test]
fn requests_survive_their_seeds_and_mutations() {
    run_over(&seeds_of("request"), changes() * 100, request::run);
}

#[test]
fn workflows_survive_their_seeds_and_mutations() {
    run_over(&seeds_of("workflow"), changes() * 10, workflow::run);
}

#[test]
fn every_format_has_a_fuzz_target() {
    let manifest = std::fs::read_to_string(fuzz_dir().join("Cargo.toml")).unwrap();
    for format in Format::ALL {
        let target = format!("import_{}", format.as_str().replace('-', "_"));
        assert!(manifest.contains(&format!("name = \"{target}\"")), "{target} is not in fuzz/Cargo.toml");
        let text = std::fs::read_to_string(fuzz_dir().join(format!("fuzz_targets/{target}.rs"))).unwrap();
        assert!(text.contains(&format!("Format::{format:?},")), "{target} is not for {format:?}");
    }
}
