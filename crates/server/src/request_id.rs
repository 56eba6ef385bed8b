//! The id of a request. It is sent as a response header and logged with every error of the request.

use std::fmt::{self, Display, Formatter};

use axum::http::HeaderValue;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestId(pub u64);

impl RequestId {
    /// Returns the id as sixteen hexadecimal digits. Avoids `format!` because every response contains an id.
    fn digits(self) -> [u8; 16] {
        let digit = |at: usize| b"0123456789abcdef"[(self.0 >> (60 - 4 * at)) as usize & 15];
        std::array::from_fn(digit)
    }

    pub fn header(self) -> HeaderValue {
        HeaderValue::from_bytes(&self.digits()).unwrap_or(HeaderValue::from_static("0"))
    }
}

impl Display for RequestId {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_and_display_are_the_same_hexadecimal() {
        for number in [0, 1, 0x0123_4567_89ab_cdef, u64::MAX] {
            let id = RequestId(number);
            assert_eq!(id.header().to_str().unwrap(), id.to_string());
        }
    }
}
