// A malicious transcript is displayed safely on every page.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { open, TestServer } from "../house.mjs";

const EVIL = [
  "<script>window.pwned = 1</script>",
  '<img src=x onerror="window.pwned = 2">',
  "[click](javascript:window.pwned=3) and <a href='javascript:window.pwned=4'>this</a>",
  "![x](https://evil.example/track.png)",
  "<iframe src='https://evil.example'></iframe><svg onload=window.pwned=5></svg>",
  "\u001b[31mred\u001b[0m\u001b]8;;https://evil.example\u0007link\u001b]8;;\u0007",
  "safe\u202egnp.exe and \u2066hidden\u2069",
  "```html\n<script>window.pwned = 6</script>\n```",
  "a".repeat(400_000),
  "| a | b |\n|---|---|\n| <b onclick=window.pwned=7>x</b> | y |",
  `${"> ".repeat(300)}deep`,
  "*".repeat(5_000) + "_".repeat(5_000),
];

let server;
let page;
const asked = [];

before(async () => {
  server = await TestServer.open();
  page = await server.page();
  page.on("dialog", (dialog) => {
    page.faults.push(`a dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  page.on("request", (request) => asked.push(request.url()));
  await server.api("POST", "/v1/sessions", {
    id: "evil",
    title: "<script>window.pwned = 8</script>\u202etitle",
  });
  const call = {
    type: "tool_use",
    id: "c1",
    name: "<img src=x onerror=window.pwned=9>",
    input: { path: "<script>window.pwned=10</script>" },
  };
  await server.inject("evil", [
    ...EVIL.flatMap((text) => [
      { role: "user", content: text },
      { role: "assistant", content: text },
    ]),
    { role: "assistant", content: [call] },
    { role: "tool", tool_call_id: "c1", content: EVIL.slice(0, 8).join("\n") },
  ]);
  await server.api("POST", "/v1/sessions/evil/label", { entry: 1, text: "<b>label</b>\u202e" });
  const name = encodeURIComponent("<img src=x onerror=window.pwned=11>.html");
  await fetch(`${server.url}/v1/sessions/evil/artifacts?name=${name}`, {
    method: "POST",
    body: "<script>parent.pwned = 12</script>",
  });
});
after(() => server?.close());

for (const place of [
  "",
  "?q=script",
  "s/evil",
  "s/evil/tree",
  "s/evil/context",
  "s/evil/files",
  "s/evil/audit",
  "audit",
]) {
  test(`a malicious transcript does nothing at /#/${place}`, async () => {
    await open(page, server, place);
    await page.waitForTimeout(400);
    if (place === "s/evil") {
      for (const summary of await page.locator(".tool-card summary").all()) await summary.click();
      await page.getByText("⟦RLO⟧").first().waitFor();
    }
    const found = await page.evaluate(() => ({
      pwned: window.pwned,
      scripts: document.querySelectorAll(
        "main script, main iframe, main [onclick], main [onerror], main object",
      ).length,
      links: [...document.querySelectorAll("a[href]")]
        .map((link) => link.getAttribute("href"))
        .filter((href) => /^\s*javascript:/i.test(href)),
      escapes: /[\u001b\u202e\u2066]/.test(document.body.innerText),
      wide: document.documentElement.scrollWidth > window.innerWidth,
    }));
    assert.deepEqual(found, { pwned: undefined, scripts: 0, links: [], escapes: false, wide: false });
  });
}

test("a malicious artifact is served as a file, not as a page", async () => {
  const name = encodeURIComponent("<img src=x onerror=window.pwned=11>.html");
  const answer = await fetch(`${server.url}/v1/sessions/evil/artifacts/${name}`);
  assert.match(answer.headers.get("content-type"), /^text\/plain/);
  assert.match(answer.headers.get("content-security-policy"), /sandbox/);
});

test("no external host was contacted and no script ran", () => {
  assert.deepEqual(
    asked.filter((url) => url.includes("evil.example")),
    [],
  );
  assert.deepEqual(page.faults, []);
});
