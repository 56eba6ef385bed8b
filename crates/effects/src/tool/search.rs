//! `find_files` by name and `search_text` by content, over all files in scope that are neither ignored nor protected.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

use async_trait::async_trait;
use globset::{GlobBuilder, GlobMatcher};
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkMatch};
use sapwood_core::port::tool::{Replay, ToolOutput, ToolSpec, Touch};
use serde_json::{Value, json};

use super::blocking::{StopSignal, run_blocking};
use super::files::root::{Reader, Refusal, Root};
use super::files::walk::{WalkEnd, WalkedFile, walk_files};
use super::{Tool, spec, text_field};

/// Maximum number of files and of matches in one result, and default number of matches.
const FILES_MAX: usize = 1_000;
const MATCHES_MAX: u64 = 1_000;
const MATCHES_DEFAULT: u64 = 200;
/// Maximum number of characters shown of a line.
const LINE_CHARS_MAX: usize = 400;
/// Maximum size of a searched file, memory limit for a line, and maximum length of a pattern.
const SEARCHED_BYTES_MAX: u64 = 64 << 20;
const SEARCH_HEAP_BYTES_MAX: usize = 8 << 20;
const PATTERN_BYTES_MAX: usize = 4 << 10;

pub struct FindFiles(Arc<Root>);

impl FindFiles {
    pub fn new(root: Arc<Root>) -> Self {
        Self(root)
    }
}

#[async_trait]
impl Tool for FindFiles {
    fn spec(&self) -> ToolSpec {
        let schema = json!({
            "type": "object",
            "properties": {
                "pattern": {"type": "string", "minLength": 1, "maxLength": PATTERN_BYTES_MAX,
                            "description": "a glob such as *.rs (any directory) or src/**/*.rs"},
                "path": {"type": "string", "minLength": 1, "description": "directory to search; default: the working directory"}
            },
            "required": ["pattern"],
            "additionalProperties": false
        });
        let description = "Finds files by name with a glob. Files ignored by .gitignore are omitted.";
        spec("find_files", description, &schema, Touch::Reads, Replay::Safe)
    }

    async fn run(&self, input: &Value) -> ToolOutput {
        let root = self.0.clone();
        let pattern = text_field(input, "pattern").to_owned();
        let path = input["path"].as_str().unwrap_or(".").to_owned();
        run_blocking(move |stop| match file_glob(&pattern) {
            Ok(glob) => find(&root, &path, &glob, stop),
            Err(why) => ToolOutput::error(format!("{pattern} is not a valid glob: {why}")),
        })
        .await
    }
}

/// Compile a glob. A pattern without a slash matches only the file name.
fn file_glob(pattern: &str) -> Result<GlobMatcher, globset::Error> {
    let anywhere = if pattern.contains('/') { pattern.to_owned() } else { format!("**/{pattern}") };
    let glob = anywhere.trim_start_matches("./");
    Ok(GlobBuilder::new(glob).literal_separator(true).build()?.compile_matcher())
}

/// The path relative to the directory in which the walk began.
fn below_start<'a>(shown: &'a str, start: &str) -> &'a str {
    shown.strip_prefix(start.trim_end_matches('/')).map_or(shown, |below| below.trim_start_matches('/'))
}

