//! Retry policy for failed model calls. Pure: the attempt number and a random number are arguments. Only transient
//! errors are retried, and only by callers that have not shown any output yet.

use crate::port::model::ModelError;

/// Maximum length of the first pause. The maximum doubles with each retry.
pub const FIRST_PAUSE_MS_MAX: u64 = 500;
/// Maximum length of a backoff pause.
pub const PAUSE_MS_MAX: u64 = 30_000;
/// Maximum pause that a provider may request. For longer pauses, the next model of the chain is tried instead.
pub const REQUESTED_PAUSE_MS_MAX: u64 = 60_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    Wait { ms: u64 },
    GiveUp,
}

/// Decide whether to retry. `attempt` is the failed attempt, starting at 1. A pause requested by the provider takes
/// precedence over the backoff. The backoff is uniformly random up to a ceiling that doubles, so that callers that
/// failed together do not retry together.
pub fn decide_retry(error: &ModelError, attempt: u32, attempts_max: u32, chance: u64) -> Retry {
    if !error.is_transient() || attempt >= attempts_max {
        return Retry::GiveUp;
    }
    match error.retry_after_ms() {
        Some(ms) if ms > REQUESTED_PAUSE_MS_MAX => Retry::GiveUp,
        Some(ms) => Retry::Wait { ms },
        None => Retry::Wait { ms: chance % (pause_ceiling_ms(attempt) + 1) },
    }
}

fn pause_ceiling_ms(attempt: u32) -> u64 {
    let doublings = attempt.saturating_sub(1).min(16);
    (FIRST_PAUSE_MS_MAX << doublings).min(PAUSE_MS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stream_cut() -> ModelError {
        ModelError::Cut { model: "m".into(), why: "x".into() }
    }

    fn limited(retry_after_ms: Option<u64>) -> ModelError {
        ModelError::RateLimited { model: "m".into(), retry_after_ms }
    }

    #[test]
    fn permanent_errors_are_not_retried() {
        let refused = ModelError::Refused { model: "m".into(), status: 400, why: "no".into() };
        assert_eq!(decide_retry(&refused, 1, 5, 7), Retry::GiveUp);
    }

    #[test]
    fn the_last_attempt_is_not_retried() {
        assert_eq!(decide_retry(&stream_cut(), 2, 3, 0), Retry::Wait { ms: 0 });
        assert_eq!(decide_retry(&stream_cut(), 3, 3, 0), Retry::GiveUp);
        assert_eq!(decide_retry(&stream_cut(), 1, 0, 0), Retry::GiveUp);
    }

    #[test]
    fn a_requested_pause_is_respected_up_to_a_minute() {
        assert_eq!(decide_retry(&limited(Some(59_000)), 1, 3, 9), Retry::Wait { ms: 59_000 });
        assert_eq!(decide_retry(&limited(Some(60_000)), 1, 3, 9), Retry::Wait { ms: 60_000 });
        assert_eq!(decide_retry(&limited(Some(60_001)), 1, 3, 9), Retry::GiveUp);
    }

    #[test]
    fn the_ceiling_of_a_pause_doubles_up_to_thirty_seconds() {
        let ceilings: Vec<u64> = (1..=8).map(pause_ceiling_ms).collect();
        assert_eq!(ceilings, [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]);
        assert_eq!(pause_ceiling_ms(u32::MAX), 30_000);
    }

    proptest! {
        #[test]
        fn no_pause_is_longer_than_its_ceiling(attempt in 1u32..1000, chance: u64) {
            let Retry::Wait { ms } = decide_retry(&limited(None), attempt, u32::MAX, chance) else {
                panic!("given up");
            };
            prop_assert!(ms <= pause_ceiling_ms(attempt));
        }
    }
}
