//! The active path as one HTML file without network access or scripts, safe to open for any transcript.
//!
//! All session content is escaped. Markdown is rendered, but HTML inside it stays text. Links are limited to
//! http, https and mailto. Images in Markdown become text with their address, so nothing is loaded. A content
//! security policy in the file forbids everything else.

use std::fmt::Write;

use pulldown_cmark::{CowStr, Event, LinkType, Options, Parser, Tag, TagEnd, html};
use sapwood_core::Body;
use sapwood_core::content::{BlobRef, Part};
use sapwood_core::entry::{Entry, ToolResult};
use sapwood_core::project::summary::Summary;

use super::calls::ToolNames;
use super::messages::{Blobs, describe_media};
use super::without_controls;
use crate::import::text::{encode_base64, write_rfc3339};

const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'";
const STYLE: &str = "\
:root{color-scheme:light dark;--line:#8884;--soft:#8881}
body{font:16px/1.55 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem}
header,section{border-bottom:1px solid var(--line);padding:.75rem 0}
h1{font-size:1.4rem;margin:0}h2{font-size:.8rem;letter-spacing:.05em;text-transform:uppercase;opacity:.65;margin:0 0 .25rem}
section.user{background:var(--soft);padding:.75rem 1rem;border-radius:.5rem}
pre{overflow:auto;background:var(--soft);padding:.6rem .8rem;border-radius:.4rem;white-space:pre-wrap;overflow-wrap:anywhere;font-size:.85rem}
code{font-family:ui-monospace,monospace;font-size:.9em}details{margin:.4rem 0}summary{cursor:pointer;opacity:.8}
.error summary{color:#c33}img{max-width:100%}table{border-collapse:collapse}td,th{border:1px solid var(--line);padding:.2rem .5rem}
.cut{border-left:3px solid var(--line);padding-left:1rem}p.meta{opacity:.65;margin:.2rem 0}
";

/// The text after the last entry.
pub const END: &str = "</main>\n</body>\n</html>\n";

/// Renders a page entry by entry.
#[derive(Default)]
pub struct PageWriter {
    calls: ToolNames,
}

impl PageWriter {
    /// The text of the next entry of the active path. Images in `blobs` are embedded.
    pub fn entry(&mut self, entry: &Entry, blobs: &Blobs) -> String {
        let mut text = String::new();
        self.calls.record(&entry.body);
        write_entry(&mut text, entry, &self.calls, blobs);
        without_controls(text)
    }
}

/// Render the page. `path` is the active path from its root, oldest first. Images in `blobs` are embedded.
pub fn page(summary: &Summary, path: &[Entry], blobs: &Blobs) -> String {
    let (mut page, mut writer) = (begin(summary), PageWriter::default());
    path.iter().for_each(|entry| page.push_str(&writer.entry(entry, blobs)));
    page.push_str(END);
    page
}

/// The text before the first entry.
pub fn begin(summary: &Summary) -> String {
    let title = escape(summary.title.as_deref().or(summary.preview.as_deref()).unwrap_or("A session"));
    let page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <header><h1>{title}</h1><p class=\"meta\">Session {} · started {}</p></header>\n<main>\n",
        escape(summary.id.as_str()),
        write_rfc3339(summary.created_at),
    );
    without_controls(page)
}

fn write_entry(page: &mut String, entry: &Entry, calls: &ToolNames, blobs: &Blobs) {
    match &entry.body {
        Body::UserMessage(user) => section(page, "user", "User", &user.parts, blobs),
        Body::AssistantMessage(answer) => section(page, "assistant", "Assistant", &answer.parts, blobs),
        Body::CustomMessage(custom) => section(page, "note", &custom.custom_type, &custom.parts, blobs),
        Body::ToolResult(result) => write_result(page, result, calls.tool_of(result), blobs),
        Body::SystemNote(note) => section(page, "note", "Note", &[Part::text(note.text.clone())], blobs),
        Body::Compaction(compaction) => {
            let text = compaction.summary.clone().unwrap_or_else(|| "(omitted)".to_owned());
            section(page, "cut", "Summary of earlier messages", &[Part::text(text)], blobs);
        }
        Body::BranchSummary(branch) => {
            section(
                page,
                "cut",
                "Summary of an abandoned branch",
                &[Part::text(branch.summary.clone())],
                blobs,
            );
        }
        _ => {}
    }
}

