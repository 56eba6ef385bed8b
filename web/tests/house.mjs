// Test harness for the browser tests: a real server binary with a store in a temporary directory and the demo model,
// and the system's headless Chromium.
import { execFileSync, spawn } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

const here = dirname(fileURLToPath(import.meta.url));
const BINARY = process.env.SAPWOOD_BIN ?? join(here, "../../target/debug/sapwood");
const BROWSERS = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];
/** Timeout for every wait, with a large margin for busy machines. */
const WAIT_MS_MAX = 120_000;
const LEASED_TRIES_MAX = 600;
const MAKERS = 64;

const AGENT = `id: helper
name: Helper
description: Reads and writes in its own directory, and asks before it edits.
model: demo
tools: [read_file, write_file, edit_file, list_directory, run_command, ask_user]
allowed_commands: ["echo *"]
approvals: ask
`;

export class TestServer {
  /** Start a server; `furnish` adds files to its home first and returns more settings. */
  static async open(furnish = (_home) => "") {
    const server = new TestServer();
    server.home = mkdtempSync(join(tmpdir(), "sapwood-console-"));
    mkdirSync(join(server.home, "agents"), { recursive: true });
    writeFileSync(join(server.home, "agents/helper.yaml"), AGENT);
    // These tests cover the console. Durability is tested elsewhere.
    const more = furnish(server.home);
    writeFileSync(join(server.home, "sapwood.toml"), `durability = "normal"\n${more}`);
    server.env = {
      ...process.env,
      SAPWOOD_HOME: server.home,
      SAPWOOD_STORE: `sqlite:${join(server.home, "s.db")}`,
      HOME: server.home,
    };
    await server.start();
    return server;
  }

  async start(addr = "127.0.0.1:0") {
    this.process = spawn(BINARY, ["--json", "serve", "--addr", addr, "--grace", "1"], {
      env: this.env,
      cwd: this.home,
    });
    this.errors = "";
    this.process.stderr.on("data", (text) => {
      this.errors += text;
    });
    this.url = await new Promise((resolve, reject) => {
      const timer = setTimeout(
        () => reject(new Error(`the server did not start: ${this.errors}`)),
        WAIT_MS_MAX,
      );
      this.process.stdout.on("data", (text) => {
        const line = String(text).split("\n")[0];
        clearTimeout(timer);
        resolve(JSON.parse(line).url);
      });
      this.process.on("exit", (code) => reject(new Error(`the server exited with ${code}: ${this.errors}`)));
    });
  }

  /** Stop the server; SIGKILL simulates a crash. */
  async stop(signal = "SIGTERM") {
    if (!this.process || this.process.exitCode !== null) return;
    const gone = new Promise((resolve) => this.process.once("exit", resolve));
    this.process.kill(signal);
    await gone;
  }

  async close() {
    await this.browser?.close();
    await this.stop();
    rmSync(this.home, { recursive: true, force: true });
  }

  /** Run a CLI command on the same store. */
  run(...args) {
    return execFileSync(BINARY, args, {
      env: this.env,
      cwd: this.home,
      encoding: "utf8",
      maxBuffer: 64 << 20,
    });
  }

  async api(method, path, body, headers = {}) {
    const ask = () =>
      fetch(this.url + path, {
        method,
        headers: { ...(body === undefined ? {} : { "content-type": "application/json" }), ...headers },
        body: body === undefined ? undefined : typeof body === "string" ? body : JSON.stringify(body),
      });
    // A kept-alive connection may have been closed while idle.
    let response = await ask().catch(ask);
    let text = await response.text();
    // A turn that has ended holds its lease until its cleanup is done.
    for (let tries = 0; tries < LEASED_TRIES_MAX && text.includes("session.leased"); tries++) {
      await new Promise((resolve) => setTimeout(resolve, 100));
      response = await ask();
      text = await response.text();
    }
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
    return text === "" ? null : JSON.parse(text);
  }

  /** Wait until no turn is open. */
  async quiet(session) {
    for (let tries = 0; tries < 2_400; tries++) {
      const summary = await this.api("GET", `/v1/sessions/${session}`);
      if (!summary.open_turn) return summary;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    throw new Error(`the turn of ${session} did not end`);
  }

  /** Run one turn to its end. */
  async talk(session, input) {
    await this.api("POST", `/v1/sessions/${session}/turns`, { input });
    return this.quiet(session);
  }

  /** Inject messages in batches, without a model. */
  async inject(session, messages) {
    for (let at = 0; at < messages.length; at += 1_000) {
      await this.api("POST", `/v1/sessions/${session}/entries`, messages.slice(at, at + 1_000));
    }
  }

  /** Create many sessions concurrently, so that the store commits them in groups. */
  async fill(count, sessionOf) {
    let next = 0;
    const make = async () => {
      while (next < count) await this.api("POST", "/v1/sessions", sessionOf(next++));
    };
    // Create the first session alone, then the others concurrently.
    await this.api("POST", "/v1/sessions", sessionOf(next++));
    await Promise.all(Array.from({ length: MAKERS }, make));
  }

  /** Open a page; CSP violations and script errors are collected in `page.faults`. */
  async page(options = {}) {
    const executablePath = process.env.CHROMIUM ?? BROWSERS.find((path) => existsSync(path));
    this.browser ??= await chromium.launch({
      executablePath,
      args: ["--no-sandbox", "--disable-dev-shm-usage"],
    });
    const context = await this.browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
    context.setDefaultTimeout(WAIT_MS_MAX);
    const page = await context.newPage();
    page.faults = [];
    page.on("pageerror", (error) => page.faults.push(String(error)));
    page.on("console", (message) => {
      const text = message.text();
      // Some tests expect failed requests, but no test expects a blocked script or style.
      if (message.type() === "error" && !text.startsWith("Failed to load resource")) page.faults.push(text);
    });
    return page;
  }
}

/** The items of the feed as comparable strings. */
export function feedOf(page) {
  return page.$$eval(".feed .item[data-seq]", (items) =>
    items.map(
      (item) =>
        `${item.dataset.seq} ${item.dataset.kind} ${(item.textContent ?? "").replace(/\s+/g, " ").trim()}`,
    ),
  );
}

/** Open a view and wait until it is loaded. */
export async function open(page, server, path) {
  await page.goto(`${server.url}/#/${path}`);
  await page.locator("main").waitFor();
}
