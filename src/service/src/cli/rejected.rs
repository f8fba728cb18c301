//! The commands `dead-letters` of an instance that forwards: on the file of readings that the centre
//! rejects, and of messages that cannot be decoded.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use super::dead_letters::DeadLetters;
use super::output::{maintenance_failed, print_if_read, print_line};
use config::Config;
use forward::{Client, ClientError, EqualReadings, Lane, LaneSettings, Next, Outcome, Part};
use forward::{RejectedFile, rows_of_lanes};
use ingest::mqtt::SetupError;
use ingest::redecode::Redecoder;
use model::ack::Ack;
use model::{Clock, DeadLetter, ReadingBatch, SystemClock};
use store::dead_letter_filter::{DeadLetterFilter, line};
use store::maintain::report::printable;

/// How long a replay tries to reach the centre.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why a replay ended early.
#[derive(Debug, thiserror::Error)]
enum ReplayError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Settings(#[from] SetupError),
    #[error("the file `rejected` in journal.dir: {0}")]
    File(#[from] std::io::Error),
    #[error(
        "{url} takes no readings: {problem}; what was not replayed is kept, run the replay again"
    )]
    Away { url: String, problem: String },
}

pub(super) fn run(config: &Config, command: DeadLetters) -> ExitCode {
    let file = RejectedFile::new(&config.journal.dir, config.forward.rejected_max_bytes);
    match command {
        DeadLetters::List { which, limit } => list(&file, &which.filter(), limit),
        DeadLetters::Replay { which } => match replay(config, &file, &which.into_replay()) {
            Ok((replayed, kept)) => {
                print_line(&format!(
                    "{replayed} of {} dead letters replayed",
                    replayed + kept
                ));
                match kept {
                    0 => ExitCode::SUCCESS,
                    _ => ExitCode::FAILURE,
                }
            }
            Err(error) => maintenance_failed(error),
        },
        DeadLetters::Purge {
            which,
            older_than,
            all,
            yes,
        } => match which.into_purge(older_than, all, yes) {
            Ok(filter) => match file.retain(|dead_letter| !filter.matches(dead_letter)) {
                Ok(removed) => {
                    print_line(&format!("{removed} dead letters removed"));
                    ExitCode::SUCCESS
                }
                Err(error) => maintenance_failed(ReplayError::File(error)),
            },
            Err(error) => maintenance_failed(error),
        },
    }
}

fn list(file: &RejectedFile, filter: &DeadLetterFilter, limit: usize) -> ExitCode {
    let all = match file.dead_letters() {
        Ok(all) => all,
        Err(error) => return maintenance_failed(ReplayError::File(error)),
    };
    let newest = all.iter().enumerate().rev();
    for (n, dead_letter) in newest.filter(|(_, l)| filter.matches(l)).take(limit) {
        match print_if_read(&line(&(n + 1).to_string(), dead_letter)) {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => return maintenance_failed(error),
        }
    }
    ExitCode::SUCCESS
}

/// Decodes dead letters again and sends their readings to the centre. Those of which everything was
/// taken are removed. Returns how many were, and how many were not.
fn replay(
    config: &Config,
    file: &RejectedFile,
    filter: &DeadLetterFilter,
) -> Result<(usize, usize), ReplayError> {
    let client = Client::new(&config.forward)?;
    let mut redecoder = Redecoder::new(config)?;
    let mut replayed = 0;
    let mut kept = 0;
    for dead_letter in file
        .dead_letters()?
        .iter()
        .filter(|dead_letter| filter.matches(dead_letter))
    {
        let redecoded = redecoder.redecode(dead_letter);
        let rejected = match redecoded.batch.is_empty() {
            // The mapping may still be wrong.
            true => Some(("empty".to_owned(), "it has no reading".to_owned())),
            false => send(config, &client, redecoded.batch)?,
        };
        let why = redecoded.why.or(rejected);
        match why {
            None => {
                file.retain(|other| other != dead_letter)?;
                replayed += 1;
            }
            Some((reason, detail)) => {
                let what = format!("{}: {reason}: {detail}", named(dead_letter));
                eprintln!("kept: {}", printable(&what));
                kept += 1;
            }
        }
    }
    Ok((replayed, kept))
}

fn named(dead_letter: &DeadLetter) -> &str {
    match dead_letter.topic.as_str() {
        "" => &dead_letter.source,
        topic => topic,
    }
}

/// Sends readings, for as long as it takes; returns the first reject.
fn send(
    config: &Config,
    client: &Client,
    batch: ReadingBatch,
) -> Result<Option<(String, String)>, ReplayError> {
    let clock = SystemClock::new();
    let begun_ms = clock.now().mono_ms;
    let mut lane = Lane::new(LaneSettings::new(&config.forward));
    let rows = rows_of_lanes(&batch, &mut EqualReadings::default(), 0, 1);
    for rows in rows {
        lane.push(
            Part::new(Arc::new(batch.clone()), rows, Ack::none()),
            begun_ms,
        );
    }
    lane.drain();
    let mut first = None;
    loop {
        let now_ms = clock.now().mono_ms;
        match lane.next(now_ms) {
            Next::Idle => return Ok(first),
            Next::At(at_ms) => {
                std::thread::sleep(Duration::from_millis(at_ms.saturating_sub(now_ms)));
            }
            Next::Send(body) => {
                let answer = client.send(0, &body);
                match lane.answered(answer, clock.now().mono_ms, 0.5) {
                    Outcome::Confirmed(confirmed) => {
                        let reject = confirmed.rejected.into_iter().next();
                        first = first.or(reject.map(|r| (r.reason, r.detail)));
                    }
                    Outcome::Smaller => {}
                    Outcome::Later { problem, .. } => {
                        let tried_ms = clock.now().mono_ms - begun_ms;
                        if u128::from(tried_ms) > PATIENCE.as_millis() {
                            let url = client.url().to_owned();
                            return Err(ReplayError::Away { url, problem });
                        }
                    }
                }
            }
        }
    }
}
