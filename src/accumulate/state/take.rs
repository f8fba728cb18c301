//! Jobs out of the queues: as large as a command may be, each bucket once.

use super::super::bucket::Need;
use super::{Job, Shard, Ticket};
use crate::model::BucketKey;
use crate::store::LoadRequest;

/// Buckets in one load: without readings a stored page costs the answer about 100 bytes, with them up to `max_bytes`.
const LOAD_HEADS_MAX: usize = 2000;
const LOAD_READINGS_MAX: usize = 64;

impl Shard {
    /// The next job for the store, as large as the limits of a command allow; `None` where nothing is due.
    pub fn take(&mut self) -> Option<Job> {
        if let Some(job) = self.take_loads() {
            return Some(job);
        }
        // The longer queue first: it is the one that has waited or the one that fills a command.
        let (first, second) = if self.creates.len() >= self.appends.len() {
            (Need::Create, Need::Append)
        } else {
            (Need::Append, Need::Create)
        };
        self.take_writes(first).or_else(|| self.take_writes(second)).or_else(|| self.take_loads())
    }

    /// The bucket at the head of a queue, if it still needs what the queue is for; otherwise it is queued again.
    pub(super) fn pop(&mut self, want: Need) -> Option<(Ticket, usize)> {
        loop {
            let queue = match want {
                Need::Load { .. } => &mut self.loads,
                Need::Create => &mut self.creates,
                _ => &mut self.appends,
            };
            let ticket = queue.pop_front()?;
            let Some(sensor) = self.sensors.get_mut(ticket.slot as usize) else { continue };
            let Ok(position) = sensor.buckets.binary_search_by_key(&ticket.start, |b| b.start) else { continue };
            let bucket = &mut sensor.buckets[position];
            bucket.queued = false;
            let need = bucket.need();
            if std::mem::discriminant(&need) == std::mem::discriminant(&want) {
                return Some((ticket, position));
            }
            self.enqueue(ticket);
        }
    }

    pub(super) fn take_loads(&mut self) -> Option<Job> {
        let (mut tickets, mut requests, mut with_readings) = (vec![], vec![], 0);
        while requests.len() < LOAD_HEADS_MAX && with_readings < LOAD_READINGS_MAX {
            let Some((ticket, position)) = self.pop(Need::Load { readings: true }) else { break };
            let sensor = &mut self.sensors[ticket.slot as usize];
            let bucket = &mut sensor.buckets[position];
            let readings = bucket.need() == Need::Load { readings: true };
            with_readings += usize::from(readings);
            let before = bucket.memory();
            bucket.loading();
            self.holding.bytes = self.holding.bytes + bucket.memory() - before;
            tickets.push(ticket);
            requests.push(LoadRequest {
                bucket: BucketKey { sensor_id: sensor.id.clone(), start: ticket.start },
                readings,
            });
        }
        (!tickets.is_empty()).then_some(Job::Load(tickets, requests))
    }

    pub(super) fn take_writes(&mut self, want: Need) -> Option<Job> {
        let (mut tickets, mut writes, mut bytes) = (vec![], vec![], 0);
        // Stops while a whole page still fits; a statement is a page and a summary at most.
        let bytes_max = self.settings.command_bytes_max.saturating_sub(self.settings.page.bytes);
        while writes.len() < self.settings.command_statements_max && bytes <= bytes_max {
            let Some((ticket, position)) = self.pop(want) else { break };
            let sensor = &mut self.sensors[ticket.slot as usize];
            let bucket = &mut sensor.buckets[position];
            let before = bucket.memory();
            let tags = self.registry.tags(&sensor.id, sensor.tags.as_ref());
            let Some(write) = bucket.take(&sensor.id, tags.as_ref(), self.settings.page) else { continue };
            self.holding.bytes = self.holding.bytes + bucket.memory() - before;
            bytes += write.wire_bytes();
            tickets.push(ticket);
            writes.push(write);
        }
        (!tickets.is_empty()).then_some(Job::Write(tickets, writes))
    }
}
