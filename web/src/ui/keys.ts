// Global keyboard shortcuts. While a text field has the focus, only shortcuts with Ctrl or Cmd work.
import { useEffect, useRef } from "react";

export type Keys = Record<string, (event: KeyboardEvent) => void>;

export function isWriting(target: EventTarget | null): boolean {
  return (
    target instanceof HTMLElement &&
    (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName))
  );
}

function nameOf(event: KeyboardEvent): string {
  const prefix = event.ctrlKey || event.metaKey ? "mod+" : event.altKey ? "alt+" : "";
  return prefix + event.key;
}

/** Timeout for the second key of a pair such as `g s`. */
const PAIR_MS = 900;
let first: { key: string; at: number } | null = null;

/** Register shortcuts; names have the form `mod+k`, `?` or `g s`. */
export function useKeys(keys: Keys): void {
  const latest = useRef(keys);
  latest.current = keys;
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      const name = nameOf(event);
      if (event.defaultPrevented || (isWriting(event.target) && !name.startsWith("mod+"))) return;
      if (document.querySelector("dialog[open]") && name !== "mod+k") return;
      const pair = first && Date.now() - first.at < PAIR_MS ? `${first.key} ${name}` : null;
      const found = (pair && latest.current[pair]) || latest.current[name];
      if (!found) {
        if (name === "g") first = { key: name, at: Date.now() };
        return;
      }
      first = null;
      event.preventDefault();
      found(event);
    };
    window.addEventListener("keydown", onKey);
    return () => window.removeEventListener("keydown", onKey);
  }, []);
}
