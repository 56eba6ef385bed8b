// A tool call: one line when collapsed, input and output when expanded. Edits are shown as diffs.
import { useState } from "react";
import { fill } from "../api/client";
import { textOf } from "../log/bodies";
import type { ToolItem } from "../log/feed";
import { cleanLine } from "../text/clean";
import { diffTexts } from "../text/diff";
import { Code, Diff, Plain } from "../text/Text";
import { Name } from "../ui/base";
import { bytes, duration } from "../ui/format";
import { Icon } from "../ui/icons";
import { Media } from "./FeedItem";

const OUTCOMES: Record<ToolItem["outcome"], string> = {
  running: "running",
  done: "done",
  failed: "failed",
  interrupted: "interrupted",
};

export function ToolCard({ item, session }: { item: ToolItem; session: string }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <details className={`tool-card ${item.outcome}`} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        {item.outcome === "running" ? (
          <span className="spinner" aria-hidden="true" />
        ) : (
          <Icon name={item.outcome === "done" ? "check" : "close"} />
        )}
        <span className="tool-name">
          <Name>{item.name}</Name>
        </span>
        <span className="folded-first">{summarizeInput(item.input)}</span>
        <span className="quiet">
          {OUTCOMES[item.outcome]}
          {item.durationMs !== null && ` · ${duration(item.durationMs)}`}
        </span>
      </summary>
      {isOpen && <ToolDetails item={item} session={session} />}
    </details>
  );
}

function ToolDetails({ item, session }: { item: ToolItem; session: string }) {
  const text = textOf(item.result);
  return (
    <div className="tool-inside">
      <h4>input</h4>
      <ToolInput input={item.input} />
      {item.outcome !== "running" && <h4>{item.outcome === "done" ? "output" : OUTCOMES[item.outcome]}</h4>}
      {text && <Plain text={text} />}
      {item.result.map(
        (part, index) => part.type === "media" && <Media key={index} media={part} session={session} />,
      )}
      {item.full && (
        <p>
          <a
            href={fill("/v1/sessions/{session}/blobs/{blob}", { session, blob: item.full.blob })}
            target="_blank"
            rel="noopener noreferrer"
          >
            Full output, {bytes(item.full.bytes)}
          </a>
        </p>
      )}
    </div>
  );
}

interface Edit {
  path?: unknown;
  old_text?: unknown;
  new_text?: unknown;
  content?: unknown;
}

function ToolInput({ input }: { input: unknown }) {
  const edit = (typeof input === "object" && input !== null ? input : {}) as Edit;
  if (typeof edit.old_text === "string" && typeof edit.new_text === "string") {
    return (
      <>
        <p className="file-name">{cleanLine(String(edit.path ?? ""))}</p>
        <Diff lines={diffTexts(edit.old_text, edit.new_text)} />
      </>
    );
  }
  if (typeof edit.path === "string" && typeof edit.content === "string") {
    return (
      <>
        <p className="file-name">{cleanLine(edit.path)}</p>
        <Code code={edit.content} />
      </>
    );
  }
  return <Code code={input === null ? "" : JSON.stringify(input, null, 2)} language="json" />;
}

/** The most descriptive field of the input. */
export function summarizeInput(input: unknown): string {
  if (typeof input !== "object" || input === null) return "";
  const fields = input as Record<string, unknown>;
  const preferred = ["path", "command", "pattern", "question", "url", "message", "name"].map(
    (name) => fields[name],
  );
  const first = [...preferred, ...Object.values(fields)].find(
    (value) => typeof value === "string" || Array.isArray(value) || typeof value === "number",
  );
  return cleanLine(Array.isArray(first) ? first.join(" ") : String(first ?? ""), 120);
}
