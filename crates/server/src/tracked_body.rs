//! A request body that notes whether it was read to its end.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use hyper::body::{Frame, SizeHint};

/// Whether a body was read to its end.
pub struct BodyEnd(Arc<AtomicBool>);

impl BodyEnd {
    pub fn is_reached(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

pub struct TrackedBody {
    body: Body,
    is_at_end: Arc<AtomicBool>,
}

impl TrackedBody {
    /// Replaces the body of a request. Bodies without content are at their end.
    pub fn track(request: Request) -> (Request, BodyEnd) {
        let is_at_end = Arc::new(AtomicBool::new(request.body().is_end_stream()));
        let tracked = is_at_end.clone();
        let request = match is_at_end.load(Ordering::Relaxed) {
            true => request,
            false => request.map(|body| Body::new(TrackedBody { body, is_at_end: tracked })),
        };
        (request, BodyEnd(is_at_end))
    }
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if frame.is_none() || self.body.is_end_stream() {
            self.is_at_end.store(true, Ordering::Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
