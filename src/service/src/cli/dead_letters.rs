//! The commands `dead-letters list`, `replay` and `purge`: arguments, output, exit codes.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::output::{MAINTENANCE_FAILED, maintenance_failed, print_if_read, print_line};
use crate::replay;
use config::Config;
use decode::RejectReason;
use model::{Clock, SystemClock};
use pipeline::accumulate::state::RejectCause;
use store::dead_letter_filter::{DeadLetterFilter, line};
use store::maintain::{moment, report::printable};
use store::mongo::{DeadLetterDocument, MongoStore};
use telemetry::log;
use telemetry::metrics::Source;

#[derive(Subcommand)]
pub(crate) enum DeadLetters {
    /// Print dead letters, newest first, one JSON object per line
    List {
        #[command(flatten)]
        which: Which,
        /// The maximum number printed
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = limit)]
        limit: usize,
    },
    /// Decode dead letters again with the current settings, store their readings, and remove each
    /// dead letter of which everything was accepted; the service may run. Exit code 0: none remain,
    /// 1: some remain (listed on standard error), 2: failed. Can be interrupted and repeated:
    /// readings are stored once. Dead letters that their senders were not allowed to write are
    /// replayed only with --reason not_allowed
    Replay {
        #[command(flatten)]
        which: Which,
    },
    /// Remove the dead letters that match all given filters
    Purge {
        #[command(flatten)]
        which: Which,
        /// Only those older than this, such as 7d or 12h
        #[arg(long, value_name = "AGE", value_parser = age, conflicts_with = "until")]
        older_than: Option<Duration>,
        /// Remove all dead letters; requires --yes
        #[arg(long)]
        all: bool,
        /// Confirm --all
        #[arg(long, requires = "all")]
        yes: bool,
    },
}

/// The filters of a command; a dead letter must match all of them.
#[derive(Args)]
pub(crate) struct Which {
    /// With this reason, such as too_old; can be repeated
    #[arg(long = "reason", value_name = "REASON", value_parser = reason)]
    reasons: Vec<String>,
    /// From mqtt, mqtt_direct, http or store; can be repeated
    #[arg(long = "source", value_name = "SOURCE", value_parser = source)]
    sources: Vec<String>,
    /// With a matching topic; * matches any text, ? one character
    #[arg(long, value_name = "GLOB")]
    topic: Option<String>,
    /// Received at or after this time: RFC 3339, or a date in UTC
    #[arg(long, value_parser = moment)]
    since: Option<i64>,
    /// Received before this time
    #[arg(long, value_parser = moment)]
    until: Option<i64>,
}

/// The options of a purge contradict each other.
#[derive(Debug, thiserror::Error)]
pub(super) enum InvalidPurge {
    #[error(
        "no filter; expected --older-than, --reason, --source, --topic, --since, --until or --all"
    )]
    NoFilter,
    #[error("--all cannot be combined with another filter")]
    AllAndFilter,
    #[error("--all removes every dead letter; add --yes to confirm")]
    NotConfirmed,
}

impl Which {
    /// Those of a replay. Without a reason not those whose senders were not allowed to send them, for a
    /// replay does not ask again, nor those that cannot be stored.
    pub(super) fn into_replay(self) -> DeadLetterFilter {
        let mut filter = self.filter();
        if filter.reasons.is_empty() {
            let late = RejectCause::ReadingsRemoved.as_str().to_owned();
            filter.except_reasons = vec![RejectReason::NotAllowed.to_string(), late];
        }
        filter
    }

    /// Those of a purge.
    pub(super) fn into_purge(
        self,
        older_than: Option<Duration>,
        all: bool,
        yes: bool,
    ) -> Result<DeadLetterFilter, InvalidPurge> {
        let mut filter = self.filter();
        if let Some(age) = older_than {
            let age_ms = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
            filter.until_ms = Some(SystemClock::new().now().wall_ms.saturating_sub(age_ms));
        }
        match (filter.is_all(), all, yes) {
            (true, false, _) => Err(InvalidPurge::NoFilter),
            (false, true, _) => Err(InvalidPurge::AllAndFilter),
            (true, true, false) => Err(InvalidPurge::NotConfirmed),
            _ => Ok(filter),
        }
    }

    pub(super) fn filter(self) -> DeadLetterFilter {
        let Which {
            reasons,
            sources,
            topic,
            since,
            until,
        } = self;
        let except_reasons = vec![];
        DeadLetterFilter {
            reasons,
            except_reasons,
            sources,
            topic,
            since_ms: since,
            until_ms: until,
        }
    }
}

#[derive(Debug, Clone, thiserror::Error)]
#[error("unknown {what}; {near}expected one of {known}")]
struct UnknownName {
    what: &'static str,
    near: String,
    known: String,
}

