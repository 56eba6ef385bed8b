// Build configuration of the console: hashed assets, no inline script, and a gzipped copy of each file for the server.
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { defineConfig, type Plugin } from "vite";

function pack(): Plugin {
  return {
    name: "pack",
    closeBundle() {
      for (const file of readdirSync("dist", { recursive: true, withFileTypes: true })) {
        if (!file.isFile() || file.name.endsWith(".gz")) continue;
        const path = join(file.parentPath ?? file.path, file.name);
        writeFileSync(`${path}.gz`, gzipSync(readFileSync(path), { level: 9 }));
      }
    },
  };
}

export default defineConfig({
  esbuild: { jsx: "automatic" },
  build: {
    target: "es2022",
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    cssCodeSplit: false,
    reportCompressedSize: false,
  },
  plugins: [pack()],
  server: { proxy: { "/v1": process.env.SAPWOOD_URL ?? "http://127.0.0.1:7420" } },
});
