// Upload dropped or picked files to a session.
import { upload } from "../api/client";
import { invalidateSession } from "../api/queries";
import { notify, notifyError } from "../ui/toast";

export type Noun = "artifacts" | "inputs";

/** Upload files one after another. A file that fails is reported and does not stop the others. */
export async function uploadFiles(session: string, noun: Noun, files: File[]): Promise<void> {
  for (const file of files) {
    try {
      await upload(`/v1/sessions/{session}/${noun}`, { session }, { name: file.name }, file);
      notify(noun === "inputs" ? `${file.name} added: the model can read it` : `${file.name} uploaded`);
    } catch (error) {
      notifyError(error);
    }
  }
  invalidateSession(session, noun, "context", "summary");
}
