// Inputs, artifacts and grafts of the session. Drop files to upload them.
import { type DragEvent, type FormEvent, useRef, useState } from "react";
import { type Artifact, fill, send } from "../api/client";
import { invalidateSession, useMe, useView } from "../api/queries";
import { cleanLine } from "../text/clean";
import { Button, ErrorNote, Loading, Name, Time } from "../ui/base";
import { bytes } from "../ui/format";
import { to } from "../ui/route";
import { notifyError } from "../ui/toast";
import type { ViewProps } from "./SessionPage";
import { type Noun, uploadFiles } from "./uploadFiles";

export default function FilesView({ session }: ViewProps) {
  return (
    <div className="scroll files">
      <Files
        session={session.id}
        noun="inputs"
        title="Inputs"
        empty="Files and snippets that the model can read. Drop files here to add them."
      />
      <Files
        session={session.id}
        noun="artifacts"
        title="Artifacts"
        empty="Results of the session, created by the tool put_artifact or uploaded here."
      />
      <Grafts session={session.id} />
    </div>
  );
}

/** Grafts: results of other sessions, by reference. */
function Grafts({ session }: { session: string }) {
  const grafts = useView(session, "grafts");
  const me = useMe();
  const [source, setSource] = useState("");
  const [artifact, setArtifact] = useState("");
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    try {
      const body = { source: source.trim(), artifact: artifact.trim() || null };
      await send("post", "/v1/sessions/{session}/grafts", { session }, body);
      setSource("");
      setArtifact("");
      invalidateSession(session, "grafts", "context");
    } catch (error) {
      notifyError(error);
    }
  };
  return (
    <section className="file-box">
      <header>
        <h2>Grafts</h2>
      </header>
      {grafts.error && <ErrorNote error={grafts.error} />}
      {grafts.data?.items.length === 0 && (
        <p className="quiet">
          References to results of other sessions: an artifact, or a digest of the whole session.
        </p>
      )}
      <ul className="file-list">
        {grafts.data?.items.map((graft) => (
          <li key={graft.id}>
            <div>
              <a href={to(["s", graft.source])}>
                <Name>{graft.source}</Name>
              </a>
              <p className="quiet">
                {graft.what} {cleanLine(graft.name ?? "", 80)} · {graft.state} · <Time at={graft.at} />
              </p>
            </div>
          </li>
        ))}
      </ul>
      {me.data?.may_write && (
        <form className="inline-form" onSubmit={(event) => void submit(event)}>
          <input
            aria-label="From session"
            placeholder="session id"
            required
            value={source}
            onChange={(event) => setSource(event.target.value)}
          />
          <input
            aria-label="Artifact"
            placeholder="artifact; empty for a digest"
            value={artifact}
            onChange={(event) => setArtifact(event.target.value)}
          />
          <Button type="submit">Graft</Button>
        </form>
      )}
    </section>
  );
}

function Files({
  session,
  noun,
  title,
  empty,
}: {
  session: string;
  noun: Noun;
  title: string;
  empty: string;
}) {
  const files = useView(session, noun);
  const me = useMe();
  const picker = useRef<HTMLInputElement>(null);
  const [isOver, setOver] = useState(false);
  const mayWrite = me.data?.may_write !== false;
  const put = (chosen: globalThis.File[]) => uploadFiles(session, noun, chosen);
  const onDrop = (event: DragEvent) => {
    event.preventDefault();
    setOver(false);
    if (mayWrite) void put([...event.dataTransfer.files]);
  };
  return (
    <section
      className={`file-box ${isOver ? "over" : ""}`}
      onDragOver={(event) => {
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={onDrop}
    >
      <header>
        <h2>{title}</h2>
        {mayWrite && (
          <Button icon="upload" onClick={() => picker.current?.click()}>
            Upload
          </Button>
        )}
        <input
          ref={picker}
          type="file"
          multiple
          hidden
          aria-label={`Files for ${title}`}
          onChange={(event) => event.target.files && void put([...event.target.files])}
        />
      </header>
      {files.isPending && <Loading />}
      {files.error && <ErrorNote error={files.error} />}
      {files.data?.items.length === 0 && <p className="quiet">{empty}</p>}
      <ul className="file-list">
        {files.data?.items.map((file) => (
          <File
            key={file.name}
            file={file}
            href={fill(`/v1/sessions/{session}/${noun}/{name}`, { session, name: file.name })}
          />
        ))}
      </ul>
    </section>
  );
}

function File({ file, href }: { file: Artifact; href: string }) {
  const isPicture = /^image\/(png|jpeg|gif|webp)$/.test(file.content.mime);
  return (
    <li>
      {isPicture && <img src={href} alt="" loading="lazy" />}
      <div>
        <a href={href} target="_blank" rel="noopener noreferrer">
          <Name>{file.name}</Name>
        </a>
        <p className="quiet">
          {bytes(file.content.bytes)} · {file.content.mime} · version {file.version} · <Time at={file.at} />
        </p>
        {file.source && <p className="quiet">from {cleanLine(file.source, 200)}</p>}
      </div>
      <a
        className="button ghost compact"
        href={href}
        download={file.name}
        aria-label={`Download ${file.name}`}
      >
        ⤓
      </a>
    </li>
  );
}
