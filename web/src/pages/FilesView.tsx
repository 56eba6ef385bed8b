export default function FilesView() {
  return null;
}
