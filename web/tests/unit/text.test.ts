// Untrusted text is displayed safely.
import assert from "node:assert/strict";
import { test } from "node:test";
import { clean, cleanLine, cutText, foldLines, safeLink } from "../../src/text/clean";
import { diffTexts, isDiff, parseDiff } from "../../src/text/diff";
import { highlight } from "../../src/text/highlight";

test("terminal escapes are removed and other control characters are made visible", () => {
  assert.equal(clean("\u001b[31mred\u001b[0m \u001b]0;title\u0007end"), "red end");
  assert.equal(clean("a\u0000b\u0008c"), "a␀b␈c");
  assert.equal(clean("tab\tand\r\nline\rback"), "tab\tand\nline\nback");
});

test("characters that change the writing direction are shown by name", () => {
  assert.equal(clean("user\u202etxt.exe"), "user⟦RLO⟧txt.exe");
  assert.equal(clean("\u2066x\u2069"), "⟦LRI⟧x⟦PDI⟧");
  assert.equal(clean("zero\u200bwidth"), "zero·width");
});

test("cleanLine returns one short line", () => {
  assert.equal(cleanLine("a\n\n  b\u001b[1mc"), "a bc");
  assert.equal(cleanLine("x".repeat(1_000), 10), `${"x".repeat(10)}…`);
});

test("truncation does not split a surrogate pair", () => {
  const cut = cutText("ab😀cd", 3);
  assert.deepEqual(cut, { text: "ab", left: 4 });
  assert.equal(foldLines("x".repeat(9_000)).split("\n").length, 3);
});

test("only web links are allowed", () => {
  assert.equal(safeLink("https://a.example/x"), "https://a.example/x");
  for (const bad of [
    "javascript:alert(1)",
    "data:text/html,x",
    "file:///etc/passwd",
    "//evil",
    "vbscript:x",
    " java\nscript:x",
  ]) {
    assert.equal(safeLink(bad), null, bad);
  }
});

test("highlighting does not change the text", () => {
  const code = 'fn main() { let x = 12; // "note"\n  print("a\\"b"); } /* end */ # x';
  const tokens = highlight(code);
  assert.equal(tokens.map((token) => token.text).join(""), code);
  assert.ok(tokens.some((token) => token.kind === "comment" && token.text.startsWith("//")));
});

test("a diff contains both texts", () => {
  const [before, after] = ["a\nb\nc\nd", "a\nx\nc\nd\ne"];
  const lines = diffTexts(before, after);
  const side = (without: string) => lines.filter((line) => line.kind !== without).map((line) => line.text);
  assert.deepEqual(side("add"), before.split("\n"));
  assert.deepEqual(side("del"), after.split("\n"));
});

test("a unified diff is recognised", () => {
  const text = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+new\n same";
  assert.ok(isDiff(text));
  assert.ok(!isDiff("- a list\n- of things"));
  assert.deepEqual(
    parseDiff(text).map((line) => line.kind),
    ["head", "head", "hunk", "del", "add", "same"],
  );
});
