// What the keys do.
import { Dialog } from "./base";

const KEYS: [string, string][] = [
  ["Ctrl K", "find a session, a page or an action"],
  ["g s · g f · g m", "sessions · flows · memory"],
  ["g a · g t", "audit · settings"],
  ["/", "search"],
  ["j · k", "next and previous session"],
  ["g g · G", "the newest and the oldest of them"],
  ["Enter", "open it"],
  ["n", "a new session"],
  ["1 … 8", "the views of a session"],
  ["c", "write a message"],
  ["Enter · Shift Enter", "send it · a new line"],
  ["Alt Enter", "steer the turn that runs"],
  ["y · N", "approve or deny what the turn waits for"],
  ["x", "cancel the turn"],
  ["↑ ↓ ← →", "in the tree: parent, child, neighbours"],
  ["+ · − · 0", "in the tree: zoom in, out, all of it"],
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
