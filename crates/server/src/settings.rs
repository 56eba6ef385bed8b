//! The operator's settings of the server.

use std::time::Duration;

use crate::rate::Rate;

/// Server settings. The defaults suit one machine.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Largest JSON body.
    pub body_bytes_max: usize,
    /// Maximum total size of the JSON bodies that are being received or processed. One caller gets half of it.
    pub body_bytes_in_flight_max: usize,
    /// Largest upload: an artifact, an input or an imported file.
    pub upload_bytes_max: usize,
    /// Time limit for receiving the head of a request.
    pub head_time_max: Duration,
    /// Time limit for a request that is not a stream. Uploads get more time, depending on their size.
    pub request_time_max: Duration,
    /// Interval between two heartbeats of a stream.
    pub heartbeat: Duration,
    /// Rate limit per principal. `None` means no limit.
    pub rate: Option<Rate>,
    /// Maximum requests in flight, including streams. Idle connections are closed when new connections need a slot.
    pub connections_max: usize,
    /// Maximum requests in flight of one principal, and unauthenticated requests of one address. Defaults to half of
    /// `connections_max`.
    pub connections_per_principal_max: Option<usize>,
    /// Maximum event streams and WebSockets of one principal. Defaults to a quarter of `connections_max`.
    pub streams_per_principal_max: Option<usize>,
    /// Maximum requests in flight of one tenant. `None` means that only the other limits apply.
    pub connections_per_tenant_max: Option<usize>,
    /// Maximum event streams and WebSockets of one tenant. `None` means that only the other limits apply.
    pub streams_per_tenant_max: Option<usize>,
    /// Maximum projections and exports that are computed at the same time.
    pub projections_max: usize,
    /// Maximum projections and exports of one principal that are computed at the same time.
    pub projections_per_principal_max: usize,
    /// How long a projection waits for another one to end before it is refused.
    pub projection_wait_max: Duration,
    /// When all slots are taken, a new connection from an address with at least this many connections replaces idle
    /// connections of that address first. Defaults to half of `connections_max`.
    pub connections_per_address_max: Option<usize>,
    /// Requests in flight that are reserved for operator keys, in addition to `connections_max`.
    pub operate_connections_reserved: usize,
    /// The model that answers on the OpenAI routes if the client names a model without a provider that cannot be called
    /// here. `None` refuses such requests.
    pub openai_model: Option<String>,
    /// Grace period for running turns after a shutdown request.
    pub grace: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            body_bytes_max: 16 << 20,
            body_bytes_in_flight_max: 256 << 20,
            upload_bytes_max: 64 << 20,
            head_time_max: Duration::from_secs(10),
            request_time_max: Duration::from_secs(30),
            heartbeat: Duration::from_secs(15),
            rate: Some(Rate { per_second: 100, burst: 400 }),
            connections_max: 8_192,
            connections_per_principal_max: None,
            streams_per_principal_max: None,
            connections_per_tenant_max: None,
            streams_per_tenant_max: None,
            projections_max: 32,
            projections_per_principal_max: 8,
            projection_wait_max: Duration::from_secs(5),
            connections_per_address_max: None,
            operate_connections_reserved: 16,
            openai_model: None,
            grace: Duration::from_secs(10),
        }
    }
}
