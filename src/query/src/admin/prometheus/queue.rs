//! The queue of queries: wakes each one when its turn comes, by the rules of [`crate::lanes`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::lanes::{LaneLimits, Lanes, Ticket};
use net::shares::Owner;

/// Light queries at work for each place of the heavy lane.
const LIGHT_FOR_EACH: usize = 2;

/// All queries that need the store.
pub(super) struct Queue(Mutex<State>);

struct State {
    lanes: Lanes<Owner>,
    waiting: HashMap<Ticket, oneshot::Sender<()>>,
}

impl Queue {
    /// `places`: `promql.queries_max`. Heavy queries leave half of the processors to others.
    pub(super) fn new(places: usize) -> Queue {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Queue(Mutex::new(State {
            lanes: Lanes::new(LaneLimits {
                light_max: places * LIGHT_FOR_EACH,
                heavy_max: places,
                turns_max: (processors / 2).max(1),
            }),
            waiting: HashMap::new(),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Wakes those that may work now.
    fn settle(&mut self) {
        while let Some(ticket) = self.lanes.next() {
            // One that does not wait any more leaves soon.
            if let Some(waiting) = self.waiting.remove(&ticket) {
                let _ = waiting.send(());
            }
        }
    }

    /// The turn of a query that waits from now on.
    fn wait(&mut self, ticket: Ticket) -> Turn {
        let (wake, turn) = oneshot::channel();
        self.waiting.insert(ticket, wake);
        self.settle();
        turn
    }
}

/// Ends when the query may work.
pub(super) type Turn = oneshot::Receiver<()>;

/// A query in the queue, until it is dropped.
pub(super) struct Place {
    queue: Arc<Queue>,
    ticket: Ticket,
}

impl Place {
    /// Enters the light lane.
    pub(super) fn enter(queue: &Arc<Queue>, client: Owner) -> (Place, Turn) {
        let mut state = queue.state();
        let ticket = state.lanes.arrive(client);
        let turn = state.wait(ticket);
        drop(state);
        let queue = queue.clone();
        (Place { queue, ticket }, turn)
    }

    /// Changes to the heavy lane.
    pub(super) fn become_heavy(&self) -> Turn {
        let mut state = self.queue.state();
        state.lanes.becomes_heavy(self.ticket);
        state.wait(self.ticket)
    }

    /// Lets others work between two chunks.
    pub(super) fn give_way(&self) -> Turn {
        let mut state = self.queue.state();
        state.lanes.gives_way(self.ticket);
        state.wait(self.ticket)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        state.waiting.remove(&self.ticket);
        state.lanes.leave(self.ticket);
        state.settle();
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_query_that_goes_away_frees_its_place() {
        let queue = Arc::new(Queue::new(1));
        let client = || Owner::identify(None, Ipv4Addr::LOCALHOST.into());
        let enter = || Place::enter(&queue, client());
        let (first, turn) = enter();
        assert_eq!(turn.await, Ok(()));
        assert_eq!(first.become_heavy().await, Ok(()));
        let (second, turn) = enter();
        assert_eq!(turn.await, Ok(()), "a light one waits for no heavy one");
        let mut waits = second.become_heavy();
        assert!((&mut waits).now_or_never().is_none(), "one place");
        drop(first);
        assert_eq!(waits.await, Ok(()));
        let waits = second.give_way();
        assert_eq!(waits.await, Ok(()), "nothing else waits");
    }
}
