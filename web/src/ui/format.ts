// Formats numbers, sizes and times.
import type { Session, Total } from "../api/client";

export function money(nanoUsd: number): string {
  const usd = nanoUsd / 1e9;
  if (usd === 0) return "$0";
  if (usd >= 100) return `$${usd.toFixed(0)}`;
  if (usd >= 0.995) return `$${usd.toFixed(2)}`;
  return usd < 0.0001 ? "<$0.0001" : `$${usd.toPrecision(2).replace(/0+$/, "")}`;
}

export function count(value: number): string {
  if (value < 1_000) return String(value);
  if (value < 1_000_000) return `${(value / 1_000).toFixed(value < 10_000 ? 1 : 0)}k`;
  return `${(value / 1_000_000).toFixed(value < 10_000_000 ? 1 : 0)}M`;
}

export function bytes(value: number): string {
  if (value < 1_024) return `${value} B`;
  const units = ["KB", "MB", "GB"];
  let size = value / 1_024;
  let unit = 0;
  while (size >= 1_024 && unit < units.length - 1) {
    size /= 1_024;
    unit++;
  }
  return `${size.toFixed(size < 10 ? 1 : 0)} ${units[unit]}`;
}

export function duration(ms: number): string {
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1_000).toFixed(1)} s`;
  return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1_000)} s`;
}

export function ago(at: number, now = Date.now()): string {
  const seconds = Math.round((now - at) / 1_000);
  if (seconds < 45) return "now";
  if (seconds < 3_600) return `${Math.max(1, Math.round(seconds / 60))} min`;
  if (seconds < 86_400) return `${Math.round(seconds / 3_600)} h`;
  if (seconds < 7 * 86_400) return `${Math.round(seconds / 86_400)} d`;
  const date = new Date(at);
  const year = date.getFullYear() === new Date(now).getFullYear() ? undefined : "numeric";
  return date.toLocaleDateString(undefined, { day: "numeric", month: "short", year });
}

export function clock(at: number): string {
  return new Date(at).toLocaleTimeString(undefined, {
    hour: "2-digit",
    minute: "2-digit",
    second: "2-digit",
  });
}

export function whole(at: number): string {
  return new Date(at).toLocaleString();
}

export function plural(value: number, one: string, many = `${one}s`): string {
  return `${value.toLocaleString()} ${value === 1 ? one : many}`;
}

/** Cost and token totals of a session's own model calls. */
export function spent(session: Session): { cost: number; tokens: number; unpriced: number } {
  const totals = Object.values(session.spend) as Total[];
  const tokens = (total: Total) =>
    Number(total.input ?? 0) + Number(total.output ?? 0) + Number(total.cache_read ?? 0);
  return {
    cost: totals.reduce((sum, total) => sum + total.cost_nano_usd, 0),
    tokens: totals.reduce((sum, total) => sum + tokens(total), 0),
    unpriced: totals.reduce((sum, total) => sum + total.unpriced_calls, 0),
  };
}
