// The sign-in form, which exchanges an API key for a cookie. The key is sent once, in a header, and no script can read
// the cookie.
import { type FormEvent, useState } from "react";
import { request } from "../api/client";
import { client } from "../api/queries";
import { Button, ErrorNote } from "../ui/base";
import { Icon } from "../ui/icons";

export function SignIn() {
  const [key, setKey] = useState("");
  const [error, setError] = useState<unknown>(null);
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setError(null);
    try {
      await request("/v1/login", { method: "POST", headers: { authorization: `Bearer ${key.trim()}` } });
      await client.resetQueries();
    } catch (problem) {
      setError(problem);
    }
  };
  return (
    <main className="alone">
      <form className="sign-in" onSubmit={(event) => void submit(event)}>
        <Icon name="rings" />
        <h1>Sapwood</h1>
        <p className="quiet">This server requires a key. Create one on the server:</p>
        <pre className="verbatim">sapwood key new --user YOUR_NAME</pre>
        <label>
          Key
          <input
            type="password"
            name="key"
            autoComplete="current-password"
            required
            value={key}
            onChange={(event) => setKey(event.target.value)}
            placeholder="sapwood_…"
          />
        </label>
        <Button tone="main" type="submit" icon="key" disabled={key.trim() === ""}>
          Sign in
        </Button>
        {error !== null && <ErrorNote error={error} />}
      </form>
    </main>
  );
}
