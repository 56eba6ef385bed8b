// The command palette: finds pages, sessions and themes.
import { useState } from "react";
import { useSessionSearch } from "../api/queries";
import { cleanLine } from "../text/clean";
import { Dialog } from "./base";
import { Icon, type IconName } from "./icons";
import { to } from "./route";
import { chooseTheme } from "./theme";

interface Choice {
  key: string;
  icon: IconName;
  text: string;
  note: string;
  act: () => void;
}

const SESSIONS_SHOWN = 12;

interface PageLink {
  name: string;
  path: string[];
  icon: IconName;
}

export function Palette({ pages, onClose }: { pages: PageLink[]; onClose: () => void }) {
  const [words, setWords] = useState("");
  const [at, setAt] = useState(0);
  const choices = useChoices(words, pages);
  const chosen = choices[Math.min(at, choices.length - 1)];
  const move = (by: number) =>
    setAt((before) => (before + by + choices.length) % Math.max(1, choices.length));
  const act = (choice: Choice | undefined) => {
    if (!choice) return;
    onClose();
    choice.act();
  };
  const onKey = (event: React.KeyboardEvent) => {
    const keys: Record<string, () => void> = {
      ArrowDown: () => move(1),
      ArrowUp: () => move(-1),
      Enter: () => act(chosen),
    };
    const found = keys[event.key];
    if (!found) return;
    event.preventDefault();
    found();
  };
  return (
    <Dialog title="Find" onClose={onClose}>
      <input
        className="palette-field"
        role="combobox"
        aria-label="Find a session, a page or an action"
        aria-expanded="true"
        aria-controls="palette-choices"
        aria-activedescendant={chosen ? `choice-${chosen.key}` : undefined}
        placeholder="Find a session, a page or an action"
        value={words}
        onChange={(event) => {
          setWords(event.target.value);
          setAt(0);
        }}
        onKeyDown={onKey}
      />
      <div id="palette-choices" role="listbox" aria-label="Results" className="palette-choices" tabIndex={-1}>
        {choices.map((choice) => (
          // biome-ignore lint/a11y/useKeyWithClickEvents: the field above handles the keys.
          <div
            key={choice.key}
            id={`choice-${choice.key}`}
            role="option"
            tabIndex={-1}
            aria-selected={choice === chosen}
            onClick={() => act(choice)}
          >
            <Icon name={choice.icon} />
            <bdi>{choice.text}</bdi>
            <span className="quiet">{choice.note}</span>
          </div>
        ))}
        {choices.length === 0 && <p className="quiet">No matching page, action or session.</p>}
      </div>
    </Dialog>
  );
}

function useChoices(words: string, pages: PageLink[]): Choice[] {
  const sessions = useSessionSearch(words).data?.items ?? [];
  const fixed: Choice[] = [
    ...pages.map((page) => ({
      key: `page-${page.name}`,
      icon: page.icon,
      text: page.name,
      note: "page",
      act: () => {
        location.hash = to(page.path);
      },
    })),
    ...(["light", "dark", "system"] as const).map((theme) => ({
      key: `theme-${theme}`,
      icon: (theme === "dark" ? "moon" : "sun") as IconName,
      text: `Theme: ${theme}`,
      note: "action",
      act: () => chooseTheme(theme),
    })),
  ];
  const matching = fixed.filter((choice) => choice.text.toLowerCase().includes(words.toLowerCase()));
  const opened = sessions.slice(0, SESSIONS_SHOWN).map((session) => ({
    key: `session-${session.id}`,
    icon: "rings" as IconName,
    text: cleanLine(session.title ?? session.preview ?? session.id, 80),
    note: session.agent ?? "session",
    act: () => {
      location.hash = to(["s", session.id]);
    },
  }));
  return [...opened, ...matching];
}
