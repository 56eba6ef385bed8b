export default function MembersView() {
  return null;
}
