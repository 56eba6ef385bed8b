// Tests of the event parser, the live state, and the layouts of trees and flows.
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Event, TreeNode } from "../../src/api/client";
import { EventParser } from "../../src/api/stream";
import { layoutGraph } from "../../src/log/graph";
import { commonAncestor, layoutTree } from "../../src/log/layout";
import { applyFragment, dropReplaced, EMPTY_LIVE } from "../../src/log/live";

test("parsed events do not depend on chunk boundaries", () => {
  const stream =
    ': sapwood\nretry: 1000\n\nid: 7\nevent: session:message\ndata: {"a":1}\n\nevent: agent:token\ndata: {"text":"x"}\n\n';
  const whole = new EventParser().push(stream);
  assert.deepEqual(
    whole.map((event) => [event.name, event.id]),
    [
      ["session:message", 7],
      ["agent:token", null],
    ],
  );
  for (let cut = 0; cut <= stream.length; cut++) {
    const parser = new EventParser();
    assert.deepEqual([...parser.push(stream.slice(0, cut)), ...parser.push(stream.slice(cut))], whole);
  }
});

test("fragments are dropped when their entry arrives", () => {
  const token = (text: string) => ({ type: "agent:token", text }) as Event;
  let live = applyFragment(EMPTY_LIVE, token("Hel"));
  live = applyFragment(live, token("lo"));
  assert.equal(live.text, "Hello");
  assert.equal(dropReplaced(live, "assistant_message").text, "");
  assert.equal(dropReplaced(live, "label").text, "Hello");
});

function node(seqOf: number, parent: number | null, more: Partial<TreeNode> = {}): TreeNode {
  return {
    seq: seqOf,
    id: `id${seqOf}`,
    parent,
    kind: "user_message",
    at: 0,
    text: "",
    children: [],
    on_path: false,
    ...more,
  };
}

/** Build a tree from parent links and fill in the children. */
function buildTree(parents: (number | null)[], leaf: number): TreeNode[] {
  const nodes = parents.map((parent, index) => node(index + 1, parent));
  for (const each of nodes) if (each.parent) nodes[each.parent - 1]?.children.push(each.seq);
  for (let at: number | null | undefined = leaf; at; at = nodes[at - 1]?.parent) {
    const on = nodes[at - 1];
    if (on) on.on_path = true;
  }
  return nodes;
}

test("each node has its own row and the active path keeps its lane", () => {
  const nodes = buildTree([null, 1, 2, 1, 4, 4], 3);
  const layout = layoutTree(nodes, 3, "none", new Set());
  const rows = layout.nodes.map((placed) => placed.row);
  assert.deepEqual(rows, [0, 1, 2, 3, 4, 5]);
  for (const seqOf of [1, 2, 3]) assert.equal(layout.bySeq.get(seqOf)?.lane, 0);
  assert.ok(layout.nodes.every((placed) => !placed.parent || placed.parent.row < placed.row));
});

test("runs collapse into one node and landmarks stay", () => {
  const parents = Array.from({ length: 100 }, (_, index) => (index === 0 ? null : index));
  const nodes = buildTree([...parents, 50], 100);
  const layout = layoutTree(nodes, 100, "runs", new Set([20]));
  assert.ok(layout.nodes.length < 12, String(layout.nodes.length));
  for (const kept of [1, 20, 50, 100, 101]) assert.equal(layout.bySeq.get(kept)?.node.seq, kept);
  assert.equal(
    layout.nodes.reduce((sum, placed) => sum + placed.count, 0),
    101,
  );
});

test("a hundred thousand entries in a row are laid out without running out of stack", () => {
  const parents = Array.from({ length: 100_000 }, (_, index) => (index === 0 ? null : index));
  assert.equal(layoutTree(buildTree(parents, 100_000), 100_000, "none", new Set()).rows, 100_000);
});

test("commonAncestor finds the last shared entry of two branches", () => {
  const bySeq = new Map(buildTree([null, 1, 2, 2, 4], 3).map((each) => [each.seq, each]));
  assert.equal(commonAncestor(3, 5, bySeq), 2);
  assert.equal(commonAncestor(5, 4, bySeq), 4);
});

test("flow nodes are placed after their predecessors, and backward edges move nothing", () => {
  const edges = [
    { from: "in", to: "draft", type: "forward" },
    { from: "in", to: "side", type: "forward" },
    { from: "draft", to: "review", type: "forward" },
    { from: "side", to: "review", type: "forward" },
    { from: "review", to: "draft", type: "backward" },
  ];
  const graph = layoutGraph(["in", "draft", "side", "review"], edges);
  const columns = ["in", "draft", "side", "review"].map((id) => graph.positions.get(id)?.column);
  assert.deepEqual(columns, [0, 1, 1, 2]);
  assert.equal(graph.rows, 2);
  const circle = layoutGraph(
    ["a", "b"],
    [
      { from: "a", to: "b", type: "forward" },
      { from: "b", to: "a", type: "forward" },
    ],
  );
  assert.ok(circle.columns <= 3, "a cycle terminates");
});
