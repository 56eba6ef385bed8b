//! The text of documents, extracted in a child process: documents of each format, damaged documents, and the limits of the
//! child process.

use std::io::Write;
use std::process::{Command, Stdio};

use sapwood_core::port::document::{DOCUMENT_BYTES_MAX, DocumentError, DocumentFormat, DocumentReader};
use sapwood_effects::document::SandboxedReader;
use sapwood_effects::sandbox::Launcher;

const LAUNCHER: &str = env!("CARGO_BIN_EXE_sapwood-launcher");

fn reader() -> SandboxedReader {
    SandboxedReader::new(Launcher::Binary(LAUNCHER.into()))
}

/// A PDF file with one page per text.
fn pdf(pages: &[&str]) -> Vec<u8> {
    let mut objects = vec!["<< /Type /Catalog /Pages 2 0 R >>".to_owned()];
    let kids: Vec<String> = (0..pages.len()).map(|page| format!("{} 0 R", 4 + 2 * page)).collect();
    objects.push(format!("<< /Type /Pages /Count {} /Kids [{}] >>", pages.len(), kids.join(" ")));
    objects.push("<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>".to_owned());
    for (page, text) in pages.iter().enumerate() {
        let content = format!("BT /F1 12 Tf 72 700 Td ({text}) Tj ET");
        objects.push(format!(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {} 0 R /Resources << /Font << /F1 3 0 R >> >> >>",
            5 + 2 * page
        ));
        objects.push(format!("<< /Length {} >>\nstream\n{content}\nendstream", content.len()));
    }
    let mut file = b"%PDF-1.4\n".to_vec();
    let mut offsets = Vec::new();
    for (number, object) in objects.iter().enumerate() {
        offsets.push(file.len());
        file.extend(format!("{} 0 obj\n{object}\nendobj\n", number + 1).bytes());
    }
    let start = file.len();
    file.extend(format!("xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1).bytes());
    offsets.iter().for_each(|offset| file.extend(format!("{offset:010} 00000 n \n").bytes()));
    let size = objects.len() + 1;
    file.extend(format!("trailer\n<< /Size {size} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n").bytes());
    file
}

fn docx(body: &str) -> Vec<u8> {
    let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default();
    archive.start_file("word/document.xml", options).unwrap();
    write!(archive, "<w:document xmlns:w='w'><w:body>{body}</w:body></w:document>").unwrap();
    archive.finish().unwrap().into_inner()
}

#[tokio::test]
async fn the_text_of_each_format_is_extracted() {
    let reader = reader();
    let text =
        reader.read_text(DocumentFormat::Pdf, pdf(&["Oaks live long.", "Elms do not."])).await.unwrap();
    assert!(text.contains("Oaks live long.") && text.contains("Elms do not."), "{text}");
    let page = b"<html><script>steal()</script><h1>Oaks</h1><p>They live <b>long</b>.</html>".to_vec();
    let text = reader.read_text(DocumentFormat::Html, page).await.unwrap();
    assert!(text.contains("Oaks") && text.contains("long") && !text.contains("steal"), "{text}");
    let body = "<w:p><w:r><w:t>Oaks &amp; elms</w:t></w:r></w:p><w:p><w:r><w:t>Two</w:t></w:r></w:p>";
    let text = reader.read_text(DocumentFormat::Docx, docx(body)).await.unwrap();
    assert_eq!(text, "Oaks & elms\nTwo\n");
}

#[tokio::test]
async fn a_damaged_document_is_an_error_and_the_next_one_is_read() {
    let reader = reader();
    let whole = pdf(&["Oaks live long."]);
    let mut damaged = whole.clone();
    damaged.truncate(whole.len() / 3);
    let empty = pdf(&[""]);
    let not_zip = b"PK\x03\x04 and nothing else".to_vec();
    for (format, document) in [
        (DocumentFormat::Pdf, damaged),
        (DocumentFormat::Pdf, b"%PDF-1.7 nonsense".to_vec()),
        (DocumentFormat::Pdf, empty),
        (DocumentFormat::Docx, not_zip),
        (DocumentFormat::Docx, docx("<w:p>").split_off(30)),
    ] {
        let error = reader.read_text(format, document).await.unwrap_err();
        assert!(matches!(error, DocumentError::Damaged { .. }), "{error:?}");
        assert!(error.to_string().len() > 40, "the reason is reported: {error}");
    }
    assert!(reader.read_text(DocumentFormat::Pdf, whole).await.unwrap().contains("Oaks"));
}

#[tokio::test]
async fn a_document_that_is_too_large_or_too_deep_ends_only_its_own_process() {
    let reader = reader();
    let too_large = vec![b' '; DOCUMENT_BYTES_MAX as usize + 1];
    let error = reader.read_text(DocumentFormat::Html, too_large).await.unwrap_err();
    assert!(matches!(error, DocumentError::TooLarge { .. }), "{error:?}");
    // A PDF whose object refers to itself as its own page tree.
    let loop_pdf = String::from_utf8(pdf(&["x"])).unwrap().replace("/Kids [4 0 R]", "/Kids [2 0 R]");
    let looped = reader.read_text(DocumentFormat::Pdf, loop_pdf.into_bytes()).await;
    assert!(looped.is_err(), "{looped:?}");
    // A small archive with a part of 14 MB: the child either returns its text or fails with a reason.
    let body = "<w:p><w:r><w:t>x</w:t></w:r></w:p>".repeat(400_000);
    let cut = reader.read_text(DocumentFormat::Docx, docx(&body)).await;
    assert!(
        cut.as_ref().map_or_else(|error| !error.to_string().is_empty(), |text| text.starts_with("x\nx\n"))
    );
    assert!(reader.read_text(DocumentFormat::Html, b"<p>fine".to_vec()).await.unwrap().contains("fine"));
}

#[tokio::test]
async fn without_a_launcher_the_extraction_is_refused() {
    let error = SandboxedReader::new(Launcher::None).read_text(DocumentFormat::Html, Vec::new()).await;
    assert!(matches!(error, Err(DocumentError::Unavailable { .. })), "{error:?}");
}

/// Waits until the child has dropped its rights, and checks what is left while it waits for the document.
#[cfg(target_os = "linux")]
#[test]
fn the_child_process_has_no_rights_before_it_reads_the_document() {
    let mut child = Command::new(LAUNCHER)
        .args(["__sandbox", "extract", "pdf"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let file =
        |name: &str| std::fs::read_to_string(format!("/proc/{}/{name}", child.id())).unwrap_or_default();
    let is_confined =
        || file("status").lines().any(|line| line.starts_with("Seccomp:") && line.ends_with('2'));
    while !is_confined() {
        assert!(std::path::Path::new(&format!("/proc/{}", child.id())).exists(), "the child ended");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let (status, limits) = (file("status"), file("limits"));
    assert!(status.lines().any(|line| line.starts_with("NoNewPrivs:") && line.ends_with('1')), "{status}");
    let limit = |name: &str| limits.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert!(limit("Max cpu time").contains(" 20 "), "{limits}");
    assert!(limit("Max address space").contains(&format!(" {} ", 2u64 << 30)), "{limits}");
    child.kill().unwrap();
    child.wait().unwrap();
}
