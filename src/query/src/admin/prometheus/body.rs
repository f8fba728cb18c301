//! Receives the body of a request, a form or a remote read, within limits of size and time.
//!
//! The admin port has few connections, and probes and scrapes must find room among them. So while a
//! body arrives, its connection may be closed for a new one, as if it were idle.

use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use futures_util::StreamExt;

use super::answer::PrometheusError;
use net::http::Peer;

/// Time limit of a body. The same as the default of `http.body_timeout`.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The body of a request; at most `bytes_max` bytes.
pub(super) async fn receive(
    request: Request,
    bytes_max: usize,
) -> Result<Vec<u8>, PrometheusError> {
    let peer = Peer::find(request.extensions()).cloned();
    if let Some(peer) = &peer {
        peer.arriving();
    }
    let received = tokio::time::timeout(TIMEOUT, collect(request.into_body(), bytes_max));
    let late = PrometheusError::BodyTimeout {
        seconds: TIMEOUT.as_secs(),
    };
    // After an error the connection may still be closed for a new one.
    let body = received.await.unwrap_or(Err(late))?;
    if let Some(peer) = &peer {
        peer.arrived();
    }
    Ok(body)
}

async fn collect(body: Body, bytes_max: usize) -> Result<Vec<u8>, PrometheusError> {
    let too_large = || PrometheusError::TooLarge { bytes_max };
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(too_large());
    }
    let mut stream = body.into_data_stream();
    let mut bytes = Vec::new();
    while let Some(chunk) = stream.next().await {
        let broken = |error| PrometheusError::bad_data(format!("the body is incomplete: {error}"));
        let chunk = chunk.map_err(broken)?;
        if bytes.len() + chunk.len() > bytes_max {
            return Err(too_large());
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::body::Bytes;
    use futures_util::stream;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_end_is_refused_after_its_time() {
        let first = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"query="))]);
        let body = Body::from_stream(first.chain(stream::pending()));
        let since = Instant::now();
        let refused = receive(Request::new(body), 10).await.unwrap_err();
        assert_eq!((refused.status().as_u16(), since.elapsed()), (408, TIMEOUT));
        let long = Body::from_stream(stream::iter([Ok::<_, Infallible>(vec![0; 11])]));
        let refused = receive(Request::new(long), 10).await.unwrap_err();
        assert_eq!(refused, PrometheusError::TooLarge { bytes_max: 10 });
        let whole = receive(Request::new(Body::from("0123456789")), 10).await;
        assert_eq!(whole, Ok(b"0123456789".to_vec()));
    }
}
