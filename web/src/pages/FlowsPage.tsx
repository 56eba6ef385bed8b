// Flows: the list of runs, and the live graph of one run.
import { useQuery } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { get, send } from "../api/client";
import { client } from "../api/queries";
import { Badge, Button, Dialog, Empty, ErrorNote, Loading, Name, Time } from "../ui/base";
import { plural } from "../ui/format";
import { go, to } from "../ui/route";
import { FlowRunView } from "./FlowRun";

const POLL_MS = 3_000;

export default function FlowsPage({ run }: { run: string | undefined }) {
  return run ? <FlowRunView key={run} run={run} /> : <Runs />;
}

export function toneOf(status: string): string {
  if (["completed", "done", "closed"].includes(status)) return "good";
  if (["failed", "cancelled"].includes(status)) return "bad";
  if (["waiting", "holding"].includes(status)) return "warn";
  return ["open", "running"].includes(status) ? "live" : "";
}

function Runs() {
  const [isNew, setNew] = useState(false);
  const runs = useQuery({
    queryKey: ["flows"],
    queryFn: () => get("/v1/flows", {}, { limit: 200 }),
    refetchInterval: POLL_MS,
  });
  return (
    <div className="page">
      <header className="page-head">
        <h1>Flows</h1>
        <span className="spread" />
        <Button icon="play" tone="main" onClick={() => setNew(true)}>
          Run
        </Button>
      </header>
      <div className="scroll">
        {runs.isPending && <Loading />}
        {runs.error && <ErrorNote error={runs.error} onRetry={() => void runs.refetch()} />}
        {runs.data?.items.length === 0 && (
          <Empty title="No flow runs yet">
            <p>
              A flow is a graph of roles that hand work to each other, each in its own session. Run one here,
              or with <code>sapwood flow run FILE</code>.
            </p>
          </Empty>
        )}
        <ul className="run-list">
          {runs.data?.items.map((run) => (
            <li key={run.run}>
              <a href={to(["flows", run.run])}>
                <strong>
                  <Name>{run.name}</Name>
                </strong>
                <Badge tone={toneOf(run.status)}>{run.status}</Badge>
                <span className="quiet">
                  {run.done} of {plural(run.nodes, "node")}
                </span>
                <span className="spread" />
                <code>{run.run}</code>
                <Time at={run.updated_at} />
              </a>
            </li>
          ))}
        </ul>
      </div>
      {isNew && <NewRun onClose={() => setNew(false)} />}
    </div>
  );
}

const EXAMPLE = `schema_version: '1.0'
workflow:
  id: example
  name: Example
  agents: []
  nodes:
    - {id: input, type: input}
    - {id: draft, type: agent, agent_ref: default, prompt_template: 'write 60 words', handoff: answer}
    - {id: review, type: agent, agent_ref: default, prompt_template: 'think about {{draft}}', handoff: answer}
    - {id: output, type: output}
  edges:
    - {from: input, to: draft}
    - {from: draft, to: review}
    - {from: review, to: output}
`;

function NewRun({ onClose }: { onClose: () => void }) {
  const [error, setError] = useState<unknown>(null);
  const submit = async (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    try {
      const made = await send(
        "post",
        "/v1/flows",
        {},
        {
          flow: String(form.get("flow")),
          input: String(form.get("input")),
          improve: form.get("improve") === "on",
        },
      );
      void client.invalidateQueries({ queryKey: ["flows"] });
      onClose();
      go(["flows", made.run]);
    } catch (problem) {
      setError(problem);
    }
  };
  return (
    <Dialog title="Run a flow" onClose={onClose} wide>
      <form className="form" onSubmit={(event) => void submit(event)}>
        <label>
          Flow (YAML)
          <textarea
            name="flow"
            rows={15}
            className="yaml"
            spellCheck={false}
            required
            defaultValue={EXAMPLE}
          />
        </label>
        <label>
          Input
          <input name="input" placeholder="optional" />
        </label>
        <label className="check">
          <input type="checkbox" name="improve" /> run an improvement pass afterwards
        </label>
        {error !== null && <ErrorNote error={error} />}
        <footer>
          <Button onClick={onClose}>Cancel</Button>
          <Button tone="main" type="submit" icon="play">
            Run
          </Button>
        </footer>
      </form>
    </Dialog>
  );
}
