// Read-mostly pages: search, filters, a tree of ten thousand entries, ledger, context, archives, files, members,
// audit, export and import.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { open, TestServer } from "../house.mjs";

const ENTRIES = 10_000;
let server;
let page;

before(async () => {
  server = await TestServer.open();
  page = await server.page();
});
after(() => server?.close());

test("search finds sessions while typing and highlights the terms", async () => {
  await server.api("POST", "/v1/sessions", { id: "fox", title: "About animals", agent: "helper" });
  await server.inject("fox", [{ role: "user", content: "the quick brown fox jumps over the lazy dog" }]);
  await server.api("POST", "/v1/sessions", { id: "owl", title: "Another", agent: "default" });
  await server.inject("owl", [{ role: "user", content: "an owl sees at night" }]);
  await open(page, server, "");
  await page.keyboard.press("/");
  await page.keyboard.type("qui");
  await page.locator("mark", { hasText: "quick" }).waitFor();
  assert.equal(await page.locator(".row").count(), 1);
  await page.getByLabel("Search all sessions").fill("anoth");
  await page.locator(".row", { hasText: "Another" }).waitFor();
  await page.getByLabel("Search all sessions").fill("quick");
  await page.locator("mark", { hasText: "quick" }).waitFor();
  await page.locator(".row").click();
  await page.locator(".item.marked", { hasText: "quick brown fox" }).waitFor();
});

test("filters narrow the list and are kept in the URL", async () => {
  await open(page, server, "");
  await page.getByLabel("Agent").selectOption("helper");
  await page.waitForFunction(() => document.querySelectorAll(".row").length === 1);
  assert.ok(page.url().includes("agent=helper"));
  await page.getByRole("button", { name: "Clear" }).click();
  await page.waitForFunction(() => document.querySelectorAll(".row").length === 2);
});

test("a tree of ten thousand entries can be drawn, navigated, labelled, branched and compared", async () => {
  await server.api("POST", "/v1/sessions", { id: "tall" });
  const messages = Array.from({ length: ENTRIES }, (_, n) => ({
    role: n % 2 ? "assistant" : "user",
    content: `message ${n}`,
  }));
  await server.inject("tall", messages);
  await server.api("POST", "/v1/sessions/tall/branch", { entry: ENTRIES / 2 });
  await server.inject("tall", [{ role: "user", content: "the other way" }]);
  await open(page, server, "s/tall/tree");
  const canvas = page.locator(".tree-canvas");
  await canvas.waitFor();
  await page.getByText("10,001 entries").waitFor();
  const drawn = await canvas.evaluate((element) => {
    const began = performance.now();
    for (let n = 0; n < 20; n++)
      element.dispatchEvent(new WheelEvent("wheel", { deltaY: 40, bubbles: true, cancelable: true }));
    return new Promise((resolve) =>
      requestAnimationFrame(() => requestAnimationFrame(() => resolve(performance.now() - began))),
    );
  });
  // Twenty steps are drawn in one frame. The limit is generous for busy machines.
  assert.ok(drawn < 60_000, `panning takes ${drawn} ms`);
  await page.getByText("Collapse runs").click();
  await page.getByText("Fit to view").click();
  await page.getByText("Collapse runs").click();

  await canvas.focus();
  await page.keyboard.press("ArrowUp");
  await page.locator(".entry-panel h2", { hasText: `${ENTRIES / 2} ·` }).waitFor();
  await page.getByLabel("Label").fill("the fork in the road");
  await page.keyboard.press("Enter");
  await page.waitForFunction(async () => {
    const tree = await (await fetch("/v1/sessions/tall/tree")).json();
    return tree.nodes.some((node) => node.label === "the fork in the road");
  });
  await page.getByRole("button", { name: "Compare from here" }).click();
  await open(page, server, `s/tall/tree?at=${ENTRIES}&mark=${ENTRIES + 2}`);
  await page.getByText(`Compare with ${ENTRIES + 2}`).click();
  await page.getByText("Both branches share").waitFor();
  await page.getByText("the other way").first().waitFor();
  await open(page, server, `s/tall/tree?at=${ENTRIES}`);
  await page.getByRole("button", { name: "Branch here" }).click();
  await page.locator(".entry-panel .badge", { hasText: "leaf" }).waitFor();
});

