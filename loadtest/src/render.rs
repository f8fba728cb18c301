//! Renders messages before the measurement starts. During the measurement only the times are
//! written into them.
//!
//! Times always have 13 digits (milliseconds, from 2001 to 2286), so the length of a message never
//! changes.

use crate::plan::Plan;
use crate::spec::Format;
use crate::values::{self, Field, Values};

/// Number of digits of a time.
const TS_DIGITS: usize = 13;
const TS_PLACE: &[u8; TS_DIGITS] = b"0000000000000";

/// A message whose times are patched before it is sent.
#[derive(Debug, Default)]
pub(crate) struct Message {
    pub(crate) bytes: Vec<u8>,
    /// Offsets of the times, in the order of the sensors.
    pub(crate) ts_at: Vec<u32>,
    /// Offset of the packet id in an MQTT packet.
    pub(crate) id_at: u32,
}

impl Message {
    /// Writes the time of each reading.
    pub(crate) fn patch(&mut self, plan: &Plan, first: u32, round: u64) {
        let mut digits = [0; TS_DIGITS];
        for (i, at) in self.ts_at.iter().enumerate() {
            if i == 0 || plan.shuffled.is_some() {
                write_digits(plan.ts_ms(first + i as u32, round), &mut digits);
            }
            self.bytes[*at as usize..*at as usize + TS_DIGITS].copy_from_slice(&digits);
        }
    }
}

fn write_digits(ts_ms: i64, digits: &mut [u8; TS_DIGITS]) {
    let mut rest = ts_ms;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
}

/// The protocol frame around the readings.
pub(crate) enum Envelope<'a> {
    /// A POST request with its head.
    Http {
        /// Value of the header Host.
        host: &'a str,
    },
    /// A PUBLISH with QoS 1 to `sensors/{sensor_id}`, with one reading.
    Mqtt,
}

/// Consecutive sensors from `first` on, with their values by round of the ring.
pub(crate) struct Ring<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) first: u32,
    pub(crate) values: &'a [Vec<Values>],
}

/// The token of loadtest/tokens.toml; ignored by a service without tokens.
const AUTHORIZATION: &str = "Authorization: Bearer loadtest.a secret only for the load test\r\n";

/// The message of a group in a round of the ring.
pub(crate) fn message(
    ring: &Ring<'_>,
    round: usize,
    format: Format,
    envelope: &Envelope<'_>,
) -> Message {
    let mut body = Message::default();
    for (i, values) in ring.values.iter().enumerate() {
        let sensor = ring.first + i as u32;
        let values = &values[round];
        match (format, envelope) {
            (Format::Line, _) => line(&mut body, ring.plan.seed, sensor, values),
            (Format::Ndjson, Envelope::Http { .. }) => {
                json(&mut body, ring.plan.seed, sensor, values)
            }
            (Format::Ndjson, Envelope::Mqtt) => flat_json(&mut body, sensor, values),
        }
    }
    match envelope {
        Envelope::Http { host } => {
            let (path, kind) = match format {
                Format::Ndjson => ("/v1/readings", "application/x-ndjson"),
                Format::Line => ("/api/v2/write?precision=ms", "text/plain; charset=utf-8"),
            };
            let head = format!(
                "POST {path} HTTP/1.1\r\nHost: {host}\r\n{AUTHORIZATION}Content-Type: {kind}\r\n\
                 Content-Length: {}\r\n\r\n",
                body.bytes.len()
            );
            prefixed(body, head.as_bytes(), 0)
        }
        Envelope::Mqtt => {
            let (head, id_at) = crate::mqtt::publish_head(
                &format!("sensors/{}", values::id(ring.first)),
                body.bytes.len(),
            );
            prefixed(body, &head, id_at)
        }
    }
}

fn prefixed(body: Message, head: &[u8], id_at: u32) -> Message {
    let mut bytes = Vec::with_capacity(head.len() + body.bytes.len());
    bytes.extend_from_slice(head);
    bytes.extend_from_slice(&body.bytes);
    let ts_at = body.ts_at.iter().map(|at| at + head.len() as u32).collect();
    Message {
        bytes,
        ts_at,
        id_at,
    }
}

fn json(out: &mut Message, seed: u64, sensor: u32, values: &Values) {
    push(
        out,
        &format!("{{\"sensor_id\":\"{}\",\"ts\":", values::id(sensor)),
    );
    time(out);
    push(out, ",\"values\":{");
    members(out, sensor, values);
    push(out, "},\"tags\":{");
    for (i, (name, value)) in values::tags(seed, sensor).iter().enumerate() {
        push(
            out,
            &format!("{}\"{name}\":\"{value}\"", if i > 0 { "," } else { "" }),
        );
    }
    push(out, "}}\n");
}

