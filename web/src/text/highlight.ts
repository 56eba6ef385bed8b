// Minimal syntax highlighting: comments, strings, numbers and common keywords. Uses one regular expression in one pass,
// linear in the length of the text.
export interface HighlightToken {
  kind: "" | "comment" | "string" | "number" | "word";
  text: string;
}

const KEYWORDS = new Set(
  (
    "abstract as async await bool break case catch class const continue crate def default del delete do dyn elif else enum " +
    "except export extends false final finally fn for from func function global go if impl implements import in instanceof " +
    "int interface is lambda let loop match mod mut new nil none not null or package pass private protected pub public " +
    "raise ref return self static struct super switch this throw trait true try type typeof union unsafe use var void " +
    "where while with yield and select insert update create table begin end then fi done echo"
  ).split(" "),
);
const TOKEN =
  /(\/\/[^\n]*|\/\*[\s\S]*?\*\/|(?:^|(?<=\s))#[^\n]*|--[ \t][^\n]*)|("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`)|(\b\d[\w.]*)|(\b[A-Za-z_]\w*)/g;

export function highlight(code: string): HighlightToken[] {
  const tokens: HighlightToken[] = [];
  let end = 0;
  const add = (kind: HighlightToken["kind"], text: string) => {
    const last = tokens.at(-1);
    if (last && last.kind === kind) last.text += text;
    else tokens.push({ kind, text });
  };
  for (const found of code.matchAll(TOKEN)) {
    if (found.index > end) add("", code.slice(end, found.index));
    const [text, comment, string, number, word] = found;
    if (comment !== undefined) add("comment", text);
    else if (string !== undefined) add("string", text);
    else if (number !== undefined) add("number", text);
    else add(word !== undefined && KEYWORDS.has(word) ? "word" : "", text);
    end = found.index + text.length;
  }
  if (end < code.length) add("", code.slice(end));
  return tokens;
}
