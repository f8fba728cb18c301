//! What a connection sends: replies, and DISCONNECT at its end.

use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::{Connection, READ_BYTES};
use crate::listen::close_reason::CloseReason;
use crate::listen::codec::{self, Reply};
use crate::listen::connect::Client;

/// Time limit for closing a connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Buffers a reply.
    ///
    /// # Errors
    /// It is larger than the device accepts. Without it the device would wait for ever, so the
    /// connection must end.
    pub(super) fn reply(&mut self, reply: Reply) -> Result<(), CloseReason> {
        let Client {
            version,
            packet_bytes_max,
            ..
        } = self.client;
        if codec::write(version, reply, packet_bytes_max, &mut self.out) {
            Ok(())
        } else {
            Err(CloseReason::ReplyTooLarge)
        }
    }

    pub(super) async fn flush(&mut self) -> Result<(), CloseReason> {
        if self.out.is_empty() {
            return Ok(());
        }
        // Written bytes are removed from `out`, so this may be cancelled.
        let written = async {
            while !self.out.is_empty() {
                if self.stream.write_buf(&mut self.out).await? == 0 {
                    return Err(std::io::ErrorKind::WriteZero.into());
                }
            }
            self.stream.flush().await
        };
        // A device that does not read must not delay the end of the service.
        let stop = self.shared.deps.stop.clone();
        let stopped = async {
            stop.cancelled().await;
            tokio::time::sleep(CLOSE_TIMEOUT).await;
        };
        let written = tokio::time::timeout(self.shared.settings.write_timeout, written);
        let written = tokio::select! {
            biased;
            written = written => written,
            () = stopped => return Err(CloseReason::Stopped),
        };
        match written {
            Ok(Ok(())) => {
                self.out.clear();
                if self.out.capacity() > READ_BYTES {
                    self.out = BytesMut::new();
                }
                Ok(())
            }
            Ok(Err(_)) => Err(CloseReason::Lost),
            Err(_) => Err(CloseReason::Stuck),
        }
    }

    /// Waits a moment until the accepted messages are safe, and acknowledges them: otherwise a device
    /// that makes the same mistake on each connection would send the same messages again for ever.
    pub(super) async fn settle_accepted(&mut self) {
        let all = async {
            while self.inflight.len() > 0 && self.acknowledge().is_ok() {
                let Some(result) = self.settled.recv().await else {
                    return;
                };
                self.settle(result);
            }
            let _ = self.acknowledge();
        };
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, all).await;
    }

    /// Sends the remaining replies and DISCONNECT, and closes without cutting off bytes that the
    /// device has not read yet.
    pub(super) async fn send_disconnect(mut self, end: CloseReason, text: Option<String>) {
        if let Some(reason) = end.reason() {
            let text = text.filter(|_| self.client.wants_reason_string);
            let Client {
                version,
                packet_bytes_max,
                ..
            } = self.client;
            codec::write_disconnect(
                version,
                reason,
                text.as_deref(),
                packet_bytes_max,
                &mut self.out,
            );
        }
        let sent = async {
            self.flush().await?;
            self.stream
                .shutdown()
                .await
                .map_err(|_| CloseReason::Lost)?;
            // Closing with unread bytes would reset the connection and lose the bytes just sent.
            let mut scrap = [0; 1024];
            while self.stream.read(&mut scrap).await.is_ok_and(|n| n > 0) {}
            Ok::<(), CloseReason>(())
        };
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, sent).await;
    }
}
