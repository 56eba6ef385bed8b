// A transcript is untrusted text. It is never used as markup. Deceptive characters are removed or made visible:
// terminal escapes, control characters, and characters that change the writing direction.

// CSI and OSC sequences, and the other two-character escapes.
const ANSI =
  /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[PX^_][^\u001b]*\u001b\\|[@-Z\\-_])|\u009b[0-?]*[ -/]*[@-~]/g;
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g;
const BIDI = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const INVISIBLE = /[\u00ad\u180e\u200b\u2060\ufeff\u{e0000}-\u{e007f}]/gu;

const BIDI_NAMES: Record<string, string> = {
  "\u061c": "ALM",
  "\u200e": "LRM",
  "\u200f": "RLM",
  "\u202a": "LRE",
  "\u202b": "RLE",
  "\u202c": "PDF",
  "\u202d": "LRO",
  "\u202e": "RLO",
  "\u2066": "LRI",
  "\u2067": "RLI",
  "\u2068": "FSI",
  "\u2069": "PDI",
};

/** Sanitize text for display. */
export function clean(text: string): string {
  return text
    .replace(/\r\n/g, "\n")
    .replace(ANSI, "")
    .replace(CONTROL, (found) => {
      const code = found.charCodeAt(0);
      if (code === 0x0d) return "\n";
      return code < 0x20 ? String.fromCharCode(0x2400 + code) : "\u2421";
    })
    .replace(BIDI, (found) => `⟦${BIDI_NAMES[found] ?? "bidi"}⟧`)
    .replace(INVISIBLE, "\u00b7");
}

/** Sanitize text into one line, for lists and labels. */
export function cleanLine(text: string, most = 300): string {
  const line = clean(text.slice(0, most * 4))
    .replace(/\s+/g, " ")
    .trim();
  return line.length > most ? `${line.slice(0, most)}…` : line;
}

/** Limits on a line without breaks, and on the text shown before the user expands it. */
export const LINE_CHARS_MAX = 4_000;
export const TEXT_CHARS_MAX = 30_000;

export interface Cut {
  text: string;
  /** Number of omitted characters. */
  left: number;
}

/** Truncate a text, so that a huge text does not block the page. */
export function cutText(text: string, most = TEXT_CHARS_MAX): Cut {
  if (text.length <= most) return { text, left: 0 };
  // Do not split a surrogate pair.
  const end = /[\ud800-\udbff]/.test(text[most - 1] ?? "") ? most - 1 : most;
  return { text: text.slice(0, end), left: text.length - end };
}

/** Break long lines so that the browser can lay them out. */
export function foldLines(text: string): string {
  if (text.length <= LINE_CHARS_MAX) return text;
  return text
    .split("\n")
    .map((line) => (line.length > LINE_CHARS_MAX ? (line.match(/[\s\S]{1,4000}/g) ?? []).join("\n") : line))
    .join("\n");
}

/** The link target if its scheme is http, https or mailto, else null. */
export function safeLink(href: string): string | null {
  try {
    const url = new URL(href);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}
