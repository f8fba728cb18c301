//! The socket below rumqttc: sends many small packets in one system call, reads those of a busy
//! broker in groups, and outlives rumqttc for a moment.
//!
//! rumqttc flushes after every PUBACK (it takes requests for control packets one at a time), so a
//! hundred thousand messages a second would cost as many system calls of four bytes. Here a flush
//! is only noted, and the written bytes are sent when rumqttc next reads. rumqttc reads as soon as
//! it has nothing more to send, and never waits for anything else meanwhile, so no bytes are held
//! back while a task waits.
//!
//! While [`Handle::pause_between_reads`] is on, a read that has emptied the socket is followed by a
//! pause, so that the next one finds several packets, see [`super::pace`]. Acknowledgements are sent
//! meanwhile.
//!
//! If sending fails, that is reported only after what the broker has sent before was read: that may
//! be the DISCONNECT with its reason.
//!
//! It counts the bytes that arrive, also those of a packet that is not complete yet, see
//! [`super::link::Silence`].
//!
//! The exception is the end of the connection: rumqttc does not read again after DISCONNECT, so
//! [`Handle::flush_eagerly`] makes every flush take effect. rumqttc then drops the socket, although
//! the broker may not have read all of it. A new connection with the same client id would overtake
//! the PUBACKs on the old one, and the broker would send their messages again. So the socket is
//! handed back, and [`Handle::linger`] waits until the broker has closed it.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Written bytes that may wait; beyond this they are sent before more are added (4,096 PUBACKs).
const WAITING_BYTES_MAX: usize = 16 * 1024;
/// The resolution of tokio's timers.
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug)]
struct Shared<S> {
    eager: AtomicBool,
    pausing: AtomicBool,
    received: AtomicU64,
    left: Mutex<Option<S>>,
}

/// Control of the socket from outside of rumqttc.
#[derive(Debug)]
pub(super) struct Handle<S>(Arc<Shared<S>>);

impl<S> Clone for Handle<S> {
    fn clone(&self) -> Handle<S> {
        Handle(self.0.clone())
    }
}

impl<S> Default for Handle<S> {
    fn default() -> Handle<S> {
        Handle(Arc::new(Shared {
            eager: AtomicBool::new(false),
            pausing: AtomicBool::new(false),
            received: AtomicU64::new(0),
            left: Mutex::new(None),
        }))
    }
}

impl<S: AsyncRead + Unpin> Handle<S> {
    /// From now on every flush sends.
    pub(super) fn flush_eagerly(&self) {
        self.0.eager.store(true, Ordering::Release);
    }

    /// Bytes that have arrived, encrypted ones if the connection is encrypted.
    pub(super) fn received_bytes(&self) -> u64 {
        self.0.received.load(Ordering::Relaxed)
    }

    /// Whether reads pause from now on.
    pub(super) fn pause_between_reads(&self, is_on: bool) {
        self.0.pausing.store(is_on, Ordering::Relaxed);
    }

    /// After rumqttc has dropped the socket: reads and discards until the broker closes it.
    pub(super) async fn linger(&self) {
        let left = self
            .0
            .left
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(mut socket) = left else { return };
        let mut discarded = [0; 4096];
        while socket.read(&mut discarded).await.is_ok_and(|n| n > 0) {}
    }
}

#[derive(Debug)]
pub(super) struct Coalescing<S> {
    /// `None` only in `drop`.
    socket: Option<S>,
    waiting: BytesMut,
    /// The pause before the next read, if there is one.
    pause: Pin<Box<Sleep>>,
    is_pausing: bool,
    /// Why nothing more can be sent.
    failed: Option<io::Error>,
    handle: Handle<S>,
}

