// The route is the URL's fragment, so reload, bookmarks and the back button work.
import { useSyncExternalStore } from "react";

export interface Route {
  path: string[];
  query: URLSearchParams;
}

function parse(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?");
  const words = path.split("/").filter(Boolean).map(decode);
  return { path: words, query: new URLSearchParams(query) };
}

function decode(word: string): string {
  try {
    return decodeURIComponent(word);
  } catch {
    return word;
  }
}

let last = { hash: "\0", route: parse("") };

function read(): Route {
  if (last.hash !== location.hash) last = { hash: location.hash, route: parse(location.hash) };
  return last.route;
}

function subscribe(listener: () => void): () => void {
  window.addEventListener("hashchange", listener);
  return () => window.removeEventListener("hashchange", listener);
}

export function useRoute(): Route {
  return useSyncExternalStore(subscribe, read);
}

export function to(path: string[], query: Record<string, string | null | undefined> = {}): string {
  const pairs = Object.entries(query).filter((pair): pair is [string, string] => !!pair[1]);
  const search = pairs.length > 0 ? `?${new URLSearchParams(pairs)}` : "";
  return `#/${path.map(encodeURIComponent).join("/")}${search}`;
}

export function go(path: string[], query: Record<string, string | null | undefined> = {}): void {
  location.hash = to(path, query);
}

/** Change the query without a history entry. */
export function replaceQuery(path: string[], query: Record<string, string | null | undefined>): void {
  const url = to(path, query);
  if (location.hash === url) return;
  history.replaceState(null, "", url);
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}
