//! A response body that keeps a permit until the body is sent or the client disconnects.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};

pub struct HeldBody<P> {
    body: Body,
    _permit: P,
}

impl<P> HeldBody<P> {
    pub fn new(body: Body, permit: P) -> Self {
        Self { body, _permit: permit }
    }
}

impl<P: Unpin> HttpBody for HeldBody<P> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