test("ledger, chart, context and archives agree with the API", async () => {
  await server.api("POST", "/v1/sessions", { id: "worked", agent: "default" });
  for (const words of ["write 200 words", "write 300 words", "what did I say?"])
    await server.talk("worked", words);
  await server.api("POST", "/v1/sessions/worked/compact", { keep_last: 2 });
  await open(page, server, "s/worked/ledger");
  await page.locator(".chart .curve").waitFor();
  const timeline = await server.api("GET", "/v1/sessions/worked/timeline");
  assert.equal(await page.locator(".chart a").count(), timeline.items.length);
  assert.equal(await page.locator(".chart .cut").count(), 1);
  const ledger = await server.api("GET", "/v1/sessions/worked/ledger");
  assert.equal(await page.locator(".ledger section:last-child tbody tr").count(), ledger.items.length);

  await open(page, server, "s/worked/context");
  const context = await server.api("GET", "/v1/sessions/worked/context?count=true");
  await page.locator(".message").first().waitFor();
  assert.equal(await page.locator("details.message:not(.system)").count(), context.messages.length);
  assert.ok((await page.locator(".facts").textContent()).includes(`in ${context.messages.length} messages`));

  await open(page, server, "s/worked/archives");
  await page.getByRole("heading", { name: /Before/ }).waitFor();
  await page.locator(".message.gone").first().waitFor();
  await page.getByRole("button", { name: "Undo compaction" }).click();
  await page.locator(".badge", { hasText: "inactive" }).waitFor();
});

test("files are uploaded and downloaded, sessions are shared, and the audit records it", async () => {
  await open(page, server, "s/worked/files");
  const chooser = page.waitForEvent("filechooser");
  await page.locator(".file-box").first().getByRole("button", { name: "Upload" }).click();
  await (await chooser).setFiles({
    name: "facts.txt",
    mimeType: "text/plain",
    buffer: Buffer.from("some facts"),
  });
  await page.getByRole("link", { name: "facts.txt", exact: true }).waitFor();
  assert.equal(await (await fetch(`${server.url}/v1/sessions/worked/inputs/facts.txt`)).text(), "some facts");
  await open(page, server, "s/worked/members");
  await page.getByLabel("User").fill("rex");
  await page.getByRole("button", { name: "Share" }).click();
  await page.locator(".member-list li", { hasText: "rex" }).waitFor();
  await open(page, server, "s/worked/audit");
  await page.getByRole("cell", { name: "share", exact: true }).first().waitFor();
});

test("a flow runs and its graph shows the state of its nodes", async () => {
  await open(page, server, "flows");
  await page.getByText("No flow runs yet").waitFor();
  await page.getByRole("button", { name: "Run" }).click();
  await page.getByRole("textbox", { name: "Input" }).fill("the harbour");
  await page.getByRole("dialog").getByRole("button", { name: "Run" }).click();
  await page.locator(".node").first().waitFor();
  await page.locator(".session-head .badge", { hasText: "completed" }).waitFor();
  const run = decodeURIComponent(page.url().split("/flows/")[1]);
  const view = await server.api("GET", `/v1/flows/${run}`);
  assert.equal(await page.locator(".node").count(), view.nodes.length);
  assert.equal(await page.locator(".edge").count(), view.edges.length);
  await page.locator(".node", { hasText: "review" }).click();
  await page.getByRole("link", { name: "open session" }).click();
  await page.locator(".feed .item").first().waitFor();
});

test("a memory can be added, found, corrected and forgotten", async () => {
  await open(page, server, "memory");
  await page.getByLabel("New memory").fill("The office is in Bern");
  await page.keyboard.press("Enter");
  const row = page.locator(".memory-list li", { hasText: "Bern" });
  await row.waitFor();
  await row.getByRole("button", { name: "Edit" }).click();
  await page.getByLabel("Text").fill("The office is in Basel");
  await page.keyboard.press("Enter");
  await page.locator(".memory-list li", { hasText: "Basel" }).waitFor();
  await page.getByLabel("Search memories").fill("where is the office");
  await page.locator(".memory-list li", { hasText: "Basel" }).getByRole("button", { name: "Forget" }).click();
  await page.getByText("No matching memories").waitFor();
});

test("images in a message are shown", async () => {
  const dot =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
  await server.api("POST", "/v1/sessions", { id: "pictured" });
  const image = { type: "image", source: { type: "base64", media_type: "image/png", data: dot } };
  const message = { role: "user", content: [{ type: "text", text: "look" }, image] };
  await server.inject("pictured", [message]);
  await open(page, server, "s/pictured");
  const picture = page.locator(".media img");
  await picture.waitFor();
  await page.waitForFunction(() => document.querySelector(".media img")?.naturalWidth === 1);
});

test("a session can be exported to a file and imported by dropping the file", async () => {
  await open(page, server, "s/fox");
  await page.getByLabel("Session actions").click();
  await page.getByRole("button", { name: "Export…" }).click();
  const download = page.waitForEvent("download");
  await page.getByRole("button", { name: "Download" }).click();
  const text = readFileSync(await (await download).path(), "utf8").replaceAll('"fox"', '"fox-again"');
  await open(page, server, "");
  await page.locator(".row").first().waitFor();
  const files = await page.evaluateHandle((content) => {
    const data = new DataTransfer();
    data.items.add(new File([content], "fox.jsonl"));
    return data;
  }, text);
  await page.dispatchEvent(".drop", "drop", { dataTransfer: files });
  await page.getByRole("dialog").getByRole("link", { name: "fox-again" }).click();
  await page.getByText("the quick brown fox").first().waitFor();
});

test("the content security policy blocked nothing and no script failed", () =>
  assert.deepEqual(page.faults, []));
