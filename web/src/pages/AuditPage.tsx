export default function AuditPage() {
  return null;
}
export function SessionAudit(_: { session: string }) {
  return null;
}
