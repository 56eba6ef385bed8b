//! SQLite
