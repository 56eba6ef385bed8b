// The menu of session actions.
import { useQuery } from "@tanstack/react-query";
import { type ReactNode, useState } from "react";
import { fill, get, request, type Session, send } from "../api/client";
import { client, invalidateSession, invalidateSessionLists, useMe } from "../api/queries";
import { Button, Menu, Name } from "../ui/base";
import { ActionDialog, text } from "../ui/Doing";
import { plural } from "../ui/format";
import { go } from "../ui/route";
import { notify, notifyError } from "../ui/toast";

type OpenDialog = "none" | "rename" | "fork" | "compact" | "trim" | "reset" | "export" | "erase" | "settings";

export function SessionMenu({ session }: { session: Session }) {
  const [dialog, setDialog] = useState<OpenDialog>("none");
  const me = useMe();
  const isOwner = me.data?.operator || me.data?.principal === session.owner;
  const mayWrite = me.data?.may_write !== false;
  const close = () => setDialog("none");
  const change = async (body: { state: string }) => {
    try {
      await send("patch", "/v1/sessions/{session}", { session: session.id }, body);
      invalidateSession(session.id);
    } catch (error) {
      notifyError(error);
    }
  };
  const dialogs: Record<OpenDialog, ReactNode> = {
    none: null,
    rename: <Rename session={session} onClose={close} />,
    settings: <Settings session={session} onClose={close} />,
    fork: <Fork session={session} onClose={close} />,
    compact: <Compact session={session} onClose={close} />,
    trim: <Trim session={session} onClose={close} />,
    reset: <Reset session={session} onClose={close} />,
    export: <Export session={session} onClose={close} />,
    erase: <Erase session={session} onClose={close} />,
  };
  return (
    <>
      <Menu label="Session actions" icon="more">
        {mayWrite && (
          <>
            <Button tone="ghost" icon="tag" onClick={() => setDialog("rename")}>
              Rename…
            </Button>
            <Button tone="ghost" icon="gear" onClick={() => setDialog("settings")}>
              Model, thinking, skills…
            </Button>
            <Button tone="ghost" icon="fork" onClick={() => setDialog("fork")}>
              Fork…
            </Button>
            <Button tone="ghost" icon="scissors" onClick={() => setDialog("compact")}>
              Compact…
            </Button>
            <Button tone="ghost" icon="scissors" onClick={() => setDialog("trim")}>
              Trim…
            </Button>
            <Button tone="ghost" icon="redo" onClick={() => setDialog("reset")}>
              Start over…
            </Button>
          </>
        )}
        {isOwner && mayWrite && (
          <Button tone="ghost" icon="memory" onClick={() => void learn(session.id)}>
            Extract memories
          </Button>
        )}
        <Button tone="ghost" icon="download" onClick={() => setDialog("export")}>
          Export…
        </Button>
        {mayWrite && session.state !== "archived" && session.state !== "closed" && (
          <Button tone="ghost" icon="pause" onClick={() => void change({ state: "closed" })}>
            Close
          </Button>
        )}
        {isOwner && session.state !== "archived" && (
          <Button tone="ghost" icon="box" onClick={() => void change({ state: "archived" })}>
            Archive
          </Button>
        )}
        {isOwner && (session.state === "archived" || session.state === "closed") && (
          <Button tone="ghost" icon="play" onClick={() => void change({ state: "active" })}>
            Reopen
          </Button>
        )}
        {isOwner && mayWrite && (
          <Button tone="danger" icon="close" onClick={() => setDialog("erase")}>
            Erase…
          </Button>
        )}
      </Menu>
      {dialogs[dialog]}
    </>
  );
}

/** Extract memories from the session. */
async function learn(session: string): Promise<void> {
  try {
    const learned = await send("post", "/v1/sessions/{session}/memory", { session });
    notify(
      `${plural(learned.kept.length, "memory", "memories")} stored from ${plural(learned.entries, "entry", "entries")}`,
    );
    void client.invalidateQueries({ queryKey: ["memory"] });
  } catch (error) {
    notifyError(error);
  }
}

