// The panel of the selected entry: its context and its actions.
import { type FormEvent, useState } from "react";
import { send, type TreeNode } from "../api/client";
import { invalidateSession, invalidateSessionLists, useContextAt, useMe } from "../api/queries";
import { cleanLine } from "../text/clean";
import { Badge, Button, ErrorNote, Loading, Time } from "../ui/base";
import { count, plural } from "../ui/format";
import { go, to } from "../ui/route";
import { notify, notifyError } from "../ui/toast";
import { MessageCard } from "./MessageCard";

interface Props {
  session: string;
  node: TreeNode;
  isLeaf: boolean;
  forks: string[];
  mark: TreeNode | null;
  compareHref: string | null;
  onMark: () => void;
}

/** Number of context messages shown in the panel. The context view shows all messages. */
const LAST_SHOWN = 4;

export function EntryPanel({ session, node, isLeaf, forks, mark, compareHref, onMark }: Props) {
  const me = useMe();
  const mayWrite = me.data?.may_write !== false;
  return (
    <aside className="entry-panel" aria-label="Selected entry">
      <header>
        <h2>
          {node.seq} · {node.kind.replace("_", " ")}
        </h2>
        <p className="row-facts">
          {isLeaf && <Badge tone="good">leaf</Badge>}
          <Badge>{node.on_path ? "on the active path" : "on another branch"}</Badge>
          <Time at={node.at} />
        </p>
      </header>
      <p className="entry-text">
        <bdi>{cleanLine(node.text, 300)}</bdi>
      </p>
      <div className="entry-actions">
        {mayWrite && !isLeaf && <Branch session={session} node={node} />}
        {mayWrite && (
          <Button icon="fork" onClick={() => void fork(session, node)}>
            Fork here
          </Button>
        )}
        <a className="button" href={to(["s", session, "feed"], { at: String(node.seq) })}>
          Show in feed
        </a>
        <a className="button" href={to(["s", session, "context"], { at: String(node.seq) })}>
          Show context
        </a>
        {mark === node ? (
          <Badge tone="warn">marked: select another entry</Badge>
        ) : (
          <Button icon="compare" onClick={onMark}>
            Compare from here
          </Button>
        )}
        {compareHref && mark && (
          <a className="button main" href={compareHref}>
            Compare with {mark.seq}
          </a>
        )}
      </div>
      {mayWrite && <Label key={node.seq} session={session} node={node} />}
      {forks.length > 0 && (
        <p>
          Forked here:{" "}
          {forks.map((fork) => (
            <a key={fork} href={to(["s", fork])}>
              {fork.slice(0, 18)}{" "}
            </a>
          ))}
        </p>
      )}
      <ContextHere session={session} node={node} />
    </aside>
  );
}

function Branch({ session, node }: { session: string; node: TreeNode }) {
  const act = async () => {
    try {
      await send("post", "/v1/sessions/{session}/branch", { session }, { entry: node.seq });
      invalidateSession(session);
      notify(`The next message continues from entry ${node.seq}`);
    } catch (error) {
      notifyError(error);
    }
  };
  return (
    <Button icon="branch" tone="main" onClick={() => void act()}>
      Branch here
    </Button>
  );
}

async function fork(session: string, node: TreeNode): Promise<void> {
  try {
    const made = await send("post", "/v1/sessions/{session}/fork", { session }, { at: node.seq });
    invalidateSessionLists();
    invalidateSession(session, "ancestry");
    go(["s", made.id]);
  } catch (error) {
    notifyError(error);
  }
}

function Label({ session, node }: { session: string; node: TreeNode }) {
  const [text, setText] = useState(node.label ?? "");
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    try {
      await send(
        "post",
        "/v1/sessions/{session}/label",
        { session },
        { entry: node.seq, text: text.trim() || null },
      );
      invalidateSession(session, "tree");
    } catch (error) {
      notifyError(error);
    }
  };
  return (
    <form className="inline-form" onSubmit={(event) => void submit(event)}>
      <input
        aria-label="Label"
        placeholder="label for this entry"
        value={text}
        onChange={(event) => setText(event.target.value)}
      />
      <Button type="submit" icon="tag" disabled={text.trim() === (node.label ?? "")}>
        {text.trim() === "" && node.label ? "Remove label" : "Label"}
      </Button>
    </form>
  );
}

function ContextHere({ session, node }: { session: string; node: TreeNode }) {
  const context = useContextAt(session, String(node.seq));
  if (context.isPending) return <Loading what="Building the context" />;
  if (context.error) return <ErrorNote error={context.error} />;
  const { messages, tokens } = context.data;
  return (
    <section>
      <h3>
        Context at this entry{" "}
        <span className="quiet">
          {plural(messages.length, "message")}, {count(tokens)} tokens
        </span>
      </h3>
      {messages.length > LAST_SHOWN && <p className="quiet">… {messages.length - LAST_SHOWN} earlier</p>}
      {messages.slice(-LAST_SHOWN).map((message, index) => (
        <MessageCard key={index} message={message} session={session} />
      ))}
    </section>
  );
}
