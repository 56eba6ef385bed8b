//! Measures how much information survives compaction. A generated transcript contains items, each with a unique marker.
//! It is compacted several times while it grows. At the end the context is searched for the markers, which the
//! strategies do not know.
//!
//! A scripted summariser replaces the model. It gets the same input as a model, and keeps the sentences with keywords
//! of a fact, a decision or an open item.

use std::sync::Arc;
use std::time::Instant;

use sapwood::core::compact::{
    Archive, Callbacks, CompactOptions, Method, SizeLimit, Snap, find_cut, mask, truncate,
};
use sapwood::core::entry::{AssistantMessage, Stop, ToolResult, Trigger};
use sapwood::core::port::summariser::{Summariser, SummariserError, SummaryRequest, WrittenSummary};
use sapwood::core::tokens::Estimate;
use sapwood::core::{Json, Part};
use sapwood::engine::compact::{Compacted, Compacting};
use sapwood::{Body, Context, Sapwood, SessionId, user_text};

use crate::bodies::{bodies, short_bodies};
use crate::measure::{median, millis};
use crate::stage::Stage;
use crate::table::{Figure, Goal};

const AXIS: &str = "compaction";
/// Number of compactions per session, and of messages before each.
const ROUNDS: usize = 4;
const MESSAGES_PER_ROUND: usize = 80;
/// Number of planted items of each kind per round.
const PLANTED: usize = 5;
const SEED: u64 = 11;
const PLANS: usize = 9;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Planted {
    Fact,
    Decision,
    OpenItem,
    FileEdit,
    Task,
}

const KINDS: &[Planted] =
    &[Planted::Fact, Planted::Decision, Planted::OpenItem, Planted::FileEdit, Planted::Task];

impl Planted {
    fn name(self) -> &'static str {
        match self {
            Planted::Fact => "facts",
            Planted::Decision => "decisions",
            Planted::OpenItem => "open items",
            Planted::FileEdit => "file edits",
            Planted::Task => "pending task",
        }
    }

    fn marker(self, number: usize) -> String {
        format!("mark{}x{number}q", self as usize)
    }
}

pub async fn run(stage: &mut Stage) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (method, name) in
        [(Method::Truncate, "truncate"), (Method::ObservationMask, "observation_mask"), (Method::Llm, "llm")]
    {
        figures.extend(survivors(method, name).await?);
    }
    figures.extend(plans(stage.sizes.long).await?);
    Ok(figures)
}

/// Compact a session repeatedly, and search for the planted items.
async fn survivors(method: Method, name: &str) -> anyhow::Result<Vec<Figure>> {
    let (sapwood, session) = open().await?;
    let mut corpus = bodies(SEED);
    let mut last: Option<Compacted> = None;
    let mut added_tokens = 0;
    for round in 0..ROUNDS {
        let (before, _) = measure_context(&sapwood, &session).await?;
        add_round(&sapwood, &session, &mut corpus, round).await?;
        added_tokens += measure_context(&sapwood, &session).await?.0.saturating_sub(before);
        let options = CompactOptions { compact_strategy: method, ..CompactOptions::default() };
        let mut how = Compacting::new(options, Trigger::Manual);
        how.summariser = Some(Arc::new(ScriptedSummariser));
        last = Some(sapwood.engine().compaction().compact(sapwood.scope(), &session, how).await?);
    }
    let (tokens, text) = measure_context(&sapwood, &session).await?;
    let mut figures = Vec::new();
    if let Some(last) = last {
        let what = format!("{name}: final tokens of {added_tokens}, after {ROUNDS} compactions");
        figures.push(Figure::new(AXIS, what, tokens as f64, "tokens"));
        let what = format!("{name}: tokens after vs. before the last compaction");
        figures.push(
            Figure::new(AXIS, what, last.tokens_after as f64, "tokens").over(last.tokens_before as f64),
        );
    }
    figures.extend(KINDS.iter().map(|kind| survivor_figure(*kind, method, name, &text)));
    Ok(figures)
}

fn survivor_figure(kind: Planted, method: Method, name: &str, text: &str) -> Figure {
    let count = if kind == Planted::Task { 1 } else { ROUNDS * PLANTED };
    let found = (0..count).filter(|number| text.contains(&kind.marker(*number))).count();
    let share = 100.0 * found as f64 / count as f64;
    let figure = Figure::new(AXIS, format!("{name}: survivors, {count} {}", kind.name()), share, "%");
    // Truncate keeps one line per message and may lose items, except file edits. The other strategies may lose none.
    let has_goal = method != Method::Truncate || kind == Planted::FileEdit;
    if has_goal { figure.goal(Goal::AtLeast(100.0)) } else { figure }
}

async fn open() -> anyhow::Result<(Sapwood, SessionId)> {
    let sapwood = Sapwood::open("memory:")?;
    let session = sapwood.open_session(Default::default()).await?;
    Ok((sapwood, session))
}

/// The context's token count and its whole text.
async fn measure_context(sapwood: &Sapwood, session: &SessionId) -> anyhow::Result<(u64, String)> {
    let context = sapwood.context(session).await?;
    let text: Vec<String> = context.messages.iter().map(text_with_calls).collect();
    Ok((context.tokens, text.join("\n")))
}

fn text_with_calls(message: &sapwood::core::project::context::Message) -> String {
    let calls = message.parts.iter().filter_map(Part::as_tool_call);
    calls
        .map(|call| call.input.get().to_owned())
        .fold(message.text(), |text, input| format!("{text}\n{input}"))
}

