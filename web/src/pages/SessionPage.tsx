// One session: its header, its views, and their invalidation.
import { lazy, Suspense, useCallback, useEffect, useSyncExternalStore } from "react";
import type { Session } from "../api/client";
import { invalidateSession, usePressure, useSession } from "../api/queries";
import type { Connection } from "../api/stream";
import { type SessionLog, type Snapshot, sessionLog } from "../log/sessionLog";
import { Badge, ErrorNote, Gauge, Loading, Name } from "../ui/base";
import { money, spent } from "../ui/format";
import { Icon } from "../ui/icons";
import { useKeys } from "../ui/keys";
import { go, to } from "../ui/route";
import { FeedView } from "./FeedView";
import { SessionMenu } from "./SessionMenu";

const TreeView = lazy(() => import("./TreeView"));
const LedgerView = lazy(() => import("./LedgerView"));
const ContextView = lazy(() => import("./ContextView"));
const FilesView = lazy(() => import("./FilesView"));
const MembersView = lazy(() => import("./MembersView"));
const ArchivesView = lazy(() => import("./ArchivesView"));
const CompareView = lazy(() => import("./CompareView"));
const SessionAudit = lazy(() => import("./AuditPage").then((page) => ({ default: page.SessionAudit })));

const TABS = ["feed", "tree", "ledger", "context", "archives", "files", "members", "audit"] as const;

/** The views that an entry of each kind invalidates. */
const VIEWS: Record<string, string[]> = {
  round: ["ledger"],
  artifact_put: ["artifacts", "inputs"],
  member_changed: ["members"],
  compaction: ["archives", "timeline"],
  label: ["tree"],
  leaf_moved: ["tree", "context"],
};

export interface ViewProps {
  session: Session;
  log: SessionLog;
  snapshot: Snapshot;
}

export default function SessionPage({ session, tab }: { session: string; tab: string }) {
  const log = sessionLog(session);
  const snapshot = useSyncExternalStore(log.subscribe, log.read);
  const summary = useSession(session);
  const onEntries = useCallback(
    (kinds: Set<string>) => {
      const views = new Set(["summary"]);
      for (const kind of kinds) for (const view of VIEWS[kind] ?? []) views.add(view);
      // Expensive views are invalidated once per turn, not per entry.
      if (kinds.has("turn_ended") || kinds.has("state_changed")) {
        for (const view of ["tree", "context", "usage", "timeline", "ledger"]) views.add(view);
      }
      invalidateSession(session, ...views);
    },
    [session],
  );
  useEffect(() => {
    log.onEntries = onEntries;
  }, [log, onEntries]);
  useKeys(Object.fromEntries(TABS.map((name, index) => [String(index + 1), () => go(["s", session, name])])));
  if (snapshot.status === "failed") {
    return (
      <div className="page">
        <ErrorNote error={snapshot.error} onRetry={() => log.retry()} />
        <p>
          <a href={to([])}>All sessions</a>
        </p>
      </div>
    );
  }
  if (!summary.data || snapshot.status === "loading") return <Loading what="Loading the session" />;
  const props: ViewProps = { session: summary.data, log, snapshot };
  return (
    <div className="page session-page">
      <Head {...props} />
      <nav className="tabs" aria-label="Views of the session">
        {TABS.map((name) => (
          <a key={name} href={to(["s", session, name])} aria-current={tab === name ? "page" : undefined}>
            {name}
          </a>
        ))}
      </nav>
      <Suspense fallback={<Loading />}>
        <View tab={tab} {...props} />
      </Suspense>
    </div>
  );
}

function View({ tab, ...props }: ViewProps & { tab: string }) {
  switch (tab) {
    case "tree":
      return <TreeView {...props} />;
    case "compare":
      return <CompareView {...props} />;
    case "ledger":
      return <LedgerView {...props} />;
    case "context":
      return <ContextView {...props} />;
    case "files":
      return <FilesView {...props} />;
    case "members":
      return <MembersView {...props} />;
    case "archives":
      return <ArchivesView {...props} />;
    case "audit":
      return <SessionAudit session={props.session.id} />;
    default:
      return <FeedView {...props} />;
  }
}

function Head({ session, snapshot }: ViewProps) {
  const pressure = usePressure(session, session.messages > 0);
  const { cost, tokens } = spent(session);
  const { level, used_tokens: used, budget_tokens: budget } = pressure.data ?? {};
  const parent = session.parent?.session;
  return (
    <header className="session-head">
      <a className="button ghost compact" href={to([])} aria-label="All sessions" title="All sessions">
        <Icon name="left" />
      </a>
      <div className="session-title">
        <h1>
          <Name>{session.title ?? session.preview ?? session.id}</Name>
        </h1>
        <p className="row-facts">
          {session.state !== "active" && <Badge>{session.state}</Badge>}
          {session.agent && (
            <span>
              <Name>{session.agent}</Name>
            </span>
          )}
          {session.model && (
            <span>
              <Name>{session.model}</Name>
            </span>
          )}
          {parent && (
            <a href={to(["s", parent])}>
              <Icon name="fork" />{" "}
              {session.inherited > 0 ? "fork of another session" : "started by another session"}
            </a>
          )}
          <code className="row-id">{session.id}</code>
        </p>
      </div>
      <div className="session-figures">
        {level && budget ? <Gauge level={level} used={used ?? 0} budget={budget} /> : null}
        <span title={`${tokens.toLocaleString()} tokens`}>{tokens > 0 ? money(cost) : ""}</span>
        <ConnectionStatus connection={snapshot.connection} />
      </div>
      <SessionMenu session={session} />
    </header>
  );
}

const CONNECTION_LABELS: Record<Connection["state"], string> = {
  live: "live",
  connecting: "connecting",
  waiting: "disconnected, retrying",
  refused: "ended",
};

function ConnectionStatus({ connection }: { connection: Connection }) {
  const why = connection.state === "refused" ? connection.error.detail : CONNECTION_LABELS[connection.state];
  return (
    <span className={`link ${connection.state}`} role="status" title={why}>
      <span className="dot" aria-hidden="true" />
      {CONNECTION_LABELS[connection.state]}
    </span>
  );
}
