export default function ContextView() {
  return null;
}