interface DialogProps {
  session: Session;
  onClose: () => void;
}

function Rename({ session, onClose }: DialogProps) {
  const act = async (form: FormData) => {
    await send("patch", "/v1/sessions/{session}", { session: session.id }, { title: text(form, "title") });
    invalidateSession(session.id);
  };
  return (
    <ActionDialog title="Rename" verb="Rename" act={act} onClose={onClose}>
      <label>
        Title
        <input name="title" required defaultValue={session.title ?? session.preview ?? ""} />
      </label>
    </ActionDialog>
  );
}

function Settings({ session, onClose }: DialogProps) {
  const known = useQuery({ queryKey: ["skills"], queryFn: () => get("/v1/skills"), staleTime: 60_000 });
  const own = useQuery({
    queryKey: ["session", session.id, "skills"],
    queryFn: () => get("/v1/sessions/{session}/skills", { session: session.id }),
  });
  const active = own.data?.active ?? [];
  const act = async (form: FormData) => {
    const model = text(form, "model");
    const thinking = text(form, "thinking");
    const changed = { model: model && model !== session.model ? model : null, thinking: thinking || null };
    if (changed.model || changed.thinking) {
      await send("patch", "/v1/sessions/{session}", { session: session.id }, changed);
    }
    const wanted = form.getAll("skill").map(String);
    if (own.data && [...wanted].sort().join() !== [...active].sort().join()) {
      await send("put", "/v1/sessions/{session}/skills", { session: session.id }, { active: wanted });
    }
    invalidateSession(session.id);
  };
  return (
    <ActionDialog title="Model, thinking, skills" verb="Change" act={act} onClose={onClose}>
      <p className="quiet">
        Applies from the next message on. Each change is a log entry: branch from before it to undo it.
      </p>
      <label>
        Model
        <input name="model" defaultValue={session.model ?? ""} placeholder="PROVIDER/NAME" />
      </label>
      <label>
        Thinking
        <select name="thinking" defaultValue="">
          <option value="">unchanged</option>
          {["off", "low", "medium", "high"].map((level) => (
            <option key={level}>{level}</option>
          ))}
        </select>
      </label>
      {own.data && known.data && known.data.items.length > 0 && (
        <fieldset className="skills">
          <legend>Skills</legend>
          {known.data.items.map((skill) => (
            <label key={skill.name} className="check">
              <input
                type="checkbox"
                name="skill"
                value={skill.name}
                defaultChecked={active.includes(skill.name)}
              />
              <Name>{skill.name}</Name>
            </label>
          ))}
        </fieldset>
      )}
    </ActionDialog>
  );
}

function Fork({ session, onClose }: DialogProps) {
  const act = async (form: FormData) => {
    const title = text(form, "title") || null;
    const made = await send("post", "/v1/sessions/{session}/fork", { session: session.id }, { title });
    invalidateSessionLists();
    go(["s", made.id]);
  };
  return (
    <ActionDialog title="Fork" verb="Fork" act={act} onClose={onClose}>
      <p className="quiet">Creates a new session that shares all entries so far without copying them.</p>
      <label>
        Title
        <input name="title" placeholder="optional" />
      </label>
    </ActionDialog>
  );
}

function Compact({ session, onClose }: DialogProps) {
  const act = async (form: FormData) => {
    const done = await send(
      "post",
      "/v1/sessions/{session}/compact",
      { session: session.id },
      {
        keep_last: Number(form.get("keep_last")),
        compact_strategy: text(form, "strategy"),
        ...(text(form, "instructions") ? { instructions: text(form, "instructions") } : {}),
      },
    );
    notify(
      done.entry
        ? `${plural(done.archived, "message")} archived: ${done.tokens_before} → ${done.tokens_after} tokens`
        : "Nothing to compact",
    );
    invalidateSession(session.id);
  };
  return (
    <ActionDialog title="Compact" verb="Compact" act={act} onClose={onClose}>
      <p className="quiet">
        Replaces older messages in the context with a summary. The log keeps the messages, and you can undo
        the compaction.
      </p>
      <label>
        Number of recent messages to keep
        <input name="keep_last" type="number" min={1} defaultValue={6} />
      </label>
      <label>
        Strategy
        <select name="strategy" defaultValue="observation_mask">
          <option value="observation_mask">mask old tool output (no model)</option>
          <option value="truncate">shorten older messages to a line each (no model)</option>
          <option value="llm">summarise with the session's model</option>
        </select>
      </label>
      <label>
        Instructions
        <input name="instructions" placeholder="optional: what the summary should focus on" />
      </label>
    </ActionDialog>
  );
}

