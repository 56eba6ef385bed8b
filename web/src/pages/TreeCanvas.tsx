// The tree on a canvas. Only nodes in view are drawn, so the cost does not depend on the number of entries. The zoom
// level selects the detail: lines and dots when zoomed out, text when zoomed in.
import { type Ref, useCallback, useEffect, useImperativeHandle, useRef } from "react";
import type { Layout, PlacedNode } from "../log/layout";
import { cleanLine } from "../text/clean";

export interface TreeHandle {
  fit: () => void;
  show: (seq: number) => void;
}

interface Props {
  ref: Ref<TreeHandle>;
  layout: Layout;
  leaf: number | null;
  selected: number | null;
  marked: number | null;
  forks: Map<number, string[]>;
  onSelect: (seq: number) => void;
}

const LANE_PX = 26;
const ROW_PX = 30;
const PAD_PX = 26;
const SCALE_MIN = 0.002;
const SCALE_MAX = 2.2;
/** Minimum scale at which text is drawn. */
const TEXT_SCALE_MIN = 0.62;

interface View {
  x: number;
  y: number;
  scale: number;
}

export function TreeCanvas({ ref, layout, leaf, selected, marked, forks, onSelect }: Props) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const view = useRef<View>({ x: 0, y: 0, scale: 1 });
  const frame = useRef(0);
  const scene = useRef({ layout, leaf, selected, marked, forks });
  scene.current = { layout, leaf, selected, marked, forks };

  const redraw = useCallback(() => {
    frame.current ||= requestAnimationFrame(() => {
      frame.current = 0;
      if (canvas.current) draw(canvas.current, view.current, scene.current);
    });
  }, []);

  const show = useCallback(
    (seq: number) => {
      const node = scene.current.layout.bySeq.get(seq);
      const box = canvas.current?.getBoundingClientRect();
      if (!node || !box) return;
      const scale = Math.max(0.8, Math.min(1, view.current.scale));
      view.current = {
        scale,
        x: Math.min(0, box.width * 0.3 - laneX(node.lane) * scale),
        y: box.height / 2 - rowY(node.row) * scale,
      };
      // Stay within the bounds of the tree.
      const lowest = box.height - rowY(scene.current.layout.rows) * scale;
      view.current.y = Math.min(0, Math.max(lowest, view.current.y));
      redraw();
    },
    [redraw],
  );

  const fit = useCallback(() => {
    const box = canvas.current?.getBoundingClientRect();
    if (!box) return;
    const { rows, lanes } = scene.current.layout;
    const scale = Math.min(1, box.height / (rowY(rows) + PAD_PX), box.width / (laneX(lanes) + PAD_PX));
    view.current = { x: 0, y: 0, scale: Math.max(SCALE_MIN, scale) };
    redraw();
  }, [redraw]);

  useImperativeHandle(ref, () => ({ fit, show }), [fit, show]);
  // biome-ignore lint/correctness/useExhaustiveDependencies: redraw when the displayed data changes.
  useEffect(redraw, [layout, leaf, selected, marked, forks]);
  useCanvasEvents(canvas, view, scene, redraw, fit, onSelect, show);

  return (
    <canvas
      ref={canvas}
      className="tree-canvas"
      tabIndex={0}
      role="application"
      aria-label="Session tree. Arrow keys select the parent, the child and the neighbours. Plus and minus zoom, and zero fits the tree."
    />
  );
}

function laneX(lane: number): number {
  return PAD_PX + lane * LANE_PX;
}

function rowY(row: number): number {
  return PAD_PX + row * ROW_PX;
}

type Scene = Pick<Props, "layout" | "leaf" | "selected" | "marked" | "forks">;

