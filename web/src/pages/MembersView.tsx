// The members of the session and their roles.
import { type FormEvent, useState } from "react";
import { send } from "../api/client";
import { invalidateSession, useMe, useView } from "../api/queries";
import { Badge, Button, ErrorNote, Loading, Name } from "../ui/base";
import { notifyError } from "../ui/toast";
import type { ViewProps } from "./SessionPage";

type Role = "reader" | "collaborator";

export default function MembersView({ session }: ViewProps) {
  const members = useView(session.id, "members");
  const me = useMe();
  const [name, setName] = useState("");
  const [role, setRole] = useState<Role>("reader");
  const isOwner = me.data?.operator || me.data?.principal === session.owner;
  const share = async (member: string, as: Role | null) => {
    try {
      await send("post", "/v1/sessions/{session}/members", { session: session.id }, { member, role: as });
      invalidateSession(session.id, "members");
      setName("");
    } catch (error) {
      notifyError(error);
    }
  };
  if (members.isPending) return <Loading />;
  if (members.error) return <ErrorNote error={members.error} />;
  return (
    <div className="scroll narrow">
      <p className="quiet">
        Readers can read and follow. Collaborators can also write, branch and answer. Only the owner and
        operators can share, archive and erase. Apart from the members, only operators can see the session.
      </p>
      <ul className="member-list">
        {members.data.items.map((member) => (
          <li key={member.member}>
            <Name>{member.member}</Name>
            <Badge tone={member.role === "owner" ? "good" : ""}>{member.role}</Badge>
            <span className="spread" />
            {isOwner && member.role !== "owner" && (
              <Button tone="ghost" icon="close" onClick={() => void share(member.member, null)}>
                Remove
              </Button>
            )}
          </li>
        ))}
      </ul>
      {isOwner && me.data?.may_write && (
        <form
          className="inline-form"
          onSubmit={(event: FormEvent) => {
            event.preventDefault();
            void share(name.trim(), role);
          }}
        >
          <input
            aria-label="User"
            placeholder="user name"
            required
            value={name}
            onChange={(event) => setName(event.target.value)}
          />
          <select aria-label="Role" value={role} onChange={(event) => setRole(event.target.value as Role)}>
            <option value="reader">reader</option>
            <option value="collaborator">collaborator</option>
          </select>
          <Button type="submit" tone="main" icon="people">
            Share
          </Button>
        </form>
      )}
    </div>
  );
}
