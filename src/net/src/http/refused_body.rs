//! Middleware of both HTTP ports that discards the rest of a refused request's body.
//!
//! If a server answers and closes while the sender is still writing, the kernel discards the answer
//! (RST), and the sender sees a broken pipe instead of "413". So the rest of the body is read
//! before the answer is sent, within limits. What exceeds them is read for a while after the
//! answer, for senders that read it while they write. Two bodies are not read: one whose sender
//! waits for "100 Continue", so that it need not send it; and one that the handler has waited for
//! in vain.
//!
//! What arrives is charged to the sender's quota ([`Payer`]), whatever becomes of the request.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::header::{CONNECTION, EXPECT};
use axum::http::{Extensions, HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use futures_util::StreamExt;
use http_body::{Frame, SizeHint};
use tokio::sync::oneshot;

use super::peer::Peer;
use crate::access::Grant;

/// How much of a refused body is discarded before the answer.
const BEFORE_ANSWER_BYTES_MAX: u64 = 16 << 20;
/// For how long it is discarded before the answer, and again after it.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);

/// Who a body is charged to, once that is known; an extension of its request.
#[derive(Debug, Clone, Default)]
pub struct Payer(Arc<OnceLock<Arc<Grant>>>);

impl Payer {
    /// The sender pays for the body of this request.
    pub fn set(extensions: &Extensions, sender: &Arc<Grant>) {
        if let Some(Payer(payer)) = extensions.get() {
            let _ = payer.set(sender.clone());
        }
    }

    /// Part of the body has arrived.
    fn charge(&self, bytes: usize) {
        if let Some(grant) = self.0.get() {
            grant.usage.charge(&grant.quota, 0, bytes);
        }
    }
}

/// The middleware. The handlers drop the body of a request that they refuse, wherever they are with
/// it.
pub async fn discard_rest(mut request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let peer = Peer::find(request.extensions()).cloned();
    let has_begun = !asks_before_sending(request.headers());
    let (to, mut rest) = oneshot::channel();
    let payer = Payer::default();
    request.extensions_mut().insert(payer.clone());
    let request = request.map(|body| {
        Body::new(Returned {
            body,
            payer: payer.clone(),
            to: Some(to),
            has_begun,
            is_awaited: false,
        })
    });
    let mut response = next.run(request).await;
    let is_refused = response.status().is_client_error() || response.status().is_server_error();
    if is_refused && let Ok(body) = rest.try_recv() {
        if let Some(peer) = peer {
            peer.refused();
        }
        let mut rest = body.into_data_stream();
        if !discard(&mut rest, &payer, BEFORE_ANSWER_BYTES_MAX).await {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
            // As long as the body is held, hyper keeps the connection open after the answer.
            tokio::spawn(async move { discard(&mut rest, &payer, u64::MAX).await });
        }
    }
    response
}

/// Whether the sender waits for "100 Continue" before it sends the body.
fn asks_before_sending(headers: &HeaderMap) -> bool {
    headers
        .get(EXPECT)
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// Returns whether nothing is left.
async fn discard(body: &mut BodyDataStream, payer: &Payer, bytes_max: u64) -> bool {
    let all = async {
        let mut bytes = 0;
        while let Some(Ok(chunk)) = body.next().await {
            payer.charge(chunk.len());
            bytes += chunk.len() as u64;
            if bytes > bytes_max {
                return false;
            }
        }
        true
    };
    tokio::time::timeout(DISCARD_TIMEOUT, all)
        .await
        .unwrap_or(false)
}

/// The body of a request, which returns to the middleware when it is dropped before its end.
struct Returned {
    body: Body,
    payer: Payer,
    to: Option<oneshot::Sender<Body>>,
    /// The sender sends it; hyper answers "100 Continue" when it is first read.
    has_begun: bool,
    /// The last read has not returned yet.
    is_awaited: bool,
}

impl Drop for Returned {
    fn drop(&mut self) {
        if let Some(to) = self.to.take()
            && self.has_begun
            && !self.is_awaited
            && !self.body.is_end_stream()
        {
            // It fails if the sender has disconnected, so that nothing waits for the response.
            let _ = to.send(std::mem::take(&mut self.body));
        }
    }
}

impl HttpBody for Returned {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let Some(bytes) = frame.data_ref()
        {
            self.payer.charge(bytes.len());
        }
        (self.has_begun, self.is_awaited) = (true, frame.is_pending());
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
