// A list that keeps only part of its rows in memory. It is read page by page with cursors. Pages far from the viewport
// are evicted and read again from their cursors, so a hundred thousand rows take the memory of a few thousand.

export interface PageOf<T> {
  items: T[];
  next?: string | null;
}

export type ReadPage<T> = (cursor: string | undefined) => Promise<PageOf<T>>;

interface Leaf<T> {
  cursor: string | undefined;
  /** Number of rows in the page, even after eviction. */
  count: number;
  items: T[] | null;
}

/** Pages kept in memory. The first page is always kept, because new rows appear there. */
const PAGES_KEPT = 16;
/** Prefetch the next page when the view is this close to the last loaded row. */
const AHEAD_ROWS = 80;
/** Maximum rows of the first page. If it grows larger, the whole list is reloaded. */
const FIRST_ROWS_MAX = 2_000;

export class LongList<T extends { id: string }> {
  rows = 0;
  isMore = true;
  error: unknown = null;
  /** Incremented on every change, for subscribers. */
  version = 0;
  private leaves: Leaf<T>[] = [];
  private next: string | undefined;
  private reading = new Set<number>();
  private life = 0;
  private watchers = new Set<() => void>();

  constructor(private readonly read: ReadPage<T>) {}

  subscribe = (watcher: () => void): (() => void) => {
    this.watchers.add(watcher);
    return () => this.watchers.delete(watcher);
  };

  snapshot = (): number => this.version;

  /** Whether the first page is still loading. */
  get isNew(): boolean {
    return this.leaves.length === 0;
  }

  /** Number of rows in memory. */
  get held(): number {
    return this.leaves.reduce((sum, leaf) => sum + (leaf.items?.length ?? 0), 0);
  }

  /** A row; undefined if it was evicted or is not loaded yet. */
  row(index: number): T | undefined {
    const { leaf, start } = this.find(index);
    return leaf?.items?.[index - start];
  }

  /** Set the rows in view. Loads missing and upcoming pages, and evicts distant pages. */
  look(first: number, last: number): void {
    if (this.error) return;
    const from = this.find(first).at;
    const to = this.find(Math.min(last, this.rows - 1)).at;
    for (let at = from; at <= to; at++) if (this.leaves[at]?.items === null) void this.load(at);
    if (this.isMore && last >= this.rows - AHEAD_ROWS) void this.load(this.leaves.length);
    this.letGo(Math.floor((from + to) / 2));
  }

  /** Reload the first page to show rows that are new or have moved to the top. */
  async refresh(): Promise<void> {
    const life = this.life;
    const first = this.leaves[0];
    if (!first?.items || this.reading.has(0)) return;
    const page = await this.attempt(0, undefined);
    if (!page || life !== this.life) return;
    const fresh = new Set(page.items.map((item) => item.id));
    const meets =
      page.next == null || first.items.length === 0 || first.items.some((item) => fresh.has(item.id));
    if (!meets || first.items.length > FIRST_ROWS_MAX) return this.reset();
    for (const leaf of this.leaves)
      this.fill(leaf, leaf.items?.filter((item) => !fresh.has(item.id)) ?? null);
    this.fill(first, [...page.items, ...(first.items ?? [])]);
    this.tell();
  }

  /** Reload the list from the start. */
  reset(): void {
    this.life++;
    this.leaves = [];
    this.reading.clear();
    this.next = undefined;
    this.rows = 0;
    this.isMore = true;
    this.error = null;
    void this.load(0);
  }

  retry(): void {
    this.error = null;
    this.tell();
    if (this.isNew) void this.load(0);
  }

  private async load(at: number): Promise<void> {
    if (this.reading.has(at)) return;
    const life = this.life;
    const known = this.leaves[at];
    const page = await this.attempt(at, known ? known.cursor : this.next);
    if (!page || life !== this.life) return;
    const others = new Set(
      this.leaves.flatMap((leaf) => (leaf === known ? [] : (leaf.items ?? []).map((item) => item.id))),
    );
    const leaf = known ?? { cursor: this.next, count: 0, items: null };
    if (!known) {
      this.leaves.push(leaf);
      this.next = page.next ?? undefined;
      this.isMore = this.next !== undefined;
    }
    // A row that moved in the meantime can be on two pages.
    this.fill(
      leaf,
      page.items.filter((item) => !others.has(item.id)),
    );
    this.tell();
  }

  private async attempt(at: number, cursor: string | undefined): Promise<PageOf<T> | null> {
    const life = this.life;
    this.reading.add(at);
    try {
      return await this.read(cursor);
    } catch (error) {
      if (life === this.life) {
        this.error = error;
        this.tell();
      }
      return null;
    } finally {
      if (life === this.life) this.reading.delete(at);
    }
  }

  private fill(leaf: Leaf<T>, items: T[] | null): void {
    if (items) leaf.count = items.length;
    leaf.items = items;
  }

  private letGo(middle: number): void {
    const held = this.leaves.map((_, at) => at).filter((at) => at > 0 && this.leaves[at]?.items);
    if (held.length < PAGES_KEPT) return;
    held.sort((a, b) => Math.abs(a - middle) - Math.abs(b - middle));
    for (const at of held.slice(PAGES_KEPT - 1)) {
      const leaf = this.leaves[at];
      if (leaf) leaf.items = null;
    }
  }

  private find(index: number): { leaf: Leaf<T> | undefined; start: number; at: number } {
    let start = 0;
    for (const [at, leaf] of this.leaves.entries()) {
      if (index < start + leaf.count) return { leaf, start, at };
      start += leaf.count;
    }
    return { leaf: undefined, start, at: this.leaves.length };
  }

  private tell(): void {
    this.rows = this.leaves.reduce((sum, leaf) => sum + leaf.count, 0);
    this.version++;
    for (const watcher of this.watchers) watcher();
  }
}
