//! The questions, as an aggregation over each layout and as a request to the read API. Every answer
//! is a list of numbers.

use mongodb::bson::{Bson, DateTime, Document, RawBsonRef, doc};
use serde_json::Value;

use super::layout::Layout;
use super::{DAY_MS, HOUR_MS, Month};
use crate::Failure;

/// A question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Question {
    LastValues,
    HoursOfOne,
    HoursOfAll,
    HoursByTag,
    RawDay,
}

pub(crate) const QUESTIONS: [Question; 5] = [
    Question::LastValues,
    Question::HoursOfOne,
    Question::HoursOfAll,
    Question::HoursByTag,
    Question::RawDay,
];

/// The sensor of the questions about one.
const ONE: u32 = 7;

/// The numbers of an answer, in any order.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Answer {
    numbers: u64,
    sum: f64,
}

impl Answer {
    pub(crate) fn add(&mut self, number: f64) {
        self.numbers += 1;
        self.sum += number;
    }

    /// Sums of floats differ in the last digits, because their order does.
    pub(crate) fn equals(&self, other: &Answer) -> bool {
        self.numbers == other.numbers && (self.sum - other.sum).abs() <= 1e-9 * self.sum.abs()
    }
}

pub(crate) fn number(value: Option<RawBsonRef<'_>>) -> Result<f64, Failure> {
    match value {
        Some(RawBsonRef::Double(number)) => Ok(number),
        Some(RawBsonRef::Int32(number)) => Ok(number.into()),
        Some(RawBsonRef::Int64(number)) => Ok(number as f64),
        other => Err(format!("{other:?} is not a number").into()),
    }
}

