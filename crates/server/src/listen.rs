//! Accepting connections and graceful shutdown. On shutdown no new connection is accepted, and streams end so that
//! clients reconnect elsewhere with their cursors. Running turns get a grace period. A turn that is still running
//! afterwards can be resumed.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::admission::Connection;
use crate::client_stream::{ClientStream, ConnectionNotes};
use crate::middleware::{Routes, handle_request};
use crate::problem::Problem;
use crate::routes;
use crate::sse::stopped;
use crate::state::State;

/// Size limit of a request head. hyper also buffers this much of a response that the client does not read.
const HEAD_BYTES_MAX: usize = 32 << 10;
const HEADERS_MAX: usize = 100;
/// Time limit for connections to close after the turns have ended or their grace period is over.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(2);
/// Maximum time that sent data may stay unacknowledged.
#[cfg(target_os = "linux")]
const STALLED_MS_MAX: u32 = 60_000;
/// Size of the kernel's send buffer, which the kernel doubles. Without it, the kernel would buffer several MB for each client
/// that does not read.
#[cfg(unix)]
const SEND_BUFFER_BYTES: usize = 128 << 10;
/// Length of the kernel's accept queue. A client that finds it full retries after a second.
const BACKLOG: u32 = 1_024;
/// Pause before the next accept when the system has run out of a resource such as file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("failed to listen on {addr}: {source}")]
    Address { addr: SocketAddr, source: std::io::Error },
    #[error("{addr} is reachable from other machines, and no API key exists yet")]
    Open { addr: SocketAddr },
    #[error("failed to look up API keys in the store: {what}")]
    Store { what: String },
}

impl ListenError {
    pub fn code(&self) -> &'static str {
        match self {
            ListenError::Address { .. } => "server.address",
            ListenError::Open { .. } => "server.open",
            ListenError::Store { .. } => "store.backend",
        }
    }
}

/// A server that is bound to its address but not yet accepting requests.
pub struct Listening {
    listener: TcpListener,
    pub addr: SocketAddr,
    state: State,
}

impl Listening {
    /// Binds the address. Fails if other machines can reach the address and no credential is required.
    pub async fn bind(addr: SocketAddr, state: State) -> Result<Self, ListenError> {
        let store_error =
            |problem: Problem| ListenError::Store { what: problem.internal.unwrap_or(problem.detail) };
        let is_allowed = state.auth.may_listen(addr).await.map_err(store_error)?;
        if !is_allowed {
            return Err(ListenError::Open { addr });
        }
        let failed = |source| ListenError::Address { addr, source };
        let listener = listen(addr).map_err(failed)?;
        let addr = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, addr, state })
    }

    /// Serves requests until `stop` resolves, then shuts down gracefully.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        serve(self.listener, self.state, stop).await;
    }
}

/// Like [`TcpListener::bind`], with a longer accept queue.
fn listen(addr: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // On other systems this option would let two processes listen on one address.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}

pub async fn serve(listener: TcpListener, state: State, stop: impl Future<Output = ()>) {
    let routes = Routes::new(routes::router(&state));
    tokio::pin!(stop);
    loop {
        // `stop` must also be polled while a connection waits for a slot.
        let next = async {
            let (stream, client) = listener.accept().await?;
            Ok::<_, std::io::Error>((stream, state.admission.connect(client.ip()).await))
        };
        let accepted = tokio::select! {
            accepted = next => accepted,
            () = &mut stop => break,
        };
        match accepted {
            Ok((stream, connection)) => serve_connection(stream, routes.clone(), &state, connection),
            Err(error) => {
                tracing::warn!(%error, "failed to accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    shut_down(&state).await;
}

fn serve_connection(stream: TcpStream, routes: Routes, state: &State, connection: Arc<Connection>) {
    // Nagle's algorithm would delay small frames.
    let _ = stream.set_nodelay(true);
    set_stall_timeout(&stream);
    limit_send_buffer(&stream);
    let notes = Arc::new(ConnectionNotes::default());
    let stream = ClientStream::new(stream, notes.clone());
    let context = (state.clone(), routes, connection.clone(), notes);
    let service = service_fn(move |request: axum::http::Request<Incoming>| {
        let (state, routes, connection, notes) = context.clone();
        async move {
            let request = request.map(Body::new);
            Ok::<_, Infallible>(handle_request(&state, &routes, &connection, &notes, request).await)
        }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(state.settings.head_time_max)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut stopping = state.stopping();
    tokio::spawn(async move {
        tokio::pin!(served);
        tokio::select! {
            // Errors here only mean that the client disconnected.
            _ = &mut served => {}
            // Only connections without a request in flight are closed for their slots.
            () = connection.close_requested() => {}
            () = stopped(&mut stopping) => {
                served.as_mut().graceful_shutdown();
                let _ = served.await;
            }
        }
    });
}

/// Lets the kernel close connections whose client stopped reading, because they occupy a slot and buffer data.
fn set_stall_timeout(stream: &TcpStream) {
    #[cfg(target_os = "linux")]
    let _ = rustix::net::sockopt::set_tcp_user_timeout(stream, STALLED_MS_MAX);
    #[cfg(not(target_os = "linux"))]
    let _ = stream;
}

fn limit_send_buffer(stream: &TcpStream) {
    // Best effort: a larger buffer only costs memory.
    #[cfg(unix)]
    let _ = rustix::net::sockopt::set_socket_send_buffer_size(stream, SEND_BUFFER_BYTES);
    #[cfg(not(unix))]
    let _ = stream;
}

async fn shut_down(state: &State) {
    state.stop();
    if tokio::time::timeout(state.settings.grace, state.turns_ended()).await.is_err() {
        tracing::warn!(turns = state.turns_running(), "shut down with running turns; they can be resumed");
    }
    let _ = tokio::time::timeout(CLOSE_TIME_MAX, state.admission.all_closed()).await;
    if let Err(error) = state.engine.store().flush().await {
        tracing::warn!(%error, "failed to flush the store");
    }
}