function Trim({ session, onClose }: DialogProps) {
  const act = async (form: FormData) => {
    const keep_last = Number(form.get("keep_last"));
    const done = await send("post", "/v1/sessions/{session}/trim", { session: session.id }, { keep_last });
    notify(`${plural(done.kept, "message")} in the context now`);
    invalidateSession(session.id);
  };
  return (
    <ActionDialog title="Trim" verb="Trim" act={act} onClose={onClose}>
      <label>
        Number of recent messages to keep in the context
        <input name="keep_last" type="number" min={0} defaultValue={10} />
      </label>
    </ActionDialog>
  );
}

function Reset({ session, onClose }: DialogProps) {
  const act = async () => {
    await send("post", "/v1/sessions/{session}/reset", { session: session.id });
    invalidateSession(session.id);
  };
  return (
    <ActionDialog title="Start over" verb="Start over" act={act} onClose={onClose}>
      <p>Removes all messages from the context. They stay in the tree, and you can branch back to them.</p>
    </ActionDialog>
  );
}

const FORMATS: [string, string, string][] = [
  ["jsonl", "jsonl", "Sapwood: complete, can be imported"],
  ["html", "html", "HTML page, one file"],
  ["markdown", "md", "Markdown"],
  ["messages", "messages.json", "messages in OpenAI format"],
  ["messages-anthropic", "messages.json", "messages in Anthropic format"],
  ["workflow", "yaml", "workflow (YAML)"],
  ["pi", "jsonl", "pi session file"],
  ["operator", "jsonl", "operator session file"],
  ["role-files", "transcript.json", "role transcript"],
  ["role-feed", "feed.json", "role feed"],
];

function Export({ session, onClose }: DialogProps) {
  const act = async (form: FormData) => {
    const format = text(form, "format");
    const path = fill("/v1/sessions/{session}/export", { session: session.id });
    const headers = { "content-type": "application/json" };
    const response = await request(path, { method: "POST", headers, body: JSON.stringify({ format }) });
    const ending = FORMATS.find(([name]) => name === format)?.[1] ?? "txt";
    saveFile(await response.blob(), `${session.id}.${ending}`);
  };
  return (
    <ActionDialog title="Export" verb="Download" act={act} onClose={onClose}>
      <label>
        Format
        <select name="format">
          {FORMATS.map(([name, , what]) => (
            <option key={name} value={name}>
              {what}
            </option>
          ))}
        </select>
      </label>
    </ActionDialog>
  );
}

/** Time for the browser to start the download before the URL is revoked. */
const REVOKE_DELAY_MS = 30_000;

function saveFile(bytes: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(bytes);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), REVOKE_DELAY_MS);
}

function Erase({ session, onClose }: DialogProps) {
  const act = async (form: FormData) => {
    if (text(form, "sure") !== "erase") throw new Error("type the word erase to confirm");
    await send("delete", "/v1/sessions/{session}", { session: session.id });
    invalidateSessionLists();
    go([]);
    notify("Session erased");
  };
  return (
    <ActionDialog title="Erase" verb="Erase permanently" tone="danger" act={act} onClose={onClose}>
      <p>
        Permanently deletes the session with its entries, its files and the memories that only it supports.
        Forks keep the entries they share.
      </p>
      <label>
        Type <code>erase</code> to confirm
        <input name="sure" required autoComplete="off" />
      </label>
    </ActionDialog>
  );
}
