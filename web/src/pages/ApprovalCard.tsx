// An approval or question of a turn, answered inline.
import { useState } from "react";
import { type Schemas, send } from "../api/client";
import { Markdown } from "../text/Markdown";
import { Badge, Button } from "../ui/base";
import { Icon } from "../ui/icons";
import { useKeys } from "../ui/keys";
import { notifyError } from "../ui/toast";

type Decision = "approved" | "denied";

interface Props {
  approval: Schemas["FeedApproval"];
  question: string;
  session: string;
}

export function ApprovalCard({ approval, question, session }: Props) {
  const [reason, setReason] = useState("");
  const [isBusy, setBusy] = useState(false);
  const isOpen = approval.state === "open";
  const isExpired = approval.state === "expired";
  const isQuestion = approval.about === "question";
  const submit = async (answer: Decision) => {
    if (!isOpen || isBusy) return;
    setBusy(true);
    try {
      const body = { answer, reason: reason.trim() || null };
      await send("post", "/v1/approvals/{approval}", { approval: approval.id, session }, body);
    } catch (error) {
      notifyError(error);
      setBusy(false);
    }
  };
  useKeys(isOpen && !isQuestion ? { y: () => void submit("approved"), N: () => void submit("denied") } : {});
  return (
    <div
      className={`approval ${isOpen ? "open" : ""}`}
      role="group"
      aria-label={isOpen ? "Pending approval" : "Approval"}
    >
      <p className="who">
        <Icon name="shield" />
        <strong>{isQuestion ? "The agent asks" : "Approval requested"}</strong>
        {!isOpen && !isExpired && (
          <Badge tone={approval.state === "approved" ? "good" : "warn"}>{approval.state}</Badge>
        )}
        {isExpired && <Badge>not answered</Badge>}
      </p>
      <Markdown text={question} />
      {approval.reason && (
        <blockquote>
          <Markdown text={approval.reason} />
        </blockquote>
      )}
      {isOpen && (
        <form
          className="approval-form"
          onSubmit={(event) => {
            event.preventDefault();
            void submit("approved");
          }}
        >
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
        </form>
      )}
    </div>
  );
}
