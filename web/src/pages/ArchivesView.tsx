export default function ArchivesView() {
  return null;
}
