//! The results of a test run: the number of passed tests, and the failed tests with their programs. Performs no I/O.

use std::fmt;

/// Test counts reported by a test runner.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tests {
    pub passed: u64,
    /// The names of failed tests, each with its program if known.
    pub failed: Vec<String>,
    /// Programs that ended without reporting results, for example because they were killed.
    pub crashed: Vec<String>,
}

/// The outcome of a stage.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    Failed(String),
    Skipped(&'static str),
    Tested(Tests),
}

#[derive(Debug, Default)]
pub struct Report(Vec<(&'static str, Outcome)>);

impl Report {
    /// Record a stage and return whether it succeeded.
    pub fn record(&mut self, stage: &'static str, outcome: Outcome) -> bool {
        let is_success = match &outcome {
            Outcome::Passed => true,
            Outcome::Failed(_) | Outcome::Skipped(_) => false,
            Outcome::Tested(tests) => tests.failed.is_empty() && tests.crashed.is_empty(),
        };
        self.0.push((stage, outcome));
        is_success
    }

    pub fn passed(&self) -> u64 {
        let passed = |(_, outcome): &(_, Outcome)| match outcome {
            Outcome::Tested(tests) => tests.passed,
            _ => 0,
        };
        self.0.iter().map(passed).sum()
    }

    /// The number of failed tests and other failures.
    pub fn failed(&self) -> usize {
        let failed = |(_, outcome): &(_, Outcome)| match outcome {
            Outcome::Passed | Outcome::Skipped(_) => 0,
            Outcome::Failed(_) => 1,
            Outcome::Tested(tests) => tests.failed.len() + tests.crashed.len(),
        };
        self.0.iter().map(failed).sum()
    }
}

/// A line per stage, a line per failure, and a summary line.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "summary:")?;
        for (stage, outcome) in &self.0 {
            match outcome {
                Outcome::Passed => writeln!(f, "  {stage}: ok")?,
                Outcome::Failed(why) => writeln!(f, "  {stage}: FAILED: {why}")?,
                Outcome::Skipped(why) => writeln!(f, "  {stage}: skipped, because {why}")?,
                Outcome::Tested(tests) => write_tests(f, stage, tests)?,
            }
        }
        writeln!(f, "{} passed, {} failed", self.passed(), self.failed())
    }
}

fn write_tests(f: &mut fmt::Formatter<'_>, stage: &str, tests: &Tests) -> fmt::Result {
    let is_success = tests.failed.is_empty() && tests.crashed.is_empty();
    let status = if is_success { "ok" } else { "FAILED" };
    writeln!(f, "  {stage}: {status}, {} passed, {} failed", tests.passed, tests.failed.len())?;
    for name in &tests.failed {
        writeln!(f, "    failed: {name}")?;
    }
    for program in &tests.crashed {
        writeln!(f, "    ended without results: {program}")?;
    }
    Ok(())
}

/// Parse the output of `cargo test --no-fail-fast`.
pub fn read_cargo(lines: &[String]) -> Tests {
    let mut tests = Tests::default();
    let (mut program, mut failed_names) = (String::new(), Vec::new());
    // Programs that ran, and whether they reported their results.
    let mut ran: Vec<(String, bool)> = Vec::new();
    for line in lines {
        let text = line.trim();
        if let Some(started) = line.strip_prefix("     Running ").or(line.strip_prefix("   Doc-tests ")) {
            program = program_of(started);
            ran.push((program.clone(), false));
        } else if text == "failures:" {
            failed_names.clear();
        } else if let Some(result) = text.strip_prefix("test result: ") {
            tests.passed += count_before(result, " passed");
            if result.starts_with("FAILED") {
                tests.failed.extend(failed_names.drain(..).map(|name| format!("{name} in {program}")));
            }
            if let Some(last) = ran.last_mut() {
                last.1 = true;
            }
        } else if line.starts_with("    ") && !text.contains(' ') && !text.is_empty() {
            failed_names.push(text.to_owned());
        }
    }
    tests.crashed =
        ran.into_iter().filter(|(_, has_results)| !has_results).map(|(program, _)| program).collect();
    tests
}

/// Strip the hash from a program such as `tests/all.rs (target/debug/deps/all-0123)`, because it changes with every build.
fn program_of(started: &str) -> String {
    let Some((source, path)) = started.split_once(" (") else { return started.to_owned() };
    let name = path.trim_end_matches(')').rsplit('/').next().unwrap_or_default();
    let name = name.rsplit_once('-').map_or(name, |(name, _)| name);
    format!("{name} ({source})")
}

/// Parse the output of Node's `spec` reporter.
pub fn read_node(lines: &[String]) -> Tests {
    let mut tests = Tests::default();
    for line in lines {
        let text = line.trim();
        if let Some(count) = text.strip_prefix("ℹ pass ") {
            tests.passed += count.trim().parse().unwrap_or(0);
        } else if let Some(name) = text.strip_prefix("✖ ").filter(|name| *name != "failing tests:") {
            let name = name.rsplit_once(" (").map_or(name, |(name, _)| name).to_owned();
            // Each failure is printed twice: where it happened, and at the end.
            if !tests.failed.contains(&name) {
                tests.failed.push(name);
            }
        }
    }
    tests
}

fn count_before(text: &str, word: &str) -> u64 {
    let before = text.split(word).next().unwrap_or_default();
    before.rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    const CARGO: &str = "     Running unittests src/lib.rs (target/debug/deps/core-12ab)

running 2 tests
test a::works ... ok
test a::breaks ... FAILED

failures:

---- a::breaks stdout ----
    indented_output_of_the_test

failures:
    a::breaks

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s

error: test failed, to rerun pass `-p core --lib`
     Running tests/all.rs (target/debug/deps/all-34cd)

running 3 tests
error: test failed, to rerun pass `-p core --test all`

Caused by:
  process didn't exit successfully: `all` (signal: 9, SIGKILL: kill)
   Doc-tests core

running 7 tests
test result: ok. 7 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
";

    #[test]
    fn a_failing_program_does_not_hide_the_others() {
        let tests = read_cargo(&lines(CARGO));
        assert_eq!(tests.passed, 8);
        assert_eq!(tests.failed, ["a::breaks in core (unittests src/lib.rs)"]);
        assert_eq!(tests.crashed, ["all (tests/all.rs)"]);
    }

    #[test]
    fn node_failures_are_counted_once() {
        let printed = "✔ opens (12ms)\n✖ closes (also late) (3.2ms)\nℹ tests 2\nℹ pass 1\nℹ fail 1\n\n✖ failing tests:\n\ntest at x.mjs:3:1\n✖ closes (also late) (3.2ms)\n";
        let tests = read_node(&lines(printed));
        assert_eq!((tests.passed, tests.failed), (1, vec!["closes (also late)".to_owned()]));
    }

    #[test]
    fn the_summary_line_counts_all_failures() {
        let mut report = Report::default();
        assert!(report.record("format", Outcome::Passed));
        assert!(!report.record("clippy", Outcome::Failed("cargo clippy failed".to_owned())));
        assert!(!report.record("tests", Outcome::Tested(read_cargo(&lines(CARGO)))));
        assert!(!report.record("journeys", Outcome::Skipped("nothing was built")));
        let summary = report.to_string();
        assert_eq!(summary.lines().last(), Some("8 passed, 3 failed"), "{summary}");
        assert!(summary.contains("    failed: a::breaks in core (unittests src/lib.rs)\n"), "{summary}");
        assert!(summary.contains("  clippy: FAILED: cargo clippy failed\n"), "{summary}");
    }
}
