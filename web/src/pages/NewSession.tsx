// The dialog that starts a session.
import { type FormEvent, useState } from "react";
import { send } from "../api/client";
import { invalidateSessionLists, useAgents, useMe } from "../api/queries";
import { Button, Dialog, ErrorNote } from "../ui/base";
import { go } from "../ui/route";

export function NewSession({ onClose }: { onClose: () => void }) {
  const agents = useAgents();
  const me = useMe();
  const [title, setTitle] = useState("");
  const [agent, setAgent] = useState("");
  const [cwd, setCwd] = useState("");
  const [error, setError] = useState<unknown>(null);
  const cards = agents.data?.items ?? [];
  const chosen = agent || (cards.find((card) => card.id === "default") ?? cards[0])?.id || "";
  const card = cards.find((one) => one.id === chosen);
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    try {
      // A person works in this session, so it may have more turns than the default.
      const body = {
        title: title.trim() || null,
        agent: chosen || null,
        cwd: cwd.trim() || null,
        interactive: true,
      };
      const made = await send("post", "/v1/sessions", {}, body);
      invalidateSessionLists();
      onClose();
      go(["s", made.id]);
    } catch (problem) {
      setError(problem);
    }
  };
  return (
    <Dialog title="New session" onClose={onClose}>
      <form className="form" onSubmit={(event) => void submit(event)}>
        <label>
          Title
          <input value={title} onChange={(event) => setTitle(event.target.value)} placeholder="optional" />
        </label>
        <label>
          Agent
          <select value={chosen} onChange={(event) => setAgent(event.target.value)}>
            {cards.map((one) => (
              <option key={one.id} value={one.id}>
                {one.name ?? one.id}
              </option>
            ))}
          </select>
        </label>
        {card && (
          <p className="quiet">
            {card.description ?? "No description."} {card.model && <code>{card.model}</code>}{" "}
            {card.tools.length > 0 && `Tools: ${card.tools.join(", ")}.`}
          </p>
        )}
        {me.data?.operator && (
          <label>
            Directory
            <input
              value={cwd}
              onChange={(event) => setCwd(event.target.value)}
              placeholder="directory on the server, optional"
            />
          </label>
        )}
        {error !== null && <ErrorNote error={error} />}
        <footer>
          <Button onClick={onClose}>Cancel</Button>
          <Button tone="main" type="submit" icon="plus">
            Start
          </Button>
        </footer>
      </form>
    </Dialog>
  );
}