/// The JSON of a device that has its id in the topic.
fn flat_json(out: &mut Message, sensor: u32, values: &Values) {
    push(out, "{\"ts\":");
    time(out);
    push(out, ",");
    members(out, sensor, values);
    push(out, "}");
}

fn members(out: &mut Message, sensor: u32, values: &Values) {
    for (i, field) in values::fields(sensor).iter().enumerate() {
        let value = decimal(values[i], field);
        // A double needs a decimal point, or it would be decoded as an integer.
        let point = if field.decimals == 0 && !field.integer {
            ".0"
        } else {
            ""
        };
        push(
            out,
            &format!(
                "{}\"{}\":{value}{point}",
                if i > 0 { "," } else { "" },
                field.name
            ),
        );
    }
}

/// Line protocol with the id in the tag `sensor_id`.
fn line(out: &mut Message, seed: u64, sensor: u32, values: &Values) {
    let measurement = if sensor.is_multiple_of(2) {
        "readings"
    } else {
        "diagnostics"
    };
    push(
        out,
        &format!("{measurement},sensor_id={}", values::id(sensor)),
    );
    for (name, value) in values::tags(seed, sensor) {
        push(out, &format!(",{name}={value}"));
    }
    push(out, " ");
    for (i, field) in values::fields(sensor).iter().enumerate() {
        let value = decimal(values[i], field);
        let kind = if field.integer { "i" } else { "" };
        push(
            out,
            &format!(
                "{}{}={value}{kind}",
                if i > 0 { "," } else { "" },
                field.name
            ),
        );
    }
    push(out, " ");
    time(out);
    push(out, "\n");
}

fn decimal(value: i32, field: &Field) -> String {
    if field.decimals == 0 {
        return value.to_string();
    }
    let sign = if value < 0 { "-" } else { "" };
    let one = 10u32.pow(field.decimals);
    let whole = value.unsigned_abs() / one;
    let part = value.unsigned_abs() % one;
    format!(
        "{sign}{whole}.{part:0width$}",
        width = field.decimals as usize
    )
}

fn push(out: &mut Message, text: &str) {
    out.bytes.extend_from_slice(text.as_bytes());
}

fn time(out: &mut Message) {
    out.ts_at.push(out.bytes.len() as u32);
    out.bytes.extend_from_slice(TS_PLACE);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(format: Format, envelope: &Envelope<'_>) -> String {
        let plan = Plan {
            seed: 123,
            sensors: 2,
            batch: 2,
            lanes: 1,
            single_lanes: 0,
            ring: 1,
            base_ms: 1_700_000_000_000,
            step_ms: 1000,
            shuffled: None,
        };
        let values = vec![
            vec![[-512_345, 5, 12, 3, 0, 0, 255]],
            vec![[9, 4100, 2, 0, 0, 0, 0]],
        ];
        let mut message = message(
            &Ring {
                plan: &plan,
                first: 0,
                values: &values,
            },
            0,
            format,
            envelope,
        );
        message.patch(&plan, 0, 7);
        String::from_utf8(message.bytes).unwrap()
    }

    #[test]
    fn ndjson_has_one_reading_a_line() {
        let text = text(Format::Ndjson, &Envelope::Http { host: "h" });
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(
            head.ends_with(&format!("Content-Length: {}", body.len())),
            "{head}"
        );
        let lines: Vec<serde_json::Value> = body
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["sensor_id"], "truck_000000");
        assert_eq!(lines[0]["ts"], 1_700_000_007_000i64);
        assert_eq!(lines[0]["values"]["latitude"], -5.12345);
        assert_eq!(lines[0]["values"]["longitude"], 0.00005);
        assert!(lines[0]["values"]["elevation"].is_f64(), "{body}");
        assert_eq!(
            lines[1]["values"],
            serde_json::json!({"fuel_state": 0.9, "current_load": 4100.0, "status": 2})
        );
        assert!(lines[1]["tags"]["fleet"].is_string());
    }

    #[test]
    fn line_protocol_marks_integers() {
        let text = text(Format::Line, &Envelope::Http { host: "h" });
        let body = text.split_once("\r\n\r\n").unwrap().1;
        let first = body.lines().next().unwrap();
        assert!(
            first.starts_with("readings,sensor_id=truck_000000,fleet="),
            "{first}"
        );
        assert!(first.ends_with(
            "latitude=-5.12345,longitude=0.00005,elevation=12,velocity=3,heading=0,grade=0,fuel_consumption=25.5 \
             1700000007000"
        ));
        assert!(
            body.ends_with(" fuel_state=0.9,current_load=4100,status=2i 1700000007000\n"),
            "{body}"
        );
    }
}
