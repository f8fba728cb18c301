//! The result of a soak: values per minute, whether they are flat, and a plot.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use super::events::Event;
use crate::Failure;
use crate::latency::Latency;
use crate::plot::{self, Chart};
use crate::report::Used;
use crate::verify::Checked;

/// A value is flat if its late median is at most this many times its early one, and a little for
/// small values.
const GROWTH_MAX: f64 = 1.1;
/// Plots of records, next to the log of results.
const PLOTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/plots");

/// The load of a minute.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Load {
    pub(super) readings: u64,
    pub(super) retries: u64,
    /// To the acknowledgement of the service.
    pub(super) http_ms: Latency,
    /// To the acknowledgement of the broker.
    pub(super) mqtt_ms: Latency,
}

/// A sample of the service.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Second {
    /// Seconds since the start of the load.
    pub(super) s: f64,
    pub(super) ready: bool,
    pub(super) rss_bytes: u64,
    pub(super) threads: u64,
    pub(super) files: u64,
    /// CPU seconds of the service since its start.
    pub(super) cpu_s: f64,
    /// Readings that are accepted and not yet stored.
    pub(super) waiting: u64,
    pub(super) oldest_unstored_s: f64,
    pub(super) mqtt_oldest_unacked_s: f64,
}

/// The values of a minute: the maxima of its samples, except for the share of a core.
#[derive(Debug, Clone, Default, Serialize)]
struct Minute {
    load: Load,
    rss_mib: f64,
    threads: f64,
    files: f64,
    core: f64,
    waiting: f64,
    oldest_unstored_s: f64,
    mqtt_oldest_unacked_s: f64,
    /// Samples in which `/readyz` did not return 200.
    unready: u64,
}

/// A value early and late in the run.
#[derive(Debug, Clone, Serialize)]
struct Trend {
    what: &'static str,
    /// Medians of some minutes before the first event, and of some after the last one.
    early: f64,
    late: f64,
    largest: f64,
    /// The minute of the largest value, from 1 on.
    largest_at: usize,
    /// Absent: the value is not judged.
    flat: Option<bool>,
}

/// The result of a soak.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Soak {
    pub(crate) name: String,
    mode: String,
    seconds: f64,
    readings: u64,
    retries: u64,
    /// Readings that the service found stored already: resent after the broker's restart.
    duplicates: u64,
    unready: u64,
    trends: Vec<Trend>,
    events: Vec<Event>,
    used: Used,
    check: Checked,
    minutes: Vec<Minute>,
    course: Vec<Second>,
}

