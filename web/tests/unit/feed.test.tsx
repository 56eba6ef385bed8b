// The console renders the server's feed of a session with every kind of entry. A test of the server keeps the fixture up
// to date: crates/server/tests/all/feed.rs.
import assert from "node:assert/strict";
import { test } from "node:test";
import { renderToStaticMarkup } from "react-dom/server.edge";
import type { Feed, FeedItem } from "../../src/api/client";
import { mergeItems, styleOf } from "../../src/log/items";
import { FeedItem as FeedItemView } from "../../src/pages/FeedItem";
import fixture from "../fixtures/feed.json";

const feed = fixture as unknown as Feed;

/** The text of an item as a user reads it, without the time and the link to its entry. */
function textOf(item: FeedItem): string {
  const html = renderToStaticMarkup(<FeedItemView item={item} session="stones" isMarked={false} />);
  const text = html.replace(/<a class="seq".*?<\/a>/g, "").replace(/<[^>]*>/g, " ");
  return text.replaceAll("&lt;", "<").replace(/\s+/g, " ").trim();
}

const shown = feed.items.filter((item) => styleOf(item) !== null);

test("every item of the real feed is drawn", () => {
  const lines = shown.map((item) => `${item.id} ${styleOf(item)}: ${textOf(item)}`);
  assert.deepEqual(lines, EXPECTED);
});

test("a context that is nearly full is drawn as a warning", () => {
  const item = feed.items.find((item) => item.type === "pressure") as FeedItem;
  const red = { ...item, text: "red: 95 of 100 tokens, 95 %" };
  assert.equal(styleOf(red), "warning");
  const html = renderToStaticMarkup(<FeedItemView item={red} session="stones" isMarked={false} />);
  assert.match(html, /role="alert"/);
  assert.match(textOf(red), /the context is nearly full .*95 of 100 tokens/);
});

test("items on another branch are known", () => {
  const seqs = new Set(shown.filter((item) => feed.off_path.includes(item.seq)).map((item) => item.seq));
  assert.deepEqual([...seqs], [10, 18]);
});

test("an item with a known id replaces the earlier one, and the others stay the same objects", () => {
  const [first, second] = feed.items as [FeedItem, FeedItem];
  const changed = { ...first, text: "changed" };
  const merged = mergeItems([first, second], [changed]);
  assert.deepEqual(merged, [changed, second]);
  assert.equal(merged[1], second);
});

test("an answer that was given up and a question say why", () => {
  const base = feed.items.find((item) => item.approval) as FeedItem;
  const why = "the model rated its answer 0.20, below 0.30";
  const { approval, ...plain } = base;
  assert(approval);
  const givenUp: FeedItem = { ...plain, kind: "round", type: "event", label: "answer given up", text: why };
  assert.equal(styleOf(givenUp), "event");
  assert.equal(textOf(givenUp), `answer given up ${why}`);
  const asked: FeedItem = { ...base, approval: { ...approval, state: "open", why } };
  assert.match(textOf(asked), /Asked because the model rated its answer 0\.20, below 0\.30\./);
});

const EXPECTED = [
  "1 event: renamed Stones",
  "2 event: context /work/stones",
  "3 event: model demo",
  "4 event: thinking high",
  "5 event: skills tea",
  "6 event: shared as reader user:rex",
  "8 user: ana Which stones are in this picture? stones.txt 14 B",
  "10.0 reasoning: reasoning The file lists the stones.",
  "10 answer: demo 184 → 30 · <$0.0001 I read the list first.",
  "10.2 tool: read_file stones.txt done · 12 ms",
  "10.3 tool: run_command ls quarry failed",
  "10.4 media: sketch.txt 14 B",
  "12 approval: Approval requested denied May I run ls quarry ? Not there.",
  "16 queued: steering delivered Be brief.",
  "18 answer: demo 160 → 5 · <$0.0001 Granite and slate.",
  "20 event: artifact answer.txt (14 bytes)",
  "21 event: labelled the question",
  "22 event: moved to another branch",
  "23 note: branch summary The stones are granite and slate.",
  "24 event: grafted from quarry",
  "25 note: hook The quarry is closed.",
  "26 note: weather It rains.",
  "27 compaction: compacted 900 → 200 tokens · llm, pressure",
  "28 compaction: trimmed trim, manual",
  "30 event: pressure orange: 80 of 100 tokens, 80 %",
  "31 event: improvement the roles review the run",
  "34 queued: queued pending And the sand?",
  "35 event: cancel requested",
  "36 event: turn cancelled",
  "38 approval: The agent asks not answered Which quarry?",
  "39 error: turn stopped at a limit turn_limit: the turn reached its limit of 20 model calls",
  "40 event: exported jsonl",
  "41 event: closed done",
  "42 event: archived",
  "43 event: active",
  "45 approval: Approval requested May I write map.txt ? Approve Deny",
  "46 event: session started /work/stones",
  "47 event: context changed working directory: /work/stones active file: map.md selection: map.md:3-9 git ref: main region = south",
  "48 event: limits changed at most 100 turns, 50000 tokens in the context, 1.5 USD",
  "51 event: hook guard (before_send) refused: not today",
  "52 event: trigger firing 3 was skipped: the previous one still runs",
];
