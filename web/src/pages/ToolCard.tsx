// A tool call: one line when collapsed, input and output when expanded. Edits are shown as diffs.
import { useState } from "react";
import { type FeedItem, fill, type Schemas } from "../api/client";
import { cleanLine } from "../text/clean";
import { diffTexts } from "../text/diff";
import { Code, Diff, Plain } from "../text/Text";
import { Name } from "../ui/base";
import { bytes, duration } from "../ui/format";
import { Icon } from "../ui/icons";
import { Media } from "./FeedItem";

interface Props {
  item: FeedItem;
  tool: Schemas["FeedTool"];
  session: string;
}

export function ToolCard({ item, tool, session }: Props) {
  const [isOpen, setOpen] = useState(false);
  return (
    <details className={`tool-card ${tool.status}`} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        {tool.status === "running" ? (
          <span className="spinner" aria-hidden="true" />
        ) : (
          <Icon name={tool.status === "done" ? "check" : "close"} />
        )}
        <span className="tool-name">
          <Name>{tool.name}</Name>
        </span>
        <span className="folded-first">{summarizeInput(tool.input)}</span>
        <span className="quiet">
          {tool.status}
          {typeof tool.duration_ms === "number" && ` · ${duration(tool.duration_ms)}`}
        </span>
      </summary>
      {isOpen && <ToolDetails item={item} tool={tool} session={session} />}
    </details>
  );
}

function ToolDetails({ item, tool, session }: Props) {
  const isRunning = tool.status === "running";
  return (
    <div className="tool-inside">
      <h4>input</h4>
      <ToolInput input={tool.input} />
      {!isRunning && <h4>{tool.status === "done" ? "output" : tool.status}</h4>}
      {!isRunning && item.text && <Plain text={item.text} />}
      {item.parts?.map(
        (part, index) => part.type === "media" && <Media key={index} media={part} session={session} />,
      )}
      {tool.full && (
        <p>
          <a
            href={fill("/v1/sessions/{session}/blobs/{blob}", { session, blob: tool.full.blob })}
            target="_blank"
            rel="noopener noreferrer"
          >
            Full output, {bytes(tool.full.bytes)}
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
  return (
    <Code
      code={input === null || input === undefined ? "" : JSON.stringify(input, null, 2)}
      language="json"
    />
  );
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
