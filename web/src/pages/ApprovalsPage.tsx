// The questions that wait for a person, in all sessions in which the user may answer.
import { useState } from "react";
import { type Schemas, send } from "../api/client";
import { client, useApprovals } from "../api/queries";
import { Markdown } from "../text/Markdown";
import { Badge, Button, Empty, ErrorNote, Loading, Name } from "../ui/base";
import { plural, whole } from "../ui/format";
import { to } from "../ui/route";
import { notifyError } from "../ui/toast";

type Decision = "approved" | "denied";

export default function ApprovalsPage() {
  const approvals = useApprovals();
  if (approvals.isPending) return <Loading what="Loading the approvals" />;
  const items = approvals.data?.pages.flatMap((page) => page.items) ?? [];
  return (
    <div className="page">
      <header className="page-head">
        <h1>Approvals</h1>
        <p className="quiet">
          {plural(items.length, "question")} waiting for an answer, in all your sessions.
        </p>
      </header>
      {approvals.error && <ErrorNote error={approvals.error} onRetry={() => void approvals.refetch()} />}
      <div className="scroll">
        {items.length === 0 && !approvals.error && (
          <Empty title="No question is waiting">
            <p>Questions appear here when an agent needs an approval or asks a question.</p>
          </Empty>
        )}
        {items.map((item) => (
          <WaitingCard key={item.approval} item={item} />
        ))}
        {approvals.hasNextPage && (
          <Button onClick={() => void approvals.fetchNextPage()} disabled={approvals.isFetchingNextPage}>
            Load more
          </Button>
        )}
      </div>
    </div>
  );
}

function WaitingCard({ item }: { item: Schemas["Approval"] }) {
  const [reason, setReason] = useState("");
  const [isBusy, setBusy] = useState(false);
  const isQuestion = item.kind === "question";
  const submit = async (answer: Decision) => {
    setBusy(true);
    try {
      const body = { answer, reason: reason.trim() || null };
      await send(
        "post",
        "/v1/approvals/{approval}",
        { approval: item.approval, session: item.session },
        body,
      );
    } catch (error) {
      notifyError(error);
      setBusy(false);
    }
    void client.invalidateQueries({ queryKey: ["approvals"] });
  };
  return (
    <form
      className="approval open"
      aria-label={`Question in ${item.session}`}
      onSubmit={(event) => {
        event.preventDefault();
        void submit("approved");
      }}
    >
      <p className="who">
        <a href={to(["s", item.session])}>
          <Name>{item.session}</Name>
        </a>
        <span className="quiet">asked {whole(item.asked_at)}</span>
        {item.escalated_at != null && <Badge tone="warn">escalated</Badge>}
        {item.expires_at != null && <Badge>expires {whole(item.expires_at)}</Badge>}
      </p>
      <Markdown text={item.question} />
      <div className="approval-form">
        <input
          aria-label={isQuestion ? "Your answer" : "Reason"}
          placeholder={isQuestion ? "Your answer" : "Reason (optional)"}
          value={reason}
          onChange={(event) => setReason(event.target.value)}
        />
        <Button
          type="submit"
          tone="main"
          icon="check"
          disabled={isBusy || (isQuestion && reason.trim() === "")}
        >
          {isQuestion ? "Answer" : "Approve"}
        </Button>
        <Button icon="close" disabled={isBusy} onClick={() => void submit("denied")}>
          {isQuestion ? "Decline" : "Deny"}
        </Button>
      </div>
    </form>
  );
}
