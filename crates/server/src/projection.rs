//! Limits how many projections and exports are computed at the same time. Each of them may read a whole log and hold a
//! document in memory. A projection waits a short time for another one to end before it is refused.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use hyper::body::{Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;

use crate::auth::Caller;
use crate::chunked::CHUNK_BYTES_MIN;
use crate::held_body::HeldBody;
use crate::problem::{Problem, Result};
use crate::share::ResourceShare;
use crate::state::State;

/// Suggested retry delay.
const RETRY_AFTER_S: u64 = 5;

/// Permission to compute one projection. As an extractor it waits for the permission.
pub struct ProjectionPermit {
    _all: OwnedSemaphorePermit,
    _own: Option<OwnedSemaphorePermit>,
    /// Keeps the share, and with it the count of the caller's projections.
    _share: Arc<ResourceShare>,
}

impl FromRequestParts<State> for ProjectionPermit {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &State) -> Result<Self> {
        let caller = Caller::from_request_parts(parts, state).await?;
        Self::take(state, &caller).await
    }
}

impl ProjectionPermit {
    pub async fn take(state: &State, caller: &Caller) -> Result<Self> {
        let (wait, share) = (state.settings.projection_wait_max, state.admission.share_of(caller));
        let both = async {
            let own = share.projections.clone().acquire_owned().await;
            (own, state.projections.all.clone().acquire_owned().await)
        };
        if let Ok((Ok(own), Ok(all))) = tokio::time::timeout(wait, both).await {
            return Ok(Self { _all: all, _own: Some(own), _share: share });
        }
        if caller.has_operate_grant()
            && let Ok(reserved) = state.projections.operate.clone().try_acquire_owned()
        {
            return Ok(Self { _all: reserved, _own: None, _share: share });
        }
        if share.projections.available_permits() == 0 {
            return Err(state.admission.reject_projection(state.settings.projections_per_principal_max));
        }
        let detail = "too many projections and exports run at the moment: retry later";
        Err(Problem::busy(detail, RETRY_AFTER_S))
    }

    /// Keeps the permission until the body is sent.
    pub fn hold_for(self, body: Body) -> Body {
        Body::new(HeldBody::new(body, self))
    }

    /// Sends a document that is in memory as a whole, and keeps the permission meanwhile. The document is sent in chunks,
    /// because hyper drops a body after its last frame, even if that frame is not sent yet.
    pub fn hold_for_text(self, text: String) -> Body {
        self.hold_for(Body::new(TextBody { rest: Bytes::from(text) }))
    }
}

struct TextBody {
    rest: Bytes,
}

impl HttpBody for TextBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let length = self.rest.len().min(CHUNK_BYTES_MIN);
        let chunk = self.rest.split_to(length);
        Poll::Ready((length > 0).then(|| Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}
