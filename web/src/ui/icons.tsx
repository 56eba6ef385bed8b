// Line icons in the text colour.
const PATHS = {
  rings: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18zm0 4.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9zm0 3.8v.1",
  list: "M4 6h16M4 12h16M4 18h10",
  tree: "M7 4v16M7 9h6a3 3 0 0 1 3 3v8M7 4.01V4M16 20v.01",
  search: "M10.5 4a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13zM15.5 15.5 20 20",
  shield: "M12 3 5 6v5c0 5 3 8 7 10 4-2 7-5 7-10V6z",
  gear: "M12 9a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM12 3v3m0 12v3M3 12h3m12 0h3M5.6 5.6l2.1 2.1m8.6 8.6 2.1 2.1m0-12.8-2.1 2.1m-8.6 8.6-2.1 2.1",
  send: "M4 12 20 5l-5 15-3.5-6z",
  stop: "M7 7h10v10H7z",
  close: "M6 6l12 12M18 6 6 18",
  redo: "M19 5v5h-5M19 10a7.5 7.5 0 1 0 1 5",
  plus: "M12 5v14M5 12h14",
  more: "M5 12h.01M12 12h.01M19 12h.01",
  check: "M5 12.5 10 17 19 7",
  fork: "M6 4v6a4 4 0 0 0 4 4h4M6 10v10M14 10l4 4-4 4",
  branch: "M6 4v16M6 14c8 0 10-2 10-7M16 7V4",
  tag: "M4 4h7l9 9-7 7-9-9zM8 8v.01",
  scissors: "M6 7a2 2 0 1 0 0-.01M6 17a2 2 0 1 0 0-.01M8 8l11 9M8 16 19 7",
  compare: "M9 4v16M15 4v16M4 8h3M4 12h3M4 16h3M17 8h3M17 12h3M17 16h3",
  play: "M7 5v14l12-7z",
  pause: "M8 5v14M16 5v14",
  upload: "M12 16V4M7 9l5-5 5 5M5 20h14",
  download: "M12 4v12M7 11l5 5 5-5M5 20h14",
  people:
    "M9 11a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7zM3 20c0-4 3-6 6-6s6 2 6 6M16 5a3 3 0 0 1 0 6M18 14c2 .6 3 2.600 3 5",
  box: "M4 8l8-4 8 4v8l-8 4-8-4zM4 8l8 4 8-4M12 12v8",
  eye: "M3 12s3-6 9-6 9 6 9 6-3 6-9 6-9-6-9-6zm9-2a2 2 0 1 0 0 4 2 2 0 0 0 0-4z",
  chart: "M4 20V4M4 20h16M8 16l4-6 3 3 5-7",
  clock: "M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16zm0 4v4l3 2",
  tool: "M14 7a4 4 0 0 1 5 5l-2-2-2 .5L14.500 8zM13.500 10.500 5 19",
  thought: "M12 4c-4 0-7 2.500-7 6 0 2 1 3.500 2.500 4.500L7 19l4-3h1c4 0 7-2.500 7-6s-3-6-7-6z",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2m0 16v2M2 12h2m16 0h2M5 5l1.500 1.500M17.500 17.500 19 19M19 5l-1.500 1.500M6.500 17.500 5 19",
  moon: "M20 14A8 8 0 0 1 10 4a8 8 0 1 0 10 10z",
  flow: "M5 4h5v5H5zM14 15h5v5h-5zM10 6.500h4a3 3 0 0 1 3 3V15",
  memory: "M7 7h10v10H7zM10 3v4m4-4v4m-4 10v4m4-4v4M3 10h4m-4 4h4m10-4h4m-4 4h4",
  copy: "M9 9h10v11H9zM5 15V4h10",
  left: "M14 6l-6 6 6 6",
  down: "M6 10l6 6 6-6",
  key: "M8 12a4 4 0 1 0 0 .01M12 12h9m-3 0v4",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg className="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} />
    </svg>
  );
}
