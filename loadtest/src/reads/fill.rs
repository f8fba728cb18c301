//! Writes the month: through the service, or directly with the driver.

use std::fmt::Write as _;
use std::time::Duration;

use mongodb::bson::{DateTime, RawDocumentBuf, doc, rawdoc};
use mongodb::{Collection, Database};

use super::layout::{DOCUMENTS, Layout, NATIVE};
use super::{HOUR_MS, Month};
use crate::Failure;
use crate::http::Connection;
use crate::parts::service::Service;
use crate::run;

/// Writers of a baseline.
const WRITERS: u32 = 4;
/// Sensors whose hour is inserted by one command.
const SENSORS_AT_ONCE: usize = 50;

/// Posts the month in line protocol, a minute of the fleet at a time, and waits until it is stored.
pub(super) fn through(service: &Service, month: &Month) -> Result<(), Failure> {
    let mut connection = Connection::open(service.http_port)?;
    let mut body = String::new();
    let mut request = vec![];
    for minute in 0..month.minutes() {
        body.clear();
        for sensor in 0..month.sensors {
            let (ts_ms, temp) = month.reading(sensor, minute);
            let id = Month::id(sensor);
            let site = Month::site(sensor);
            let _ = writeln!(body, "s,sensor_id={id},site={site} temp={temp} {ts_ms}");
        }
        request.clear();
        request.extend_from_slice(
            format!(
                "POST /api/v2/write?precision=ms HTTP/1.1\r\nHost: localhost\r\n\
                 Content-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\r\n",
                body.len()
            )
            .as_bytes(),
        );
        request.extend_from_slice(body.as_bytes());
        loop {
            match connection.exchange(&request)? {
                (204, _) => break,
                (429 | 503, _) => std::thread::sleep(Duration::from_millis(200)),
                (status, text) => {
                    return Err(format!("{status}: {}", String::from_utf8_lossy(text)).into());
                }
            }
        }
    }
    run::until_stored(service, month.readings())?;
    Ok(())
}

/// Inserts the month with the driver, hour by hour, 60 readings of a sensor one after another.
pub(super) async fn directly(db: &Database, layout: Layout, month: &Month) -> Result<(), Failure> {
    let name = match layout {
        Layout::Documents => {
            let indexes = [
                doc! { "key": { "sensor_id": 1, "ts": -1 }, "name": "sensor_ts" },
                doc! { "key": { "ts": 1 }, "name": "ts" },
            ];
            db.run_command(doc! { "createIndexes": DOCUMENTS, "indexes": indexes.to_vec() })
                .await?;
            DOCUMENTS
        }
        _ => {
            let series = doc! { "timeField": "ts", "metaField": "meta", "granularity": "minutes" };
            db.run_command(doc! { "create": NATIVE, "timeseries": series })
                .await?;
            let index = doc! { "key": { "meta.sensor_id": 1, "ts": -1 }, "name": "sensor_ts" };
            db.run_command(doc! { "createIndexes": NATIVE, "indexes": [index] })
                .await?;
            NATIVE
        }
    };
    let tasks: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let collection = db.collection::<RawDocumentBuf>(name);
            let month = *month;
            tokio::spawn(async move { write(&collection, layout, &month, writer).await })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    Ok(())
}

async fn write(
    collection: &Collection<RawDocumentBuf>,
    layout: Layout,
    month: &Month,
    writer: u32,
) -> Result<(), Failure> {
    let sensors: Vec<u32> = (writer..month.sensors).step_by(WRITERS as usize).collect();
    let minutes = HOUR_MS / 60_000;
    for hour in 0..month.days * 24 {
        for some in sensors.chunks(SENSORS_AT_ONCE) {
            let documents = some.iter().flat_map(|sensor| {
                (hour * minutes..(hour + 1) * minutes)
                    .map(move |minute| document(layout, month, *sensor, minute))
            });
            collection.insert_many(documents).ordered(false).await?;
        }
    }
    Ok(())
}

fn document(layout: Layout, month: &Month, sensor: u32, minute: i64) -> RawDocumentBuf {
    let (ts_ms, temp) = month.reading(sensor, minute);
    let ts = DateTime::from_millis(ts_ms);
    let id = Month::id(sensor);
    let site = Month::site(sensor);
    match layout {
        Layout::Documents => rawdoc! { "ts": ts, "sensor_id": id, "site": site, "temp": temp },
        _ => rawdoc! { "ts": ts, "meta": { "sensor_id": id, "site": site }, "temp": temp },
    }
}