function useCanvasEvents(
  canvas: React.RefObject<HTMLCanvasElement | null>,
  view: React.RefObject<View>,
  scene: React.RefObject<Scene>,
  redraw: () => void,
  fit: () => void,
  onSelect: (seq: number) => void,
  show: (seq: number) => void,
): void {
  const select = useRef(onSelect);
  select.current = onSelect;
  useEffect(() => {
    const element = canvas.current;
    if (!element) return;
    const zoom = (by: number, x: number, y: number) => {
      const { scale } = view.current;
      const next = Math.max(SCALE_MIN, Math.min(SCALE_MAX, scale * by));
      view.current = {
        scale: next,
        x: x - ((x - view.current.x) * next) / scale,
        y: y - ((y - view.current.y) * next) / scale,
      };
      redraw();
    };
    const onWheel = (event: WheelEvent) => {
      event.preventDefault();
      if (event.ctrlKey || event.metaKey) zoom(Math.exp(-event.deltaY / 200), event.offsetX, event.offsetY);
      else {
        view.current = {
          ...view.current,
          x: view.current.x - event.deltaX,
          y: view.current.y - event.deltaY,
        };
        redraw();
      }
    };
    const pointers = new Map<number, { x: number; y: number }>();
    let moved = 0;
    const onDown = (event: PointerEvent) => {
      pointers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
      moved = 0;
      element.setPointerCapture(event.pointerId);
    };
    const onMove = (event: PointerEvent) => {
      const before = pointers.get(event.pointerId);
      if (!before) return;
      const now = { x: event.offsetX, y: event.offsetY };
      const others = [...pointers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
      const other = others[0];
      if (other) {
        const far = (a: { x: number; y: number }) => Math.hypot(a.x - other.x, a.y - other.y) || 1;
        zoom(far(now) / far(before), (now.x + other.x) / 2, (now.y + other.y) / 2);
      } else {
        view.current = {
          ...view.current,
          x: view.current.x + now.x - before.x,
          y: view.current.y + now.y - before.y,
        };
        redraw();
      }
      moved += Math.abs(now.x - before.x) + Math.abs(now.y - before.y);
      pointers.set(event.pointerId, now);
    };
    const onUp = (event: PointerEvent) => {
      if (pointers.delete(event.pointerId) && moved < 5) {
        const found = nodeAt(scene.current.layout, view.current, event.offsetY);
        if (found) select.current(found.node.seq);
      }
    };
    const onKey = (event: KeyboardEvent) => {
      const box = element.getBoundingClientRect();
      const keys: Record<string, () => void> = {
        "+": () => zoom(1.25, box.width / 2, box.height / 2),
        "=": () => zoom(1.25, box.width / 2, box.height / 2),
        "-": () => zoom(0.8, box.width / 2, box.height / 2),
        "0": fit,
      };
      const zooming = keys[event.key];
      const next = neighbour(scene.current, event.key);
      if (!zooming && !next) return;
      event.preventDefault();
      zooming?.();
      if (next) {
        select.current(next.node.seq);
        show(next.node.seq);
      }
    };
    const resized = new ResizeObserver(redraw);
    resized.observe(element);
    const themed = matchMedia("(prefers-color-scheme: dark)");
    themed.addEventListener("change", redraw);
    element.addEventListener("wheel", onWheel, { passive: false });
    element.addEventListener("pointerdown", onDown);
    element.addEventListener("pointermove", onMove);
    element.addEventListener("pointerup", onUp);
    element.addEventListener("pointercancel", (event) => pointers.delete(event.pointerId));
    element.addEventListener("keydown", onKey);
    return () => {
      resized.disconnect();
      themed.removeEventListener("change", redraw);
      element.removeEventListener("wheel", onWheel);
      element.removeEventListener("pointerdown", onDown);
      element.removeEventListener("pointermove", onMove);
      element.removeEventListener("pointerup", onUp);
      element.removeEventListener("keydown", onKey);
    };
  }, [canvas, view, scene, redraw, fit, show]);
}

/** The node that an arrow key selects. */
function neighbour({ layout, selected }: Scene, key: string): PlacedNode | null {
  const at = selected === null ? undefined : layout.bySeq.get(selected);
  if (!at) return null;
  const child = at.children.find((each) => each.lane === at.lane) ?? at.children[0];
  const siblings = at.parent ? at.parent.children : layout.nodes.filter((node) => node.parent === null);
  const ordered = [...siblings].sort((a, b) => a.lane - b.lane);
  const index = ordered.indexOf(at);
  switch (key) {
    case "ArrowUp":
      return at.parent;
    case "ArrowDown":
      return child ?? null;
    case "ArrowLeft":
      return ordered[index - 1] ?? at.parent;
    case "ArrowRight":
      return ordered[index + 1] ?? at.children.find((each) => each !== child) ?? null;
    case "Home":
      return layout.nodes.find((node) => node.parent === null) ?? null;
    default:
      return null;
  }
}

/** The node at a position. A row belongs to one node: its dot and its text. */
function nodeAt(layout: Layout, view: View, y: number): PlacedNode | null {
  const row = Math.round(((y - view.y) / view.scale - PAD_PX) / ROW_PX);
  return layout.nodes[row] ?? null;
}

interface Colours {
  line: string;
  soft: string;
  text: string;
  accent: string;
  warn: string;
  panel: string;
  kinds: Record<string, string>;
}

function coloursOf(element: HTMLElement): Colours {
  const style = getComputedStyle(element);
  // Canvas does not support light-dark(); the browser resolves it in a colour property.
  const read = (name: string) => {
    element.style.color = `var(${name})`;
    const colour = style.color;
    element.style.color = "";
    return colour;
  };
  const accent = read("--accent");
  const soft = read("--soft");
  return {
    line: read("--line-strong"),
    soft,
    text: read("--text"),
    accent,
    warn: read("--orange"),
    panel: read("--panel"),
    kinds: {
      user_message: accent,
      assistant_message: read("--text"),
      tool_result: soft,
      compaction: read("--orange"),
      branch_summary: read("--yellow"),
    },
  };
}

function draw(canvas: HTMLCanvasElement, view: View, scene: Scene): void {
  const box = canvas.getBoundingClientRect();
  const ratio = devicePixelRatio || 1;
  const [width, height] = [Math.round(box.width * ratio), Math.round(box.height * ratio)];
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width;
    canvas.height = height;
  }
  const context = canvas.getContext("2d");
  if (!context) return;
  const colours = coloursOf(canvas);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, box.width, box.height);
  const { layout } = scene;
  const first = (-view.y / view.scale - PAD_PX) / ROW_PX - 1;
  const last = ((box.height - view.y) / view.scale - PAD_PX) / ROW_PX + 1;
  const x = (node: PlacedNode) => view.x + laneX(node.lane) * view.scale;
  const y = (node: PlacedNode) => view.y + rowY(node.row) * view.scale;
  // Draw the active path last, over the lines of other branches.
  for (const isPath of [false, true]) {
    for (const node of layout.nodes) {
      const above = node.parent;
      if (!above || node.node.on_path !== isPath || node.row < first || above.row > last) continue;
      drawEdge(
        context,
        x(above),
        y(above),
        x(node),
        y(node),
        isPath ? colours.accent : colours.line,
        view.scale,
      );
    }
  }
  for (const node of layout.nodes) {
    if (node.row < first || node.row > last) continue;
    drawNode(context, colours, scene, node, x(node), y(node), view.scale, box.width);
  }
}

