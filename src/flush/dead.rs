//! Dead letters on their way to the store: gathered into batches, kept until the store has them, then acknowledged.

use tokio::sync::mpsc;

use super::Flusher;
use crate::ack::{Ack, Acks};
use crate::model::DeadLetter;
use crate::telemetry::metrics;

/// Letters of one command, and bytes after which no more are added.
const BATCH_LETTERS_MAX: usize = 1000;
const BATCH_BYTES_MAX: usize = 8 << 20;

/// The handle: where dead letters are sent.
#[derive(Debug, Clone)]
pub struct DeadLetters(mpsc::Sender<(Vec<DeadLetter>, Acks)>);

impl DeadLetters {
    /// A handle, and the task to run behind it; at most `queue_max` deliveries wait.
    pub fn new(flusher: Flusher, queue_max: usize) -> (DeadLetters, impl Future<Output = ()> + Send) {
        let (tx, rx) = mpsc::channel(queue_max);
        (DeadLetters(tx), run(flusher, rx))
    }

    /// Hands over letters; `acks` are delivered when the store has them.
    pub async fn send(&self, letters: Vec<DeadLetter>, acks: Acks) {
        // The receiver lives as long as the service; when it is gone the acknowledgements say so by being dropped.
        let _ = self.0.send((letters, acks)).await;
    }

    /// As [`DeadLetters::send`], for one acknowledgement.
    pub async fn send_one(&self, letters: Vec<DeadLetter>, ack: Ack) {
        let mut acks = Acks::default();
        acks.join(&ack);
        self.send(letters, acks).await;
        ack.delivered();
    }
}

/// Ends when every handle is gone and everything is stored.
async fn run(flusher: Flusher, mut rx: mpsc::Receiver<(Vec<DeadLetter>, Acks)>) {
    while let Some((mut letters, mut acks)) = rx.recv().await {
        let mut bytes: usize = letters.iter().map(|l| l.payload.len()).sum();
        while letters.len() < BATCH_LETTERS_MAX
            && bytes < BATCH_BYTES_MAX
            && let Ok((more, mut others)) = rx.try_recv()
        {
            bytes += more.iter().map(|l| l.payload.len()).sum::<usize>();
            letters.extend(more);
            acks.append(&mut others);
        }
        let mut permit = flusher.permit().await;
        let mut failures = 0;
        while let Err(error) = flusher.store.dead_letters(&letters).await {
            permit = flusher.wait(permit, &error, &mut failures).await;
        }
        drop(permit);
        for letter in &letters {
            metrics::dead_letter(&letter.reason, 1);
        }
        acks.delivered();
    }
}
