// Components that several pages use.
import { type ButtonHTMLAttributes, type ReactNode, useEffect, useRef } from "react";
import { ApiError, hintFor } from "../api/client";
import { cleanLine } from "../text/clean";
import { ago, whole } from "./format";
import { Icon, type IconName } from "./icons";

type ButtonProps = ButtonHTMLAttributes<HTMLButtonElement> & {
  icon?: IconName;
  tone?: "" | "main" | "danger" | "ghost";
  /** Show only the icon; screen readers get the text. */
  compact?: boolean;
};

export function Button({ icon, tone = "", compact, children, className = "", ...rest }: ButtonProps) {
  return (
    <button
      type="button"
      className={`button ${tone} ${compact ? "compact" : ""} ${className}`}
      {...(compact && typeof children === "string" ? { "aria-label": children, title: children } : {})}
      {...rest}
    >
      {icon && <Icon name={icon} />}
      {!compact && children}
    </button>
  );
}

export function Badge({
  tone = "",
  title,
  children,
}: {
  tone?: string;
  title?: string;
  children: ReactNode;
}) {
  return (
    <span className={`badge ${tone}`} title={title}>
      {children}
    </span>
  );
}

export function Time({ at }: { at: number }) {
  return (
    <time dateTime={new Date(at).toISOString()} title={whole(at)}>
      {ago(at)}
    </time>
  );
}

/** An untrusted name: one sanitized line with an isolated text direction. */
export function Name({ children }: { children: string }) {
  return <bdi className="name">{cleanLine(children)}</bdi>;
}

export function Empty({ title, children }: { title: string; children?: ReactNode }) {
  return (
    <div className="empty">
      <Icon name="rings" />
      <h2>{title}</h2>
      {children}
    </div>
  );
}

export function Loading({ what = "Loading" }: { what?: string }) {
  return (
    <div className="loading" role="status">
      <span className="spinner" aria-hidden="true" />
      {what}…
    </div>
  );
}

/** An error with its code and a hint. */
export function ErrorNote({ error, onRetry }: { error: unknown; onRetry?: () => void }) {
  const code = error instanceof ApiError ? error.code : "";
  const detail = error instanceof Error ? error.message : String(error);
  return (
    <div className="error-note" role="alert">
      <p>
        <strong>{cleanLine(detail)}</strong> {code && <code>{code}</code>}
      </p>
      <p>
        <Hint text={hintFor(error)} />
      </p>
      {onRetry && (
        <Button icon="redo" onClick={onRetry}>
          Try again
        </Button>
      )}
    </div>
  );
}

/** Text with inline `code`. */
export function Hint({ text }: { text: string }) {
  return text.split("`").map((part, index) => (index % 2 === 1 ? <code key={index}>{part}</code> : part));
}

/** A modal dialog. Escape and a click outside close it. */
export function Dialog({
  title,
  onClose,
  children,
  wide,
}: {
  title: string;
  onClose: () => void;
  children: ReactNode;
  wide?: boolean;
}) {
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const dialog = ref.current;
    dialog?.showModal();
    // By default the browser would focus the close button.
    dialog
      ?.querySelector<HTMLElement>(
        ".dialog-body > :not(header) :is(input, select, textarea), .dialog-body > input",
      )
      ?.focus();
    return () => dialog?.close();
  }, []);
  return (
    // biome-ignore lint/a11y/useKeyWithClickEvents: the browser closes the dialog on Escape.
    <dialog
      ref={ref}
      className={wide ? "wide" : ""}
      aria-label={title}
      onClose={onClose}
      onClick={(event) => event.target === ref.current && onClose()}
    >
      <div className="dialog-body">
        <header>
          <h2>{title}</h2>
          <Button icon="close" tone="ghost" compact onClick={onClose}>
            Close
          </Button>
        </header>
        {children}
      </div>
    </dialog>
  );
}

/** A button that opens a menu. */
export function Menu({ label, icon, children }: { label: string; icon: IconName; children: ReactNode }) {
  const ref = useRef<HTMLDetailsElement>(null);
  const closeMenu = () => {
    if (ref.current) ref.current.open = false;
  };
  useEffect(() => {
    const close = (event: Event) => {
      const details = ref.current;
      if (details?.open && !(event.target instanceof Node && details.contains(event.target)))
        details.open = false;
    };
    const onEscape = (event: KeyboardEvent) => {
      if (event.key !== "Escape" || !ref.current?.open) return;
      ref.current.open = false;
      ref.current.querySelector("summary")?.focus();
    };
    document.addEventListener("click", close);
    document.addEventListener("keydown", onEscape);
    return () => {
      document.removeEventListener("click", close);
      document.removeEventListener("keydown", onEscape);
    };
  }, []);
  return (
    <details className="menu" ref={ref}>
      <summary className="button ghost compact" aria-label={label} title={label}>
        <Icon name={icon} />
      </summary>
      {/* biome-ignore lint/a11y/useKeyWithClickEvents: the items are buttons, which handle keys. */}
      <div className="menu-items" onClick={closeMenu}>
        {children}
      </div>
    </details>
  );
}

/** Context use, as a bar and as text. */
export function Gauge({ level, used, budget }: { level: string; used: number; budget: number }) {
  const percent = Math.min(100, Math.round((used * 100) / Math.max(1, budget)));
  return (
    <span
      className={`gauge ${level}`}
      role="img"
      aria-label={`context ${percent} % full, ${level}`}
      title={`${used.toLocaleString()} of ${budget.toLocaleString()} tokens, ${percent} %: ${level}`}
    >
      <span className="gauge-track">
        <span className="gauge-fill" style={{ width: `${Math.max(2, percent)}%` }} />
      </span>
      <span className="gauge-text">{percent}%</span>
    </span>
  );
}
