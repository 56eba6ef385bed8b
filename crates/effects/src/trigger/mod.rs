//! External sources of triggers: a schedule with a time zone, and watched files.

mod cron;
mod watch;

pub use cron::Cron;
pub use watch::FileWatch;
