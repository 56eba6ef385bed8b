// A server of one's own for a journey: the real binary, a store in a temporary directory, the demo model; and the system's
// Chromium, headless.
import { execFileSync, spawn } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

const here = dirname(fileURLToPath(import.meta.url));
const BINARY = process.env.SAPWOOD_BIN ?? join(here, "../../target/debug/sapwood");
const BROWSERS = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];
/** How long a journey waits for anything: on a busy machine everything takes long, and nothing takes this long. */
const WAIT_MS_MAX = 120_000;
const LEASED_TRIES_MAX = 600;
const MAKERS = 64;

const AGENT = `id: helper
name: Helper
description: Reads and writes in a directory of its own, and asks before it edits.
model: demo
tools: [read_file, write_file, edit_file, list_directory, run_command, ask_user]
allowed_commands: ["echo *"]
approvals: ask
`;

export class House {
  /** A house; `furnish` puts more into its home before the server starts. */
  static async open(furnish = (_home) => "") {
    const house = new House();
    house.home = mkdtempSync(join(tmpdir(), "sapwood-console-"));
    mkdirSync(join(house.home, "agents"), { recursive: true });
    writeFileSync(join(house.home, "agents/helper.yaml"), AGENT);
    // What is tested here is the console: that nothing is lost when the power goes is tested elsewhere.
    const more = furnish(house.home);
    writeFileSync(join(house.home, "sapwood.toml"), `durability = "normal"\n${more}`);
    house.env = {
      ...process.env,
      SAPWOOD_HOME: house.home,
      SAPWOOD_STORE: `sqlite:${join(house.home, "s.db")}`,
      HOME: house.home,
    };
    await house.start();
    return house;
  }

  async start(addr = "127.0.0.1:0") {
    this.server = spawn(BINARY, ["--json", "serve", "--addr", addr, "--grace", "1"], {
      env: this.env,
      cwd: this.home,
    });
    this.errors = "";
    this.server.stderr.on("data", (text) => {
      this.errors += text;
    });
    this.url = await new Promise((resolve, reject) => {
      const timer = setTimeout(
        () => reject(new Error(`the server never came up: ${this.errors}`)),
        WAIT_MS_MAX,
      );
      this.server.stdout.on("data", (text) => {
        const line = String(text).split("\n")[0];
        clearTimeout(timer);
        resolve(JSON.parse(line).url);
      });
      this.server.on("exit", (code) => reject(new Error(`the server ended with ${code}: ${this.errors}`)));
    });
  }

  /** Ends the server; with SIGKILL as a crash would. */
  async stop(signal = "SIGTERM") {
    if (!this.server || this.server.exitCode !== null) return;
    const gone = new Promise((resolve) => this.server.once("exit", resolve));
    this.server.kill(signal);
    await gone;
  }

  async close() {
    await this.browser?.close();
    await this.stop();
    rmSync(this.home, { recursive: true, force: true });
  }

  /** A command of the program on the same store. */
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
    // A connection that was kept may have been closed while it was idle.
    let response = await ask().catch(ask);
    let text = await response.text();
    // A turn that has ended tidies up before it lets go of its session.
    for (let tries = 0; tries < LEASED_TRIES_MAX && text.includes("session.leased"); tries++) {
      await new Promise((resolve) => setTimeout(resolve, 100));
      response = await ask();
      text = await response.text();
    }
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
    return text === "" ? null : JSON.parse(text);
  }

  /** Waits until no turn is open. */
  async quiet(session) {
    for (let tries = 0; tries < 2_400; tries++) {
      const summary = await this.api("GET", `/v1/sessions/${session}`);
      if (!summary.open_turn) return summary;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    throw new Error(`the turn of ${session} never ended`);
  }

  /** One turn to its end. */
  async talk(session, input) {
    await this.api("POST", `/v1/sessions/${session}/turns`, { input });
    return this.quiet(session);
  }

  /** Messages without a model, many at a time. */
  async inject(session, messages) {
    for (let at = 0; at < messages.length; at += 1_000) {
      await this.api("POST", `/v1/sessions/${session}/entries`, messages.slice(at, at + 1_000));
    }
  }

  /** Many sessions at once: those that meet are written together. */
  async fill(count, sessionOf) {
    let next = 0;
    const make = async () => {
      while (next < count) await this.api("POST", "/v1/sessions", sessionOf(next++));
    };
    // The first comes first, and the others side by side.
    await this.api("POST", "/v1/sessions", sessionOf(next++));
    await Promise.all(Array.from({ length: MAKERS }, make));
  }

  /** A page; whatever its policy refuses or its script throws is kept in `page.faults`. */
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
      // A refused request is what some journeys are about; a refused script or style never is.
      if (message.type() === "error" && !text.startsWith("Failed to load resource")) page.faults.push(text);
    });
    return page;
  }
}

/** What the feed shows, as a list that can be compared. */
export function feedOf(page) {
  return page.$$eval(".feed .item[data-seq]", (items) =>
    items.map(
      (item) =>
        `${item.dataset.seq} ${item.dataset.kind} ${(item.textContent ?? "").replace(/\s+/g, " ").trim()}`,
    ),
  );
}

/** Opens a view of a session and waits until it is there. */
export async function open(page, house, path) {
  await page.goto(`${house.url}/#/${path}`);
  await page.locator("main").waitFor();
}
