// The filters of the session list.
import { type Filters, useAgents } from "../api/queries";
import { Button } from "../ui/base";

interface Props {
  filters: Filters;
  onChange: (filters: Record<string, string | undefined>) => void;
}

export function FilterBar({ filters, onChange }: Props) {
  const agents = useAgents();
  const set = (name: keyof Filters) => (event: { target: { value: string } }) =>
    onChange({ ...filters, [name]: event.target.value || undefined });
  const isNarrowed = Object.keys(filters).length > 0;
  return (
    <div className="filters" role="group" aria-label="Filters">
      <select aria-label="State" value={filters.state ?? ""} onChange={set("state")}>
        <option value="">any state</option>
        {["created", "active", "closed", "archived", "compacted", "trimmed", "pruned"].map((state) => (
          <option key={state}>{state}</option>
        ))}
      </select>
      <select aria-label="Agent" value={filters.agent ?? ""} onChange={set("agent")}>
        <option value="">any agent</option>
        {agents.data?.items.map((agent) => (
          <option key={agent.id}>{agent.id}</option>
        ))}
        {filters.agent && !agents.data?.items.some((agent) => agent.id === filters.agent) && (
          <option>{filters.agent}</option>
        )}
      </select>
      <select aria-label="Time" value={filters.since ?? ""} onChange={set("since")}>
        <option value="">any time</option>
        <option value="hour">last hour</option>
        <option value="day">last day</option>
        <option value="week">last week</option>
        <option value="month">last month</option>
      </select>
      <TextFilter
        label="Owner"
        placeholder="any owner"
        value={filters.owner}
        onSet={(owner) => onChange({ ...filters, owner })}
      />
      <TextFilter
        label="Directory"
        placeholder="any directory"
        value={filters.cwd}
        onSet={(cwd) => onChange({ ...filters, cwd })}
      />
      {isNarrowed && (
        <Button tone="ghost" icon="close" onClick={() => onChange({})}>
          Clear
        </Button>
      )}
    </div>
  );
}

interface TextProps {
  label: string;
  placeholder: string;
  value: string | undefined;
  onSet: (value: string | undefined) => void;
}

function TextFilter({ label, placeholder, value, onSet }: TextProps) {
  const set = (text: string) => onSet(text.trim() || undefined);
  return (
    <input
      key={value ?? ""}
      aria-label={label}
      placeholder={placeholder}
      defaultValue={value ?? ""}
      onBlur={(event) => event.target.value !== (value ?? "") && set(event.target.value)}
      onKeyDown={(event) => event.key === "Enter" && set(event.currentTarget.value)}
    />
  );
}
