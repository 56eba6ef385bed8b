// The user's identity, the theme, and the server's agents, skills and triggers.
import { useQuery } from "@tanstack/react-query";
import { get, send } from "../api/client";
import { client, useAgents, useMe } from "../api/queries";
import { cleanLine } from "../text/clean";
import { Badge, Button, Name } from "../ui/base";
import { chooseTheme, type Theme, useTheme } from "../ui/theme";
import { notifyError } from "../ui/toast";
import { Triggers } from "./Triggers";

function Skills() {
  const skills = useQuery({ queryKey: ["skills"], queryFn: () => get("/v1/skills"), staleTime: 60_000 });
  if (!skills.data || skills.data.items.length === 0) return null;
  return (
    <section>
      <h2>Skills</h2>
      <ul className="agent-list">
        {skills.data.items.map((skill) => (
          <li key={skill.name}>
            <strong>
              <Name>{skill.name}</Name>
            </strong>
            <p className="quiet">{cleanLine(skill.description, 400)}</p>
          </li>
        ))}
      </ul>
      <p className="quiet">Select the skills of a session in its menu, under Model, thinking, skills.</p>
    </section>
  );
}

const THEMES: Theme[] = ["system", "light", "dark"];

export default function SettingsPage() {
  const me = useMe();
  const agents = useAgents();
  const theme = useTheme();
  const signOut = async () => {
    try {
      await send("delete", "/v1/login");
      await client.resetQueries();
    } catch (error) {
      notifyError(error);
    }
  };
  return (
    <div className="page">
      <header className="page-head">
        <h1>Settings</h1>
      </header>
      <div className="scroll narrow settings">
        <section>
          <h2>Appearance</h2>
          <div role="radiogroup" aria-label="Theme" className="choices">
            {THEMES.map((name) => (
              <label key={name} className="check">
                <input
                  type="radio"
                  name="theme"
                  checked={theme === name}
                  onChange={() => chooseTheme(name)}
                />
                {name}
              </label>
            ))}
          </div>
        </section>
        {me.data && (
          <section>
            <h2>You</h2>
            <dl>
              <dt>Acting as</dt>
              <dd>
                <Name>{me.data.principal}</Name> in <Name>{me.data.tenant}</Name>{" "}
                {me.data.operator && <Badge tone="good">tenant-wide access</Badge>}{" "}
                {!me.data.may_write && <Badge>read-only</Badge>}
              </dd>
              <dt>Authenticated by</dt>
              <dd>
                {me.data.proof === "local" ? "local access: no API key exists yet" : `a ${me.data.proof}`}
              </dd>
              {me.data.store && (
                <>
                  <dt>Store</dt>
                  <dd>
                    <code>{me.data.store}</code>
                  </dd>
                </>
              )}
              <dt>Version</dt>
              <dd>{me.data.version}</dd>
            </dl>
            {me.data.proof === "local" ? (
              <p className="quiet">
                <code>sapwood key new --user NAME</code> creates the first key. From then on, every request
                needs a key.
              </p>
            ) : (
              <Button icon="close" onClick={() => void signOut()}>
                Sign out
              </Button>
            )}
          </section>
        )}
        <Skills />
        <Triggers />
        <section>
          <h2>Agents on this server</h2>
          <ul className="agent-list">
            {agents.data?.items.map((agent) => (
              <li key={agent.id}>
                <strong>
                  <Name>{agent.name ?? agent.id}</Name>
                </strong>{" "}
                {agent.model && <Badge>{agent.model}</Badge>}
                <p className="quiet">
                  {agent.description ?? "No description."}{" "}
                  {agent.tools.length > 0 && `Tools: ${agent.tools.join(", ")}.`}
                </p>
              </li>
            ))}
          </ul>
          <p className="quiet">
            Agents are files such as <code>agents/NAME.yaml</code>. Check them with{" "}
            <code>sapwood agent check</code>.
          </p>
        </section>
      </div>
    </div>
  );
}