/// `text`, if it is one of the known names.
fn known(
    what: &'static str,
    text: &str,
    known: &BTreeSet<&'static str>,
) -> Result<String, UnknownName> {
    if known.contains(text) {
        return Ok(text.to_owned());
    }
    let near = config::nearest(text, known.iter().copied());
    let near = near
        .map(|near| format!("did you mean {near}? "))
        .unwrap_or_default();
    Err(UnknownName {
        what,
        near,
        known: known.iter().copied().collect::<Vec<_>>().join(", "),
    })
}

/// The reasons that a dead letter can have: those of the decoders, and those of readings that could
/// not be stored.
pub(super) fn reasons() -> BTreeSet<&'static str> {
    let of_store = RejectCause::ALL.map(RejectCause::as_str);
    let decoders = RejectReason::ALL.iter().map(|reason| reason.as_str());
    decoders.chain(of_store).collect()
}

fn reason(text: &str) -> Result<String, UnknownName> {
    known("reason", text, &reasons())
}

fn source(text: &str) -> Result<String, UnknownName> {
    let sources = [
        Source::Mqtt,
        Source::MqttDirect,
        Source::Http,
        Source::Store,
    ];
    known("source", text, &sources.map(Source::as_str).into())
}

#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("expected a whole number of at least 1")]
struct InvalidLimit;

fn limit(text: &str) -> Result<usize, InvalidLimit> {
    text.parse()
        .ok()
        .filter(|limit| *limit > 0)
        .ok_or(InvalidLimit)
}

#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("expected a duration, such as 7d or 12h")]
struct InvalidAge;

fn age(text: &str) -> Result<Duration, InvalidAge> {
    config::parse_duration(text).ok_or(InvalidAge)
}

pub(crate) async fn run(config: &Config, store: MongoStore, command: DeadLetters) -> ExitCode {
    match command {
        DeadLetters::List { which, limit } => list(&store, &which.filter(), limit).await,
        DeadLetters::Replay { which } => {
            replay_dead_letters(config, store, &which.into_replay()).await
        }
        DeadLetters::Purge {
            which,
            older_than,
            all,
            yes,
        } => match which.into_purge(older_than, all, yes) {
            Ok(filter) => purge(&store, &filter).await,
            Err(error) => maintenance_failed(error),
        },
    }
}

async fn list(store: &MongoStore, filter: &DeadLetterFilter, limit: usize) -> ExitCode {
    let mut printed = Ok(true);
    let on_found = |found: &DeadLetterDocument| {
        printed = print_if_read(&line(&found.id.to_string(), &found.dead_letter));
        matches!(printed, Ok(true))
    };
    if let Err(failure) = store
        .dead_letters()
        .find_newest(filter, limit, on_found)
        .await
    {
        return maintenance_failed(failure);
    }
    match printed {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => maintenance_failed(error),
    }
}

async fn replay_dead_letters(
    config: &Config,
    store: MongoStore,
    filter: &DeadLetterFilter,
) -> ExitCode {
    // Logs failures of the store; other messages of the service do not matter here.
    let mut settings = config.log.clone();
    settings.level = format!("warn,{}=info", replay::LOG_TARGET);
    if let Err(failure) = log::init(&settings) {
        return maintenance_failed(failure);
    }
    let on_kept = |kept: &DeadLetterDocument, reason: &str, detail: &str| {
        let what = format!("{} {}: {reason}: {detail}", kept.id, kept.dead_letter.topic);
        eprintln!("kept: {}", printable(&what));
    };
    match replay::replay(
        config.clone(),
        store,
        filter,
        Arc::new(SystemClock::new()),
        on_kept,
    )
    .await
    {
        Ok(replayed) => {
            print_line(&replayed.to_string());
            match (replayed.failed, replayed.is_complete()) {
                (0, true) => ExitCode::SUCCESS,
                (0, false) => ExitCode::FAILURE,
                _ => ExitCode::from(MAINTENANCE_FAILED),
            }
        }
        Err(failure) => maintenance_failed(format!(
            "{failure}; replayed readings are stored, and the next replay continues"
        )),
    }
}

async fn purge(store: &MongoStore, filter: &DeadLetterFilter) -> ExitCode {
    match store.dead_letters().purge(filter).await {
        Ok(removed) => {
            print_line(&format!("{removed} dead letters removed"));
            ExitCode::SUCCESS
        }
        Err(failure) => maintenance_failed(failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_sources_and_a_limit_of_zero_are_refused() {
        assert_eq!(source("mqtt_direct").unwrap(), "mqtt_direct");
        let error = source("htp").unwrap_err().to_string();
        assert!(
            error.contains("unknown source; did you mean http?") && error.contains("store"),
            "{error}"
        );
        assert!(source("bogus").is_err());
        assert_eq!(limit("5").unwrap(), 5);
        assert!(limit("0").is_err() && limit("-1").is_err());
    }
}
