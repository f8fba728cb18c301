//! How long a group of messages waits for more before it is synced. Pure.
//!
//! One fdatasync costs the same for one message as for a hundred. Under full load groups are large
//! anyway: while one is synced, the next one queues up. At a tenth of that load a sync would carry
//! one or two messages. So a group waits for more, within these rules:
//!
//! - At most `journal.commit_delay` after its first message.
//! - Not longer than a quarter of that without a new message.
//! - Not at all once the usual number of messages is there: as many as were recently outstanding
//!   together, from their arrival to their acknowledgement. A lone sender with one message in
//!   flight is never delayed. Ten such senders wait only until the tenth message is there, because
//!   no other can come.
//! - Not at all with [`ENOUGH`] messages: waiting for more would save little.
//!
//! A limit of [`WHOLE_FROM`] or more is set to spare a disk that wears out, such as an SD card: the
//! journal's writer then waits for all of it, so there is at most one sync in this time, and every
//! sender waits for it.
//!
//! If messages come at a constant rate, regardless of the acknowledgements, each group finds a few
//! more outstanding than the one before, namely those that came during its sync. So groups grow
//! until the first rule ends them.
//!
//! The journal's writer groups ingest batches this way. The MQTT ports group messages before that,
//! because each ingest batch is work for every later stage: so a message over MQTT can wait twice.

use std::time::Duration;

/// From this number of messages on, a group does not wait.
const ENOUGH: usize = 128;
/// A group without a new message for this part of the limit is complete.
const QUIET_PART: u32 = 4;
/// From this limit on, the writer waits for all of it.
const WHOLE_FROM: Duration = Duration::from_millis(100);
/// How often the queue is emptied meanwhile, so that no sender waits for room in it.
const WHOLE_LOOK: Duration = Duration::from_millis(20);
/// How often a group is checked within the quiet part: more often if few messages are missing. Each
/// check costs a wake-up, and each message that comes between two checks waits for the second one.
const LOOKS: (f64, f64) = (2.0, 5.0);
/// This number of missing messages counts as many.
const MANY_MISSING: f64 = 16.0;
/// The weight of a new observation that is lower than the average; a higher one replaces it.
const DECAY: f64 = 0.125;

/// Decides for one collector of groups.
#[derive(Debug, Clone)]
pub struct CommitDelay {
    max: Duration,
    /// Each group waits for all of it.
    is_whole: bool,
    /// How many messages are usually outstanding together, at least 1.
    usual: f64,
}

/// The state of a group that is being collected.
#[derive(Debug, Clone, Copy)]
pub struct OpenGroup {
    /// Messages in the group.
    pub messages: usize,
    /// These, and all others that have arrived and are not acknowledged.
    pub outstanding: usize,
    /// Since the first message of the group arrived.
    pub open_for: Duration,
    /// Since the last message of the group arrived.
    pub quiet_for: Duration,
}

impl CommitDelay {
    /// With the limit `journal.commit_delay`; zero: no group waits.
    pub fn new(max: Duration) -> CommitDelay {
        CommitDelay {
            max,
            is_whole: false,
            usual: 1.0,
        }
    }

    /// The same for the groups that are synced.
    pub(crate) fn of_syncs(max: Duration) -> CommitDelay {
        let is_whole = max >= WHOLE_FROM;
        CommitDelay {
            is_whole,
            ..CommitDelay::new(max)
        }
    }

    /// Whether each group waits for the whole limit.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// How long to wait for other messages before the group is checked again; `None`: sync it now.
    pub fn wait(&self, group: OpenGroup) -> Option<Duration> {
        if self.is_whole {
            let left = self.max.checked_sub(group.open_for)?;
            return (!left.is_zero()).then_some(left.min(WHOLE_LOOK));
        }
        let missing = self.usual - group.outstanding as f64;
        let is_complete = group.messages >= ENOUGH || missing <= 0.5;
        let left = self.max.checked_sub(group.open_for)?;
        let quiet = self.max / QUIET_PART;
        let left = left.min(quiet.checked_sub(group.quiet_for)?);
        let look = quiet.mul_f64((missing / MANY_MISSING).clamp(1.0 / LOOKS.1, 1.0 / LOOKS.0));
        (!is_complete && !left.is_zero()).then_some(left.min(look))
    }

