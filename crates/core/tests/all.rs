//! Core's tests: tables in the fixture notation, and properties over random sessions. One binary, to link only once.

// With this attribute, Clippy allows `unwrap` in the helpers of this module.
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

    /// The configuration of a property with `count` random cases. Failures are added manually as tests, not
    /// to a regression file.
    fn cases_of(count: u32) -> Config {
        Config { failure_persistence: None, ..Config::with_cases(count) }
    }
}
