//! The targets of the project: ratios and costs that the parts of the comparison measure.

use serde::Serialize;

use super::part::{Part, PartResult};
use crate::baseline::Outcome;
use crate::report::{PhaseReport, Report};

/// A line of the project's table of targets.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Target {
    what: &'static str,
    /// Whether the target is a minimum instead of a maximum.
    at_least: bool,
    target: f64,
    /// Absent if a part was not run or failed.
    measured: Option<f64>,
}

impl Target {
    fn met(&self) -> Option<bool> {
        self.measured.map(|m| {
            if self.at_least {
                m >= self.target
            } else {
                m <= self.target
            }
        })
    }

    pub(super) fn row(&self) -> String {
        let sign = if self.at_least { "≥" } else { "≤" };
        let (measured, met) = match (self.measured, self.met()) {
            (Some(m), Some(true)) => (short_number(m), "met".to_owned()),
            (Some(m), _) => (
                short_number(m),
                format!("**missed**, {} of it", short_number(m / self.target)),
            ),
            _ => ("-".into(), "not measured".into()),
        };
        format!(
            "| {} | {sign} {} | {measured} | {met} |",
            self.what, self.target
        )
    }
}

fn short_number(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// The results of the parts, for the targets. A run that lost or duplicated a reading does not
/// count.
struct Results<'a>(&'a [(Part, PartResult)]);

impl Results<'_> {
    fn of(&self, part: Part) -> Option<&PartResult> {
        self.0
            .iter()
            .find(|(p, _)| *p == part)
            .map(|(_, result)| result)
    }

    fn baseline(&self, part: Part) -> Option<&Outcome> {
        match self.of(part) {
            Some(PartResult::Baseline(outcome)) => Some(outcome),
            _ => None,
        }
    }

    fn service(&self, part: Part) -> Option<&Report> {
        match self.of(part) {
            Some(PartResult::Service(report)) if report.check.problems.is_empty() => Some(report),
            _ => None,
        }
    }

    fn phase(&self, part: Part, n: usize) -> Option<&PhaseReport> {
        self.service(part)?.phases.get(n)
    }

    /// The phase of `wide` after its first minutes: the cost of a fleet that has been sending for
    /// some time.
    fn steady(&self, part: Part) -> Option<&PhaseReport> {
        self.service(part)?.phases.last()
    }

    /// Readings stored per second, times those of a baseline.
    fn times(&self, part: Part, baseline: Part) -> Option<f64> {
        Some(self.service(part)?.stored_per_s() / self.baseline(baseline)?.per_s())
    }

    /// CPU seconds of the service per million readings.
    fn cpu(&self, part: Part) -> Option<f64> {
        self.service(part).map(|r| r.per_million(r.used.service))
    }

    /// The same of MongoDB.
    fn mongod(&self, part: Part) -> Option<f64> {
        self.service(part).map(|r| r.per_million(r.used.mongod))
    }

    fn times_floor(&self) -> Option<f64> {
        let both = self
            .service(Part::Gateway)
            .map(|r| r.per_million(r.used.service.plus(r.used.mongod)))?;
        let floor = self.baseline(Part::Pages)?;
        Some(
            both / ((floor.used.loadtest.cpu_s + floor.used.mongod.cpu_s) * 1e6
                / floor.readings as f64),
        )
    }

    fn times_sorted_cpu(&self) -> Option<f64> {
        let sorted = self.baseline(Part::Sorted)?;
        Some(
            self.mongod(Part::GatewayTimeseries)?
                / (sorted.used.mongod.cpu_s * 1e6 / sorted.readings as f64),
        )
    }

    fn times_subscriber(&self) -> Option<f64> {
        match self.of(Part::Acknowledge) {
            Some(PartResult::Acknowledge(all)) => {
                Some(self.service(Part::Fleet)?.accepted_per_s() / all.per_s())
            }
            _ => None,
        }
    }

    fn idle_bytes(&self) -> Option<f64> {
        let wide = self.service(Part::Wide)?;
        Some(
            wide.rss_settled_bytes?.saturating_sub(wide.rss_begin_bytes) as f64
                / f64::from(wide.sensors),
        )
    }
}

