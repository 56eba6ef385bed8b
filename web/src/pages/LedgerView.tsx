export default function LedgerView() {
  return null;
}