impl Soak {
    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of a run, put together once"
    )]
    pub(super) fn new(
        mode: &str,
        minute: Duration,
        loads: Vec<Load>,
        course: Vec<Second>,
        events: Vec<Event>,
        used: Used,
        duplicates: u64,
        check: Checked,
    ) -> Soak {
        let minutes = minutes(loads, &course, minute.as_secs_f64());
        Soak {
            name: format!("soak-{mode}"),
            mode: mode.to_owned(),
            seconds: minute.as_secs_f64() * minutes.len() as f64,
            readings: minutes.iter().map(|m| m.load.readings).sum(),
            retries: minutes.iter().map(|m| m.load.retries).sum(),
            duplicates,
            unready: minutes.iter().map(|m| m.unready).sum(),
            trends: trends(&minutes),
            events,
            used,
            check,
            minutes,
            course,
        }
    }

    /// Whether no reading was lost or duplicated, and all events have happened.
    pub(crate) fn sound(&self) -> bool {
        self.check.problems.is_empty() && self.events.len() == 3
    }

    /// Saves the plot to this directory.
    pub(crate) fn plot(&self, dir: &Path) -> Result<(), Failure> {
        let each = |of: fn(&Minute) -> f64| {
            (1u32..)
                .map(f64::from)
                .zip(self.minutes.iter().map(of))
                .collect()
        };
        let chart = |title: &str, lines| Chart {
            title: format!("{}: {title}", self.name),
            unit: "min",
            lines,
        };
        let charts = [
            chart("memory", vec![("resident MiB", each(|m| m.rss_mib))]),
            chart(
                "open files, threads",
                vec![
                    ("files", each(|m| m.files)),
                    ("threads", each(|m| m.threads)),
                ],
            ),
            chart("not yet stored", vec![("readings", each(|m| m.waiting))]),
            chart(
                "age of the oldest, s",
                vec![
                    ("not stored", each(|m| m.oldest_unstored_s)),
                    ("not acknowledged", each(|m| m.mqtt_oldest_unacked_s)),
                ],
            ),
            chart(
                "p99, ms",
                vec![
                    ("HTTP", each(|m| m.load.http_ms.p99)),
                    ("broker", each(|m| m.load.mqtt_ms.p99)),
                ],
            ),
            chart("share of a core", vec![("service", each(|m| m.core))]),
        ];
        std::fs::create_dir_all(dir)?;
        Ok(std::fs::write(
            dir.join(format!("{}.svg", self.name)),
            plot::svg(&charts),
        )?)
    }

    /// Saves the plot for a record.
    pub(crate) fn plot_record(&self) -> Result<(), Failure> {
        self.plot(Path::new(PLOTS))
    }

    /// The result, as Markdown.
    pub(crate) fn markdown(&self) -> Vec<String> {
        let per_million = |cpu_s: f64| cpu_s * 1e6 / self.readings.max(1) as f64;
        let Used {
            service, mongod, ..
        } = &self.used;
        let (early, late) = windows(self.minutes.len());
        let mut lines = vec![
            format!(
                "`soak`, {} mode: {} readings in {:.0} s, half over MQTT, half over HTTP; {} \
                 messages sent again, {} duplicates recognized. Service {:.1} CPU-s per million \
                 readings, {:.2} of a core; mongod {:.1} CPU-s per million. [Plot](plots/{}.svg).",
                self.mode,
                self.readings,
                self.seconds,
                self.retries,
                self.duplicates,
                per_million(service.cpu_s),
                service.cpu_s / self.seconds,
                per_million(mongod.cpu_s),
                self.name
            ),
            String::new(),
            format!(
                "| median of the minutes' maxima | minutes {} to {} | minutes {} to {} | largest | \
                 in minute | |",
                early.start + 1,
                early.end,
                late.start + 1,
                late.end
            ),
            "|---|---|---|---|---|---|".to_owned(),
        ];
        lines.extend(self.trends.iter().map(|t| {
            let verdict = match t.flat {
                None => "",
                Some(true) => "flat",
                Some(false) => "**grows**",
            };
            format!(
                "| {} | {:.1} | {:.1} | {:.1} | {} | {verdict} |",
                t.what, t.early, t.late, t.largest, t.largest_at
            )
        }));
        lines.push(String::new());
        for event in &self.events {
            lines.push(format!(
                "- {}: {:.1} to {:.1} s.",
                event.what, event.begin_s, event.end_s
            ));
        }
        lines.push(format!(
            "- `/readyz` was not 200 in {} of {} samples, one per second.",
            self.unready,
            self.course.len()
        ));
        lines.push(match self.check.problems.as_slice() {
            [] => format!(
                "- All {} acknowledged readings are stored exactly once.",
                self.check.acknowledged
            ),
            problems => {
                format!(
                    "- **WRONG**: {} acknowledged, {} stored: {problems:?}",
                    self.check.acknowledged, self.check.stored
                )
            }
        });
        lines
    }
}

/// Assigns the samples to the minutes. A minute of the load may last a little longer than the
/// clock's.
fn minutes(loads: Vec<Load>, course: &[Second], length_s: f64) -> Vec<Minute> {
    let mut all: Vec<Minute> = loads
        .into_iter()
        .map(|load| Minute {
            load,
            ..Minute::default()
        })
        .collect();
    let mut cpu: Vec<Option<(f64, f64)>> = vec![None; all.len()];
    for second in course {
        let at = ((second.s / length_s) as usize).min(all.len().saturating_sub(1));
        let Some(minute) = all.get_mut(at) else {
            continue;
        };
        let raise = |value: &mut f64, to: f64| *value = value.max(to);
        raise(
            &mut minute.rss_mib,
            second.rss_bytes as f64 / f64::from(1 << 20),
        );
        raise(&mut minute.threads, second.threads as f64);
        raise(&mut minute.files, second.files as f64);
        raise(&mut minute.waiting, second.waiting as f64);
        raise(&mut minute.oldest_unstored_s, second.oldest_unstored_s);
        raise(
            &mut minute.mqtt_oldest_unacked_s,
            second.mqtt_oldest_unacked_s,
        );
        minute.unready += u64::from(!second.ready);
        let (first_s, first_cpu) = *cpu[at].get_or_insert((second.s, second.cpu_s));
        if second.s > first_s {
            minute.core = (second.cpu_s - first_cpu) / (second.s - first_s);
        }
    }
    all
}