/// The targets of the project, with the values measured by the parts.
pub(super) fn targets(parts: &[(Part, PartResult)]) -> Vec<Target> {
    let of = Results(parts);
    [
        gateway(&of),
        stored(&of),
        mqtt(&of),
        wide(&of),
        vec![outage(&of)],
        removal(&of),
        forward(&of),
    ]
    .concat()
}

fn most(what: &'static str, target: f64, measured: Option<f64>) -> Target {
    Target {
        what,
        at_least: false,
        target,
        measured,
    }
}

fn least(what: &'static str, target: f64, measured: Option<f64>) -> Target {
    Target {
        what,
        at_least: true,
        target,
        measured,
    }
}

/// CPU seconds of the service per million readings of a phase.
fn service_cpu(phase: &PhaseReport) -> f64 {
    phase.per_million(phase.service_cpu_s)
}

/// The same of MongoDB.
fn mongod_cpu(phase: &PhaseReport) -> f64 {
    phase.per_million(phase.mongod_cpu_s)
}

/// Gateways that post batches, acknowledged by the journal.
fn gateway(of: &Results<'_>) -> Vec<Target> {
    let half = of.phase(Part::GatewayHalf, 1).map(|phase| phase.latency_ms);
    vec![
        least(
            "gateway, bucket mode: readings/s, times naive (a)",
            40.0,
            of.times(Part::Gateway, Part::Naive),
        ),
        most(
            "gateway, bucket mode: CPU of service and mongod, times client and mongod of the floor \
             (c)",
            2.0,
            of.times_floor(),
        ),
        most(
            "gateway, service CPU-s per million readings, NDJSON",
            0.9,
            of.cpu(Part::Gateway),
        ),
        most(
            "gateway, service CPU-s per million readings, line protocol",
            0.7,
            of.cpu(Part::GatewayLine),
        ),
        least(
            "gateway, time-series mode: readings/s, times sorted inserts (b2)",
            0.9,
            of.times(Part::GatewayTimeseries, Part::Sorted),
        ),
        most(
            "gateway, time-series mode: mongod CPU, times that of sorted inserts (b2)",
            1.3,
            of.times_sorted_cpu(),
        ),
        most(
            "gateway-line at half of its rate: ack p99, ms",
            10.0,
            half.map(|ms| ms.p99),
        ),
        most(
            "gateway-line at half of its rate: ack p99.9, ms",
            50.0,
            half.map(|ms| ms.p999),
        ),
    ]
}

/// The same with `ack = "stored"`.
fn stored(of: &Results<'_>) -> Vec<Target> {
    vec![
        least(
            "ack = stored: readings/s, times naive (a)",
            1.0,
            of.times(Part::GatewayStored, Part::Naive),
        ),
        most(
            "ack = stored: mongod CPU-s per million readings",
            130.0,
            of.mongod(Part::GatewayStored),
        ),
    ]
}

/// Devices that publish single messages, to the service and through a broker.
fn mqtt(of: &Results<'_>) -> Vec<Target> {
    let slow = of.phase(Part::DirectMqtt, 1);
    vec![
        most(
            "listen.mqtt, 10,000 messages/s: service CPU-s per million",
            20.0,
            slow.map(service_cpu),
        ),
        most(
            "listen.mqtt, 10,000 messages/s: ack p99, ms",
            10.0,
            slow.map(|phase| phase.latency_ms.p99),
        ),
        least(
            "fleet: messages/s, times the subscriber that only acknowledges (f)",
            0.95,
            of.times_subscriber(),
        ),
        most(
            "fleet: service CPU-s per million messages",
            8.0,
            of.cpu(Part::Fleet),
        ),
    ]
}