/** Draw an edge down the parent's lane, then across to the child. */
function drawEdge(
  context: CanvasRenderingContext2D,
  x1: number,
  y1: number,
  x2: number,
  y2: number,
  colour: string,
  scale: number,
): void {
  context.strokeStyle = colour;
  context.lineWidth = Math.max(1, Math.min(2, 2 * scale));
  context.beginPath();
  context.moveTo(x1, y1);
  if (x1 === x2) context.lineTo(x2, y2);
  else {
    const turn = y2 - ROW_PX * scale * 0.8;
    context.lineTo(x1, turn);
    context.bezierCurveTo(x1, y2, x1, y2, x2, y2);
  }
  context.stroke();
}

function drawNode(
  context: CanvasRenderingContext2D,
  colours: Colours,
  scene: Scene,
  placed: PlacedNode,
  x: number,
  y: number,
  scale: number,
  width: number,
): void {
  const { node } = placed;
  const size = Math.max(1.5, 5 * Math.min(1, scale));
  const isLeaf = node.seq === scene.leaf;
  const colour = colours.kinds[node.kind] ?? colours.soft;
  context.fillStyle = colour;
  context.beginPath();
  if (node.kind === "compaction") {
    context.rect(x - size, y - size, size * 2, size * 2);
  } else {
    context.arc(x, y, placed.count > 1 ? size * 0.8 : size, 0, Math.PI * 2);
  }
  if (node.on_path || scale < TEXT_SCALE_MIN) context.fill();
  else {
    context.fillStyle = colours.panel;
    context.fill();
    context.strokeStyle = colour;
    context.lineWidth = 1.5;
    context.stroke();
  }
  const ring = (extra: number, ringColour: string) => {
    context.strokeStyle = ringColour;
    context.lineWidth = 2;
    context.beginPath();
    context.arc(x, y, size + extra, 0, Math.PI * 2);
    context.stroke();
  };
  if (isLeaf) ring(3, colours.accent);
  if (node.seq === scene.marked) ring(5, colours.warn);
  if (node.seq === scene.selected) ring(isLeaf ? 7 : 4, colours.text);
  if (scale >= TEXT_SCALE_MIN) drawText(context, colours, scene, placed, x + size + 12, y, width);
}

function drawText(
  context: CanvasRenderingContext2D,
  colours: Colours,
  scene: Scene,
  placed: PlacedNode,
  x: number,
  y: number,
  width: number,
): void {
  const { node } = placed;
  let at = x;
  context.textBaseline = "middle";
  const write = (text: string, font: string, colour: string, most: number) => {
    context.font = font;
    context.fillStyle = colour;
    const shown = shorten(context, text, most);
    context.fillText(shown, at, y);
    at += context.measureText(shown).width + 8;
  };
  const family = "system-ui, 'Segoe UI', 'Noto Sans', sans-serif";
  if (node.label) write(`⚑ ${cleanLine(node.label, 40)}`, `600 12px ${family}`, colours.accent, 200);
  const forks = scene.forks.get(node.seq);
  if (forks)
    write(forks.length > 1 ? `${forks.length} forks` : "fork", `600 12px ${family}`, colours.warn, 60);
  if (placed.count > 1) write(`${placed.count} entries`, `12px ${family}`, colours.soft, 120);
  else {
    write(String(node.seq), `11px ${family}`, colours.soft, 60);
    if (node.kind === "compaction") write("compacted", `600 12px ${family}`, colours.warn, 90);
    write(
      cleanLine(node.text, 110) || node.kind.replace("_", " "),
      `12.5px ${family}`,
      node.on_path ? colours.text : colours.soft,
      Math.max(60, width - at - 12),
    );
  }
}

function shorten(context: CanvasRenderingContext2D, text: string, most: number): string {
  if (context.measureText(text).width <= most) return text;
  const fits = Math.floor((text.length * most) / Math.max(1, context.measureText(text).width)) - 1;
  return `${text.slice(0, Math.max(1, fits))}…`;
}
