//! Skills in folders: `NAME/SKILL.md` with front matter, and other files that the instructions refer to. Folders are
//! read through a confined directory handle, within limits. Folders that are not valid skills are reported.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use sapwood_core::port::skill::{
    SKILL_DESCRIPTION_CHARS_MAX, SkillCard, SkillCatalog, SkillError, SkillFault, SkillListing, is_skill_name,
};
use sapwood_core::port::tool::FsScope;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::tool::files::root::Root;

const FILE_NAME: &str = "SKILL.md";
/// Maximum number of entries read per directory.
const FOLDERS_MAX: usize = 500;
/// Maximum size of `SKILL.md`, and of any other file.
const SKILL_BYTES_MAX: u64 = 256 << 10;
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of files listed per folder, and maximum depth.
const FILES_LISTED_MAX: usize = 100;
const DEPTH_MAX: usize = 4;
const FENCE: &str = "---";

/// Front matter of a `SKILL.md`. Only the first two fields are used. The other fields are accepted and ignored.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct FrontMatter {
    name: String,
    description: String,
    #[serde(rename = "license")]
    _license: Option<String>,
    #[serde(rename = "compatibility")]
    _compatibility: Option<String>,
    #[serde(rename = "allowed-tools")]
    _allowed_tools: Option<IgnoredAny>,
    #[serde(rename = "metadata")]
    _metadata: Option<BTreeMap<String, IgnoredAny>>,
}

/// Directories of skills, in order of precedence.
#[derive(Debug, Clone)]
pub struct SkillFolders {
    dirs: Vec<PathBuf>,
}

impl SkillFolders {
    pub fn new(dirs: Vec<PathBuf>) -> Self {
        Self { dirs }
    }

    fn list_blocking(&self) -> SkillListing {
        let mut listing = SkillListing::default();
        for dir in &self.dirs {
            for folder in folders_in(dir) {
                let place = folder.display().to_string();
                match read_card(&folder) {
                    Ok(card) if listing.card(&card.name).is_none() => listing.cards.push(card),
                    Ok(_) => {}
                    Err(why) => listing.faults.push(SkillFault { place, why }),
                }
            }
        }
        listing.cards.sort_by(|a, b| a.name.cmp(&b.name));
        listing
    }

    fn read_blocking(&self, name: &str, file: Option<&str>) -> Result<String, SkillError> {
        let unknown = || SkillError::Unknown { name: name.to_owned() };
        if !is_skill_name(name) {
            return Err(unknown());
        }
        let folders = self.dirs.iter().map(|dir| dir.join(name));
        let folder = folders.into_iter().find(|folder| read_card(folder).is_ok()).ok_or_else(unknown)?;
        let unreadable = |why: String| SkillError::Unreadable { why };
        match file {
            None | Some(FILE_NAME) => {
                let text = read_text(&folder, FILE_NAME, SKILL_BYTES_MAX).map_err(unreadable)?;
                let (_, body) = split(&text).map_err(unreadable)?;
                Ok(with_files(body.trim(), &list_files(&folder)))
            }
            Some(file) => read_text(&folder, file, FILE_BYTES_MAX).map_err(unreadable),
        }
    }
}

#[async_trait]
impl SkillCatalog for SkillFolders {
    async fn list(&self) -> SkillListing {
        let folders = self.clone();
        tokio::task::spawn_blocking(move || folders.list_blocking()).await.unwrap_or_default()
    }

    async fn read(&self, name: &str, file: Option<&str>) -> Result<String, SkillError> {
        let (folders, name, file) = (self.clone(), name.to_owned(), file.map(str::to_owned));
        let read = tokio::task::spawn_blocking(move || folders.read_blocking(&name, file.as_deref())).await;
        read.unwrap_or_else(|error| Err(SkillError::Unreadable { why: error.to_string() }))
    }
}

/// List the skill folders in a directory. Returns an empty list if the directory does not exist.
fn folders_in(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let paths = entries.take(FOLDERS_MAX).filter_map(|entry| entry.ok().map(|entry| entry.path()));
    let mut folders: Vec<PathBuf> = paths.filter(|path| path.join(FILE_NAME).is_file()).collect();
    folders.sort();
    folders
}

fn read_card(folder: &Path) -> Result<SkillCard, String> {
    let text = read_text(folder, FILE_NAME, SKILL_BYTES_MAX)?;
    let (head, body) = split(&text)?;
    let front: FrontMatter =
        serde_saphyr::from_str(head).map_err(|error| first_line(&error.to_string()).to_owned())?;
    let folder_name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let description = front.description.trim();
    if !is_skill_name(&front.name) {
        return Err(format!("invalid name {:.80?}: use lower-case words joined by hyphens", front.name));
    }
    if front.name != folder_name {
        return Err(format!("the name is {:?}, but the folder's name is {folder_name:?}", front.name));
    }
    if description.is_empty() || description.chars().count() > SKILL_DESCRIPTION_CHARS_MAX {
        return Err(format!("the description must have 1 to {SKILL_DESCRIPTION_CHARS_MAX} characters"));
    }
    if body.trim().is_empty() {
        return Err("there are no instructions after the front matter".to_owned());
    }
    // The prompt lists each description on a single line.
    let description = description.split_whitespace().collect::<Vec<_>>().join(" ");
    Ok(SkillCard { name: front.name, description, place: Some(folder.display().to_string()) })
}

/// Split a text into front matter and body.
fn split(text: &str) -> Result<(&str, &str), String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let rest =
        text.strip_prefix(FENCE).and_then(|rest| rest.strip_prefix('\n').or(rest.strip_prefix("\r\n")));
    let rest = rest.ok_or("the file must begin with front matter between two lines of ---")?;
    let mut at = 0;
    for line in rest.split_inclusive('\n') {
        if line.trim_end() == FENCE {
            return Ok((&rest[..at], &rest[at + line.len()..]));
        }
        at += line.len();
    }
    Err("the closing --- of the front matter is missing".to_owned())
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn read_text(folder: &Path, file: &str, bytes_max: u64) -> Result<String, String> {
    let root =
        Root::open(folder, FsScope::Project).map_err(|error| format!("{}: {error}", folder.display()))?;
    let opened = root.reader().open_file(file).map_err(|refusal| refusal.to_string())?;
    if opened.bytes > bytes_max {
        return Err(format!("{file} has {} bytes, but the limit is {bytes_max}", opened.bytes));
    }
    let mut text = String::new();
    opened.file.take(bytes_max).read_to_string(&mut text).map_err(|error| format!("{file}: {error}"))?;
    Ok(text)
}

fn with_files(body: &str, files: &[String]) -> String {
    match files {
        [] => body.to_owned(),
        files => format!("{body}\n\n[files of this skill, readable with `file`: {}]", files.join(", ")),
    }
}

/// Paths of the other files in a folder, relative to it.
fn list_files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut pending = vec![(folder.to_owned(), 0)];
    while let Some((dir, depth)) = pending.pop() {
        let Ok(entries) = std::fs::read_dir(&dir) else { continue };
        for entry in entries.take(FOLDERS_MAX).filter_map(Result::ok) {
            let Ok(kind) = entry.file_type() else { continue };
            let path = entry.path();
            if kind.is_dir() && depth < DEPTH_MAX {
                pending.push((path, depth + 1));
            } else if kind.is_file() && found.len() < FILES_LISTED_MAX {
                let name = path.strip_prefix(folder).ok().and_then(|path| path.to_str()).unwrap_or_default();
                found.extend((name != FILE_NAME && !name.is_empty()).then(|| name.to_owned()));
            }
        }
    }
    found.sort();
    found
}
