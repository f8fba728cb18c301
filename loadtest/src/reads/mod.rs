//! The benefit of summaries: one month of readings in four layouts, the same questions to each, and
//! their duration.
//!
//! ```text
//!  month ──> fill ──> MongoDB ──> questions ──(driver, read API)──> latencies, documents examined ──> table
//! ```
//!
//! Each layout has its own MongoDB, with the cache of every other run. The answers of all layouts
//! are compared: a layout that answers something else fails the run, regardless of its speed.

mod fill;
mod layout;
mod question;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use mongodb::Database;
use mongodb::bson::{Bson, Document, doc};
use serde::Serialize;

use self::layout::Layout;
use self::question::{Answer, QUESTIONS, Question};
use crate::Failure;
use crate::parts::mongod::Mongod;
use crate::parts::service::Service;
use crate::plan::now_ms;

pub(crate) const DATABASE: &str = "reads";
const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;
/// A question is asked until one of these is reached, but at least [`RUNS_MIN`] times.
const RUNS_MAX: usize = 100;
const ASKED_FOR: Duration = Duration::from_secs(15);
const RUNS_MIN: usize = 5;

/// The readings: each sensor reports `temp` once a minute, and not all of them in the same second.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Month {
    pub(crate) sensors: u32,
    pub(crate) days: i64,
    /// The midnight (UTC) after the last reading.
    pub(crate) end_ms: i64,
}

impl Month {
    pub(crate) fn new(sensors: u32, days: i64) -> Month {
        let now_ms = now_ms();
        Month {
            sensors,
            days,
            end_ms: now_ms.div_euclid(DAY_MS) * DAY_MS,
        }
    }

    fn begin_ms(&self) -> i64 {
        self.end_ms - self.days * DAY_MS
    }

    fn minutes(&self) -> i64 {
        self.days * 24 * 60
    }

    fn readings(&self) -> u64 {
        u64::from(self.sensors) * self.minutes() as u64
    }

    /// The time and the value of a sensor's reading in a minute of the month. No reading is on a
    /// full minute, so that hours that include their begin and windows that include their end have
    /// the same readings.
    fn reading(&self, sensor: u32, minute: i64) -> (i64, f64) {
        let ts_ms = self.begin_ms() + minute * 60_000 + i64::from(sensor % 53 + 1) * 1000;
        (
            ts_ms,
            20.0 + f64::from(sensor % 10) + (minute % 97) as f64 / 8.0,
        )
    }

    fn id(sensor: u32) -> String {
        format!("S{sensor}")
    }

    /// One of 20 sites.
    fn site(sensor: u32) -> String {
        format!("site-{}", sensor % 20)
    }
}

/// How one question is answered in one layout.
#[derive(Debug, Clone, Serialize)]
struct Row {
    question: &'static str,
    layout: &'static str,
    through: &'static str,
    runs: usize,
    median_ms: f64,
    p99_ms: f64,
    /// Documents that MongoDB examined, and their number times the mean size of the collection's;
    /// absent for the read API.
    examined: Option<(u64, u64)>,
}

/// The result of the whole run.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Reads {
    month: Month,
    rows: Vec<Row>,
    /// Answers that differ.
    problems: Vec<String>,
}

/// Options in addition to the month.
pub(crate) struct Options {
    pub(crate) binary: PathBuf,
    pub(crate) settings: BTreeMap<String, String>,
    /// Few runs, to see that everything works.
    pub(crate) short: bool,
}

