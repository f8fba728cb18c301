//! Jobs out of the queues: as large as a command may be, each bucket once.

use super::super::bucket::Need;
use super::{Job, Shard, Ticket};
use crate::model::{BucketKey, Form};
use crate::store::LoadRequest;

/// Buckets in one load: a stored page costs the answer about 100 bytes without its readings.
const LOAD_HEADS_MAX: usize = 2000;
/// Readings in one load, as far as they can be told before; 16 bytes each.
const LOAD_READINGS_MAX: usize = 65_536;

impl Shard {
    /// The next job for the store, as large as the limits of a command allow; `None` where nothing is due.
    /// `form`: where the readings of new buckets go.
    pub fn take(&mut self, form: Form) -> Option<Job> {
        if let Some(job) = self.take_loads() {
            return Some(job);
        }
        // The longer queue first: it is the one that has waited or the one that fills a command.
        let (first, second) = if self.creates.len() >= self.appends.len() {
            (Need::Create, Need::Append)
        } else {
            (Need::Append, Need::Create)
        };
        self.take_writes(first, form).or_else(|| self.take_writes(second, form)).or_else(|| self.take_loads())
    }

    /// The bucket at the head of a queue, if it still needs what the queue is for; otherwise it is queued again.
    pub(super) fn pop(&mut self, want: Need) -> Option<(Ticket, usize)> {
        loop {
            let queue = match want {
                Need::Load => &mut self.loads,
                Need::Create => &mut self.creates,
                _ => &mut self.appends,
            };
            let ticket = queue.pop_front()?;
            let Some(sensor) = self.sensors.get_mut(ticket.slot as usize) else { continue };
            let Ok(position) = sensor.buckets.binary_search_by_key(&ticket.start, |b| b.start) else { continue };
            let bucket = &mut sensor.buckets[position];
            bucket.queued = false;
            let need = bucket.need(self.settings.page);
            if need == want {
                return Some((ticket, position));
            }
            self.enqueue(ticket);
        }
    }

    pub(super) fn take_loads(&mut self) -> Option<Job> {
        let (mut tickets, mut requests, mut readings) = (vec![], vec![], 0);
        while requests.len() < LOAD_HEADS_MAX && readings < LOAD_READINGS_MAX {
            let Some((ticket, position)) = self.pop(Need::Load) else { break };
            let sensor = &mut self.sensors[ticket.slot as usize];
            let bucket = &mut sensor.buckets[position];
            let from_ms = bucket.compares_from();
            readings += from_ms.map_or(0, |from| bucket.stored_since(from, self.settings.page));
            let (doubt, before) = (bucket.doubt(), bucket.memory());
            bucket.loading();
            self.holding.bytes = self.holding.bytes + bucket.memory() - before;
            tickets.push(ticket);
            let bucket = BucketKey { sensor_id: sensor.id.clone(), start: ticket.start };
            requests.push(LoadRequest { bucket, readings_from: from_ms, doubt });
        }
        (!tickets.is_empty()).then_some(Job::Load(tickets, requests))
    }

    pub(super) fn take_writes(&mut self, want: Need, form: Form) -> Option<Job> {
        let (mut tickets, mut writes, mut bytes) = (vec![], vec![], 0);
        // Stops while a whole page of readings still fits. Its summary may come on top: 3.4 MiB at most, see
        // `summary::PAGE_SUMMARY_BYTES_MAX`.
        let bytes_max = self.settings.command_bytes_max.saturating_sub(self.settings.page.bytes);
        let keys_max = self.keys_max();
        while writes.len() < self.settings.command_statements_max && bytes <= bytes_max {
            let Some((ticket, position)) = self.pop(want) else { break };
            let sensor = &mut self.sensors[ticket.slot as usize];
            let bucket = &mut sensor.buckets[position];
            let before = bucket.memory();
            let page = self.settings.page;
            let tags = self.registry.tags(&sensor.id, sensor.tags.as_ref());
            let Some(write) = bucket.take(&sensor.id, tags.as_ref(), page, keys_max, form) else { continue };
            self.holding.bytes = self.holding.bytes + bucket.memory() - before;
            bytes += write.wire_bytes();
            tickets.push(ticket);
            writes.push(write);
        }
        (!tickets.is_empty()).then_some(Job::Write(tickets, writes))
    }
}
