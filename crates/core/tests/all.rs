//! Core's tests: tables in the fixture notation, and properties over random sessions. One binary, so that it links once.

// Clippy knows by the attribute that helpers in here may unwrap.
#[cfg(test)]
mod all {
    mod bodies;
    mod cases;
    mod codec;
    mod compact;
    mod context;
    mod flow;
    mod folds;
    mod memory;
    mod notation;
    mod place;
    mod settings;
    mod tree;
    mod trim;
    mod turn;

    use proptest::test_runner::Config;

    /// How many random cases a property is held against. What failed is turned into a test by hand, not into a file.
    fn cases_of(count: u32) -> Config {
        Config { failure_persistence: None, ..Config::with_cases(count) }
    }
}
