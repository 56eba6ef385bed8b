// Import of session files, which can be dropped anywhere on the list.
import { type DragEvent, type ReactNode, useRef, useState } from "react";
import { type Imported, upload } from "../api/client";
import { invalidateSessionLists } from "../api/queries";
import { cleanLine } from "../text/clean";
import { Button, Dialog } from "../ui/base";
import { plural } from "../ui/format";
import { Icon } from "../ui/icons";
import { to } from "../ui/route";

interface Report {
  file: string;
  items: Imported[];
  error: string;
}

const FILES_MAX = 200;

export function ImportDropZone({ children }: { children: ReactNode }) {
  const [isOver, setOver] = useState(false);
  const [reports, setReports] = useState<Report[] | null>(null);
  const [left, setLeft] = useState(0);
  const depth = useRef(0);
  const picker = useRef<HTMLInputElement>(null);
  const importFiles = async (files: File[]) => {
    const chosen = files.slice(0, FILES_MAX);
    setReports([]);
    for (const [index, file] of chosen.entries()) {
      setLeft(chosen.length - index);
      const report = await importFile(file);
      setReports((before) => [...(before ?? []), report]);
    }
    setLeft(0);
    invalidateSessionLists();
  };
  const handlers = {
    onDragEnter: (event: DragEvent) => {
      if (!event.dataTransfer.types.includes("Files")) return;
      depth.current++;
      setOver(true);
    },
    onDragLeave: () => {
      depth.current = Math.max(0, depth.current - 1);
      if (depth.current === 0) setOver(false);
    },
    onDragOver: (event: DragEvent) => event.preventDefault(),
    onDrop: (event: DragEvent) => {
      event.preventDefault();
      depth.current = 0;
      setOver(false);
      const files = [...event.dataTransfer.files];
      if (files.length > 0) void importFiles(files);
    },
  };
  return (
    <div className="drop" {...handlers}>
      {children}
      <input
        ref={picker}
        type="file"
        multiple
        hidden
        aria-label="Files to import"
        onChange={(event) => event.target.files && void importFiles([...event.target.files])}
      />
      <Button className="import-button" tone="ghost" icon="upload" onClick={() => picker.current?.click()}>
        Import
      </Button>
      {isOver && (
        <div className="drop-over">
          <Icon name="upload" />
          <p>Drop session files of Claude Code, Codex, pi, Gemini CLI or Sapwood, or plain messages</p>
        </div>
      )}
      {reports && <Reports reports={reports} left={left} onClose={() => setReports(null)} />}
    </div>
  );
}

async function importFile(file: File): Promise<Report> {
  try {
    const done = await upload("/v1/import", {}, { name: file.name }, file);
    return { file: file.name, items: done.items, error: "" };
  } catch (error) {
    return { file: file.name, items: [], error: error instanceof Error ? error.message : String(error) };
  }
}

function Reports({ reports, left, onClose }: { reports: Report[]; left: number; onClose: () => void }) {
  return (
    <Dialog title="Import" onClose={onClose} wide>
      {left > 0 && <p role="status">{plural(left, "file")} remaining…</p>}
      <ul className="reports">
        {reports.map((report, index) => (
          <li key={index}>
            <strong>{cleanLine(report.file)}</strong>
            {report.error && <p className="bad">{cleanLine(report.error)}</p>}
            {report.items.map((item, number) => (
              <div key={number}>
                {item.session ? <a href={to(["s", item.session])}>{item.session}</a> : "no session found"}
                <span className="quiet">
                  {" "}
                  {item.format}: {plural(item.added, "entry", "entries")} added, {item.skipped} already
                  present
                </span>
                {item.problems.length > 0 && (
                  <details>
                    <summary>{plural(item.problems.length, "problem")}</summary>
                    <ul>
                      {item.problems.map((problem, line) => (
                        <li key={line}>
                          {problem.line ? `line ${problem.line}: ` : ""}
                          {cleanLine(problem.message)} <code>{problem.code}</code>
                        </li>
                      ))}
                    </ul>
                  </details>
                )}
              </div>
            ))}
          </li>
        ))}
      </ul>
      <footer>
        <Button tone="main" onClick={onClose}>
          Done
        </Button>
      </footer>
    </Dialog>
  );
}
