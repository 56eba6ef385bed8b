// The list of keyboard shortcuts.
import { Dialog } from "./base";

const KEYS: [string, string][] = [
  ["Ctrl K", "find a session, a page or an action"],
  ["g s · g w · g f", "sessions · approvals · flows"],
  ["g m · g a · g t", "memory · audit · settings"],
  ["/", "search"],
  ["j · k", "next and previous session"],
  ["g g · G", "newest and oldest session"],
  ["Enter", "open the session"],
  ["n", "start a new session"],
  ["1 … 8", "select a view of the session"],
  ["c", "write a message"],
  ["Enter · Shift Enter", "send the message · new line"],
  ["Alt Enter", "steer the running turn"],
  ["y · N", "approve or deny the pending approval"],
  ["x", "cancel the turn"],
  ["↑ ↓ ← →", "in the tree: parent, child, neighbours"],
  ["+ · − · 0", "in the tree: zoom in, zoom out, fit"],
  ["Esc", "leave a field or a dialog"],
];

export function Help({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keys" onClose={onClose}>
      <table className="keys">
        <tbody>
          {KEYS.map(([keys, what]) => (
            <tr key={keys}>
              <th scope="row">
                {keys.split(" · ").map((key, index) => (
                  <span key={key}>
                    {index > 0 && " "}
                    <kbd>{key}</kbd>
                  </span>
                ))}
              </th>
              <td>{what}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Dialog>
  );
}
