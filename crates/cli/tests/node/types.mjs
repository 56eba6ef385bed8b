// Checks exported messages against the types of the real SDKs: types.mjs openai|anthropic FILE
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import ts from "typescript";

const [vendor, file] = process.argv.slice(2);
const json = readFileSync(file, "utf8");
const sources = {
  openai: `import type { ChatCompletionMessageParam } from "openai/resources/chat/completions";
export const messages: ChatCompletionMessageParam[] = ${json};`,
  anthropic: `import type { MessageParam } from "@anthropic-ai/sdk/resources/messages";
export const document: { messages: MessageParam[]; system?: string; model?: string } = ${json};`,
};
const name = join(dirname(fileURLToPath(import.meta.url)), "checked.ts");
const options = {
  strict: true,
  noEmit: true,
  skipLibCheck: true,
  module: ts.ModuleKind.NodeNext,
  moduleResolution: ts.ModuleResolutionKind.NodeNext,
  target: ts.ScriptTarget.ES2022,
  types: [],
};
const host = ts.createCompilerHost(options);
const { getSourceFile, fileExists, readFile } = host;
host.getSourceFile = (path, ...rest) =>
  path === name ? ts.createSourceFile(path, sources[vendor], options.target) : getSourceFile.call(host, path, ...rest);
host.fileExists = (path) => path === name || fileExists.call(host, path);
host.readFile = (path) => (path === name ? sources[vendor] : readFile.call(host, path));
const program = ts.createProgram([name], options, host);
const faults = ts.getPreEmitDiagnostics(program);
for (const fault of faults) {
  console.error(ts.flattenDiagnosticMessageText(fault.messageText, "\n"));
}
process.exit(faults.length === 0 ? 0 : 1);
