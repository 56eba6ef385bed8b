//! Runs a program, shows its output, and captures it so that a summary can name the failures.

use std::io::{BufRead, BufReader, Write};
use std::process::Command;

use anyhow::{Context, Result};

/// The output of a finished program.
pub struct CommandOutput {
    pub succeeded: bool,
    /// The output of both streams, in order and without colours.
    pub lines: Vec<String>,
}

/// Run a command to completion. Both streams share one pipe, so that their lines stay in order.
pub fn run_and_show(command: &mut Command) -> Result<CommandOutput> {
    let program = command.get_program().to_string_lossy().into_owned();
    let args: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy()).collect();
    let title = program.rsplit('/').next().unwrap_or(&program);
    eprintln!("$ {title} {}", args.join(" "));
    let (reader, writer) = std::io::pipe()?;
    command.stdout(writer.try_clone()?).stderr(writer).env("NO_COLOR", "1").env("CARGO_TERM_COLOR", "never");
    let mut child = command.spawn().with_context(|| format!("failed to run {title}"))?;
    // Drop the command's copies of the write end: the pipe stays open as long as they exist.
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut lines = Vec::new();
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        std::io::stdout().write_all(&line)?;
        lines.push(without_colours(String::from_utf8_lossy(&line).trim_end()));
        line.clear();
    }
    Ok(CommandOutput { succeeded: child.wait()?.success(), lines })
}

/// Remove escape sequences: some programs print colours even into a pipe.
fn without_colours(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        plain.push_str(before);
        rest = after.trim_start_matches(|letter: char| !letter.is_ascii_alphabetic());
        rest = rest.get(1..).unwrap_or_default();
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_a_failed_program_is_captured_in_order() {
        let script = "echo one; echo two >&2; printf '\\033[31mthree\\033[0m\\n'; exit 3";
        let ran = run_and_show(Command::new("sh").args(["-c", script])).unwrap();
        assert_eq!((ran.succeeded, ran.lines), (false, ["one", "two", "three"].map(str::to_owned).to_vec()));
    }
}
