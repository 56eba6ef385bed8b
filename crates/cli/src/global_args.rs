//! The options of every command.

use std::path::PathBuf;

use clap::Args;

use crate::render::Format;

#[derive(Debug, Args)]
pub struct Global {
    /// Store URL: sqlite:FILE, jsonl:DIR, postgres://USER@HOST/DB or memory:
    #[arg(long, global = true, value_name = "URL", env = "SAPWOOD_STORE", hide_env_values = true)]
    #[arg(help_heading = "Global options")]
    pub store: Option<String>,
    /// Directory of the default store and the user's sapwood.toml
    #[arg(long, global = true, value_name = "DIR", env = "SAPWOOD_HOME", hide_env_values = true)]
    #[arg(help_heading = "Global options")]
    pub home: Option<PathBuf>,
    /// Tenant to use
    #[arg(long, global = true, value_name = "TENANT", help_heading = "Global options")]
    pub tenant: Option<String>,
    /// Act as this user, who sees only their own and shared sessions
    #[arg(long = "as", global = true, value_name = "USER", help_heading = "Global options")]
    pub as_user: Option<String>,
    /// File with the store's encryption key
    #[arg(long, global = true, value_name = "FILE", env = "SAPWOOD_KEY_FILE", hide_env_values = true)]
    #[arg(help_heading = "Global options")]
    pub key_file: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true, help_heading = "Global options")]
    pub json: bool,
}

impl Global {
    pub fn format(&self) -> Format {
        if self.json { Format::Json } else { Format::Text }
    }
}
