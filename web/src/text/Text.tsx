// Renders transcript text as plain text, code or a diff. All text is sanitized first and inserted as text, never as
// markup.
import { type ReactNode, useState } from "react";
import { Button } from "../ui/base";
import { notify } from "../ui/toast";
import { clean, cutText, foldLines, TEXT_CHARS_MAX } from "./clean";
import { type DiffLine, isDiff, parseDiff } from "./diff";
import { highlight } from "./highlight";

/** Show the beginning of a long text, and the rest on request. */
export function Truncated({
  text,
  most,
  show,
}: {
  text: string;
  most?: number;
  show: (text: string) => ReactNode;
}) {
  const limit = most ?? TEXT_CHARS_MAX;
  const [pages, setPages] = useState(1);
  const { text: shown, left } = cutText(text, limit * pages);
  return (
    <>
      {show(shown)}
      {left > 0 && (
        <Button tone="ghost" icon="down" onClick={() => setPages(pages * 3)}>
          {`Show more (${left.toLocaleString()} characters left)`}
        </Button>
      )}
    </>
  );
}

/** Preformatted text such as tool output, in a monospace font. */
export function Plain({ text, most }: { text: string; most?: number }) {
  if (isDiff(text)) return <Diff lines={parseDiff(clean(text.slice(0, 200_000)))} />;
  const show = (shown: string) => (
    <pre className="verbatim" tabIndex={0}>
      {foldLines(clean(shown))}
    </pre>
  );
  return <Truncated text={text} most={most ?? 8_000} show={show} />;
}

const HIGHLIGHT_CHARS_MAX = 40_000;

export function Code({ code, language }: { code: string; language?: string }) {
  if (language === "diff" || language === "patch" || isDiff(code))
    return <Diff lines={parseDiff(clean(code))} />;
  const show = (shown: string) => {
    const text = foldLines(clean(shown));
    const isPlain =
      text.length > HIGHLIGHT_CHARS_MAX || !language || language === "text" || language === "txt";
    return (
      <pre className="code" tabIndex={0}>
        <code>
          {isPlain
            ? text
            : highlight(text).map((token, index) =>
                token.kind ? (
                  <span key={index} className={`hl-${token.kind}`}>
                    {token.text}
                  </span>
                ) : (
                  token.text
                ),
              )}
        </code>
      </pre>
    );
  };
  return (
    <div className="code-box">
      <div className={language ? "code-bar" : "code-bar bare"}>
        <span>{language ? clean(language).slice(0, 24) : ""}</span>
        <Button
          icon="copy"
          tone="ghost"
          compact
          onClick={() => void navigator.clipboard.writeText(code).then(() => notify("Copied"))}
        >
          Copy
        </Button>
      </div>
      <Truncated text={code} show={show} />
    </div>
  );
}

const DIFF_LINES_MAX = 600;
const MARKS = { same: " ", add: "+", del: "−", hunk: " ", head: " " };

export function Diff({ lines }: { lines: DiffLine[] }) {
  const [isWhole, setWhole] = useState(false);
  const shown = isWhole ? lines : lines.slice(0, DIFF_LINES_MAX);
  return (
    <>
      <pre className="diff" tabIndex={0}>
        {shown.map((line, index) => (
          <span key={index} className={`diff-${line.kind}`}>
            <span className="diff-mark">{MARKS[line.kind]}</span>
            {line.text.slice(0, 2_000)}
            {"\n"}
          </span>
        ))}
      </pre>
      {!isWhole && lines.length > DIFF_LINES_MAX && (
        <Button tone="ghost" icon="down" onClick={() => setWhole(true)}>
          {`Show all ${lines.length} lines`}
        </Button>
      )}
    </>
  );
}
