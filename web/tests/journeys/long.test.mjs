// A long list: scrolling through all rows, jumping to either end, keys, filters, and bounded memory.
// `SESSIONS=100000 npm test -- journeys` sets the number of sessions.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { open, TestServer } from "../house.mjs";

const SESSIONS = Number(process.env.SESSIONS ?? 4_000);
const SCROLL_MS_MAX = 300_000 + SESSIONS * 2;
const SCROLL_PX = 5_000;
/** Maximum number of rendered rows: those in view, and a few around them. */
const ROWS_MAX = 60;
/** Memory limit of the rows, regardless of their number. */
const HEAP_BYTES_MAX = 60e6;
let server;
let page;

const called = (n) => `Number ${n} of the long list`;
const row = (n) => page.locator(".row", { hasText: called(n) });
const label = () => page.locator(".rows").getAttribute("aria-label");
const focused = () => page.evaluate(() => document.activeElement?.textContent ?? "");
/** Wait until the row with this title, or a row with another title, has the focus. */
const focusedOn = (title, isIt) =>
  page.waitForFunction(
    ([title, isIt]) => {
      const row = document.activeElement;
      return row?.classList.contains("row") && row.textContent.startsWith(title) === isIt;
    },
    [title, isIt],
  );
const heapBytes = () => page.evaluate(() => performance.memory.usedJSHeapSize);

before(async () => {
  server = await TestServer.open(() => "[server]\nrate_per_second = 0\n");
  await server.fill(SESSIONS, (n) => ({
    id: `many-${n}`,
    title: called(n),
    ...(n % 1_000 === 7 ? { agent: "helper" } : {}),
  }));
  page = await server.page();
});
after(() => server?.close());

test("both ends are reachable immediately, and rows in view do not move while others load", async () => {
  await open(page, server, "");
  await page.locator(".row").first().waitFor();
  await page.keyboard.press("End");
  await row(0).waitFor();
  await page.keyboard.press("End");
  await focusedOn(called(0), true);
  await page.keyboard.press("k");
  await focusedOn(called(0), false);
  const place = await row(0).boundingBox();
  await page.waitForTimeout(500);
  assert.deepEqual(await row(0).boundingBox(), place);
  await page.keyboard.press("Home");
  await page.waitForFunction(() => !document.querySelector(".rows.from-end"));
  await page.locator(".row").first().waitFor();
  assert.equal(await row(0).count(), 0);
  await page.getByRole("button", { name: "Go to oldest" }).click();
  await row(0).waitFor();
  await page.getByRole("button", { name: "Go to newest" }).click();
  await page.waitForFunction(() => !document.querySelector(".rows.from-end"));
});

test("scrolling reaches the bottom, and only rows in view are rendered", async () => {
  await page.locator(".row").first().waitFor();
  const before = await heapBytes();
  const box = page.locator(".rows");
  let most = 0;
  let isFound = false;
  for (const began = Date.now(); !isFound && Date.now() - began < SCROLL_MS_MAX; ) {
    await box.evaluate((element, by) => element.scrollBy(0, by), SCROLL_PX);
    most = Math.max(most, await page.locator(".row").count());
    await page.waitForTimeout(20);
    isFound = (await row(0).count()) > 0;
  }
  assert.ok(isFound, `${await label()}, but not the oldest`);
  assert.equal(await label(), `${SESSIONS.toLocaleString("en")} sessions`);
  assert.ok(most <= ROWS_MAX, `${most} rows are rendered at a time`);
  const grown = (await heapBytes()) - before;
  assert.ok(grown < HEAP_BYTES_MAX, `memory grew by ${grown} bytes`);
});

test("evicted rows are loaded again, and going back restores the position", async () => {
  const box = page.locator(".rows");
  await box.evaluate((element) => element.scrollTo(0, element.scrollHeight / 2));
  await page.locator("a.row").first().waitFor();
  await page.keyboard.press("j");
  await page.waitForFunction(() => document.activeElement?.classList.contains("row"));
  const there = await focused();
  const offset = await box.evaluate((element) => element.scrollTop);
  await page.keyboard.press("Enter");
  await page.locator(".session-head").waitFor();
  await page.goBack();
  await page.locator("a.row").first().waitFor();
  assert.equal(await box.evaluate((element) => element.scrollTop), offset);
  assert.ok(there.includes("of the long list") && (await page.getByText(there.slice(0, 20)).count()) > 0);
});

test("activity in another session moves it to the top", async () => {
  await page.keyboard.press("Home");
  await page.locator("a.row").first().waitFor();
  await server.inject("many-3", [{ role: "user", content: "hello again" }]);
  await page.waitForFunction(
    (title) => document.querySelector("a.row")?.textContent?.startsWith(title),
    called(3),
  );
  assert.equal(await row(3).count(), 1);
});

test("a filter and a title search find sessions far down the list", async () => {
  await page.getByLabel("Agent").selectOption("helper");
  const fits = Math.ceil((SESSIONS - 7) / 1_000);
  await page.waitForFunction(
    (text) => document.querySelector(".rows")?.ariaLabel === text,
    `${fits} sessions`,
  );
  await row(7).waitFor();
  await page.getByRole("button", { name: "Clear" }).click();
  await page.getByLabel("Search all sessions").fill("many-1234 list");
  await row(1_234).waitFor();
  await page.getByLabel("Search all sessions").fill("no such thing anywhere");
  await page.getByText("No matching messages").waitFor();
});

test("the content security policy blocked nothing and no script failed", () =>
  assert.deepEqual(page.faults, []));
