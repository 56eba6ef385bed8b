// A list that keeps only some of its rows in memory. It is read page by page with cursors. Pages far from the viewport
// are evicted and read again from their cursors, so a hundred thousand rows take the memory of a few thousand.

export interface PageOf<T> {
  items: T[];
  next?: string | null;
}

export type ReadPage<T> = (cursor: string | undefined) => Promise<PageOf<T>>;

interface ListPage<T> {
  cursor: string | undefined;
  /** Number of rows in the page, even after eviction. */
  count: number;
  items: T[] | null;
}

/** Pages kept in memory. The first page is always kept, because new rows appear there. */
const PAGES_KEPT = 16;
/** Prefetch the next page when the view is this close to the last loaded row. */
const PREFETCH_ROWS = 80;
/** Maximum rows of the first page. If it grows larger, the whole list is reloaded. */
const FIRST_ROWS_MAX = 2_000;

export class LongList<T extends { id: string }> {
  rows = 0;
  isMore = true;
  error: unknown = null;
  /** Incremented on every change, for subscribers. */
  version = 0;
  private pages: ListPage<T>[] = [];
  private next: string | undefined;
  private reading = new Set<number>();
  private generation = 0;
  private listeners = new Set<() => void>();

  constructor(private readonly read: ReadPage<T>) {}

  subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  snapshot = (): number => this.version;

  /** Whether the first page has not been loaded yet. */
  get isNew(): boolean {
    return this.pages.length === 0;
  }

  get rowsInMemory(): number {
    return this.pages.reduce((sum, listPage) => sum + (listPage.items?.length ?? 0), 0);
  }

  /** A row; undefined if it was evicted or is not loaded yet. */
  row(index: number): T | undefined {
    const { listPage, start } = this.find(index);
    return listPage?.items?.[index - start];
  }

  /** Set the rows in view. Loads missing and upcoming pages, and evicts distant pages. */
  setVisibleRows(first: number, last: number): void {
    if (this.error) return;
    const from = this.find(first).at;
    const to = this.find(Math.min(last, this.rows - 1)).at;
    for (let at = from; at <= to; at++) if (this.pages[at]?.items === null) void this.load(at);
    if (this.isMore && last >= this.rows - PREFETCH_ROWS) void this.load(this.pages.length);
    this.evict(Math.floor((from + to) / 2));
  }

  /** Reload the first page to show rows that are new or have moved to the top. */
  async refresh(): Promise<void> {
    const generation = this.generation;
    const first = this.pages[0];
    if (!first?.items || this.reading.has(0)) return;
    const page = await this.attempt(0, undefined);
    if (!page || generation !== this.generation) return;
    const fresh = new Set(page.items.map((item) => item.id));
    const meets =
      page.next == null || first.items.length === 0 || first.items.some((item) => fresh.has(item.id));
    if (!meets || first.items.length > FIRST_ROWS_MAX) return this.reset();
    for (const listPage of this.pages)
      this.fill(listPage, listPage.items?.filter((item) => !fresh.has(item.id)) ?? null);
    this.fill(first, [...page.items, ...(first.items ?? [])]);
    this.notify();
  }

  /** Reload the list from the start. */
  reset(): void {
    this.generation++;
    this.pages = [];
    this.reading.clear();
    this.next = undefined;
    this.rows = 0;
    this.isMore = true;
    this.error = null;
    void this.load(0);
  }

  retry(): void {
    this.error = null;
    this.notify();
    if (this.isNew) void this.load(0);
  }

  private async load(at: number): Promise<void> {
    if (this.reading.has(at)) return;
    const generation = this.generation;
    const known = this.pages[at];
    const page = await this.attempt(at, known ? known.cursor : this.next);
    if (!page || generation !== this.generation) return;
    const others = new Set(
      this.pages.flatMap((listPage) =>
        listPage === known ? [] : (listPage.items ?? []).map((item) => item.id),
      ),
    );
    const listPage = known ?? { cursor: this.next, count: 0, items: null };
    if (!known) {
      this.pages.push(listPage);
      this.next = page.next ?? undefined;
      this.isMore = this.next !== undefined;
    }
    // A row that moved in the meantime can be on two pages.
    this.fill(
      listPage,
      page.items.filter((item) => !others.has(item.id)),
    );
    this.notify();
  }

  private async attempt(at: number, cursor: string | undefined): Promise<PageOf<T> | null> {
    const generation = this.generation;
    this.reading.add(at);
    try {
      return await this.read(cursor);
    } catch (error) {
      if (generation === this.generation) {
        this.error = error;
        this.notify();
      }
      return null;
    } finally {
      if (generation === this.generation) this.reading.delete(at);
    }
  }

  private fill(listPage: ListPage<T>, items: T[] | null): void {
    if (items) listPage.count = items.length;
    listPage.items = items;
  }

  private evict(middle: number): void {
    const loaded = this.pages.map((_, at) => at).filter((at) => at > 0 && this.pages[at]?.items);
    if (loaded.length < PAGES_KEPT) return;
    loaded.sort((a, b) => Math.abs(a - middle) - Math.abs(b - middle));
    for (const at of loaded.slice(PAGES_KEPT - 1)) {
      const listPage = this.pages[at];
      if (listPage) listPage.items = null;
    }
  }

  private find(index: number): { listPage: ListPage<T> | undefined; start: number; at: number } {
    let start = 0;
    for (const [at, listPage] of this.pages.entries()) {
      if (index < start + listPage.count) return { listPage, start, at };
      start += listPage.count;
    }
    return { listPage: undefined, start, at: this.pages.length };
  }

  private notify(): void {
    this.rows = this.pages.reduce((sum, listPage) => sum + listPage.count, 0);
    this.version++;
    for (const listener of this.listeners) listener();
  }
}
