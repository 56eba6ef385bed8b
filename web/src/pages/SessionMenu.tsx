// What can be done with a session as a whole.
import { useQuery } from "@tanstack/react-query";
import { type ReactNode, useState } from "react";
import { ask, fill, get, type Session, send } from "../api/client";
import { client, outdate, outdateSessions, useMe } from "../api/queries";
import { Button, Menu, Name } from "../ui/base";
import { Doing, text } from "../ui/Doing";
import { plural } from "../ui/format";
import { go } from "../ui/route";
import { tell, tellError } from "../ui/toast";

type Asked = "none" | "rename" | "fork" | "compact" | "trim" | "reset" | "export" | "erase" | "settings";

export function SessionMenu({ session }: { session: Session }) {
  const [asked, setAsked] = useState<Asked>("none");
  const me = useMe();
  const isOwner = me.data?.operator || me.data?.principal === session.owner;
  const mayWrite = me.data?.may_write !== false;
  const close = () => setAsked("none");
  const change = async (body: { state: string }) => {
    try {
      await send("patch", "/v1/sessions/{session}", { session: session.id }, body);
      outdate(session.id);
    } catch (error) {
      tellError(error);
    }
  };
  const dialogs: Record<Asked, ReactNode> = {
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
      <Menu label="What to do with this session" icon="more">
        {mayWrite && (
          <>
            <Button tone="ghost" icon="tag" onClick={() => setAsked("rename")}>
              Rename…
            </Button>
            <Button tone="ghost" icon="gear" onClick={() => setAsked("settings")}>
              Model, thinking, skills…
            </Button>
            <Button tone="ghost" icon="fork" onClick={() => setAsked("fork")}>
              Fork…
            </Button>
            <Button tone="ghost" icon="scissors" onClick={() => setAsked("compact")}>
              Compact…
            </Button>
            <Button tone="ghost" icon="scissors" onClick={() => setAsked("trim")}>
              Trim…
            </Button>
            <Button tone="ghost" icon="redo" onClick={() => setAsked("reset")}>
              Start over…
            </Button>
          </>
        )}
        {isOwner && mayWrite && (
          <Button tone="ghost" icon="memory" onClick={() => void learn(session.id)}>
            Learn from it
          </Button>
        )}
        <Button tone="ghost" icon="download" onClick={() => setAsked("export")}>
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
          <Button tone="danger" icon="close" onClick={() => setAsked("erase")}>
            Erase…
          </Button>
        )}
      </Menu>
      {dialogs[asked]}
    </>
  );
}

/** Takes from the session what is worth remembering. */
async function learn(session: string): Promise<void> {
  try {
    const learned = await send("post", "/v1/sessions/{session}/memory", { session });
    tell(
      `${plural(learned.kept.length, "memory", "memories")} kept, from ${plural(learned.entries, "entry", "entries")}`,
    );
    void client.invalidateQueries({ queryKey: ["memory"] });
  } catch (error) {
    tellError(error);
  }
}

interface DialogProps {
  session: Session;
  onClose: () => void;
}

function Rename({ session, onClose }: DialogProps) {
  const act = async (form: FormData) => {
    await send("patch", "/v1/sessions/{session}", { session: session.id }, { title: text(form, "title") });
    outdate(session.id);
  };
  return (
    <Doing title="Rename" verb="Rename" act={act} onClose={onClose}>
      <label>
        Title
        <input name="title" required defaultValue={session.title ?? session.preview ?? ""} />
      </label>
    </Doing>
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
    outdate(session.id);
  };
  return (
    <Doing title="Model, thinking, skills" verb="Change" act={act} onClose={onClose}>
      <p className="quiet">
        From the next message on. It is an entry of the log: branching before it undoes it.
      </p>
      <label>
        Model
        <input name="model" defaultValue={session.model ?? ""} placeholder="PROVIDER/NAME" />
      </label>
      <label>
        Thinking
        <select name="thinking" defaultValue="">
          <option value="">as it is</option>
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
    </Doing>
  );
}

