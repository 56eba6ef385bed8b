// An approval or question of a turn, answered inline.
import { useState } from "react";
import { send } from "../api/client";
import type { ApprovalItem } from "../log/feed";
import { Markdown } from "../text/Markdown";
import { Badge, Button } from "../ui/base";
import { Icon } from "../ui/icons";
import { useKeys } from "../ui/keys";
import { notifyError } from "../ui/toast";

type Decision = "approved" | "denied";

export function ApprovalCard({ item, session }: { item: ApprovalItem; session: string }) {
  const [reason, setReason] = useState("");
  const [isBusy, setBusy] = useState(false);
  const isOpen = item.answer === null && !item.isOver;
  const isQuestion = item.about === "question";
  const submit = async (answer: Decision) => {
    if (!isOpen || isBusy) return;
    setBusy(true);
    try {
      const body = { answer, reason: reason.trim() || null };
      await send("post", "/v1/approvals/{approval}", { approval: item.approval, session }, body);
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
        <strong>{isQuestion ? "The agent asks" : "Waiting for approval"}</strong>
        {item.answer && (
          <Badge tone={item.answer.answer === "approved" ? "good" : "warn"}>{item.answer.answer}</Badge>
        )}
        {!item.answer && item.isOver && <Badge>not answered</Badge>}
      </p>
      <Markdown text={item.question} />
      {item.answer?.reason && (
        <blockquote>
          <Markdown text={item.answer.reason} />
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
