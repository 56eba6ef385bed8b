//! The file tools. All of them work through a [`Root`](root::Root), so none can leave the session's scope.

mod edit;
mod identity;
mod list;
pub(crate) mod protected;
mod read;
pub(crate) mod root;
pub(crate) mod walk;
mod write;

pub use edit::EditFile;
pub use list::ListDirectory;
pub use read::ReadFile;
pub use write::WriteFile;
