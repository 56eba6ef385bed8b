// A dialog with a form for one action.
import { type FormEvent, type ReactNode, useState } from "react";
import { Button, Dialog, ErrorNote } from "./base";

/** Shows the error if the action fails, and closes after success. */
export function ActionDialog({
  title,
  verb,
  tone = "main",
  act,
  onClose,
  children,
}: {
  title: string;
  verb: string;
  tone?: "main" | "danger";
  act: (form: FormData) => Promise<void>;
  onClose: () => void;
  children: ReactNode;
}) {
  const [error, setError] = useState<unknown>(null);
  const [isBusy, setBusy] = useState(false);
  const submit = async (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    setBusy(true);
    setError(null);
    try {
      await act(form);
      onClose();
    } catch (problem) {
      setError(problem);
      setBusy(false);
    }
  };
  return (
    <Dialog title={title} onClose={onClose}>
      <form className="form" onSubmit={(event) => void submit(event)}>
        {children}
        {error !== null && <ErrorNote error={error} />}
        <footer>
          <Button onClick={onClose}>Cancel</Button>
          <Button tone={tone} type="submit" disabled={isBusy}>
            {verb}
          </Button>
        </footer>
      </form>
    </Dialog>
  );
}

export const text = (form: FormData, name: string) => String(form.get(name) ?? "").trim();