impl Question {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Question::LastValues => "last values of the fleet",
            Question::HoursOfOne => "hourly averages of one sensor, the whole time",
            Question::HoursOfAll => "hourly averages of all sensors, a day",
            Question::HoursByTag => "hourly averages by tag, a day",
            Question::RawDay => "readings of one sensor, a day",
        }
    }

    /// The time span of the answer.
    fn span_ms(self, month: &Month) -> (i64, i64) {
        match self {
            Question::LastValues | Question::HoursOfOne => (month.begin_ms(), month.end_ms),
            _ => (month.end_ms - DAY_MS, month.end_ms),
        }
    }

    /// A collection and an aggregation over it, whose results have a number `v`.
    pub(crate) fn pipeline(self, layout: Layout, month: &Month) -> (&'static str, Vec<Document>) {
        let (from_ms, to_ms) = self.span_ms(month);
        let within =
            doc! { "$gte": DateTime::from_millis(from_ms), "$lt": DateTime::from_millis(to_ms) };
        let is_of_hours = matches!(
            self,
            Question::HoursOfOne | Question::HoursOfAll | Question::HoursByTag
        );
        match layout.readings() {
            Some(names) if !(is_of_hours && layout.mode().is_some()) => {
                self.of_readings(names, &within)
            }
            _ => self.of_buckets(month, &within),
        }
    }

    /// Over one document per reading.
    fn of_readings(
        self,
        (collection, sensor, site): (&'static str, &str, &str),
        within: &Document,
    ) -> (&'static str, Vec<Document>) {
        let one = doc! { "$match": { sensor: Month::id(ONE), "ts": within.clone() } };
        let all = doc! { "$match": { "ts": within.clone() } };
        let hour = doc! { "$dateTrunc": { "date": "$ts", "unit": "hour" } };
        let group = |id: Bson| doc! { "$group": { "_id": id, "v": { "$avg": "$temp" } } };
        let pipeline = match self {
            Question::LastValues => vec![
                doc! { "$sort": { sensor: 1, "ts": -1 } },
                doc! { "$group": { "_id": format!("${sensor}"), "v": { "$first": "$temp" } } },
            ],
            Question::HoursOfOne => vec![one, group(hour.into())],
            Question::HoursOfAll => vec![
                all,
                group(doc! { "sensor": format!("${sensor}"), "hour": hour }.into()),
            ],
            Question::HoursByTag => vec![
                all,
                group(doc! { "site": format!("${site}"), "hour": hour }.into()),
            ],
            Question::RawDay => vec![one, doc! { "$project": { "_id": 0, "v": "$temp" } }],
        };
        (collection, pipeline)
    }

    /// Over hourbucket's documents: the view of the hours, and the pages.
    fn of_buckets(self, month: &Month, within: &Document) -> (&'static str, Vec<Document>) {
        let one =
            doc! { "$match": { "sensor_id": Month::id(ONE), "bucket_start": within.clone() } };
        let ids: Vec<String> = (0..month.sensors).map(Month::id).collect();
        let all =
            doc! { "$match": { "sensor_id": { "$in": ids }, "bucket_start": within.clone() } };
        let average = doc! { "$project": { "_id": 0, "v": "$summary.temp.avg" } };
        match self {
            Question::LastValues => (
                "sensor_buckets",
                vec![
                    doc! { "$sort": { "sensor_id": 1, "bucket_start": -1, "page": 1 } },
                    doc! { "$group": { "_id": "$sensor_id", "last": { "$first": "$readings" } } },
                    doc! { "$project": { "_id": 0, "v": { "$last": "$last.temp" } } },
                ],
            ),
            Question::HoursOfOne => ("sensor_summaries", vec![one, average]),
            Question::HoursOfAll => ("sensor_summaries", vec![all, average]),
            Question::HoursByTag => {
                let id = doc! { "site": "$tags.site", "hour": "$bucket_start" };
                let sums = doc! { "_id": id, "sum": { "$sum": "$summary.temp.sum" }, "count": { "$sum": "$summary.temp.count" } };
                let quotient = doc! { "$divide": ["$sum", "$count"] };
                let pipeline = vec![
                    all,
                    doc! { "$group": sums },
                    doc! { "$project": { "_id": 0, "v": quotient } },
                ];
                // The view has no tags; the pages have, and their sums add up.
                ("sensor_buckets", pipeline)
            }
            Question::RawDay => {
                let readings = doc! { "$project": { "_id": 0, "v": "$readings.temp" } };
                (
                    "sensor_buckets",
                    vec![one, doc! { "$unwind": "$readings" }, readings],
                )
            }
        }
    }

    /// The same as a request to the admin port.
    pub(crate) fn path(self, month: &Month) -> String {
        let (from_ms, to_ms) = self.span_ms(month);
        let one = Month::id(ONE);
        let range = |query: &str| {
            let start = (from_ms + HOUR_MS) / 1000;
            let end = to_ms / 1000;
            format!(
                "/prometheus/api/v1/query_range?query={}&start={start}&end={end}&step=3600",
                encoded(query)
            )
        };
        match self {
            Question::LastValues => {
                let query = encoded("last_over_time(temp[1h])");
                format!(
                    "/prometheus/api/v1/query?query={query}&time={}",
                    to_ms / 1000
                )
            }
            Question::HoursOfOne => format!("/v1/sensors/{one}/hourly?from={from_ms}&to={to_ms}"),
            Question::HoursOfAll => range("avg_over_time(temp[1h])"),
            Question::HoursByTag => range(
                "sum by (site) (sum_over_time(temp[1h])) / sum by (site) \
                 (count_over_time(temp[1h]))",
            ),
            Question::RawDay => {
                format!("/v1/sensors/{one}/readings?from={from_ms}&to={to_ms}&limit=100000")
            }
        }
    }

    /// The numbers in the response of the read API.
    pub(crate) fn of_json(self, text: &str) -> Result<Answer, Failure> {
        let response: Value = serde_json::from_str(text)?;
        let list = |value: &Value| {
            value
                .as_array()
                .cloned()
                .ok_or("a response without its list")
        };
        let mut answer = Answer::default();
        let mut add = |number: Option<f64>| {
            answer.add(number.ok_or("a response without a number")?);
            Ok::<_, Failure>(())
        };
        // Samples of PromQL are pairs of a time and a text.
        let sample = |pair: &Value| pair[1].as_str().and_then(|text| text.parse().ok());
        match self {
            Question::LastValues => {
                list(&response["data"]["result"])?
                    .iter()
                    .try_for_each(|series| add(sample(&series["value"])))?;
            }
            Question::HoursOfOne => {
                list(&response["buckets"])?
                    .iter()
                    .try_for_each(|hour| add(hour["summary"]["temp"]["avg"].as_f64()))?;
            }
            Question::HoursOfAll | Question::HoursByTag => {
                for series in list(&response["data"]["result"])? {
                    list(&series["values"])?
                        .iter()
                        .try_for_each(|pair| add(sample(pair)))?;
                }
            }
            Question::RawDay => {
                list(&response["readings"])?
                    .iter()
                    .try_for_each(|row| add(row["values"]["temp"].as_f64()))?;
            }
        }
        Ok(answer)
    }
}

/// As part of a query string.
fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_lists_of_numbers() {
        let range = r#"{"data":{"result":[{"values":[[1,"2"],[2,"3.5"]]},{"values":[[1,"1"]]}]}}"#;
        let answer = Question::HoursOfAll.of_json(range).unwrap();
        assert!(
            answer.equals(&Answer {
                numbers: 3,
                sum: 6.5
            }),
            "{answer:?}"
        );
        let hours = r#"{"buckets":[{"summary":{"temp":{"avg":20.5}}}]}"#;
        assert!(
            Question::HoursOfOne
                .of_json(hours)
                .unwrap()
                .equals(&Answer {
                    numbers: 1,
                    sum: 20.5
                })
        );
        assert!(
            Question::RawDay
                .of_json(r#"{"readings":[{"values":{}}]}"#)
                .is_err()
        );
        assert!(!answer.equals(&Answer {
            numbers: 3,
            sum: 6.6
        }));
    }
}
