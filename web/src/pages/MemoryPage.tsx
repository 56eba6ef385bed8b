// Memories extracted from sessions: search, add, correct, forget.
import { keepPreviousData, useInfiniteQuery } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { get, type Schemas, send } from "../api/client";
import { client } from "../api/queries";
import { cleanLine } from "../text/clean";
import { Badge, Button, Empty, ErrorNote, Loading, Time } from "../ui/base";
import { plural } from "../ui/format";
import { to } from "../ui/route";
import { notify, notifyError } from "../ui/toast";

type Memory = Schemas["Memory"];

const KINDS = ["fact", "preference", "decision", "error_pattern"];

export default function MemoryPage() {
  const [query, setQuery] = useState("");
  const [kind, setKind] = useState("");
  const memories = useInfiniteQuery({
    queryKey: ["memory", query, kind],
    queryFn: ({ pageParam }) =>
      get("/v1/memory", {}, { q: query.trim(), kind, limit: 100, cursor: pageParam }),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next ?? undefined,
    placeholderData: keepPreviousData,
  });
  const items = memories.data?.pages.flatMap((page) => page.items) ?? [];
  return (
    <div className="page">
      <header className="page-head">
        <h1>Memory</h1>
        <input
          type="search"
          className="search"
          aria-label="Search memories"
          placeholder="Search in your own words"
          value={query}
          onChange={(event) => setQuery(event.target.value)}
        />
        <select aria-label="Kind" value={kind} onChange={(event) => setKind(event.target.value)}>
          <option value="">any kind</option>
          {KINDS.map((name) => (
            <option key={name} value={name}>
              {name.replace("_", " ")}
            </option>
          ))}
        </select>
      </header>
      <div className="scroll narrow">
        <AddMemory />
        {memories.isPending && <Loading />}
        {memories.error && <ErrorNote error={memories.error} onRetry={() => void memories.refetch()} />}
        {memories.data && items.length === 0 && (
          <Empty title={query ? "No matching memories" : "No memories yet"}>
            <p>
              When a session is closed, archived or idle, facts, preferences, decisions and error patterns are
              extracted from it, each with its source. A new session receives those that fit its token budget.
              Add a memory above, or close a session.
            </p>
          </Empty>
        )}
        <ul className="memory-list">
          {items.map((memory) => (
            <MemoryRow key={memory.id} memory={memory} />
          ))}
        </ul>
        {memories.hasNextPage && <Button onClick={() => void memories.fetchNextPage()}>Show more</Button>}
      </div>
    </div>
  );
}

function invalidateMemories(): void {
  void client.invalidateQueries({ queryKey: ["memory"] });
}

function AddMemory() {
  const [text, setText] = useState("");
  const [kind, setKind] = useState("fact");
  const [isForAll, setForAll] = useState(false);
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    try {
      const kept = await send("post", "/v1/memory", {}, { text: text.trim(), kind, everybody: isForAll });
      notify(`Memory ${kept.outcome}`);
      setText("");
      invalidateMemories();
    } catch (error) {
      notifyError(error);
    }
  };
  return (
    <form className="inline-form memory-form" onSubmit={(event) => void submit(event)}>
      <input
        aria-label="New memory"
        placeholder="Add a memory"
        required
        value={text}
        onChange={(event) => setText(event.target.value)}
      />
      <select aria-label="Kind of memory" value={kind} onChange={(event) => setKind(event.target.value)}>
        {KINDS.map((name) => (
          <option key={name} value={name}>
            {name.replace("_", " ")}
          </option>
        ))}
      </select>
      <label className="check">
        <input type="checkbox" checked={isForAll} onChange={(event) => setForAll(event.target.checked)} />
        for the whole tenant
      </label>
      <Button type="submit" tone="main" icon="plus">
        Add
      </Button>
    </form>
  );
}

function MemoryRow({ memory }: { memory: Memory }) {
  const [isEdited, setEdited] = useState(false);
  const [text, setText] = useState(memory.text);
  const act = async (work: () => Promise<unknown>) => {
    try {
      await work();
      setEdited(false);
      invalidateMemories();
    } catch (error) {
      notifyError(error);
    }
  };
  const save = () =>
    act(() =>
      send(
        "patch",
        "/v1/memory/{memory}",
        { memory: memory.id },
        { text: text.trim(), expected_version: memory.version },
      ),
    );
  const source = memory.sources[0]?.session;
  return (
    <li>
      {isEdited ? (
        <form
          className="inline-form"
          onSubmit={(event) => {
            event.preventDefault();
            void save();
          }}
        >
          <input aria-label="Text" value={text} onChange={(event) => setText(event.target.value)} />
          <Button type="submit" tone="main">
            Save
          </Button>
          <Button onClick={() => setEdited(false)}>Cancel</Button>
        </form>
      ) : (
        <p>
          <bdi>{cleanLine(memory.text, 2_000)}</bdi>
        </p>
      )}
      <p className="row-facts">
        <Badge>{memory.kind.replace("_", " ")}</Badge>
        {memory.belongs === "tenant" && <Badge tone="good">tenant-wide</Badge>}
        {memory.superseded_by && <Badge tone="warn">superseded</Badge>}
        <span>{plural(memory.strength, "supporting entry", "supporting entries")}</span>
        {source ? (
          <a href={to(["s", source])}>{cleanLine(memory.provenance, 80)}</a>
        ) : (
          <span>{cleanLine(memory.provenance, 80)}</span>
        )}
        <Time at={memory.updated_at} />
        <span className="spread" />
        {!isEdited && (
          <Button tone="ghost" onClick={() => setEdited(true)}>
            Edit
          </Button>
        )}
        <Button
          tone="danger"
          onClick={() => void act(() => send("delete", "/v1/memory/{memory}", { memory: memory.id }))}
        >
          Forget
        </Button>
      </p>
    </li>
  );
}
