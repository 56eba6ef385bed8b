// A TypeScript client. Its types are generated from the server's OpenAPI document: `npm run types`, then `npm start -- URL KEY TEXT`.

import createClient from "openapi-fetch";

import type { paths } from "./api.gen.js";

/** Create a session, send a message, and yield the answer as it streams. */
export async function* talk(baseUrl: string, key: string, text: string): AsyncGenerator<string> {
  const api = createClient<paths>({ baseUrl, headers: { authorization: `Bearer ${key}` } });
  const created = await api.POST("/v1/sessions", { body: { agent: "default" } });
  if (!created.data) throw new Error(created.error.detail);
  const turn = await api.POST("/v1/sessions/{session}/turns", {
    params: { path: { session: created.data.id } },
    body: { input: text, stream: true },
    parseAs: "stream",
  });
  if (!turn.response.ok || !turn.response.body) throw new Error(`the server responded with status ${turn.response.status}`);
  const decoder = new TextDecoder();
  let rest = "";
  for await (const chunk of turn.response.body as unknown as AsyncIterable<Uint8Array>) {
    rest += decoder.decode(chunk, { stream: true });
    const lines = rest.split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines.filter((line) => line.startsWith("data:"))) {
      const event = JSON.parse(line.slice(5)) as { type: string; text?: string };
      if (event.type === "agent:token") yield event.text ?? "";
    }
  }
}

const [url = "", key = "", input = ""] = process.argv.slice(2);
for await (const text of talk(url, key, input)) process.stdout.write(text);
process.stdout.write("\n");
