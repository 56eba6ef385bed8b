// A long list: every row is reachable, few are kept in memory.
import assert from "node:assert/strict";
import { test } from "node:test";
import { LongList } from "../../src/log/longList";

const PAGE = 200;
interface Item {
  id: string;
  seq: number;
}

/** A fake server with a list, newest first, that is read by cursor. */
class FakeServer {
  items: Item[];
  reads = 0;
  constructor(count: number) {
    this.items = Array.from({ length: count }, (_, n) => ({ id: `s${n}`, seq: 0 }));
  }
  read = async (cursor: string | undefined) => {
    this.reads++;
    // A cursor names the previous row, which may have moved since; its old position counts.
    const from = cursor === undefined ? 0 : this.items.findIndex((item) => position(item) > Number(cursor));
    const items = from < 0 ? [] : this.items.slice(from, from + PAGE);
    const last = items.at(-1);
    const isMore = last !== undefined && last !== this.items.at(-1);
    return { items, next: isMore ? String(position(last)) : null };
  };
  touch(id: string, seq: number) {
    this.items = [{ id, seq }, ...this.items.filter((item) => item.id !== id)];
  }
}
/** The original position of a row; a row that was touched precedes all others. */
const position = (item: Item) => (item.seq > 0 ? -item.seq : Number(item.id.slice(1)));

const settle = () => new Promise((resolve) => setTimeout(resolve, 0));

async function walk(list: LongList<Item>, to: number) {
  for (
    let tries = 0;
    tries < 2_000 && (list.isMore ? list.rows <= to : list.row(list.rows - 1) === undefined);
    tries++
  ) {
    list.setVisibleRows(Math.max(0, list.rows - 20), list.rows - 1);
    await settle();
  }
}

test("a hundred thousand rows are reachable, and a few thousand are kept", async () => {
  const server = new FakeServer(100_000);
  const list = new LongList<Item>(server.read);
  list.reset();
  await settle();
  await walk(list, 100_000);
  assert.equal(list.rows, 100_000);
  assert.equal(list.isMore, false);
  assert.equal(list.row(99_999)?.id, "s99999");
  assert.ok(list.rowsInMemory <= 20 * PAGE, `${list.rowsInMemory} rows are kept`);
  assert.equal(list.row(50_000), undefined, "distant rows are evicted");
  list.setVisibleRows(50_000, 50_020);
  await settle();
  assert.equal(list.row(50_000)?.id, "s50000", "evicted rows are loaded again");
  assert.ok(list.rowsInMemory <= 20 * PAGE);
});

test("a changed row appears at the top exactly once", async () => {
  const server = new FakeServer(1_000);
  const list = new LongList<Item>(server.read);
  list.reset();
  await settle();
  await walk(list, 1_000);
  server.touch("s500", 1);
  server.touch("new", 2);
  await list.refresh();
  assert.deepEqual([list.row(0)?.id, list.row(1)?.id, list.row(2)?.id], ["new", "s500", "s0"]);
  assert.equal(list.rows, 1_001);
  const ids = Array.from({ length: list.rows }, (_, n) => list.row(n)?.id);
  assert.equal(new Set(ids).size, 1_001, "no row is duplicated or missing");
});

test("the list is reloaded if more rows are new than fit on a page", async () => {
  const server = new FakeServer(1_000);
  const list = new LongList<Item>(server.read);
  list.reset();
  await settle();
  for (let n = 1; n <= PAGE + 1; n++) server.touch(`new${n}`, n);
  await list.refresh();
  await settle();
  assert.equal(list.rows, PAGE);
  assert.equal(list.row(0)?.id, `new${PAGE + 1}`);
});

test("an empty page is followed by the next one, and an error stops loading until a retry", async () => {
  const pages = [
    { items: [], next: "1" },
    { items: [], next: "2" },
    { items: [{ id: "found", seq: 0 }], next: null },
  ];
  let fails = true;
  const list = new LongList<Item>(async (cursor) => {
    if (cursor === "2" && fails) throw new Error("away");
    return pages[Number(cursor ?? 0)] ?? { items: [] };
  });
  list.reset();
  for (let n = 0; n < 5; n++) {
    await settle();
    list.setVisibleRows(0, 0);
  }
  assert.ok(list.error instanceof Error);
  fails = false;
  list.retry();
  list.setVisibleRows(0, 0);
  await settle();
  assert.deepEqual([list.rows, list.isMore, list.row(0)?.id], [1, false, "found"]);
});
