// Turns: start, send, watch, queue, steer, cancel, answer, and continue after a reload or a crash.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { feedOf, open, TestServer } from "../house.mjs";

let server;
let page;

before(async () => {
  server = await TestServer.open();
  page = await server.page();
});
after(() => server?.close());

const send = async (text) => {
  await page.getByLabel("Message").fill(text);
  await page.keyboard.press("Enter");
};

test("the empty list shows help, and a session can be started with the keyboard", async () => {
  await open(page, server, "");
  await page.getByText("No sessions yet").waitFor();
  await page.keyboard.press("n");
  await page.getByLabel("Title").fill("First steps");
  await page.keyboard.press("Enter");
  await page.waitForURL(/#\/s\//);
  await page.getByText("No messages yet").waitFor();
});

test("an answer streams, becomes durable and is the same after a reload", async () => {
  await page.keyboard.press("c");
  await send("think about trees");
  await page.locator('[data-live="streaming"]').waitFor();
  await page.getByText("I have thought about trees").first().waitFor();
  await page.getByText("Ready").waitFor();
  const seen = await feedOf(page);
  assert.ok(
    seen.some((line) => line.includes(" reasoning ")),
    seen.join("\n"),
  );
  await page.reload();
  await page.getByText("I have thought about trees").first().waitFor();
  assert.deepEqual(await feedOf(page), seen);
});

test("a tool card can be expanded", async () => {
  await server.api("POST", "/v1/sessions", { id: "tools", agent: "helper" });
  await server.talk("tools", "write notes.txt: some text");
  await open(page, server, "s/tools");
  const card = page.locator(".tool-card").first();
  await card.waitFor();
  assert.ok((await card.textContent()).includes("write_file"));
  assert.equal(await card.locator(".tool-inside").count(), 0);
  await card.locator("summary").press("Enter");
  await card.getByText("some text").first().waitFor();
});

test("questions and approvals of a turn are answered inline", async () => {
  await open(page, server, "s/tools");
  await send("ask me which colour");
  await page.getByText("The agent asks").waitFor();
  await page.getByLabel("Your answer").fill("green");
  await page.keyboard.press("Enter");
  await page.locator(".badge", { hasText: "approved" }).waitFor();
  await page.getByText("Ready").waitFor();
  await send("run echo hello");
  await page.getByText("Approval requested").waitFor();
  await page.locator(".feed").focus();
  await page.keyboard.press("Shift+N");
  await page.locator(".badge", { hasText: "denied" }).waitFor();
  await page.getByText("Ready").waitFor();
});

test("input is queued during a turn, can steer it, and cancel ends the turn", async () => {
  await server.api("POST", "/v1/sessions", { id: "long", agent: "default" });
  await open(page, server, "s/long");
  await send("write 3000 words");
  await page.locator('[data-live="streaming"]').waitFor();
  await send("what did I say?");
  await page.locator(".item", { hasText: "queued" }).first().waitFor();
  await page.getByLabel("Message").fill("be brief");
  await page.keyboard.press("Alt+Enter");
  await page.locator(".item", { hasText: "steering" }).first().waitFor();
  await page.getByRole("button", { name: "Cancel" }).click();
  await page.getByText("turn cancelled").waitFor();
  const feed = await server.api("GET", "/v1/sessions/long/feed");
  assert.ok(
    feed.items.some((item) => item.type === "assistant" && item.text.length > 20),
    "the partial answer is kept",
  );
});

test("the feed resumes after a disconnect", async () => {
  await server.api("POST", "/v1/sessions", { id: "cut", agent: "default" });
  await open(page, server, "s/cut");
  await page.getByText("live", { exact: true }).waitFor();
  await page.context().setOffline(true);
  // Going offline does not close the open stream; stopping the server does.
  const { port } = new URL(server.url);
  await server.stop();
  await page.getByText("disconnected, retrying").waitFor();
  await server.start(`127.0.0.1:${port}`);
  await server.inject("cut", [{ role: "user", content: "said while you were away" }]);
  await page.context().setOffline(false);
  await page.locator(".feed").getByText("said while you were away").waitFor();
  await page.getByText("live", { exact: true }).waitFor();
  assert.equal((await feedOf(page)).filter((line) => line.includes("while you were away")).length, 1);
});

test("the next server resumes a turn whose process died", async () => {
  await server.api("POST", "/v1/sessions", { id: "dead", agent: "default" });
  await open(page, server, "s/dead");
  await send("write 2000 words");
  await page.locator('[data-live="streaming"]').waitFor();
  const { port } = new URL(server.url);
  await server.stop("SIGKILL");
  await server.start(`127.0.0.1:${port}`);
  await page.getByText("live", { exact: true }).waitFor();
  await page.locator('[data-live="streaming"]').waitFor();
  await page.getByRole("button", { name: "Cancel" }).click();
  await page.getByText("turn cancelled").waitFor();
  const seen = await feedOf(page);
  await page.reload();
  await page.getByText("turn cancelled").waitFor();
  assert.deepEqual(await feedOf(page), seen);
});

test("the content security policy blocked nothing and no script failed", () =>
  assert.deepEqual(page.faults, []));
