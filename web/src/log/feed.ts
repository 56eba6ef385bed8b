// The feed as the console shows it. It is a pure fold of the entries, so a reload, a reconnect and a live view produce
// the same list. A tool's result and an approval's answer update their items in place.
import type { Entry } from "../api/client";
import { type BlobRef, type Body, bodyOf, isInTree, type Part, textOf, type Usage } from "./bodies";

interface ItemBase {
  /** The entry's seq and the part's number; unique per item. */
  key: string;
  seq: number;
  at: number;
  /** Whether the entry is not on the path to the leaf. */
  isOffPath: boolean;
}

export interface ToolItem extends ItemBase {
  kind: "tool";
  callId: string;
  name: string;
  input: unknown;
  outcome: "running" | "done" | "failed" | "interrupted";
  result: Part[];
  full: BlobRef | null;
  durationMs: number | null;
}

export interface ApprovalItem extends ItemBase {
  kind: "approval";
  approval: string;
  question: string;
  about: string;
  callId: string | null;
  answer: { answer: string; reason: string } | null;
  /** Whether the approval is obsolete because its turn has ended. */
  isOver: boolean;
}

export interface AnswerItem extends ItemBase {
  kind: "answer";
  text: string;
  model: string | null;
  usage: Usage | null;
  cost: number | null;
  stop: string;
}

export type Item =
  | (ItemBase & { kind: "user"; parts: Part[]; by: string })
  | AnswerItem
  | (ItemBase & { kind: "reasoning"; text: string })
  | (ItemBase & { kind: "media"; media: BlobRef })
  | ToolItem
  | ApprovalItem
  | (ItemBase & { kind: "queued"; id: string; text: string; steers: boolean; isTaken: boolean })
  | (ItemBase & { kind: "compaction"; body: Extract<Body, { type: "compaction" }> })
  | (ItemBase & { kind: "note"; label: string; text: string })
  | (ItemBase & { kind: "event"; label: string; text: string })
  | (ItemBase & { kind: "error"; label: string; text: string });

export interface Feed {
  items: Item[];
  leaf: number | null;
  openTurn: string | null;
  lastAt: number;
}

/** Placeholder for a leaf that is not loaded. */
const UNKNOWN = -1;

export function foldFeed(entries: Entry[]): Feed {
  const fold = new Fold();
  for (const entry of entries) fold.apply(entry);
  return fold.finish(entries);
}

class Fold {
  private items: Item[] = [];
  private tools = new Map<string, ToolItem>();
  private approvals = new Map<string, ApprovalItem>();
  private queued = new Map<string, Extract<Item, { kind: "queued" }>>();
  private seqs = new Map<string, number>();
  private leaf: number | null = null;
  private openTurn: string | null = null;
  private lastAt = 0;

  apply(entry: Entry): void {
    this.seqs.set(entry.id, entry.seq);
    this.lastAt = Math.max(this.lastAt, entry.at);
    if (isInTree(entry.kind)) this.leaf = entry.seq;
    const body = bodyOf(entry);
    const base: ItemBase = { key: String(entry.seq), seq: entry.seq, at: entry.at, isOffPath: false };
    this.applyMessage(entry, body, base) ||
      this.applyTurn(entry, body, base) ||
      this.applySessionEvent(body, base);
  }

  private event(base: ItemBase, label: string, text = ""): true {
    this.items.push({ ...base, kind: "event", label, text });
    return true;
  }

  /** Fold message entries. */
  private applyMessage(entry: Entry, body: Body, base: ItemBase): boolean {
    switch (body.type) {
      case "user_message":
        this.items.push({ ...base, kind: "user", parts: body.parts, by: entry.by });
        return true;
      case "assistant_message":
        this.answer(body, base);
        return true;
      case "tool_result":
        this.result(body, base);
        return true;
      case "system_note":
        this.items.push({ ...base, kind: "note", label: body.reason ?? "note", text: body.text });
        return true;
      case "custom_message":
        if (body.display)
          this.items.push({ ...base, kind: "note", label: body.custom_type, text: textOf(body.parts) });
        return true;
      case "compaction":
        this.items.push({ ...base, kind: "compaction", body });
        return true;
      case "branch_summary":
        this.items.push({ ...base, kind: "note", label: "branch summary", text: body.summary });
        return true;
      default:
        return false;
    }
  }

  private answer(body: Extract<Body, { type: "assistant_message" }>, base: ItemBase): void {
    const text = textOf(body.parts);
    let hasText = false;
    body.parts.forEach((part, number) => {
      const key = `${base.key}.${number}`;
      if (part.type === "reasoning") this.items.push({ ...base, key, kind: "reasoning", text: part.text });
      else if (part.type === "media") this.items.push({ ...base, key, kind: "media", media: part });
      else if (part.type === "tool_call") this.call(part, { ...base, key });
      else if (!hasText && text !== "") {
        hasText = true;
        this.items.push({
          ...base,
          kind: "answer",
          text,
          model: body.model ?? null,
          usage: body.usage ?? null,
          cost: body.cost_nano_usd ?? null,
          stop: body.stop ?? "stop",
        });
      }
    });
    if (body.stop === "error") {
      const key = `${base.key}.${body.parts.length}`;
      this.items.push({ ...base, key, kind: "error", label: "error", text: "the model call failed" });
    }
  }

  private call(part: Extract<Part, { type: "tool_call" }>, base: ItemBase): void {
    const item: ToolItem = {
      ...base,
      kind: "tool",
      callId: part.call_id,
      name: part.name,
      input: part.input,
      outcome: "running",
      result: [],
      full: null,
      durationMs: null,
    };
    this.tools.set(part.call_id, item);
    this.items.push(item);
  }