    /// Records how many messages are outstanding when a group is safe, before its senders are
    /// acknowledged: an acknowledged sender may send the next one immediately.
    pub fn note_outstanding(&mut self, messages: usize) {
        let messages = messages.max(1) as f64;
        self.usual = if messages > self.usual {
            messages
        } else {
            self.usual + (messages - self.usual) * DECAY
        };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    const SYNC_US: u64 = 250;

    /// Who sends in a simulation.
    #[derive(Debug, Clone, Copy)]
    enum Senders {
        /// Each sends its next message `think_us` after the acknowledgement of the previous one.
        Closed { senders: usize, think_us: u64 },
        /// At random times, `per_second` on average, regardless of the acknowledgements.
        Open { per_second: u64 },
    }

    #[derive(Debug, Default)]
    struct Outcome {
        syncs: u64,
        /// Of each message, from its arrival to its acknowledgement.
        latencies_us: Vec<u64>,
        /// The longest time that a group waited.
        waited_max_us: u64,
        groups_that_waited: u64,
    }

    impl Outcome {
        fn per_sync(&self) -> f64 {
            self.latencies_us.len() as f64 / self.syncs as f64
        }

        fn latency_max_us(&self) -> u64 {
            self.latencies_us.iter().copied().max().unwrap_or(0)
        }
    }

    /// The arrivals that are known so far, in order of time.
    struct Arrivals {
        senders: Senders,
        rng: fastrand::Rng,
        times: VecDeque<u64>,
    }

    impl Arrivals {
        fn new(senders: Senders, seed: u64) -> Arrivals {
            let mut rng = fastrand::Rng::with_seed(seed);
            let times = match senders {
                Senders::Closed { senders, think_us } => {
                    let mut times: Vec<u64> = (0..senders).map(|_| rng.u64(0..=think_us)).collect();
                    times.sort_unstable();
                    times.into()
                }
                Senders::Open { .. } => VecDeque::from([0]),
            };
            Arrivals {
                senders,
                rng,
                times,
            }
        }

        /// Those that have come by this time.
        fn by(&mut self, now_us: u64) -> Vec<u64> {
            let mut came = vec![];
            while let Some(&at) = self.times.front().filter(|at| **at <= now_us) {
                came.extend(self.times.pop_front());
                if let Senders::Open { per_second } = self.senders {
                    let mean_us = 1e6 / per_second as f64;
                    let gap_us = (-(1.0 - self.rng.f64()).ln() * mean_us) as u64;
                    self.times.push_back(at + gap_us.max(1));
                }
            }
            came
        }

        fn acknowledged(&mut self, messages: usize, now_us: u64) {
            if let Senders::Closed { think_us, .. } = self.senders {
                for _ in 0..messages {
                    let at = now_us + think_us / 2 + self.rng.u64(0..=think_us / 2);
                    let place = self.times.partition_point(|t| *t <= at);
                    self.times.insert(place, at);
                }
            }
        }
    }

    /// A writer that works like the journal's, on its own clock, in microseconds.
    fn simulate(delay: &mut CommitDelay, senders: Senders, seconds: u64, seed: u64) -> Outcome {
        let mut arrivals = Arrivals::new(senders, seed);
        let mut now_us = 0u64;
        let mut outcome = Outcome::default();
        let mut queue: Vec<u64> = vec![];
        while now_us < seconds * 1_000_000 {
            queue.extend(arrivals.by(now_us));
            if queue.is_empty() {
                let Some(&next) = arrivals.times.front() else {
                    return outcome;
                };
                now_us = next;
                continue;
            }
            let first_us = now_us;
            let mut last_us = now_us;
            let mut group = std::mem::take(&mut queue);
            let us = Duration::from_micros;
            while let Some(wait) = delay.wait(OpenGroup {
                messages: group.len(),
                outstanding: group.len(),
                open_for: us(now_us - first_us),
                quiet_for: us(now_us - last_us),
            }) {
                now_us += (wait.as_micros() as u64).max(1);
                let came = arrivals.by(now_us);
                if !came.is_empty() {
                    last_us = now_us;
                }
                group.extend(came);
            }
            outcome.waited_max_us = outcome.waited_max_us.max(now_us - first_us);
            outcome.groups_that_waited += u64::from(now_us > first_us);
            now_us += SYNC_US;
            outcome.syncs += 1;
            queue.extend(arrivals.by(now_us));
            delay.note_outstanding(group.len() + queue.len());
            outcome
                .latencies_us
                .extend(group.iter().map(|at| now_us - at));
            arrivals.acknowledged(group.len(), now_us);
        }
        outcome
    }

    fn of(max_us: u64) -> CommitDelay {
        CommitDelay::new(Duration::from_micros(max_us))
    }

    #[test]
    fn a_sender_that_is_alone_with_one_message_in_flight_is_never_delayed() {
        for think_us in [0, 50, 1000, 100_000] {
            let outcome = simulate(
                &mut of(2000),
                Senders::Closed {
                    senders: 1,
                    think_us,
                },
                2,
                1,
            );
            assert_eq!(
                (outcome.groups_that_waited, outcome.latency_max_us()),
                (0, SYNC_US),
                "think {think_us} µs"
            );
        }
    }

    #[test]
    fn a_sender_that_is_left_alone_is_soon_not_delayed_any_more() {
        let mut delay = of(2000);
        simulate(
            &mut delay,
            Senders::Closed {
                senders: 100,
                think_us: 300,
            },
            1,
            2,
        );
        assert!(delay.usual > 50.0, "{delay:?}");
        let outcome = simulate(
            &mut delay,
            Senders::Closed {
                senders: 1,
                think_us: 300,
            },
            1,
            3,
        );
        assert!(
            outcome.groups_that_waited < 50,
            "{}",
            outcome.groups_that_waited
        );
        let outcome = simulate(
            &mut delay,
            Senders::Closed {
                senders: 1,
                think_us: 300,
            },
            1,
            4,
        );
        assert_eq!(outcome.groups_that_waited, 0);
    }

    #[test]
    fn messages_at_a_constant_rate_share_their_syncs_within_the_limit() {
        for (per_second, per_sync_min) in [
            (1_000, 1.2),
            (10_000, 18.0),
            (50_000, 80.0),
            (100_000, 60.0),
        ] {
            let senders = Senders::Open { per_second };
            let with = simulate(&mut of(2000), senders, 5, 5);
            let without = simulate(&mut of(0), senders, 5, 5);
            assert!(
                with.per_sync() > per_sync_min,
                "{per_second}/s: {} per sync",
                with.per_sync()
            );
            assert!(
                with.per_sync() > without.per_sync(),
                "{per_second}/s: {}",
                without.per_sync()
            );
            // A message can come at the begin of a sync, and wait for the next group.
            assert!(
                with.latency_max_us() <= 2000 + 2 * SYNC_US,
                "{per_second}/s: {} µs",
                with.latency_max_us()
            );
        }
        let rare = simulate(&mut of(2000), Senders::Open { per_second: 100 }, 60, 6);
        assert!(
            rare.groups_that_waited * 5 < rare.syncs,
            "rare messages: {} waits",
            rare.groups_that_waited
        );
    }

    #[test]
    fn senders_that_wait_for_their_acknowledgements_are_waited_for_together() {
        for senders in [2, 10, 100] {
            let closed = Senders::Closed {
                senders,
                think_us: 200,
            };
            let with = simulate(&mut of(2000), closed, 2, 7);
            let without = simulate(&mut of(0), closed, 2, 7);
            assert!(
                with.per_sync() > 0.8 * senders as f64,
                "{senders}: {} per sync",
                with.per_sync()
            );
            let messages = with.latencies_us.len();
            let before = without.latencies_us.len();
            assert!(
                messages as f64 > 0.75 * before as f64,
                "{senders}: {messages} messages, {before} without"
            );
        }
    }

    #[test]
    fn a_long_delay_is_waited_for_by_every_group_that_is_synced() {
        for senders in [
            Senders::Open { per_second: 100 },
            Senders::Open { per_second: 5_000 },
            Senders::Closed {
                senders: 3,
                think_us: 300,
            },
        ] {
            let second = CommitDelay::of_syncs(Duration::from_secs(1));
            let outcome = simulate(&mut second.clone(), senders, 20, 9);
            assert!(outcome.syncs <= 20, "{senders:?}: {} syncs", outcome.syncs);
            assert!(outcome.waited_max_us <= 1_000_000, "{senders:?}");
        }
        let short = CommitDelay::of_syncs(Duration::from_millis(99));
        let alone = Senders::Closed {
            senders: 1,
            think_us: 300,
        };
        assert_eq!(
            simulate(&mut short.clone(), alone, 1, 9).groups_that_waited,
            0
        );
    }

    #[test]
    fn zero_turns_it_off() {
        let outcome = simulate(&mut of(0), Senders::Open { per_second: 10_000 }, 1, 8);
        assert_eq!(outcome.groups_that_waited, 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        /// Regardless of the past, no group waits beyond the limit, or when nothing more can be
        /// expected.
        #[test]
        fn the_wait_is_bounded(
            max_us in 0u64..20_000,
            seen in prop::collection::vec(0usize..2000, 0..40),
            messages in 1usize..300,
            others in 0usize..300,
            open_us in 0u64..20_000,
            quiet_part in 0.0f64..=1.0,
        ) {
            let mut delay = of(max_us);
            seen.iter().for_each(|n| delay.note_outstanding(*n));
            let open_for = Duration::from_micros(open_us);
            let quiet_us = (open_us as f64 * quiet_part) as u64;
            let quiet_for = Duration::from_micros(quiet_us);
            let outstanding = messages + others;
            let wait = delay.wait(OpenGroup { messages, outstanding, open_for, quiet_for });
            if let Some(wait) = wait {
                prop_assert!(wait > Duration::ZERO && open_for + wait <= delay.max);
                prop_assert!(quiet_for + wait <= delay.max / QUIET_PART);
                prop_assert!(messages < ENOUGH && outstanding < *seen.iter().max().unwrap_or(&1));
            }
        }

        #[test]
        fn any_senders_are_acknowledged_within_the_limit_and_two_syncs(
            senders in prop_oneof![
                (1usize..300, 0u64..5000).prop_map(|(senders, think_us)| Senders::Closed { senders, think_us }),
                (1u64..50_000).prop_map(|per_second| Senders::Open { per_second }),
            ],
            max_us in 0u64..5000,
            seed in any::<u64>(),
        ) {
            let outcome = simulate(&mut of(max_us), senders, 1, seed);
            prop_assert!(outcome.waited_max_us <= max_us);
            prop_assert!(outcome.latency_max_us() <= max_us + 2 * SYNC_US);
        }
    }
}
