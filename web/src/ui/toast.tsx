// Short notifications, announced by screen readers.
import { useSyncExternalStore } from "react";
import { ApiError, hintFor } from "../api/client";
import { cleanLine } from "../text/clean";
import { Button, Hint } from "./base";

interface Toast {
  id: number;
  tone: "good" | "bad";
  text: string;
  hint: string;
}

const SHOWN_MS = 6_000;
const TOASTS_MAX = 4;
let toasts: Toast[] = [];
let nextId = 1;
const listeners = new Set<() => void>();

function set(next: Toast[]): void {
  toasts = next;
  for (const listener of listeners) listener();
}

function dismiss(id: number): void {
  set(toasts.filter((toast) => toast.id !== id));
}

function add(toast: Omit<Toast, "id">): void {
  const id = nextId++;
  set([...toasts.slice(1 - TOASTS_MAX), { ...toast, id }]);
  setTimeout(() => dismiss(id), toast.tone === "bad" ? SHOWN_MS * 2 : SHOWN_MS);
}

export function notify(text: string): void {
  add({ tone: "good", text, hint: "" });
}

export function notifyError(error: unknown): void {
  const code = error instanceof ApiError ? ` (${error.code})` : "";
  const text = error instanceof Error ? error.message : String(error);
  add({ tone: "bad", text: cleanLine(text) + code, hint: hintFor(error) });
}

export function Toasts() {
  const shown = useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => toasts,
  );
  return (
    <div className="toasts" role="status" aria-live="polite">
      {shown.map((toast) => (
        <div key={toast.id} className={`toast ${toast.tone}`}>
          <div>
            <p>{toast.text}</p>
            {toast.hint && (
              <p className="quiet">
                <Hint text={toast.hint} />
              </p>
            )}
          </div>
          <Button icon="close" tone="ghost" compact onClick={() => dismiss(toast.id)}>
            Dismiss
          </Button>
        </div>
      ))}
    </div>
  );
}