  private result(body: Extract<Body, { type: "tool_result" }>, base: ItemBase): void {
    let item = this.tools.get(body.call_id);
    if (!item) {
      this.call({ type: "tool_call", call_id: body.call_id, name: body.tool ?? "tool", input: null }, base);
      item = this.tools.get(body.call_id);
    }
    if (!item) return;
    this.tools.delete(body.call_id);
    item.outcome = body.interrupted ? "interrupted" : body.is_error ? "failed" : "done";
    item.result = body.parts;
    item.full = body.full ?? null;
    item.durationMs = body.duration_ms ?? null;
  }

  /** Fold turn events. */
  private applyTurn(entry: Entry, body: Body, base: ItemBase): boolean {
    switch (body.type) {
      case "turn_started":
        this.openTurn = entry.turn ?? null;
        return true;
      case "turn_ended":
        this.endTurn(body, base);
        return true;
      case "round":
      case "input_taken":
        if (body.type === "input_taken") {
          const taken = this.queued.get(body.input);
          if (taken) taken.isTaken = true;
        }
        return true;
      case "approval_asked": {
        const item: ApprovalItem = {
          ...base,
          kind: "approval",
          approval: body.approval,
          question: body.question,
          about: body.details?.kind ?? "",
          callId: body.call_id ?? null,
          answer: null,
          isOver: false,
        };
        this.approvals.set(body.approval, item);
        this.items.push(item);
        return true;
      }
      case "approval_answered": {
        const item = this.approvals.get(body.approval);
        if (item && !item.answer) item.answer = { answer: body.answer, reason: body.reason ?? "" };
        return true;
      }
      case "input_queued": {
        const text = textOf(body.parts);
        const item = {
          ...base,
          kind: "queued" as const,
          id: entry.id,
          text,
          steers: body.queue === "steer",
          isTaken: false,
        };
        this.queued.set(entry.id, item);
        this.items.push(item);
        return true;
      }
      case "cancel_asked":
        return this.event(base, "cancel requested");
      default:
        return false;
    }
  }

  private endTurn(body: Extract<Body, { type: "turn_ended" }>, base: ItemBase): void {
    this.openTurn = null;
    for (const item of this.approvals.values()) item.isOver = true;
    if (body.outcome === "cancelled") this.event(base, "turn cancelled");
    else if (body.outcome !== "completed") {
      const label = body.outcome === "limited" ? "turn stopped at a limit" : "turn failed";
      const text = [body.code, body.message].filter(Boolean).join(": ");
      this.items.push({ ...base, kind: "error", label, text });
    }
  }

  /** Fold settings, labels and other session events. */
  private applySessionEvent(body: Body, base: ItemBase): boolean {
    switch (body.type) {
      case "model_changed":
        return this.event(base, "model", body.model);
      case "thinking_changed":
        return this.event(base, "thinking", body.level);
      case "skills_changed":
        return this.event(base, "skills", body.active.join(", "));
      case "context_changed":
        return this.event(base, "context", body.cwd ?? "");
      case "graft":
        return this.event(base, "grafted from", body.source);
      case "leaf_moved":
        this.leaf = body.to ? (this.seqs.get(body.to) ?? UNKNOWN) : null;
        return this.event(base, body.to ? "moved to another branch" : "started over");
      case "label":
        return this.event(base, body.text ? "labelled" : "label removed", body.text ?? "");
      case "session_named":
        return this.event(base, "renamed", body.title);
      case "artifact_put":
        return this.event(
          base,
          body.usage,
          body.content ? `${body.name} (${body.content.bytes} bytes)` : body.name,
        );
      case "member_changed":
        return this.event(base, body.role ? `shared as ${body.role}` : "no longer shared", body.member);
      case "state_changed":
        return this.event(base, body.state, body.reason ?? "");
      case "exported":
        return this.event(base, "exported", body.format);
      case "custom_info":
        return this.info(body, base);
      default:
        return this.event(base, (body as { type?: string }).type ?? "entry");
    }
  }

  private info(body: Extract<Body, { type: "custom_info" }>, base: ItemBase): true {
    if (body.custom_type !== "sapwood.pressure") return true;
    const data = body.data as { level?: string; used_tokens?: number; budget_tokens?: number } | null;
    return this.event(
      base,
      "pressure",
      `${data?.level ?? "?"}: ${data?.used_tokens ?? "?"} of ${data?.budget_tokens ?? "?"} tokens`,
    );
  }

  finish(entries: Entry[]): Feed {
    const path = pathTo(this.leaf, entries);
    const inTree = new Map(entries.map((entry) => [entry.seq, isInTree(entry.kind)]));
    for (const item of this.items) {
      item.isOffPath = this.leaf !== UNKNOWN && inTree.get(item.seq) === true && !path.has(item.seq);
    }
    return { items: this.items, leaf: this.leaf, openTurn: this.openTurn, lastAt: this.lastAt };
  }
}

/** The seqs of the loaded entries from an entry up to its root. */
export function pathTo(leaf: number | null, entries: { seq: number; parent?: number | null }[]): Set<number> {
  const parents = new Map(entries.map((entry) => [entry.seq, entry.parent ?? null]));
  const path = new Set<number>();
  let at = leaf;
  while (at !== null && !path.has(at)) {
    path.add(at);
    at = parents.get(at) ?? null;
  }
  return path;
}
