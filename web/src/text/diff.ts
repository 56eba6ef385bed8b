// Diffs: parses unified diffs, and compares two texts.
export interface DiffLine {
  kind: "same" | "add" | "del" | "hunk" | "head";
  text: string;
}

/** Whether a text looks like a unified diff. Only its beginning is checked. */
export function isDiff(text: string): boolean {
  return /^(diff --git |--- [^\n]+\n\+\+\+ |@@ -\d+)/m.test(text.slice(0, 4_000));
}

export function parseDiff(text: string): DiffLine[] {
  return text.split("\n").map((line) => {
    if (/^(diff --git|index |--- |\+\+\+ |new file|deleted file|similarity|rename )/.test(line))
      return { kind: "head", text: line };
    if (line.startsWith("@@")) return { kind: "hunk", text: line };
    if (line.startsWith("+")) return { kind: "add", text: line.slice(1) };
    if (line.startsWith("-")) return { kind: "del", text: line.slice(1) };
    return { kind: "same", text: line.replace(/^ /, "") };
  });
}

/** Maximum lines to compare. Longer texts are shown as fully removed and fully added. */
const LINES_MAX = 800;

export function diffTexts(before: string, after: string): DiffLine[] {
  const a = before.split("\n");
  const b = after.split("\n");
  if (a.length > LINES_MAX || b.length > LINES_MAX) {
    return [
      ...a.map((text) => ({ kind: "del" as const, text })),
      ...b.map((text) => ({ kind: "add" as const, text })),
    ];
  }
  // Compute the longest common subsequence, from the end.
  const width = b.length + 1;
  const table = new Uint32Array((a.length + 1) * width);
  const at = (i: number, j: number) => table[i * width + j] ?? 0;
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      table[i * width + j] = a[i] === b[j] ? at(i + 1, j + 1) + 1 : Math.max(at(i + 1, j), at(i, j + 1));
    }
  }
  const lines: DiffLine[] = [];
  let i = 0;
  let j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      lines.push({ kind: "same", text: a[i] ?? "" });
      i++;
      j++;
    } else if (i < a.length && (j >= b.length || at(i + 1, j) >= at(i, j + 1))) {
      lines.push({ kind: "del", text: a[i++] ?? "" });
    } else {
      lines.push({ kind: "add", text: b[j++] ?? "" });
    }
  }
  return lines;
}
