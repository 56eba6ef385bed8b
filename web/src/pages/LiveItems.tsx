// Streaming output, until the durable entry replaces it.
import type { LiveState } from "../log/live";
import { clean, cleanLine } from "../text/clean";
import { Markdown } from "../text/Markdown";
import { Icon } from "../ui/icons";

export function LiveItems({ live, isOpen }: { live: LiveState; isOpen: boolean }) {
  if (!isOpen) return null;
  const isQuiet = live.text === "" && live.reasoning === "" && live.tools.length === 0;
  return (
    <div className="live" data-live={isQuiet ? "quiet" : "streaming"}>
      {live.reasoning !== "" && live.text === "" && (
        <p className="live-reasoning">
          <Icon name="thought" /> <bdi>{clean(live.reasoning.slice(-600))}</bdi>
        </p>
      )}
      {live.text !== "" && (
        <article className="item is-answer streaming">
          <Markdown text={live.text} />
        </article>
      )}
      {live.tools.map((tool) => (
        <p key={tool.callId} className="event-line">
          <span className="spinner" aria-hidden="true" /> {cleanLine(tool.name, 60)}{" "}
          {tool.isRunning ? "is running" : "is being called"}
        </p>
      ))}
      {live.notice !== "" && (
        <p className="event-line">
          <Icon name="clock" /> {cleanLine(live.notice)}
        </p>
      )}
    </div>
  );
}
