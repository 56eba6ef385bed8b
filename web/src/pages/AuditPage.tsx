// Who did what: a hash-chained line each.
import { useAudit } from "../api/queries";
import { cleanLine } from "../text/clean";
import { Button, Empty, ErrorNote, Loading, Name } from "../ui/base";
import { whole } from "../ui/format";
import { to } from "../ui/route";

export default function AuditPage() {
  return (
    <div className="page">
      <header className="page-head">
        <h1>Audit</h1>
        <p className="quiet">
          Append-only, each line's hash covers the one before. <code>sapwood audit --verify</code> checks the
          chain.
        </p>
      </header>
      <Lines session={null} />
    </div>
  );
}

export function SessionAudit({ session }: { session: string }) {
  return <Lines session={session} />;
}

function Lines({ session }: { session: string | null }) {
  const audit = useAudit(session);
  if (audit.isPending) return <Loading what="Reading the audit" />;
  if (audit.error) return <ErrorNote error={audit.error} onRetry={() => void audit.refetch()} />;
  const lines = audit.data.pages.flatMap((page) => page.items).reverse();
  if (lines.length === 0) {
    return (
      <Empty title="Nothing noted">
        <p>Opening, reading by others, sharing, exporting and erasing leave a line here.</p>
      </Empty>
    );
  }
  return (
    <div className="scroll">
      {audit.hasNextPage && (
        <Button onClick={() => void audit.fetchNextPage()} disabled={audit.isFetchingNextPage}>
          Read on: there are newer lines
        </Button>
      )}
      <div className="table-box">
        <table className="data">
          <thead>
            <tr>
              <th scope="col">Line</th>
              <th scope="col">When</th>
              <th scope="col">Who</th>
              <th scope="col">Did</th>
              {session === null && <th scope="col">Session</th>}
              <th scope="col">More</th>
              <th scope="col">Hash</th>
            </tr>
          </thead>
          <tbody>
            {lines.map((line) => (
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
