// Sign-in with keys and cookies, the script size, accessibility (axe) in both themes, keyboard shortcuts and a narrow
// screen.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { after, before, test } from "node:test";
import { open, TestServer } from "../house.mjs";

const SCRIPT_BYTES_MAX = 300 * 1024;
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
let server;

before(async () => {
  server = await TestServer.open();
  await server.api("POST", "/v1/sessions", { id: "demo", agent: "helper", title: "A session to look at" });
  await server.talk("demo", "what can you do?");
  await server.talk("demo", "write notes.txt: some text");
  await server.api("POST", "/v1/sessions/demo/compact", { keep_last: 2 });
  await server.api("POST", "/v1/sessions/demo/turns", { input: "ask me which colour" });
});
after(() => server?.close());

test("the script of the first view is small, hashed and cached permanently", async () => {
  const page = await server.page();
  const scripts = [];
  page.on("response", (response) => {
    if (response.request().resourceType() === "script") scripts.push(response);
  });
  await open(page, server, "");
  await page.locator(".row").first().waitFor();
  let bytes = 0;
  for (const script of scripts) {
    const headers = await script.allHeaders();
    assert.equal(headers["cache-control"], "public, max-age=31536000, immutable");
    assert.equal(headers["content-encoding"], "gzip");
    bytes += (await script.request().sizes()).responseBodySize;
  }
  assert.ok(scripts.length > 0 && bytes < SCRIPT_BYTES_MAX, `${bytes} bytes of compressed script`);
  await page.context().close();
});

const PLACES = [
  "",
  "s/demo",
  "s/demo/tree",
  "s/demo/ledger",
  "s/demo/context",
  "s/demo/archives",
  "s/demo/files",
  "s/demo/members",
  "s/demo/audit",
  "approvals",
  "flows",
  "memory",
  "audit",
  "settings",
];

for (const [theme, viewport] of [
  ["light", { width: 1280, height: 800 }],
  ["dark", { width: 390, height: 800 }],
]) {
  test(`axe finds no serious violation in the ${theme} theme at ${viewport.width} px, and nothing overflows`, async () => {
    const page = await server.page({ colorScheme: theme, viewport, bypassCSP: true });
    for (const place of PLACES) {
      await open(page, server, place);
      await page.waitForLoadState("networkidle").catch(() => {});
      await page.waitForTimeout(250);
      await page.evaluate(axe);
      const { violations } = await page.evaluate(() =>
        window.axe.run(document, { resultTypes: ["violations"] }),
      );
      const serious = violations.filter((each) => ["serious", "critical"].includes(each.impact));
      const told = serious.map(
        (each) => `${each.id}: ${each.nodes.map((node) => node.target.join(" ")).slice(0, 3)}`,
      );
      assert.deepEqual(told, [], `/#/${place}`);
      const overflow = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
      assert.ok(overflow <= 0, `/#/${place} is ${overflow} px too wide`);
    }
    await page.context().close();
  });
}

test("the help lists the keys, and the palette finds a session", async () => {
  const page = await server.page();
  await open(page, server, "");
  await page.locator(".row").first().waitFor();
  await page.keyboard.press("?");
  await page.getByRole("dialog", { name: "Keys" }).waitFor();
  await page.keyboard.press("Escape");
  await page.keyboard.press("Control+k");
  await page.keyboard.type("colour");
  await page.getByRole("option", { name: /A session to look at/ }).waitFor();
  await page.keyboard.press("Enter");
  await page.locator(".feed").waitFor();
  await page.keyboard.press("2");
  await page.waitForURL(/#\/s\/demo\/tree/);
  await page.context().close();
});

test("signing in with a key sets a cookie that scripts cannot read, and signing out works", async () => {
  const key = JSON.parse(server.run("--json", "key", "new", "--user", "ana")).key;
  await new Promise((resolve) => setTimeout(resolve, 400));
  const page = await server.page();
  await open(page, server, "").catch(() => {});
  await page.getByLabel("Key").fill("sapwood_wrong");
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByText("auth.invalid").waitFor();
  await page.getByLabel("Key").fill(key);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByText("No sessions yet").waitFor();
  const [cookie] = await page.context().cookies(`${server.url}/v1/`);
  assert.deepEqual([cookie.httpOnly, cookie.sameSite, cookie.name], [true, "Strict", "sapwood"]);
  assert.equal(await page.evaluate(() => document.cookie), "");
  assert.equal(await page.evaluate(() => JSON.stringify(localStorage)), "{}");

  await page.keyboard.press("n");
  await page.getByLabel("Title").press("Enter");
  await page.waitForURL(/#\/s\//);
  await page.getByLabel("Message").fill("hello");
  await page.keyboard.press("Enter");
  await page.getByText("I am Sapwood's demo model").first().waitFor();
  const bare = await page.evaluate(async () => (await fetch("/v1/sessions", { method: "POST" })).status);
  assert.equal(bare, 403, "a request without the CSRF header is refused");

  await open(page, server, "settings");
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByLabel("Key").waitFor();
  assert.deepEqual(page.faults, []);
});