pub(crate) async fn run(month: Month, options: &Options) -> Result<Reads, Failure> {
    let mut reads = Reads {
        month,
        rows: vec![],
        problems: vec![],
    };
    let mut answers: BTreeMap<&str, Answer> = BTreeMap::new();
    let runs_max = if options.short { RUNS_MIN } else { RUNS_MAX };
    for layout in Layout::ALL {
        let mongod = Mongod::start().await?;
        let db = mongod.client().await?.database(DATABASE);
        let begun = Instant::now();
        let service = match layout.mode() {
            Some(mode) => {
                let mut settings = options.settings.clone();
                if options.short {
                    settings.insert("FLUSH__MAX_AGE".into(), "500ms".into());
                }
                let uri = mongod.uri();
                for (key, value) in [
                    ("STORE__URI", &*uri),
                    ("STORE__DATABASE", DATABASE),
                    ("STORE__MODE", mode),
                ] {
                    settings
                        .entry(key.to_owned())
                        .or_insert_with(|| value.to_owned());
                }
                let service = Service::start(&options.binary, &settings)?;
                tokio::task::block_in_place(|| fill::through(&service, &month))?;
                Some(service)
            }
            None => {
                fill::directly(&db, layout, &month).await?;
                None
            }
        };
        eprintln!(
            "  {}: {} readings written in {:.0?}",
            layout.name(),
            month.readings(),
            begun.elapsed()
        );
        for question in QUESTIONS {
            let asked = ask(&db, layout, question, &month, service.as_ref(), runs_max).await?;
            for (row, answer) in asked {
                let first = answers.entry(question.name()).or_insert(answer);
                if !first.equals(&answer) {
                    reads.problems.push(format!(
                        "{}, {} through {}: {answer:?} instead of {first:?}",
                        row.question, row.layout, row.through
                    ));
                }
                reads.rows.push(row);
            }
        }
    }
    Ok(reads)
}

/// Asks one question through MongoDB, and through the service if there is one.
async fn ask(
    db: &Database,
    layout: Layout,
    question: Question,
    month: &Month,
    service: Option<&Service>,
    runs_max: usize,
) -> Result<Vec<(Row, Answer)>, Failure> {
    let (collection, pipeline) = question.pipeline(layout, month);
    let mut took = vec![];
    let mut asked = Instant::now();
    let mut answer = Answer::default();
    while goes_on(&took, asked, runs_max) {
        let begun = Instant::now();
        let mut cursor = db
            .collection::<Document>(collection)
            .aggregate(pipeline.clone())
            .batch_size(100_000)
            .await?;
        answer = Answer::default();
        while cursor.advance().await? {
            answer.add(question::number(cursor.current().get("v")?)?);
        }
        took.push(begun.elapsed());
    }
    let examined = examined(db, layout, collection, &pipeline).await?;
    let mut rows = vec![(
        row(layout, question, "MongoDB", &mut took, Some(examined)),
        answer,
    )];
    if let Some(service) = service {
        took.clear();
        asked = Instant::now();
        let path = question.path(month);
        while goes_on(&took, asked, runs_max) {
            let begun = Instant::now();
            let (status, text) =
                tokio::task::block_in_place(|| crate::http::get_whole(service.admin_port, &path))?;
            let elapsed = begun.elapsed();
            if status != 200 {
                return Err(format!("{path}: {status} {text}").into());
            }
            answer = question.of_json(&text)?;
            took.push(elapsed);
        }
        rows.push((
            row(layout, question, "the read API", &mut took, None),
            answer,
        ));
    }
    Ok(rows)
}

fn goes_on(took: &[Duration], since: Instant, runs_max: usize) -> bool {
    took.len() < RUNS_MIN || took.len() < runs_max && since.elapsed() < ASKED_FOR
}

fn row(
    layout: Layout,
    question: Question,
    through: &'static str,
    took: &mut [Duration],
    examined: Option<(u64, u64)>,
) -> Row {
    took.sort_unstable();
    let at = |share: f64| {
        took[((took.len() - 1) as f64 * share).round() as usize].as_secs_f64() * 1000.0
    };
    Row {
        question: question.name(),
        layout: layout.name(),
        through,
        runs: took.len(),
        median_ms: at(0.5),
        p99_ms: at(0.99),
        examined,
    }
}

/// Documents that one run of the pipeline examines, and their bytes by the mean size of a document.
async fn examined(
    db: &Database,
    layout: Layout,
    collection: &str,
    pipeline: &[Document],
) -> Result<(u64, u64), Failure> {
    let aggregate = doc! { "aggregate": collection, "pipeline": pipeline, "cursor": {} };
    let plan = db
        .run_command(doc! { "explain": aggregate, "verbosity": "executionStats" })
        .await?;
    let documents = docs_examined(&Bson::Document(plan));
    let stats = db
        .run_command(doc! { "collStats": layout.stored_in(collection) })
        .await?;
    let mean = stats.get("avgObjSize").map_or(0, whole);
    Ok((documents, documents * mean))
}

