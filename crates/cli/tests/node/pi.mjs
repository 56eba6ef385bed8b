// Opens a session file with the real pi and prints the context that pi would send next.
import { SessionManager } from "@earendil-works/pi-coding-agent";

const session = SessionManager.open(process.argv[2]);
const { messages, thinkingLevel, model } = session.buildSessionContext();
const text = (message) => {
  if (message.role === "compactionSummary" || message.role === "branchSummary") return message.summary;
  if (typeof message.content === "string") return message.content;
  return (message.content ?? []).filter((block) => block.type === "text").map((block) => block.text).join("\n");
};
console.log(
  JSON.stringify({
    id: session.getSessionId(),
    name: session.getSessionName() ?? null,
    model: model?.modelId ?? null,
    thinkingLevel,
    texts: messages.map(text),
    roles: messages.map((message) => message.role),
    entries: session.getEntries().length,
    tree: session.getTree().length,
  }),
);