/// Add ordinary messages with planted items among them. The task is the first message and stays open.
async fn add_round(
    sapwood: &Sapwood,
    session: &SessionId,
    corpus: &mut impl Iterator<Item = Body>,
    round: usize,
) -> anyhow::Result<()> {
    if round == 0 {
        let task = Planted::Task.marker(0);
        let text = format!("The task: port the scheduler to {task}. It is still open until I say so.");
        sapwood.inject(session, vec![user_text(text)]).await?;
    }
    for item in 0..PLANTED {
        let number = round * PLANTED + item;
        let mut batch: Vec<Body> = corpus.take(MESSAGES_PER_ROUND / PLANTED).collect();
        batch.extend(planted(number));
        sapwood.inject(session, batch).await?;
    }
    Ok(())
}

/// One item of each kind except the task, inside longer texts, so that a strategy cannot recognise the items.
fn planted(number: usize) -> Vec<Body> {
    let filler = "The rest of this is as it was before, and nothing depends on it. ".repeat(4);
    let fact = format!("{filler}By the way, the staging port is {}. {filler}", Planted::Fact.marker(number));
    let decision = Planted::Decision.marker(number);
    let open = Planted::OpenItem.marker(number);
    let answer = format!(
        "{filler}I decided to use {decision} because the other way was too slow. {filler}\n\
         Still open is the cleanup of {open}, which I will do later. {filler}"
    );
    let path = format!("src/{}.rs", Planted::FileEdit.marker(number));
    let input = Json::from_value(&serde_json::json!({ "path": path, "text": "x".repeat(300) }));
    let call_id = format!("planted-{number}");
    let call = Part::tool_call(call_id.clone(), "edit_file", input);
    let assistant = |parts: Vec<Part>, stop| -> Body {
        let mut message = AssistantMessage { stop, ..empty_message() };
        message.parts = parts;
        message.into()
    };
    let result = ToolResult {
        call_id,
        tool: Some("edit_file".to_owned()),
        parts: vec![Part::text("edited")],
        is_error: false,
        duration_ms: None,
        interrupted: false,
        full: None,
    };
    vec![
        user_text(fact),
        assistant(vec![Part::text(answer)], Stop::Stop),
        assistant(vec![call], Stop::ToolUse),
        result.into(),
    ]
}

fn empty_message() -> AssistantMessage {
    serde_json::from_str(r#"{"parts":[]}"#).expect("an assistant message requires only parts")
}

/// A summariser that keeps the sentences with certain keywords.
struct ScriptedSummariser;

#[async_trait::async_trait]
impl Summariser for ScriptedSummariser {
    async fn write(&self, request: SummaryRequest) -> Result<WrittenSummary, SummariserError> {
        let mut lists: [(&str, &[&str], Vec<String>); 4] = [
            ("Goal", &["the task:"], Vec::new()),
            ("Facts", &["by the way", "port is"], Vec::new()),
            ("Decisions", &["decided"], Vec::new()),
            ("Open items", &["still open"], Vec::new()),
        ];
        for sentence in request.text.split(['\n', '.']).map(|part| part.trim_start_matches(['-', ' '])) {
            let lower = sentence.to_lowercase();
            let list = lists.iter_mut().find(|(_, words, _)| words.iter().any(|word| lower.contains(word)));
            if let Some((_, _, items)) =
                list.filter(|(_, _, items)| !items.iter().any(|item| item == sentence))
            {
                items.push(sentence.to_owned());
            }
        }
        let section = |(name, _, items): &(&str, &[&str], Vec<String>)| {
            (!items.is_empty()).then(|| format!("## {name}\n- {}", items.join("\n- ")))
        };
        Ok(lists.iter().filter_map(section).collect::<Vec<_>>().join("\n").into())
    }
}

/// Time to plan a compaction of a long path in memory. Nothing is written.
async fn plans(entries: usize) -> anyhow::Result<Vec<Figure>> {
    let (sapwood, session) = open().await?;
    let mut corpus = short_bodies(SEED);
    for _ in 0..entries.div_ceil(5_000) {
        sapwood.inject(&session, corpus.by_ref().take(5_000).collect()).await?;
    }
    let context = sapwood.context(&session).await?;
    let timed = |work: &dyn Fn(&Context)| {
        let times = (0..PLANS).map(|_| {
            let start = Instant::now();
            work(&context);
            millis(start.elapsed())
        });
        median(times.collect())
    };
    let options = CompactOptions::default();
    let plan = |context: &Context, write: &dyn Fn(&Archive<'_>)| {
        let cut = find_cut(context, options.keep(), Snap::ToUser, &Estimate);
        if let Some(cut) = cut {
            write(&Archive::at(context, cut, &options));
        }
    };
    let cut = timed(&|context| plan(context, &|_| ()));
    let truncated = timed(&|context| plan(context, &|archive| drop(truncate(archive, SizeLimit::Half))));
    let callbacks = Callbacks::default();
    let masked = timed(&|context| plan(context, &|archive| drop(mask(archive, &callbacks))));
    let figure = |what: &str, time| {
        Figure::new(AXIS, format!("{what} of {entries} entries"), time, "ms").goal(Goal::AtMost(50.0))
    };
    Ok(vec![
        figure("planning a compaction", cut),
        figure("planning and writing with truncate", truncated),
        figure("planning and writing with observation_mask", masked),
    ])
}
