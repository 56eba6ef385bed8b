// The message input. While a turn runs, input is queued for the next turn or steers the running turn. Dropped files
// become inputs of the session.
import { type DragEvent, useEffect, useRef, useState } from "react";
import { send } from "../api/client";
import { invalidateSession } from "../api/queries";
import { Button } from "../ui/base";
import { useKeys } from "../ui/keys";
import { notifyError } from "../ui/toast";
import { uploadFiles } from "./uploadFiles";

const LINES_MAX = 14;
const drafts = new Map<string, string>();

interface Props {
  session: string;
  openTurn: string | null;
  onSent: () => void;
}

export function Composer({ session, openTurn, onSent }: Props) {
  const [text, setText] = useState(drafts.get(session) ?? "");
  const [isBusy, setBusy] = useState(false);
  const field = useRef<HTMLTextAreaElement>(null);
  const picker = useRef<HTMLInputElement>(null);
  useKeys({ c: () => field.current?.focus() });
  useEffect(() => {
    drafts.set(session, text);
    fit(field.current);
  }, [session, text]);
  const submit = async (steers: boolean) => {
    const input = text.trim();
    if (input === "" || isBusy) return;
    setBusy(true);
    try {
      if (steers && openTurn) {
        await send(
          "post",
          "/v1/sessions/{session}/turns/{turn}/steer",
          { session, turn: openTurn },
          { input },
        );
      } else {
        await send("post", "/v1/sessions/{session}/turns", { session }, { input, if_running: "queue" });
      }
      setText("");
      onSent();
      invalidateSession(session, "summary");
    } catch (error) {
      notifyError(error);
    } finally {
      setBusy(false);
      field.current?.focus();
    }
  };
  const onDrop = (event: DragEvent) => {
    if (event.dataTransfer.files.length === 0) return;
    event.preventDefault();
    void uploadFiles(session, "inputs", [...event.dataTransfer.files]);
  };
  const onKey = (event: React.KeyboardEvent) => {
    if (event.key === "Escape") field.current?.blur();
    if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return;
    event.preventDefault();
    void submit(event.altKey);
  };
  return (
    <form
      className="composer"
      onDragOver={(event) => event.preventDefault()}
      onDrop={onDrop}
      onSubmit={(event) => {
        event.preventDefault();
        void submit(false);
      }}
    >
      <textarea
        ref={field}
        rows={1}
        aria-label="Message"
        placeholder={openTurn ? "Enter queues, Alt Enter steers" : "Write a message  ( c )"}
        value={text}
        onChange={(event) => setText(event.target.value)}
        onKeyDown={onKey}
      />
      <Button icon="upload" title="Add files that the model can read" onClick={() => picker.current?.click()}>
        Attach
      </Button>
      <input
        ref={picker}
        type="file"
        multiple
        hidden
        aria-label="Files to attach"
        onChange={(event) => {
          if (event.target.files) void uploadFiles(session, "inputs", [...event.target.files]);
          event.target.value = "";
        }}
      />
      {openTurn && (
        <Button icon="branch" disabled={isBusy || text.trim() === ""} onClick={() => void submit(true)}>
          Steer
        </Button>
      )}
      <Button type="submit" tone="main" icon="send" disabled={isBusy || text.trim() === ""}>
        {openTurn ? "Queue" : "Send"}
      </Button>
    </form>
  );
}

/** Grow the field with its text, up to a maximum height. */
function fit(field: HTMLTextAreaElement | null): void {
  if (!field) return;
  field.style.height = "auto";
  const line = Number.parseFloat(getComputedStyle(field).lineHeight) || 20;
  field.style.height = `${Math.min(field.scrollHeight + 2, line * LINES_MAX)}px`;
}