fn find(root: &Root, start: &str, glob: &GlobMatcher, stop: &StopSignal) -> ToolOutput {
    let mut files: Vec<String> = Vec::new();
    let reader = root.reader();
    let walked = walk_files(root, &reader, start, stop, &mut |found| {
        if glob.is_match(below_start(found.path, start)) {
            files.push(found.path.to_owned());
        }
        if files.len() >= FILES_MAX { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    report(walked, files, "no matching files", "files")
}

fn report(
    walked: Result<WalkEnd, Refusal>,
    mut lines: Vec<String>,
    empty_note: &str,
    noun: &str,
) -> ToolOutput {
    match walked {
        Err(refusal) => return ToolOutput::error(refusal.to_string()),
        Ok(WalkEnd::All) if lines.is_empty() => lines.push(format!("[{empty_note}]")),
        Ok(WalkEnd::All) => {}
        Ok(WalkEnd::Enough) => {
            lines.push(format!("[only the first {} {noun}: narrow the search]", lines.len()))
        }
        Ok(WalkEnd::CutShort) => lines.push("[the search is incomplete: narrow it]".to_owned()),
    }
    ToolOutput::text(lines.join("\n"))
}

pub struct SearchText(Arc<Root>);

impl SearchText {
    pub fn new(root: Arc<Root>) -> Self {
        Self(root)
    }
}

#[async_trait]
impl Tool for SearchText {
    fn spec(&self) -> ToolSpec {
        let schema = json!({
            "type": "object",
            "properties": {
                "pattern": {"type": "string", "minLength": 1, "maxLength": PATTERN_BYTES_MAX,
                            "description": "a regular expression (Rust syntax), matched line by line"},
                "path": {"type": "string", "minLength": 1,
                         "description": "a file or directory; default: the working directory"},
                "files": {"type": "string", "minLength": 1, "maxLength": PATTERN_BYTES_MAX,
                          "description": "a glob; only files with matching names are searched"},
                "literal": {"type": "boolean", "description": "treat the pattern as plain text"},
                "ignore_case": {"type": "boolean"},
                "limit": {"type": "integer", "minimum": 1, "maximum": MATCHES_MAX}
            },
            "required": ["pattern"],
            "additionalProperties": false
        });
        let description = "Finds lines in text files with a regular expression. Returns path:line:text. Files ignored by \
                           .gitignore are omitted.";
        spec("search_text", description, &schema, Touch::Reads, Replay::Safe)
    }

    async fn run(&self, input: &Value) -> ToolOutput {
        let root = self.0.clone();
        let start = input["path"].as_str().unwrap_or(".").to_owned();
        let limit = input["limit"].as_u64().unwrap_or(MATCHES_DEFAULT).min(MATCHES_MAX);
        let matcher = match text_matcher(input) {
            Ok(matcher) => matcher,
            Err(why) => return ToolOutput::error(format!("invalid pattern: {why}")),
        };
        let glob = match input["files"].as_str().map(file_glob).transpose() {
            Ok(glob) => glob,
            Err(why) => return ToolOutput::error(format!("files is not a valid glob: {why}")),
        };
        run_blocking(move |stop| search(&root, &Search { start, glob, matcher, limit: limit as usize }, stop))
            .await
    }
}

fn text_matcher(input: &Value) -> Result<RegexMatcher, grep_regex::Error> {
    RegexMatcherBuilder::new()
        .case_insensitive(input["ignore_case"].as_bool() == Some(true))
        .fixed_strings(input["literal"].as_bool() == Some(true))
        .size_limit(SEARCH_HEAP_BYTES_MAX)
        .dfa_size_limit(SEARCH_HEAP_BYTES_MAX)
        .line_terminator(Some(b'\n'))
        .build(text_field(input, "pattern"))
}

struct Search {
    start: String,
    glob: Option<GlobMatcher>,
    matcher: RegexMatcher,
    limit: usize,
}

fn search(root: &Root, search: &Search, stop: &StopSignal) -> ToolOutput {
    let reader = root.reader();
    let mut lines = MatchCollector { found: Vec::new(), limit: search.limit, path: String::new(), stop };
    if let Ok(opened) = reader.open_file(&search.start) {
        lines.search_file(search, &search.start, opened.file.into_std());
        let walked = if lines.is_full() { WalkEnd::Enough } else { WalkEnd::All };
        return report(Ok(walked), lines.found, "no matching lines", "lines");
    }
    let walked = walk_files(root, &reader, &search.start, stop, &mut |found| {
        let is_searched =
            search.glob.as_ref().is_none_or(|glob| glob.is_match(below_start(found.path, &search.start)));
        if is_searched {
            lines.search_found(search, &reader, found);
        }
        if lines.is_full() || stop.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let walked =
        walked.map(|end| if end == WalkEnd::Enough && !lines.is_full() { WalkEnd::CutShort } else { end });
    report(walked, lines.found, "no matching lines", "lines")
}

/// Collects matching lines up to a limit.
struct MatchCollector<'a> {
    found: Vec<String>,
    limit: usize,
    /// The file being searched.
    path: String,
    stop: &'a StopSignal,
}

impl MatchCollector<'_> {
    fn is_full(&self) -> bool {
        self.found.len() >= self.limit
    }

    fn search_found(&mut self, search: &Search, reader: &Reader<'_>, found: &WalkedFile<'_>) {
        // A file that cannot be opened counts as a file without matches.
        if let Ok(opened) = reader.open_in(found.dir, found.name, found.path)
            && opened.bytes <= SEARCHED_BYTES_MAX
        {
            self.search_file(search, found.path, opened.file.into_std());
        }
    }

    fn search_file(&mut self, search: &Search, path: &str, file: std::fs::File) {
        self.path = path.to_owned();
        let mut searcher = SearcherBuilder::new()
            .binary_detection(BinaryDetection::quit(0))
            .heap_limit(Some(SEARCH_HEAP_BYTES_MAX))
            .line_number(true)
            .build();
        // A line over the memory limit ends the search of this file. Earlier matches are kept.
        let _ = searcher.search_file(&search.matcher, &file, self);
    }
}

impl Sink for &mut MatchCollector<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> Result<bool, io::Error> {
        let text = String::from_utf8_lossy(found.bytes());
        let text = text.trim_end_matches(['\n', '\r']);
        let mut shown: String = text.chars().take(LINE_CHARS_MAX).collect();
        if shown.len() < text.len() {
            shown.push('…');
        }
        self.found.push(format!("{}:{}:{shown}", self.path, found.line_number().unwrap_or(0)));
        Ok(!self.is_full() && !self.stop.is_set())
    }
}
