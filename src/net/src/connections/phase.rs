//! What a connection is doing, in one word, so that its stream, its requests and the list of open
//! connections agree on it without a lock.
//!
//! ```text
//!            first byte           head complete
//! Waiting ─────────────> Waiting ───────────────> Busy
//!  (idle)                 (head)                   │
//!    ^ │                    │                      │
//!    │ └──────> Cut <───────┘       answer sent    │
//!    └─────────────────────────────────────────────┘
//! ```
//!
//! Only a waiting connection can be cut, so a request in progress never is. A request whose body is
//! still arriving is in progress on the ports for readings. On the admin port it waits for its body
//! (`Busy` to `Waiting` and back), so that unfinished bodies keep no probes out.

use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;

/// A request is in progress.
const BUSY: u64 = u64::MAX;
/// The connection has lost its place and ends.
const CUT: u64 = u64::MAX - 1;

/// What a connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doing {
    /// A request is in progress.
    Busy,
    /// It waits for a request.
    Waiting {
        /// Since when, in the clock's monotonic milliseconds.
        since_ms: u64,
        awaited: Awaited,
    },
    /// It has lost its place to another connection, and ends.
    Cut,
}

/// What a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// The first byte of a request.
    Request,
    /// The rest of a head: the request has begun to arrive, or it is the connection's first.
    Head,
    /// The rest of a body that the service does not need to wait for: see [`Phase::body`].
    Body,
}

impl Awaited {
    const ALL: [Awaited; 3] = [Awaited::Request, Awaited::Head, Awaited::Body];
}

/// The current [`Doing`] of a connection.
#[derive(Debug)]
pub(crate) struct Phase {
    word: AtomicU64,
    /// The task that waits for a request.
    waiting: AtomicWaker,
}

impl Phase {
    /// A new connection, which waits for the head of its first request.
    pub(crate) fn waiting(now_ms: u64) -> Phase {
        Phase {
            word: AtomicU64::new(word(now_ms, Awaited::Head)),
            waiting: AtomicWaker::new(),
        }
    }

    pub(crate) fn now(&self) -> Doing {
        match self.word.load(Ordering::Acquire) {
            BUSY => Doing::Busy,
            CUT => Doing::Cut,
            word => Doing::Waiting {
                since_ms: word >> 2,
                awaited: awaited(word),
            },
        }
    }

    /// A request has arrived. False if the connection was cut meanwhile.
    pub(crate) fn begin(&self) -> bool {
        self.change(|_| BUSY)
    }

    /// The request is done; the connection waits for the next one.
    pub(crate) fn rest(&self, now_ms: u64) {
        self.change(|_| word(now_ms, Awaited::Request));
    }

    /// The connection may be cut while the rest of its request's body arrives. The reader of the
    /// body limits its time, and calls [`Phase::begin`] if the request goes on afterwards.
    pub(crate) fn body(&self, now_ms: u64) {
        self.change(|_| word(now_ms, Awaited::Body));
    }

    /// The first request has its full time from now on: the TLS handshake is done.
    pub(crate) fn start_over(&self, now_ms: u64) {
        self.change(|_| word(now_ms, Awaited::Head));
    }

    /// Bytes have arrived. The first of a request begin its head. False if the connection was cut.
    pub(crate) fn received(&self, now_ms: u64) -> bool {
        let is_idle = |now: u64| now != BUSY && awaited(now) == Awaited::Request;
        self.change(|now| {
            if is_idle(now) {
                word(now_ms, Awaited::Head)
            } else {
                now
            }
        })
    }

    /// Cuts the connection if it still waits since then.
    pub(crate) fn cut(&self, since_ms: u64) -> bool {
        let cut = Awaited::ALL.into_iter().any(|awaited| {
            let before = word(since_ms, awaited);
            self.word
                .compare_exchange(before, CUT, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
        });
        if cut {
            self.waiting.wake();
        }
        cut
    }

    /// Takes back a cut: the request was complete before the connection noticed.
    pub(crate) fn resume(&self) {
        self.word.store(BUSY, Ordering::Release);
    }

    /// Ready as soon as the connection is cut. One task at a time can wait for it.
    pub(crate) fn poll_cut(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.waiting.register(cx.waker());
        if self.now() == Doing::Cut {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// Changes the word unless the connection is cut.
    fn change(&self, to: impl Fn(u64) -> u64) -> bool {
        let to = |now| (now != CUT).then(|| to(now));
        self.word
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, to)
            .is_ok()
    }
}

fn word(since_ms: u64, awaited: Awaited) -> u64 {
    let awaited = match awaited {
        Awaited::Request => 0,
        Awaited::Head => 1,
        Awaited::Body => 2,
    };
    since_ms << 2 | awaited
}

/// What the word of a waiting connection says.
fn awaited(word: u64) -> Awaited {
    match word & 3 {
        0 => Awaited::Request,
        1 => Awaited::Head,
        _ => Awaited::Body,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_waits_hears_works_and_rests() {
        let phase = Phase::waiting(5);
        assert_eq!(
            phase.now(),
            Doing::Waiting {
                since_ms: 5,
                awaited: Awaited::Head
            }
        );
        assert!(phase.received(7));
        assert_eq!(
            phase.now(),
            Doing::Waiting {
                since_ms: 5,
                awaited: Awaited::Head
            },
            "the time of a head does not start again"
        );
        assert!(phase.begin() && phase.received(8));
        assert_eq!(phase.now(), Doing::Busy, "a body");
        phase.rest(9);
        assert_eq!(
            phase.now(),
            Doing::Waiting {
                since_ms: 9,
                awaited: Awaited::Request
            }
        );
        assert!(phase.received(12));
        assert_eq!(
            phase.now(),
            Doing::Waiting {
                since_ms: 12,
                awaited: Awaited::Head
            }
        );
    }

    #[test]
    fn a_connection_that_waits_for_a_body_can_be_cut_until_the_body_is_complete() {
        let phase = Phase::waiting(5);
        phase.begin();
        phase.body(6);
        let waiting = Doing::Waiting {
            since_ms: 6,
            awaited: Awaited::Body,
        };
        assert!(phase.received(7), "a part of the body");
        assert_eq!(phase.now(), waiting, "it begins no head");
        assert!(phase.begin() && !phase.cut(6));
        assert_eq!(phase.now(), Doing::Busy);
        phase.body(8);
        assert!(phase.cut(8) && !phase.received(9) && !phase.begin());
    }

    #[test]
    fn only_a_connection_that_still_waits_is_cut_and_stays_so() {
        let phase = Phase::waiting(5);
        assert!(!phase.cut(4));
        phase.begin();
        assert!(!phase.cut(5));
        phase.rest(6);
        assert!(phase.cut(6) && !phase.cut(6));
        assert!(!phase.begin() && !phase.received(7));
        phase.rest(8);
        assert_eq!(phase.now(), Doing::Cut);
        phase.resume();
        assert_eq!(phase.now(), Doing::Busy);
    }
}