/// The minutes that are compared: before the first event and after the last one, which are at
/// quarters of the time.
fn windows(minutes: usize) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
    let first_event = minutes / 4;
    let early = (minutes / 10).min(first_event.saturating_sub(1))..first_event.max(1);
    let length = (minutes * 3 / 20).max(1);
    (early, minutes.saturating_sub(length)..minutes)
}

fn trends(minutes: &[Minute]) -> Vec<Trend> {
    let (early, late) = windows(minutes.len());
    // `slack`: how much more than a tenth a small value may grow, in its unit.
    let trend = |what, slack: Option<f64>, of: fn(&Minute) -> f64| {
        let values: Vec<f64> = minutes.iter().map(of).collect();
        let median_of =
            |range: &std::ops::Range<usize>| median(values.get(range.clone()).unwrap_or_default());
        let early = median_of(&early);
        let late = median_of(&late);
        let largest = values.iter().copied().fold(0.0, f64::max);
        let largest_at = values
            .iter()
            .position(|value| *value >= largest)
            .map_or(0, |at| at + 1);
        let flat = slack.map(|slack| late <= early * GROWTH_MAX + slack);
        Trend {
            what,
            early,
            late,
            largest,
            largest_at,
            flat,
        }
    };
    vec![
        trend("resident MiB", Some(4.0), |m| m.rss_mib),
        trend("open files", Some(4.0), |m| m.files),
        trend("threads", Some(0.0), |m| m.threads),
        trend("readings not yet stored", Some(0.0), |m| m.waiting),
        trend("oldest reading not stored, s", Some(5.0), |m| {
            m.oldest_unstored_s
        }),
        trend("oldest MQTT message not acknowledged, s", Some(1.0), |m| {
            m.mqtt_oldest_unacked_s
        }),
        trend("ack p99 over HTTP, ms", Some(5.0), |m| m.load.http_ms.p99),
        trend("ack p99 of the broker, ms", Some(5.0), |m| {
            m.load.mqtt_ms.p99
        }),
        trend("share of a core", Some(0.05), |m| m.core),
        trend("`/readyz` not 200, s", None, |m| m.unready as f64),
    ]
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(s: f64, rss_mib: u64, ready: bool) -> Second {
        Second {
            s,
            rss_bytes: rss_mib << 20,
            ready,
            cpu_s: s / 4.0,
            ..Second::default()
        }
    }

    #[test]
    fn samples_belong_to_their_minute() {
        let course = [
            second(0.0, 5, true),
            second(59.0, 7, false),
            second(60.0, 9, true),
            second(121.0, 11, false),
        ];
        let minutes = minutes(vec![Load::default(), Load::default()], &course, 60.0);
        assert_eq!(
            minutes
                .iter()
                .map(|m| (m.rss_mib, m.unready))
                .collect::<Vec<_>>(),
            [(7.0, 1), (11.0, 1)]
        );
        assert!((minutes[0].core - 0.25).abs() < 1e-9 && (minutes[1].core - 0.25).abs() < 1e-9);
    }

    #[test]
    fn memory_that_grows_is_not_flat_and_a_peak_between_is() {
        let run = |rss: fn(usize) -> f64| -> Option<bool> {
            let minutes: Vec<Minute> = (0..60)
                .map(|n| Minute {
                    rss_mib: rss(n),
                    ..Minute::default()
                })
                .collect();
            trends(&minutes)[0].flat
        };
        assert_eq!(run(|n| 100.0 + n as f64), Some(false));
        assert_eq!(run(|n| if n == 30 { 900.0 } else { 100.0 }), Some(true));
        assert_eq!(windows(60), (6..15, 51..60));
        assert_eq!(windows(8), (0..2, 7..8));
    }
}
