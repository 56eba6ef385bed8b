// Grafts, skills, triggers, and every export format.
import assert from "node:assert/strict";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { open, TestServer } from "../house.mjs";

let server;
let page;

function furnish(home) {
  const skill = join(home, "skills", "tea");
  mkdirSync(skill, { recursive: true });
  writeFileSync(
    join(skill, "SKILL.md"),
    "---\nname: tea\ndescription: How tea is made here.\n---\n\nWarm the pot.\n",
  );
  return '\n[[triggers]]\nname = "build"\nwebhook = {}\nprompt = "Look at {{payload.branch}}."\n';
}

before(async () => {
  server = await TestServer.open(furnish);
  page = await server.page();
  await server.api("POST", "/v1/sessions", {
    id: "quarry",
    title: "Where stones come from",
    agent: "default",
  });
  await server.talk("quarry", "what is granite?");
  const headers = { "content-type": "text/plain" };
  await server.api("POST", "/v1/sessions/quarry/artifacts?name=stones.txt", "granite, slate", headers);
  await server.api("POST", "/v1/sessions", { id: "mason", agent: "default" });
});
after(() => server?.close());

test("an artifact and a digest of another session can be grafted and are in the context", async () => {
  await open(page, server, "s/mason/files");
  const grafts = page.locator(".file-box", { hasText: "Grafts" });
  await grafts.getByLabel("From session").fill("quarry");
  await grafts.getByLabel("Artifact").fill("stones.txt");
  await grafts.getByRole("button", { name: "Graft" }).click();
  await grafts.locator("li", { hasText: "stones.txt" }).waitFor();
  await grafts.getByLabel("From session").fill("quarry");
  await grafts.getByRole("button", { name: "Graft" }).click();
  await grafts.locator("li", { hasText: "digest" }).waitFor();
  const items = (await server.api("GET", "/v1/sessions/mason/grafts")).items;
  assert.deepEqual(
    items.map((item) => item.source),
    ["quarry", "quarry"],
  );
  await open(page, server, "s/mason/context");
  await page.locator("details.message:not(.system) summary").first().click();
  await page.locator(".message-parts", { hasText: "granite, slate" }).waitFor();

  await open(page, server, "s/mason/files");
  await grafts.getByLabel("From session").fill("nowhere");
  await grafts.getByRole("button", { name: "Graft" }).click();
  await page.locator(".toast", { hasText: "nowhere" }).waitFor();
  await grafts.getByRole("link", { name: "quarry" }).first().click();
  await page.getByRole("heading", { name: "Where stones come from" }).waitFor();
});

test("a skill can be switched on and off for a session", async () => {
  await open(page, server, "settings");
  await page.getByText("How tea is made here.").waitFor();
  for (const active of [["tea"], []]) {
    await open(page, server, "s/mason");
    await page.getByLabel("Session actions").click();
    await page.getByRole("button", { name: /Model, thinking, skills/ }).click();
    await page.getByRole("dialog").getByLabel("tea").click();
    await page.getByRole("dialog").getByRole("button", { name: "Change" }).click();
    await page.getByRole("dialog").waitFor({ state: "detached" });
    assert.deepEqual((await server.api("GET", "/v1/sessions/mason/skills")).active, active);
  }
});

test("a trigger can be fired manually and links to its session", async () => {
  await open(page, server, "settings");
  const trigger = page.locator(".trigger", { hasText: "build" });
  await trigger.getByRole("button", { name: "Fire…" }).click();
  await page.getByLabel("Payload").fill("{branch");
  await page.getByRole("dialog").getByRole("button", { name: "Fire" }).click();
  await page.getByText("the payload is not JSON").waitFor();
  await page.getByLabel("Payload").fill('{"branch": "harbour"}');
  await page.getByRole("dialog").getByRole("button", { name: "Fire" }).click();
  await trigger.getByRole("link", { name: "open session" }).click();
  await page.locator(".item.is-user", { hasText: "Look at harbour." }).waitFor();
  await open(page, server, "settings");
  await trigger.getByRole("link", { name: "history" }).click();
  await page.locator(".session-head").waitFor();
  assert.ok(page.url().endsWith("/s/trigger.build"));
});

test("the console exports every format of the command line with the same content", async () => {
  const help = server.run("help", "export");
  const offered = [...help.matchAll(/^\s+- ([a-z-]+):/gm)].map(([, name]) => name).sort();
  await open(page, server, "s/quarry");
  await page.getByLabel("Session actions").click();
  await page.getByRole("button", { name: "Export…" }).click();
  const formats = await page
    .getByLabel("Format")
    .locator("option")
    .evaluateAll((options) => options.map((option) => option.value));
  assert.deepEqual([...formats].sort(), offered);
  await page.getByRole("dialog").getByRole("button", { name: "Cancel" }).click();
  // The workflow export adds an entry to the log, so it runs last.
  for (const format of formats.filter((name) => name !== "workflow").concat("workflow")) {
    await page.getByLabel("Session actions").click();
    await page.getByRole("button", { name: "Export…" }).click();
    await page.getByLabel("Format").selectOption(format);
    const download = page.waitForEvent("download");
    await page.getByRole("button", { name: "Download" }).click();
    const text = readFileSync(await (await download).path(), "utf8");
    assert.equal(text, server.run("export", "quarry", "--format", format), format);
  }
});

test("the content security policy blocked nothing and no script failed", () =>
  assert.deepEqual(page.faults, []));
