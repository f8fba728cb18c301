//! The socket under rumqttc: sends many small packets in one system call.
//!
//! rumqttc flushes after every PUBACK (its requests for control packets are taken one at a time), so a hundred thousand
//! messages a second would be as many system calls of four bytes. Here a flush is only noted, and what was written goes
//! out when rumqttc next asks for something to read. It does so as soon as it has nothing more to send, and it never
//! waits for anything else meanwhile, so nothing is held back while anyone waits. The one exception is the end: after
//! DISCONNECT rumqttc does not read again, so [`Coalescing::eager`] makes flushes real.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Written bytes that may wait; more are sent before anything is added (4,096 PUBACKs).
const WAITING_BYTES_MAX: usize = 16 * 1024;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Coalescing<S> {
    socket: S,
    waiting: BytesMut,
    eager: Arc<AtomicBool>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Coalescing<S> {
    /// Wraps a socket; once `eager` is set, every flush is real.
    pub(super) fn new(socket: S, eager: Arc<AtomicBool>) -> Coalescing<S> {
        Coalescing { socket, waiting: BytesMut::new(), eager }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.waiting.is_empty() {
            let n = ready!(Pin::new(&mut self.socket).poll_write(cx, &self.waiting))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.waiting.advance(n);
        }
        Pin::new(&mut self.socket).poll_flush(cx)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Coalescing<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // Where the peer takes no more for now, this task is woken when it does, and reads again then.
        if !this.waiting.is_empty()
            && let Poll::Ready(Err(error)) = this.poll_send(cx)
        {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut this.socket).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Coalescing<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.waiting.len() >= WAITING_BYTES_MAX {
            ready!(this.poll_send(cx))?;
        }
        this.waiting.extend_from_slice(buf);
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.eager.load(Ordering::Acquire) { this.poll_send(cx) } else { Poll::Ready(Ok(())) }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_send(cx))?;
        Pin::new(&mut this.socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn flushed_bytes_go_out_together_when_something_is_read() {
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let mut socket = Coalescing::new(near, Arc::default());
        for byte in 1..=3 {
            socket.write_all(&[byte]).await.unwrap();
            socket.flush().await.unwrap();
        }
        assert_eq!(socket.waiting.len(), 3);
        far.write_all(b"x").await.unwrap();
        assert_eq!(socket.read_u8().await.unwrap(), b'x');
        let mut got = [0; 3];
        far.read_exact(&mut got).await.unwrap();
        assert_eq!(got, [1, 2, 3]);
    }

    #[tokio::test]
    async fn what_waits_is_bounded_and_an_eager_flush_is_real() {
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let eager = Arc::new(AtomicBool::new(false));
        let mut socket = Coalescing::new(near, eager.clone());
        for _ in 0..10 {
            socket.write_all(&[7; 4096]).await.unwrap();
            assert!(socket.waiting.len() <= WAITING_BYTES_MAX + 4096);
        }
        eager.store(true, Ordering::Release);
        socket.flush().await.unwrap();
        assert!(socket.waiting.is_empty());
        let mut got = vec![0; 40_960];
        far.read_exact(&mut got).await.unwrap();
    }
}
