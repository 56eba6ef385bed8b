//! Longer runs of the tests with faults. `cargo xtask torture` sets SAPWOOD_TORTURE and adds up the printed lines.

/// The number of rounds of a test, multiplied by SAPWOOD_TORTURE.
pub fn rounds(usual: u64) -> u64 {
    let factor = std::env::var("SAPWOOD_TORTURE").ok().and_then(|factor| factor.parse::<u64>().ok());
    usual * factor.unwrap_or(1).clamp(1, 10_000)
}

/// The rounds of one kind of fault.
pub struct FaultCount {
    fault: &'static str,
    rounds: u64,
    acknowledged: u64,
}

impl FaultCount {
    pub fn new(fault: &'static str) -> Self {
        Self { fault, rounds: 0, acknowledged: 0 }
    }

    /// Counts one round and the messages that were acknowledged in it.
    pub fn add(&mut self, acknowledged: usize) {
        self.rounds += 1;
        self.acknowledged += acknowledged as u64;
    }

    /// Prints the counts. A test calls it after its checks, so nothing acknowledged was lost.
    pub fn print(&self) {
        let Self { fault, rounds, acknowledged } = self;
        println!("torture: {fault}: {rounds} rounds, {acknowledged} acknowledged, 0 lost");
    }
}