impl<S> Drop for Coalescing<S> {
    fn drop(&mut self) {
        *self
            .handle
            .0
            .left
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = self.socket.take();
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Coalescing<S> {
    pub(super) fn new(socket: S, handle: Handle<S>) -> Coalescing<S> {
        Coalescing {
            socket: Some(socket),
            waiting: BytesMut::new(),
            pause: Box::pin(tokio::time::sleep(Duration::ZERO)),
            is_pausing: false,
            failed: None,
            handle,
        }
    }

    fn socket(&mut self) -> io::Result<Pin<&mut S>> {
        self.socket
            .as_mut()
            .map(Pin::new)
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Sends what waits. If that fails, nothing waits any more, and the next read reports it.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let sent = ready!(self.poll_write_out(cx));
        if let Err(error) = sent {
            self.waiting.clear();
            self.failed.get_or_insert(error);
        }
        Poll::Ready(())
    }

    fn poll_write_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(socket) = &mut self.socket else {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        while !self.waiting.is_empty() {
            let n = ready!(Pin::new(&mut *socket).poll_write(cx, &self.waiting))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.waiting.advance(n);
        }
        Pin::new(socket).poll_flush(cx)
    }

    fn failure(&self) -> io::Result<()> {
        let failed = self.failed.as_ref();
        failed.map_or(Ok(()), |error| Err(error.kind().into()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Coalescing<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // If the peer accepts no more bytes now, this task is woken when it does, and reads then.
        if !this.waiting.is_empty() {
            let _ = this.poll_send(cx);
        }
        if this.is_pausing && this.failed.is_none() {
            ready!(this.pause.as_mut().poll(cx));
            this.is_pausing = false;
        }
        let before = buf.filled().len();
        let polled = this.socket()?.poll_read(cx, buf);
        let read = buf.filled().len() - before;
        // The broker has sent nothing more.
        if read == 0
            && let Some(error) = this.failed.take()
        {
            return Poll::Ready(Err(error));
        }
        ready!(polled)?;
        let shared = &this.handle.0;
        shared.received.fetch_add(read as u64, Ordering::Relaxed);
        // Otherwise there may be more.
        let is_empty = read > 0 && buf.remaining() > 0;
        if is_empty && shared.pausing.load(Ordering::Relaxed) {
            this.pause.as_mut().reset(Instant::now() + PAUSE);
            this.is_pausing = true;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Coalescing<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.waiting.len() >= WAITING_BYTES_MAX {
            ready!(this.poll_send(cx));
        }
        if this.failed.is_none() {
            this.waiting.extend_from_slice(buf);
        }
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.handle.0.eager.load(Ordering::Acquire) {
            ready!(this.poll_send(cx));
            Poll::Ready(this.failure())
        } else {
            Poll::Ready(Ok(()))
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_send(cx));
        this.failure()?;
        this.socket()?.poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn flushed_bytes_are_sent_together_before_the_next_read() {
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let mut socket = Coalescing::new(near, Handle::default());
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
    async fn unsent_bytes_are_bounded_and_an_eager_flush_sends() {
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let handle = Handle::default();
        let mut socket = Coalescing::new(near, handle.clone());
        for _ in 0..10 {
            socket.write_all(&[7; 4096]).await.unwrap();
            assert!(socket.waiting.len() <= WAITING_BYTES_MAX + 4096);
        }
        handle.flush_eagerly();
        socket.flush().await.unwrap();
        assert!(socket.waiting.is_empty());
        let mut got = vec![0; 40_960];
        far.read_exact(&mut got).await.unwrap();
    }

    /// A peer that has sent its last bytes and closed, and to which nothing can be sent.
    #[tokio::test]
    async fn what_the_peer_sent_before_is_read_although_sending_fails() {
        for eager in [false, true] {
            let handle = Handle::default();
            if eager {
                handle.flush_eagerly();
            }
            let (near, mut far) = tokio::io::duplex(64);
            far.write_all(b"last").await.unwrap();
            drop(far);
            let mut socket = Coalescing::new(near, handle);
            socket.write_all(&[7; 2 * WAITING_BYTES_MAX]).await.unwrap();
            socket.write_all(b"more").await.unwrap();
            assert_eq!(socket.flush().await.is_err(), eager);
            let mut got = [0; 8];
            assert_eq!(socket.read(&mut got).await.unwrap(), 4);
            let failed = socket.read(&mut got).await.unwrap_err();
            assert_eq!(failed.kind(), io::ErrorKind::BrokenPipe);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_follows_a_read_that_empties_the_socket_and_delays_no_acknowledgement() {
        let (near, mut far) = tokio::io::duplex(64);
        let handle = Handle::default();
        handle.pause_between_reads(true);
        let mut socket = Coalescing::new(near, handle.clone());
        let mut got = [0; 4];
        let begin = Instant::now();
        far.write_all(b"abcdef").await.unwrap();
        assert_eq!(socket.read(&mut got).await.unwrap(), 4);
        assert_eq!(socket.read(&mut got).await.unwrap(), 2);
        assert_eq!(begin.elapsed(), Duration::ZERO, "there was more");

        far.write_all(b"g").await.unwrap();
        socket.write_all(b"ack").await.unwrap();
        socket.flush().await.unwrap();
        let early = tokio::time::timeout(Duration::ZERO, socket.read(&mut got)).await;
        early.unwrap_err();
        assert_eq!(far.read(&mut [0; 4]).await.unwrap(), 3);
        far.write_all(b"h").await.unwrap();
        assert_eq!(socket.read(&mut got).await.unwrap(), 2);
        assert_eq!(begin.elapsed(), PAUSE);

        handle.pause_between_reads(false);
        tokio::time::advance(PAUSE).await;
        for _ in 0..2 {
            far.write_all(b"i").await.unwrap();
            assert_eq!(socket.read(&mut got).await.unwrap(), 1);
        }
        assert_eq!(begin.elapsed(), PAUSE * 2);
    }

    #[tokio::test]
    async fn a_dropped_socket_stays_until_the_peer_closes() {
        let (near, mut far) = tokio::io::duplex(64);
        let handle = Handle::default();
        drop(Coalescing::new(near, handle.clone()));
        far.write_all(b"still coming").await.unwrap();
        let lingering = tokio::spawn(async move { handle.linger().await });
        tokio::task::yield_now().await;
        assert!(!lingering.is_finished());
        drop(far);
        lingering.await.unwrap();
    }
}
