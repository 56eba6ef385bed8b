// Checks exported messages against the types of the real SDKs: types.mjs openai=FILE anthropic=FILE …
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import ts from "typescript";

const types = {
  openai: "ChatCompletionMessageParam[]",
  anthropic: "{ messages: MessageParam[]; system?: string; model?: string }",
};
const checked = process.argv.slice(2).map((argument, number) => {
  const at = argument.indexOf("=");
  return `export const file${number}: ${types[argument.slice(0, at)]} = ${readFileSync(argument.slice(at + 1), "utf8")};`;
});
const source = `import type { ChatCompletionMessageParam } from "openai/resources/chat/completions";
import type { MessageParam } from "@anthropic-ai/sdk/resources/messages";
${checked.join("\n")}`;
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
  path === name ? ts.createSourceFile(path, source, options.target) : getSourceFile.call(host, path, ...rest);
host.fileExists = (path) => path === name || fileExists.call(host, path);
host.readFile = (path) => (path === name ? source : readFile.call(host, path));
const program = ts.createProgram([name], options, host);
const faults = ts.getPreEmitDiagnostics(program);
for (const fault of faults) {
  console.error(ts.flattenDiagnosticMessageText(fault.messageText, "\n"));
}
process.exit(faults.length === 0 ? 0 : 1);
