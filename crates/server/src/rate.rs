//! Rate limiting: one token bucket per principal.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use sapwood::{Principal, Scope, TenantId};

/// Maximum number of buckets. Full buckets are dropped first.
const BUCKETS_MAX: usize = 65_536;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    pub per_second: u32,
    /// Bucket size: the maximum number of requests in a burst.
    pub burst: u32,
}

struct Bucket {
    tokens: f64,
    at: Instant,
}

pub struct Rates {
    rate: Option<Rate>,
    buckets: Mutex<HashMap<(TenantId, Principal), Bucket>>,
}

impl Rates {
    pub fn new(rate: Option<Rate>) -> Self {
        Self { rate, buckets: Mutex::default() }
    }

    /// Takes a token. The error is the number of seconds until the next token.
    pub fn take(&self, scope: &Scope, now: Instant) -> Result<(), u64> {
        let Some(rate) = self.rate else { return Ok(()) };
        let (per_second, burst) = (f64::from(rate.per_second.max(1)), f64::from(rate.burst.max(1)));
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= BUCKETS_MAX {
            buckets.retain(|_, bucket| refilled(bucket, now, per_second) < burst);
            if buckets.len() >= BUCKETS_MAX {
                // All buckets are in use: reset them to bound memory.
                buckets.clear();
            }
        }
        let key = (scope.tenant.clone(), scope.principal.clone());
        let bucket = buckets.entry(key).or_insert(Bucket { tokens: burst, at: now });
        bucket.tokens = refilled(bucket, now, per_second).min(burst);
        bucket.at = now;
        if bucket.tokens < 1.0 {
            return Err(((1.0 - bucket.tokens) / per_second).ceil().max(1.0) as u64);
        }
        bucket.tokens -= 1.0;
        Ok(())
    }
}

fn refilled(bucket: &Bucket, now: Instant, per_second: f64) -> f64 {
    bucket.tokens + now.saturating_duration_since(bucket.at).as_secs_f64() * per_second
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_principal_gets_a_burst_and_then_a_steady_rate() {
        let rates = Rates::new(Some(Rate { per_second: 2, burst: 3 }));
        let ana = Scope::user(TenantId::local(), "ana".parse().unwrap());
        let bob = Scope::user(TenantId::local(), "bob".parse().unwrap());
        let start = Instant::now();
        assert!((0..3).all(|_| rates.take(&ana, start).is_ok()));
        assert_eq!(rates.take(&ana, start), Err(1));
        assert!(rates.take(&bob, start).is_ok(), "another principal has its own bucket");
        assert!(rates.take(&ana, start + Duration::from_millis(500)).is_ok());
        assert!(rates.take(&ana, start + Duration::from_millis(501)).is_err());
    }
}
