//! The sizes of a full run and of a quick run.

#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Number of messages of ordinary length in the long session.
    pub long: usize,
    /// Number of short messages in the huge session, and in the small sessions compared with it.
    pub huge: usize,
    pub small: usize,
    pub sessions: usize,
    /// Number of durable appends per measurement, and number of measurements.
    pub appends: usize,
    pub rounds: usize,
    /// Size of the imported file.
    pub import_bytes: u64,
}

pub const FULL: Sizes = Sizes {
    long: 100_000,
    huge: 1_000_000,
    small: 1_000,
    sessions: 10_000,
    appends: 2_000,
    rounds: 5,
    import_bytes: 1 << 30,
};
pub const QUICK: Sizes = Sizes {
    long: 5_000,
    huge: 50_000,
    small: 1_000,
    sessions: 1_000,
    appends: 400,
    rounds: 3,
    import_bytes: 48 << 20,
};
