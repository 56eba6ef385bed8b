//! Parses numbers on the command line.

/// Parse a count: a whole number, zero allowed.
pub fn count(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("it must be a whole number from 0 to {}", u32::MAX))
}

/// Parse a number of tokens: a whole number, zero allowed.
pub fn tokens(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("it must be a whole number from 0 to {}", u64::MAX))
}

/// Parse a number of rows: a whole number of at least one.
pub fn rows(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err(format!("it must be a whole number from 1 to {}", u32::MAX)),
        Ok(rows) => Ok(rows),
    }
}