function Fork({ session, onClose }: DialogProps) {
  const act = async (form: FormData) => {
    const title = text(form, "title") || null;
    const made = await send("post", "/v1/sessions/{session}/fork", { session: session.id }, { title });
    outdateSessions();
    go(["s", made.id]);
  };
  return (
    <Doing title="Fork" verb="Fork" act={act} onClose={onClose}>
      <p className="quiet">
        A new session that shares everything up to here and goes its own way. It costs one row.
      </p>
      <label>
        Title
        <input name="title" placeholder="optional" />
      </label>
    </Doing>
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
    tell(
      done.entry
        ? `${plural(done.archived, "message")} archived: ${done.tokens_before} tokens became ${done.tokens_after}`
        : "There was nothing to compact",
    );
    outdate(session.id);
  };
  return (
    <Doing title="Compact" verb="Compact" act={act} onClose={onClose}>
      <p className="quiet">
        A summary stands in for the older part of the context. The log keeps it, and it can be taken back.
      </p>
      <label>
        Keep the last messages
        <input name="keep_last" type="number" min={1} defaultValue={6} />
      </label>
      <label>
        How
        <select name="strategy" defaultValue="observation_mask">
          <option value="observation_mask">without a model: mask old tool output</option>
          <option value="truncate">without a model: leave the rest out</option>
          <option value="llm">let the session's model write a summary</option>
        </select>
      </label>
      <label>
        What matters
        <input name="instructions" placeholder="optional, for the model" />
      </label>
    </Doing>
  );
}

function Trim({ session, onClose }: DialogProps) {
  const act = async (form: FormData) => {
    const keep_last = Number(form.get("keep_last"));
    const done = await send("post", "/v1/sessions/{session}/trim", { session: session.id }, { keep_last });
    tell(`${plural(done.kept, "message")} in the context now`);
    outdate(session.id);
  };
  return (
    <Doing title="Trim" verb="Trim" act={act} onClose={onClose}>
      <label>
        Leave only the last messages in the context
        <input name="keep_last" type="number" min={0} defaultValue={10} />
      </label>
    </Doing>
  );
}

function Reset({ session, onClose }: DialogProps) {
  const act = async () => {
    await send("post", "/v1/sessions/{session}/reset", { session: session.id });
    outdate(session.id);
  };
  return (
    <Doing title="Start over" verb="Start over" act={act} onClose={onClose}>
      <p>Everything said so far leaves the context. It stays in the tree, and a branch leads back to it.</p>
    </Doing>
  );
}

const FORMATS: [string, string, string][] = [
  ["jsonl", "jsonl", "Sapwood: whole, to import again"],
  ["html", "html", "a page to read, one file"],
  ["markdown", "md", "Markdown"],
  ["messages", "messages.json", "messages as OpenAI takes them"],
  ["messages-anthropic", "messages.json", "messages as Anthropic takes them"],
  ["workflow", "yaml", "a workflow in YAML"],
  ["pi", "jsonl", "a session file of pi"],
  ["operator", "jsonl", "a session file of operator"],
  ["role-files", "transcript.json", "a role's transcript"],
];

function Export({ session, onClose }: DialogProps) {
  const act = async (form: FormData) => {
    const format = text(form, "format");
    const path = fill("/v1/sessions/{session}/export", { session: session.id });
    const headers = { "content-type": "application/json" };
    const answer = await ask(path, { method: "POST", headers, body: JSON.stringify({ format }) });
    const ending = FORMATS.find(([name]) => name === format)?.[1] ?? "txt";
    keepFile(await answer.blob(), `${session.id}.${ending}`);
  };
  return (
    <Doing title="Export" verb="Download" act={act} onClose={onClose}>
      <label>
        As
        <select name="format">
          {FORMATS.map(([name, , what]) => (
            <option key={name} value={name}>
              {what}
            </option>
          ))}
        </select>
      </label>
    </Doing>
  );
}

/** How long a browser gets to take the bytes over. */
const TAKE_MS = 30_000;

function keepFile(bytes: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(bytes);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), TAKE_MS);
}

function Erase({ session, onClose }: DialogProps) {
  const act = async (form: FormData) => {
    if (text(form, "sure") !== "erase") throw new Error("write the word erase to go on");
    await send("delete", "/v1/sessions/{session}", { session: session.id });
    outdateSessions();
    go([]);
    tell("The session is gone");
  };
  return (
    <Doing title="Erase" verb="Erase for good" tone="danger" act={act} onClose={onClose}>
      <p>
        Really deletes the session: its entries, its files, its place in the search. Forks keep what they
        share.
      </p>
      <label>
        Write <code>erase</code> to go on
        <input name="sure" required autoComplete="off" />
      </label>
    </Doing>
  );
}