fn section(page: &mut String, class: &str, name: &str, parts: &[Part], blobs: &Blobs) {
    let _ = writeln!(page, "<section class=\"{class}\"><h2>{}</h2>", escape(name));
    for part in parts {
        match part {
            Part::Text(text) => render_markdown(page, &text.text),
            Part::Reasoning(reasoning) if reasoning.text.is_empty() => {}
            Part::Reasoning(reasoning) => {
                let _ = writeln!(
                    page,
                    "<details><summary>Reasoning</summary><pre>{}</pre></details>",
                    escape(&reasoning.text)
                );
            }
            Part::ToolCall(call) => {
                let _ = writeln!(
                    page,
                    "<details><summary>Calls <code>{}</code></summary><pre>{}</pre></details>",
                    escape(&call.name),
                    escape(call.input.get())
                );
            }
            Part::Media(media) => write_media(page, media, blobs),
        }
    }
    page.push_str("</section>\n");
}

fn write_result(page: &mut String, result: &ToolResult, tool: Option<&str>, blobs: &Blobs) {
    let (class, word) = if result.is_error { ("result error", "Error") } else { ("result", "Result") };
    let tool = escape(tool.unwrap_or_default());
    let _ =
        writeln!(page, "<section class=\"{class}\"><details><summary>{word} <code>{tool}</code></summary>");
    for part in &result.parts {
        match part {
            Part::Media(media) => write_media(page, media, blobs),
            part => {
                let _ = writeln!(page, "<pre>{}</pre>", escape(part.as_text().unwrap_or_default()));
            }
        }
    }
    page.push_str("</details></section>\n");
}

/// Embed images whose types cannot contain active content. Describe all other media in text.
fn write_media(page: &mut String, media: &BlobRef, blobs: &Blobs) {
    let safe = ["image/png", "image/jpeg", "image/gif", "image/webp"].contains(&media.mime.as_str());
    let _ = match blobs.get(&media.blob).filter(|_| safe) {
        Some(bytes) => {
            let alt = escape(media.name.as_deref().unwrap_or("image"));
            writeln!(page, "<img alt=\"{alt}\" src=\"data:{};base64,{}\">", media.mime, encode_base64(bytes))
        }
        None => writeln!(page, "<p>{}</p>", escape(&describe_media(media))),
    };
}

fn render_markdown(page: &mut String, text: &str) {
    let parser = Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH);
    html::push_html(page, parser.map(make_safe));
}

/// Convert HTML to text, restrict links to web pages and mail, and replace images with their address.
fn make_safe(event: Event<'_>) -> Event<'_> {
    match event {
        Event::Html(raw) | Event::InlineHtml(raw) => Event::Text(raw),
        Event::Start(Tag::Link { link_type, dest_url, .. }) => {
            // An email autolink has no scheme; the HTML writer adds `mailto:`.
            let dest_url = if link_type == LinkType::Email { dest_url } else { safe_link(dest_url) };
            let title = CowStr::Borrowed("");
            Event::Start(Tag::Link { link_type, dest_url, title, id: CowStr::Borrowed("") })
        }
        Event::Start(Tag::Image { dest_url, .. }) => {
            Event::Text(CowStr::from(format!("[image: {dest_url}] ")))
        }
        Event::End(TagEnd::Image) => Event::Text(CowStr::Borrowed("")),
        Event::Start(Tag::HtmlBlock) => Event::Start(Tag::Paragraph),
        Event::End(TagEnd::HtmlBlock) => Event::End(TagEnd::Paragraph),
        other => other,
    }
}

fn safe_link(link: CowStr<'_>) -> CowStr<'_> {
    let lower = link.trim_start().to_ascii_lowercase();
    let known = ["http://", "https://", "mailto:"].iter().any(|scheme| lower.starts_with(scheme));
    if known { link } else { CowStr::Borrowed("#") }
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for ch in text.chars() {
        match ch {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\0' => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}
