//! An HTTP port and one of its connections: what the acceptors, the stream and the service of a connection share.

use std::io;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::{HttpTimes, Live};
use crate::ingest::connections::phase::Phase;
use crate::model::Clock;

/// What the connections of a port share.
#[derive(Clone)]
pub(crate) struct Port {
    /// The section of the configuration.
    #[expect(dead_code, reason = "the metrics of refused connections will name the port")]
    pub(crate) name: &'static str,
    pub(crate) clock: Arc<dyn Clock>,
    /// A connection keeps those that are current when it is opened.
    pub(crate) times: Live<HttpTimes>,
    /// One permit per connection.
    pub(crate) places: Arc<Semaphore>,
}

/// An open connection.
pub(super) struct Connection {
    pub(super) port: Port,
    pub(super) phase: Phase,
    _place: OwnedSemaphorePermit,
}

impl Port {
    /// Gives a new connection its place.
    pub(super) fn enter(&self, stream: &TcpStream) -> io::Result<Arc<Connection>> {
        let connection = self.entered()?;
        // Small answers must not wait for the TCP acknowledgement of the previous one.
        stream.set_nodelay(true)?;
        Ok(connection)
    }

    pub(super) fn entered(&self) -> io::Result<Arc<Connection>> {
        let place = self.places.clone().try_acquire_owned().map_err(io::Error::other)?;
        let phase = Phase::waiting(self.now_ms());
        Ok(Arc::new(Connection { port: self.clone(), phase, _place: place }))
    }

    fn now_ms(&self) -> u64 {
        self.clock.now().mono_ms
    }
}

impl Connection {
    pub(super) fn now_ms(&self) -> u64 {
        self.port.now_ms()
    }
}
