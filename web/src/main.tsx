// Entry point of the console.
import { QueryClientProvider } from "@tanstack/react-query";
import { createRoot } from "react-dom/client";
import { App } from "./App";
import { client } from "./api/queries";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/shell.css";
import "./styles/sessions.css";
import "./styles/feed.css";
import "./styles/text.css";
import "./styles/views.css";
import { applyTheme } from "./ui/theme";

applyTheme();
const root = document.getElementById("root");
if (root) {
  createRoot(root).render(
    <QueryClientProvider client={client}>
      <App />
    </QueryClientProvider>,
  );
}
