// How the console shows the server's feed items. The server folds the log; nothing here depends on other items.
import type { FeedItem, Part } from "../api/client";

/** How an item is drawn. `styleOf` returns null for an item that is not shown. */
export type ItemStyle =
  | "user"
  | "answer"
  | "reasoning"
  | "media"
  | "tool"
  | "approval"
  | "queued"
  | "compaction"
  | "note"
  | "event"
  | "warning"
  | "error";

export function styleOf(item: FeedItem): ItemStyle | null {
  if (item.tool) return "tool";
  if (item.approval) return "approval";
  if (item.queued) return "queued";
  if (item.answer) return "answer";
  switch (item.kind) {
    case "user_message":
      return "user";
    case "assistant_message":
      return item.type === "reasoning" ? "reasoning" : item.type === "error" ? "error" : "media";
    case "compaction":
      return "compaction";
    case "system_note":
    case "custom_message":
    case "branch_summary":
      return "note";
    case "turn_ended":
      return item.type === "error" ? "error" : "event";
    case "pressure_changed":
      return isRed(item) ? "warning" : "event";
    case "custom_info":
    case "turn_started":
    case "approval_answered":
      return null;
    default:
      return "event";
  }
}

/** Whether a change of context pressure needs a warning: the context is nearly full. */
function isRed({ text }: FeedItem): boolean {
  return text.startsWith("red:");
}

/** The label and the text of a note, an event, a warning or an error. */
export function lineOf({ body, label, text }: FeedItem): [string, string] {
  switch (body?.type) {
    case "system_note":
      return [body.reason ?? "note", text];
    case "branch_summary":
      return ["branch summary", text];
    case "context_changed":
      return ["context", body.cwd ?? ""];
    case "graft":
      return ["grafted from", text];
    case "leaf_moved":
      return [body.to ? label : "started over", text];
    case "label":
      return [body.text ? "labelled" : "label removed", text];
    case "artifact_put":
      return [body.usage, `${body.name} (${body.content.bytes} bytes)`];
    case "member_changed":
      return [body.role ? `shared as ${body.role}` : "no longer shared", text];
    case "state_changed":
      return [label, body.reason ?? ""];
    case "cancel_asked":
      return ["cancel requested", text];
    case "turn_ended": {
      if (body.outcome === "cancelled") return ["turn cancelled", text];
      const reason = [body.code, body.message].filter(Boolean).join(": ");
      return [body.outcome === "limited" ? "turn stopped at a limit" : "turn failed", reason];
    }
    case "pressure_changed":
      return text.startsWith("red:")
        ? ["the context is nearly full", `older messages are replaced with a summary (${text})`]
        : [label, text];
    default:
      return [label, text];
  }
}

/** The parts of a message. A single text has no separate parts. */
export function partsOf({ parts, text }: FeedItem): Part[] {
  return parts?.length ? parts : [{ type: "text", text }];
}

/** Add new items. An item with a known id replaces the earlier one; the other items stay the same objects. */
export function mergeItems(items: FeedItem[], news: FeedItem[]): FeedItem[] {
  const merged = new Map(items.map((item) => [item.id, item]));
  for (const item of news) merged.set(item.id, item);
  return [...merged.values()];
}
