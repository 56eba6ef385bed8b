export default function CompareView() {
  return null;
}
