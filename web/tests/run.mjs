// Runs the unit tests in Node, and the browser tests in the system's Chromium against the real binary. `npm test -- unit`
// and `npm test -- journeys` run only one of the two.
import { spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const asked = process.argv[2] ?? "all";

function run(files) {
  const done = spawnSync(process.execPath, ["--test", "--test-reporter=spec", ...files], {
    stdio: "inherit",
  });
  if (done.status !== 0) process.exit(done.status ?? 1);
}

if (asked === "all" || asked === "unit") {
  const out = mkdtempSync(join(tmpdir(), "sapwood-unit-"));
  try {
    const entryPoints = readdirSync(join(here, "unit")).map((file) => join(here, "unit", file));
    await build({
      entryPoints,
      outdir: out,
      outExtension: { ".js": ".mjs" },
      bundle: true,
      platform: "node",
      format: "esm",
      logLevel: "error",
    });
    run(readdirSync(out).map((file) => join(out, file)));
  } finally {
    rmSync(out, { recursive: true, force: true });
  }
}
if (asked === "all" || asked === "journeys") {
  run(readdirSync(join(here, "journeys")).map((file) => join(here, "journeys", file)));
}