/// The largest `totalDocsExamined` of a plan, which has it once for its cursor and once for the
/// whole.
fn docs_examined(plan: &Bson) -> u64 {
    match plan {
        Bson::Document(members) => {
            let of = |(name, m): (&String, &Bson)| {
                if name == "totalDocsExamined" {
                    whole(m)
                } else {
                    docs_examined(m)
                }
            };
            members.iter().map(of).max().unwrap_or_default()
        }
        Bson::Array(items) => items.iter().map(docs_examined).max().unwrap_or_default(),
        _ => 0,
    }
}

fn whole(number: &Bson) -> u64 {
    let number = number
        .as_i64()
        .or(number.as_i32().map(i64::from))
        .or(number.as_f64().map(|n| n as i64));
    number
        .and_then(|n| u64::try_from(n).ok())
        .unwrap_or_default()
}

impl Reads {
    pub(crate) fn sound(&self) -> bool {
        self.problems.is_empty()
    }

    pub(crate) fn markdown(&self) -> Vec<String> {
        let Month { sensors, days, .. } = self.month;
        let mut lines = vec![
            format!(
                "Reads: {sensors} sensors, one reading a minute for {days} days, all in MongoDB."
            ),
            String::new(),
            "| question | stored as | through | runs | median ms | p99 ms | documents examined | \
             about MB |"
                .to_owned(),
            "|---|---|---|---|---|---|---|---|".to_owned(),
        ];
        for row in &self.rows {
            let Row {
                question,
                layout,
                through,
                runs,
                median_ms,
                p99_ms,
                examined,
            } = row;
            let (documents, mb) = match examined {
                Some((documents, bytes)) => {
                    (documents.to_string(), format!("{:.1}", *bytes as f64 / 1e6))
                }
                None => ("-".to_owned(), "-".to_owned()),
            };
            lines.push(format!(
                "| {question} | {layout} | {through} | {runs} | {median_ms:.1} | {p99_ms:.1} | \
                 {documents} | {mb} |"
            ));
        }
        lines.push(String::new());
        lines.extend(self.targets());
        lines.extend(
            self.problems
                .iter()
                .map(|problem| format!("WRONG: {problem}")),
        );
        lines
    }

    /// The target for the hours of one sensor, and whether it is met.
    fn targets(&self) -> Vec<String> {
        let hours = Question::HoursOfOne.name();
        let median = |layout: Layout| {
            let of = |row: &&Row| {
                row.question == hours && row.layout == layout.name() && row.through == "MongoDB"
            };
            self.rows
                .iter()
                .find(of)
                .map_or(f64::NAN, |row| row.median_ms)
        };
        let native = median(Layout::Native);
        let line = |layout: Layout| {
            let ms = median(layout);
            let ratio = native / median(layout);
            let is_met = if ms <= 10.0 && ratio >= 20.0 {
                "met"
            } else {
                "MISSED"
            };
            format!(
                "Hours of one sensor over the month, {}: {ms:.1} ms (target 10), {ratio:.0} times \
                 as fast as the native collection (target 20): {is_met}.",
                layout.name()
            )
        };
        vec![line(Layout::Bucket), line(Layout::TimeSeries)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documents_of_a_plan_are_counted_once() {
        let plan = doc! { "stages": [{ "$cursor": { "executionStats": { "totalDocsExamined": 7 } } }],
        "executionStats": { "totalDocsExamined": 7_i64, "nReturned": 100 } };
        assert_eq!(docs_examined(&Bson::Document(plan)), 7);
    }

    #[test]
    fn no_reading_is_on_an_edge_of_an_hour() {
        let month = Month::new(100, 2);
        for sensor in 0..100 {
            let first = month.reading(sensor, 0).0;
            let last = month.reading(sensor, month.minutes() - 1).0;
            assert!(first > month.begin_ms() && last < month.end_ms, "{sensor}");
            assert_ne!(month.reading(sensor, 60).0.rem_euclid(HOUR_MS), 0);
        }
    }
}
