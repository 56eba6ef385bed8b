//! Measurement helpers: medians of several runs, and memory and file sizes as reported by the system.

use std::path::Path;
use std::time::{Duration, Instant};

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => values[length / 2],
        length => f64::midpoint(values[length / 2 - 1], values[length / 2]),
    }
}

pub fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}

pub fn per_second(count: usize, duration: Duration) -> f64 {
    count as f64 / duration.as_secs_f64().max(1e-9)
}

/// Run `work` several times and return the median in milliseconds. The first run is a warm-up and does not count.
pub async fn median_millis<F, T>(runs: usize, mut work: impl FnMut() -> F) -> anyhow::Result<f64>
where
    F: Future<Output = anyhow::Result<T>>,
{
    work().await?;
    let mut times = Vec::with_capacity(runs);
    for _ in 0..runs {
        let start = Instant::now();
        let done = work().await?;
        times.push(millis(start.elapsed()));
        drop(done);
    }
    Ok(median(times))
}

/// Memory of this process in MB, if the system reports it: all resident memory, and the part that is not mapped files.
pub fn memory_mb() -> Option<(f64, f64)> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let megabytes = |name: &str| -> Option<f64> {
        let line = status.lines().find(|line| line.starts_with(name))?;
        Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? / 1_024.0)
    };
    Some((megabytes("VmRSS:")?, megabytes("RssAnon:")?))
}

/// The maximum of all samples.
#[derive(Debug, Clone, Copy, Default)]
pub struct Peak {
    pub resident: f64,
    pub anonymous: f64,
}

impl Peak {
    pub fn sample(&mut self) {
        let (resident, anonymous) = memory_mb().unwrap_or_default();
        self.resident = self.resident.max(resident);
        self.anonymous = self.anonymous.max(anonymous);
    }
}

/// Total size of the files in a directory whose names have this prefix, such as a database with its WAL.
pub fn file_bytes(directory: &Path, name: &str) -> std::io::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(name) {
            bytes += entry.metadata()?.len();
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_value() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(Vec::new()).is_nan());
    }
}
