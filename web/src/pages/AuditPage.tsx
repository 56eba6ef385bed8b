// The audit log, a list of hash-chained lines.
import { useEffect, useState } from "react";
import { useAudit } from "../api/queries";
import { cleanLine } from "../text/clean";
import { Button, Empty, ErrorNote, Loading, Name } from "../ui/base";
import { plural, whole } from "../ui/format";
import { to } from "../ui/route";

export default function AuditPage() {
  return (
    <div className="page">
      <header className="page-head">
        <h1>Audit</h1>
        <p className="quiet">
          Append-only: each line's hash covers the previous line. Verify the chain with{" "}
          <code>sapwood audit --verify</code>.
        </p>
      </header>
      <AuditLines session={null} />
    </div>
  );
}

export function SessionAudit({ session }: { session: string }) {
  return <AuditLines session={session} />;
}

/** Pages loaded automatically to reach the newest lines, and the number of rendered lines. */
const PAGES_MAX = 50;
const SHOWN = 500;

function AuditLines({ session }: { session: string | null }) {
  const audit = useAudit(session);
  const [words, setWords] = useState("");
  const { hasNextPage, isFetchingNextPage, fetchNextPage } = audit;
  const isFar = (audit.data?.pages.length ?? 0) >= PAGES_MAX;
  useEffect(() => {
    if (hasNextPage && !isFetchingNextPage && !isFar) void fetchNextPage();
  }, [hasNextPage, isFetchingNextPage, fetchNextPage, isFar]);
  if (audit.isPending) return <Loading what="Loading the audit log" />;
  if (audit.error) return <ErrorNote error={audit.error} onRetry={() => void audit.refetch()} />;
  const all = audit.data.pages.flatMap((page) => page.items).reverse();
  const needle = words.trim().toLowerCase();
  const lines = all.filter((line) =>
    `${line.by} ${line.action} ${line.session ?? ""} ${line.detail ?? ""}`.toLowerCase().includes(needle),
  );
  if (all.length === 0) {
    return (
      <Empty title="The audit log is empty">
        <p>Lines appear when a session is created, opened, changed, shared, exported or erased.</p>
      </Empty>
    );
  }
  return (
    <div className="scroll">
      <div className="facts">
        <input
          type="search"
          aria-label="Filter the audit log"
          placeholder="user, action or session"
          value={words}
          onChange={(event) => setWords(event.target.value)}
        />
        <span className="quiet">
          {plural(lines.length, "line")}
          {lines.length > SHOWN && `, newest ${SHOWN} shown`}
        </span>
        {hasNextPage && isFar && (
          <Button onClick={() => void fetchNextPage()} disabled={isFetchingNextPage}>
            Load newer lines
          </Button>
        )}
      </div>
      <div className="table-box" tabIndex={0}>
        <table className="data">
          <thead>
            <tr>
              <th scope="col">Line</th>
              <th scope="col">When</th>
              <th scope="col">User</th>
              <th scope="col">Action</th>
              {session === null && <th scope="col">Session</th>}
              <th scope="col">Details</th>
              <th scope="col">Hash</th>
            </tr>
          </thead>
          <tbody>
            {lines.slice(0, SHOWN).map((line) => (
              <tr key={line.number}>
                <td>{line.number}</td>
                <td>{whole(line.at)}</td>
                <td>
                  <Name>{line.by}</Name>
                </td>
                <td>{line.action.replace("_", " ")}</td>
                {session === null && (
                  <td>
                    {line.session && (
                      <a href={to(["s", line.session])}>
                        <Name>{line.session}</Name>
                      </a>
                    )}
                  </td>
                )}
                <td className="wide">
                  <bdi>{cleanLine(line.detail ?? "")}</bdi>
                </td>
                <td>
                  <code title={line.hash}>{line.hash.slice(0, 10)}</code>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </div>
  );
}
