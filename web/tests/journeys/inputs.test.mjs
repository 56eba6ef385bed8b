// Inputs: a dropped file reaches the model, and the answer quotes it.
import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { open, TestServer } from "../house.mjs";

const QUOTATION = "the oak behind the mill is 412 years old";
const SCRIPT = `
[[calls]]
pieces = [{ call = { id = "c1", name = "read_input", input = { name = "trees.html" } } }]
[[calls]]
expect = "${QUOTATION}"
pieces = [{ text = "The page says: ${QUOTATION}." }]
`;

let server;
let page;

before(async () => {
  server = await TestServer.open((home) => {
    writeFileSync(join(home, "reader.toml"), SCRIPT);
    const agent = `id: reader\nname: Reader\nmodel: "scripted:${join(home, "reader.toml")}"\n`;
    writeFileSync(join(home, "agents/reader.yaml"), agent);
    return "";
  });
  page = await server.page();
});
after(() => server?.close());

/** Drop a file on an element, as a person does with the mouse. */
async function drop(target, name, type, content) {
  const data = await page.evaluateHandle(
    ([fileName, fileType, text]) => {
      const transfer = new DataTransfer();
      transfer.items.add(new File([text], fileName, { type: fileType }));
      return transfer;
    },
    [name, type, content],
  );
  await target.dispatchEvent("dragover", { dataTransfer: data });
  await target.dispatchEvent("drop", { dataTransfer: data });
}

test("a dropped file is read by the model, and the answer quotes it", async () => {
  await server.api("POST", "/v1/sessions", { id: "drop", agent: "reader" });
  await open(page, server, "s/drop/files");
  const box = page.locator(".file-box", { hasText: "Inputs" });
  await box.getByText("Drop files here").waitFor();
  await drop(box, "trees.html", "text/html", `<html><h1>Trees</h1><p>In <b>June</b>, ${QUOTATION}.</html>`);
  await box.getByRole("link", { name: "trees.html" }).first().waitFor();
  await open(page, server, "s/drop");
  await page.getByLabel("Message").fill("How old is the oak?");
  await page.keyboard.press("Enter");
  await page.getByText(`The page says: ${QUOTATION}.`).first().waitFor();
  const card = page.locator(".tool-card").first();
  assert.ok((await card.textContent()).includes("read_input"));
  assert.deepEqual(page.faults, []);
});

test("a file that is dropped on the message field becomes an input", async () => {
  await server.api("POST", "/v1/sessions", { id: "attach", agent: "reader" });
  await open(page, server, "s/attach");
  await drop(page.locator("form.composer"), "notes.txt", "text/plain", "some notes");
  await page.getByText("notes.txt added").waitFor();
  await page.locator(".item", { hasText: "notes.txt" }).first().waitFor();
  const inputs = await server.api("GET", "/v1/sessions/attach/inputs");
  assert.deepEqual(
    inputs.items.map((input) => input.name),
    ["notes.txt"],
  );
});

test("a snippet is listed with its source", async () => {
  const source = "https://example.org/oaks";
  const query = new URLSearchParams({ name: "oaks", source });
  const uploaded = await fetch(`${server.url}/v1/sessions/attach/inputs?${query}`, {
    method: "POST",
    body: "Oaks live long.",
    headers: { "x-sapwood-csrf": "1" },
  });
  assert.equal(uploaded.status, 201);
  await open(page, server, "s/attach/files");
  await page.getByText(`from ${source}`).waitFor();
});
