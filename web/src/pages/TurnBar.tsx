// The state of the turn: running, waiting for the user, or silent, in which case it can be resumed.
import { useEffect, useState } from "react";
import { type Session, send } from "../api/client";
import { invalidateSession } from "../api/queries";
import type { Snapshot } from "../log/sessionLog";
import { Button } from "../ui/base";
import { duration } from "../ui/format";
import { useKeys } from "../ui/keys";
import { notify, notifyError } from "../ui/toast";

/** After this time without activity, the turn's process may have died: a lease expires after four seconds. */
const SILENT_MS = 8_000;

interface Props {
  session: Session;
  snapshot: Snapshot;
  showsEvents: boolean;
  onShowEvents: (shows: boolean) => void;
}

export function TurnBar({ session, snapshot, showsEvents, onShowEvents }: Props) {
  const { feed, lastActivityAt } = snapshot;
  const turn = feed.openTurn;
  const waiting = feed.items.some((item) => item.approval?.state === "open");
  const queued = feed.items.filter((item) => item.queued?.taken === false).length;
  const now = useNow(turn !== null);
  const since = Math.max(0, now - lastActivityAt);
  const isSilent = turn !== null && !waiting && since > SILENT_MS;
  const cancel = async () => {
    if (!turn) return;
    try {
      await send("post", "/v1/sessions/{session}/turns/{turn}/cancel", { session: session.id, turn });
    } catch (error) {
      notifyError(error);
    }
  };
  const resume = async () => {
    try {
      const done = await send("post", "/v1/sessions/{session}/resume", { session: session.id });
      notify(done.turn ? "Turn resumed" : "Nothing to resume");
      invalidateSession(session.id);
    } catch (error) {
      notifyError(error);
    }
  };
  useKeys(turn ? { x: () => void cancel() } : {});
  return (
    <div className="turn-bar" role="status">
      {turn === null && queued === 0 && <span className="quiet">Ready</span>}
      {turn !== null && (
        <span className={waiting || isSilent ? "warn" : "running"}>
          <span className="dot" aria-hidden="true" />
          {waiting ? "Waiting for you" : isSilent ? `No activity for ${duration(since)}` : "Turn running"}
        </span>
      )}
      {queued > 0 && <span className="quiet">{queued} queued</span>}
      <span className="spread" />
      <label className="check">
        <input
          type="checkbox"
          checked={showsEvents}
          onChange={(event) => onShowEvents(event.target.checked)}
        />
        events
      </label>
      {(isSilent || (turn === null && queued > 0)) && (
        <Button icon="play" onClick={() => void resume()}>
          Resume
        </Button>
      )}
      {turn !== null && (
        <Button icon="stop" onClick={() => void cancel()}>
          Cancel
        </Button>
      )}
    </div>
  );
}

function useNow(isTicking: boolean): number {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    if (!isTicking) return;
    setNow(Date.now());
    const timer = setInterval(() => setNow(Date.now()), 1_000);
    return () => clearInterval(timer);
  }, [isTicking]);
  return now;
}