/// Many sensors with few readings each.
fn wide(of: &Results<'_>) -> Vec<Target> {
    let wide = of.steady(Part::Wide);
    let wide_timeseries = of.steady(Part::WideTimeseries);
    let wide_times = wide
        .map(service_cpu)
        .zip(of.cpu(Part::Wide1k))
        .map(|(wide, narrow)| wide / narrow);
    vec![
        most(
            "wide: mongod CPU-s per million readings, bucket mode",
            30.0,
            wide.map(mongod_cpu),
        ),
        most(
            "wide: mongod CPU-s per million readings, time-series mode",
            30.0,
            wide_timeseries.map(mongod_cpu),
        ),
        most(
            "wide: service CPU-s per million readings",
            5.0,
            wide.map(service_cpu),
        ),
        most(
            "wide: resident bytes an idle sensor",
            300.0,
            of.idle_bytes(),
        ),
        most(
            "wide: service CPU a reading at 1,000,000 sensors, times that at 1,000",
            2.0,
            wide_times,
        ),
    ]
}

fn outage(of: &Results<'_>) -> Target {
    let outage = of.service(Part::Outage).and_then(|r| {
        r.phases
            .iter()
            .find_map(|p| p.outage.as_ref()?.gone_after_s)
    });
    most(
        "outage of 60 s at half rate: backlog gone after, s",
        60.0,
        outage,
    )
}

/// A removal beside a load, against the same load alone.
fn removal(of: &Results<'_>) -> Vec<Target> {
    let both = of.phase(Part::Remove, 0).zip(of.phase(Part::Remove, 1));
    let times = |ms: fn(&PhaseReport) -> f64| both.map(|(alone, beside)| ms(beside) / ms(alone));
    let removal = both.and_then(|(_, beside)| beside.removal.as_ref());
    vec![
        most(
            "a million readings removed, s",
            120.0,
            removal.map(|removal| removal.seconds * 1e6 / removal.readings as f64),
        ),
        most(
            "beside a removal: ack p50, times that without",
            1.1,
            times(|phase| phase.latency_ms.p50),
        ),
        most(
            "beside a removal: ack p99, times that without",
            1.1,
            times(|phase| phase.latency_ms.p99),
        ),
    ]
}

/// An instance that forwards; `site` is one on a small computer.
fn forward(of: &Results<'_>) -> Vec<Target> {
    let site = of.service(Part::Site);
    let steady = of.phase(Part::Site, 0);
    vec![
        most(
            "forward: bytes to the centre a reading",
            8.0,
            of.service(Part::Forward).map(Report::forwarded_bytes),
        ),
        most(
            "forward at 100 readings/s: resident MiB, at most",
            25.0,
            site.map(|r| r.used.service.rss_peak_bytes as f64 / f64::from(1 << 20)),
        ),
        most(
            "forward at 100 readings/s, journal.commit_delay = 1s: fdatasyncs a second",
            1.0,
            steady.map(|phase| phase.syncs as f64 / phase.seconds),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_met_missed_or_not_measured() {
        let target = |at_least, measured| Target {
            what: "x",
            at_least,
            target: 2.0,
            measured,
        };
        assert_eq!(target(true, Some(2.5)).met(), Some(true));
        assert_eq!(target(true, Some(1.5)).met(), Some(false));
        assert_eq!(target(false, Some(1.5)).met(), Some(true));
        assert_eq!(target(false, None).met(), None);
        assert_eq!(
            target(false, Some(3.0)).row(),
            "| x | ≤ 2 | 3.00 | **missed**, 1.50 of it |"
        );
        assert!(targets(&[]).iter().all(|t| t.met().is_none()));
    }

    #[test]
    fn a_run_that_lost_a_reading_has_no_speed() {
        let mut report = Report {
            readings: 10,
            stored_s: 1.0,
            ..Report::default()
        };
        let parts = |r: &Report| [(Part::Gateway, PartResult::Service(Box::new(r.clone())))];
        assert!(targets(&parts(&report))[2].measured.is_some());
        report.check.problems.push("one is missing".into());
        assert!(targets(&parts(&report))[2].measured.is_none());
    }
}
