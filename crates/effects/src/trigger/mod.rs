//! What sets triggers off in the world outside: a calendar with a time zone, and files that are looked at.

mod cron;
mod watch;

pub use cron::Cron;
pub use watch::FileWatch;
