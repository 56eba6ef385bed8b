export default function TreeView() {
  return null;
}
