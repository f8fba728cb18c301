//! The port after its last request. The service still stores what it holds, which takes up to
//! `shutdown.deadline`, and new connections get 503: a sender would take a refused one for a failure.
//!
//! A second server on the same socket, because the first one ends all its connections, also those
//! whose body is still arriving. So nothing holds a handle to the next stage any more, and that
//! stage can end.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::port::Port;
use super::server::{self, End};
use crate::tls::Certificates;

/// Each answer is short and made at once.
const LAST_ANSWERS: Duration = Duration::from_millis(500);

/// The socket of a port, and what its connections share.
pub struct RefusingPort {
    listener: std::net::TcpListener,
    port: Arc<Port>,
    certificates: Option<Certificates>,
}

impl RefusingPort {
    /// # Errors
    /// The socket cannot be shared: too many open files.
    pub fn new(
        listener: &TcpListener,
        port: Arc<Port>,
        certificates: Option<Certificates>,
    ) -> io::Result<RefusingPort> {
        Ok(RefusingPort {
            listener: listener.as_fd().try_clone_to_owned()?.into(),
            port,
            certificates,
        })
    }

    /// Answers until `closed`. `routes` must refuse everything, and hold no handle to the next stage.
    pub async fn serve(self, routes: Router, closed: CancellationToken) {
        let listener = match TcpListener::from_std(self.listener) {
            Ok(listener) => listener,
            Err(error) => {
                tracing::warn!(%error, "HTTP port closed before the service has stopped");
                return;
            }
        };
        let routes = watch::Sender::new(routes).subscribe();
        let end = End {
            token: closed,
            last_answers: LAST_ANSWERS,
        };
        server::serve(listener, routes, self.port, self.certificates, end).await;
    }
}
