// The frame of the console: sign-in, navigation and global keyboard shortcuts.
import { lazy, Suspense, useState } from "react";
import { ApiError } from "./api/client";
import { useMe } from "./api/queries";
import { Sessions } from "./pages/Sessions";
import { SignIn } from "./pages/SignIn";
import { ErrorNote, Loading } from "./ui/base";
import { Help } from "./ui/Help";
import { Icon, type IconName } from "./ui/icons";
import { useKeys } from "./ui/keys";
import { Palette } from "./ui/Palette";
import { go, to, useRoute } from "./ui/route";
import { Toasts } from "./ui/toast";

const SessionPage = lazy(() => import("./pages/SessionPage"));
const ApprovalsPage = lazy(() => import("./pages/ApprovalsPage"));
const FlowsPage = lazy(() => import("./pages/FlowsPage"));
const MemoryPage = lazy(() => import("./pages/MemoryPage"));
const AuditPage = lazy(() => import("./pages/AuditPage"));
const SettingsPage = lazy(() => import("./pages/SettingsPage"));

const PAGES: { name: string; path: string[]; icon: IconName; key: string }[] = [
  { name: "Sessions", path: [], icon: "list", key: "s" },
  { name: "Approvals", path: ["approvals"], icon: "check", key: "w" },
  { name: "Flows", path: ["flows"], icon: "flow", key: "f" },
  { name: "Memory", path: ["memory"], icon: "memory", key: "m" },
  { name: "Audit", path: ["audit"], icon: "shield", key: "a" },
  { name: "Settings", path: ["settings"], icon: "gear", key: "t" },
];

export function App() {
  const me = useMe();
  if (me.isPending) return <Loading what="Opening the console" />;
  if (me.error instanceof ApiError && me.error.status === 401) return <SignIn />;
  if (me.error) {
    return (
      <main className="alone">
        <ErrorNote error={me.error} onRetry={() => void me.refetch()} />
      </main>
    );
  }
  return <Frame />;
}

type Overlay = "none" | "help" | "palette";

function Frame() {
  const { path } = useRoute();
  const [overlay, setOverlay] = useState<Overlay>("none");
  const keys = Object.fromEntries(PAGES.map((page) => [`g ${page.key}`, () => go(page.path)]));
  useKeys({ ...keys, "?": () => setOverlay("help"), "mod+k": () => setOverlay("palette") });
  return (
    <div className="frame">
      <button type="button" className="skip" onClick={() => document.getElementById("main")?.focus()}>
        Skip to content
      </button>
      <nav className="rail" aria-label="Main navigation">
        <a className="brand" href={to([])} aria-label="Sapwood">
          <Icon name="rings" />
          <span>Sapwood</span>
        </a>
        {PAGES.map((page) => (
          <a key={page.name} href={to(page.path)} aria-current={isAt(path, page.path) ? "page" : undefined}>
            <Icon name={page.icon} />
            <span>{page.name}</span>
          </a>
        ))}
        <button type="button" className="rail-help" onClick={() => setOverlay("palette")}>
          <Icon name="search" />
          <span>
            Find <kbd>Ctrl K</kbd>
          </span>
        </button>
      </nav>
      <main id="main" tabIndex={-1}>
        <Suspense fallback={<Loading />}>
          <PageView path={path} />
        </Suspense>
      </main>
      {overlay === "help" && <Help onClose={() => setOverlay("none")} />}
      {overlay === "palette" && <Palette pages={PAGES} onClose={() => setOverlay("none")} />}
      <Toasts />
    </div>
  );
}

function isAt(path: string[], page: string[]): boolean {
  const here = path[0] === "s" ? undefined : path[0];
  return here === page[0];
}

function PageView({ path }: { path: string[] }) {
  const [page, id, tab] = path;
  switch (page) {
    case undefined:
      return <Sessions />;
    case "s":
      return id ? <SessionPage key={id} session={id} tab={tab ?? "feed"} /> : <Sessions />;
    case "approvals":
      return <ApprovalsPage />;
    case "flows":
      return <FlowsPage run={id} />;
    case "memory":
      return <MemoryPage />;
    case "audit":
      return <AuditPage />;
    case "settings":
      return <SettingsPage />;
    default:
      return (
        <div className="page">
          <ErrorNote error={new ApiError(404, "route.not_found", "page not found")} />
        </div>
      );
  }
}
