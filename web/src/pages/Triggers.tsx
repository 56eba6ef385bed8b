// Triggers: their state, their latest firing, and a form to fire a trigger manually.
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { get, type Schemas, send } from "../api/client";
import { client, useMe } from "../api/queries";
import { Badge, Button, Name, Time } from "../ui/base";
import { ActionDialog, text } from "../ui/Doing";
import { whole } from "../ui/format";
import { to } from "../ui/route";
import { notify } from "../ui/toast";

type Trigger = Schemas["Trigger"];

const POLL_MS = 5_000;

export function Triggers() {
  const me = useMe();
  const [fired, setFired] = useState<string | null>(null);
  const triggers = useQuery({
    queryKey: ["triggers"],
    queryFn: () => get("/v1/triggers"),
    refetchInterval: POLL_MS,
    retry: false,
  });
  if (!triggers.data || triggers.data.items.length === 0) return null;
  return (
    <section>
      <h2>Triggers</h2>
      <ul className="agent-list">
        {triggers.data.items.map((trigger) => (
          <li key={trigger.name} className="trigger">
            <div>
              <strong>
                <Name>{trigger.name}</Name>
              </strong>{" "}
              <Badge>{trigger.kind}</Badge>
              <TriggerStatus trigger={trigger} />
            </div>
            {me.data?.may_write && <Button onClick={() => setFired(trigger.name)}>Fire…</Button>}
          </li>
        ))}
      </ul>
      {fired && <Fire name={fired} onClose={() => setFired(null)} />}
    </section>
  );
}

function TriggerStatus({ trigger }: { trigger: Trigger }) {
  const { last } = trigger;
  return (
    <p className="quiet">
      {trigger.running} running, {trigger.waiting} waiting
      {trigger.next_at ? `, next at ${whole(trigger.next_at)}` : ""}
      {last && (
        <>
          , last {last.outcome} <Time at={last.at} />
          {last.session && (
            <>
              {" "}
              (<a href={to(["s", last.session])}>open session</a>)
            </>
          )}
        </>
      )}
      {(last || trigger.running + trigger.waiting > 0) && (
        <>
          {" "}
          · <a href={to(["s", `trigger.${trigger.name}`])}>history</a>
        </>
      )}
    </p>
  );
}

function Fire({ name, onClose }: { name: string; onClose: () => void }) {
  const act = async (form: FormData) => {
    const payload = text(form, "payload");
    await send("post", "/v1/triggers/{name}", { name }, payload === "" ? null : parse(payload));
    notify(`${name} fired`);
    void client.invalidateQueries({ queryKey: ["triggers"] });
  };
  return (
    <ActionDialog title={`Fire ${name}`} verb="Fire" act={act} onClose={onClose}>
      <p className="quiet">Fires the trigger as if its event had happened. The model receives the payload.</p>
      <label>
        Payload
        <textarea name="payload" rows={5} placeholder='{"branch": "main"}' spellCheck={false} />
      </label>
    </ActionDialog>
  );
}

function parse(payload: string): unknown {
  try {
    return JSON.parse(payload);
  } catch {
    throw new Error("the payload is not JSON");
  }
}
