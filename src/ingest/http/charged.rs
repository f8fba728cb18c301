//! Charges a request's body to its sender's quota as it arrives, whatever becomes of the request: the
//! body of a refused one is read too, so that its sender sees the answer.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::Extensions;
use http_body::{Frame, SizeHint};

use crate::access::Grant;

/// Who a body is charged to, once that is known; an extension of its request.
#[derive(Debug, Clone, Default)]
pub(super) struct Payer(Arc<OnceLock<Arc<Grant>>>);

impl Payer {
    /// The sender pays for the body of this request.
    pub(super) fn set(extensions: &Extensions, sender: &Arc<Grant>) {
        if let Some(Payer(payer)) = extensions.get() {
            let _ = payer.set(sender.clone());
        }
    }
}

/// A body that charges its payer.
#[derive(Debug, Default)]
pub(super) struct ChargedBody {
    body: Body,
    payer: Payer,
}

impl ChargedBody {
    pub(super) fn new(body: Body, payer: Payer) -> ChargedBody {
        ChargedBody { body, payer }
    }
}

impl HttpBody for ChargedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let Some(bytes) = frame.data_ref()
            && let Some(grant) = self.payer.0.get()
        {
            grant.usage.charge(&grant.quota, 0, bytes.len());
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
