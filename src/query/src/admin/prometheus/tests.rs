//! Prometheus' API on a served admin port.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use flate2::read::GzDecoder;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::answer::{PrometheusError, sent};
use crate::admin::{Admin, Health, TokenSource};
use crate::read::{ReadError, ReadService};
use config::{AckMode, Config, Promql};
use model::catalog::CATALOG_FIELDS_MAX;
use model::{CatalogUpdate, FieldKinds, Span, SystemClock};
use store::Store;
use testkit::memory_store::MemoryStore;

/// A served port with room for this many connections.
async fn port(connections_max: usize) -> SocketAddr {
    let store = Arc::new(MemoryStore::new());
    serve(connections_max, store, Config::default().promql).await
}

/// The same with this store and these limits.
async fn serve(connections_max: usize, store: Arc<MemoryStore>, promql: Promql) -> SocketAddr {
    let Config { mut admin, .. } = Config::default();
    admin.listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    admin.connections.max = connections_max;
    let clock = Arc::new(SystemClock::new());
    let reads = ReadService::new(vec![], None, store, clock.clone(), Span::HOUR, (4, 4));
    let health = Arc::new(Health::new(AckMode::Journal));
    let admin = Admin::bind(&admin, health, clock).await.unwrap();
    let admin = admin.with_reads(Arc::new(reads), promql, TokenSource::default());
    let addr = admin.local_addr();
    tokio::spawn(admin.serve(CancellationToken::new()));
    addr
}

/// A connection that sends this, with a body of which more may follow.
async fn begun(addr: SocketAddr, path: &str, length: usize, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let head = format!(
        "POST /prometheus/api/v1/{path} HTTP/1.1\r\nhost: localhost\r\nconnection: \
         close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

/// What arrives until the connection ends.
async fn rest(mut stream: TcpStream) -> String {
    let mut all = Vec::new();
    // A reset is an end as well. Long enough for a thread of low priority on a busy machine.
    let _ = timeout(Duration::from_secs(120), stream.read_to_end(&mut all))
        .await
        .expect("the connection stays open");
    String::from_utf8(all).unwrap()
}

/// The answer to a `GET`; empty if the port refuses the connection.
async fn get(addr: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    let _ = stream.write_all(request.as_bytes()).await;
    rest(stream).await
}

#[tokio::test]
async fn unfinished_bodies_keep_no_probe_out() {
    let addr = port(4).await;
    let mut unfinished = vec![];
    for path in ["query", "read"].into_iter().cycle().take(12) {
        unfinished.push(begun(addr, path, 100, "query=").await);
        // The handler waits for the body from now on.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let answer = get(addr, "/livez").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer:?}");
    }
}

#[tokio::test]
async fn a_body_that_arrives_in_parts_is_read() {
    let addr = port(4).await;
    let mut stream = begun(addr, "format_query", 9, "query=1").await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    stream.write_all(b"23").await.unwrap();
    let answer = rest(stream).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
}

#[tokio::test]
async fn a_path_that_is_no_text_is_refused_in_prometheus_form() {
    let answer = get(port(4).await, "/prometheus/api/v1/label/%ff/values").await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer:?}");
    assert!(answer.contains(r#""errorType":"bad_data""#), "{answer:?}");
}

#[tokio::test]
async fn a_query_without_time_times_out() {
    let answer = get(port(4).await, "/prometheus/api/v1/query?query=1&timeout=0").await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer:?}");
    assert!(answer.contains(r#""errorType":"timeout""#), "{answer:?}");
}

#[tokio::test]
async fn remote_read_says_which_method_it_accepts() {
    let answer = get(port(4).await, "/prometheus/api/v1/read").await;
    assert!(answer.starts_with("HTTP/1.1 405"), "{answer:?}");
    assert!(answer.to_lowercase().contains("allow: post"), "{answer:?}");
    assert!(answer.contains("accepts only POST"), "{answer:?}");
}

/// A store whose catalogue has these sensors, with as many fields (`f00000` and so on) and the
/// sensor's id as the tag `site`.
async fn catalogued(sensors: usize, fields: usize) -> Arc<MemoryStore> {
    let store = Arc::new(MemoryStore::new());
    let names = (0..fields).map(|i| (format!("f{i:05}").into(), FieldKinds::NUMBER));
    let names: std::collections::BTreeMap<_, _> = names.collect();
    for i in 0..sensors {
        let id = format!("S{i:05}");
        let update = CatalogUpdate {
            sensor_id: id.as_str().into(),
            tags: Some((1000, [("site".to_owned(), id)].into())),
            fields: names.clone(),
            first_ts_ms: 1000,
            last_ts_ms: 1000,
            arrived_ms: 1000,
            created_ms: 0,
        };
        store.merge_catalog(&[&update]).await.unwrap();
    }
    store
}

/// The body of the answer to a `GET` that succeeds.
async fn success(addr: SocketAddr, path: &str) -> serde_json::Value {
    let answer = get(addr, &format!("/prometheus/api/v1/{path}")).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer:.500}");
    let body = &answer[answer.find('{').unwrap()..=answer.rfind('}').unwrap()];
    serde_json::from_str(body).unwrap()
}

const LISTINGS: [&str; 4] = [
    "series?match[]=f00000",
    "labels",
    "label/site/values",
    "metadata",
];

#[tokio::test]
async fn listings_have_the_time_limit_of_queries() {
    let promql = Promql {
        timeout: Duration::ZERO,
        ..Config::default().promql
    };
    let addr = serve(4, catalogued(1, 1).await, promql).await;
    for path in LISTINGS {
        let answer = get(addr, &format!("/prometheus/api/v1/{path}")).await;
        assert!(answer.starts_with("HTTP/1.1 503"), "{path}: {answer:?}");
        assert!(
            answer.contains("query timed out in query queue"),
            "{path}: {answer:?}"
        );
    }
}

/// So their memory is limited, also if their readers are slow.
#[tokio::test]
async fn answers_count_by_their_size_until_they_are_sent() {
    let store = Arc::new(MemoryStore::new());
    let clock = Arc::new(SystemClock::new());
    let reads = ReadService::new(vec![], None, store, clock, Span::HOUR, (4, 3));
    let answer = |bytes: usize| sent("x".repeat(bytes), &reads);
    let two = answer((8 << 20) + 1).unwrap();
    let one = answer(100_000).unwrap();
    assert!(answer(1000).is_ok(), "a small one needs no place");
    let refused = |bytes| answer(bytes).unwrap_err();
    assert_eq!(refused(100_000), PrometheusError::Read(ReadError::Busy));
    drop(one);
    assert_eq!(
        refused((8 << 20) + 1),
        PrometheusError::Read(ReadError::Busy)
    );
    drop(two);
    let all = answer(24 << 20).unwrap();
    drop(all);
    // It would never be possible.
    let too_large = refused((24 << 20) + 1);
    assert_eq!(too_large.status(), 422);
    assert!(too_large.to_string().contains("admin.answers_max"));
}

/// More series than a million, which were a limit once.
#[tokio::test]
async fn listings_of_many_series_are_whole_and_delay_nothing_else() {
    let store = catalogued(300, CATALOG_FIELDS_MAX).await;
    let promql = Promql {
        series_max: 10_000_000,
        // It is a query of the lowest priority, and other tests run.
        timeout: Duration::from_secs(600),
        ..Config::default().promql
    };
    let addr = serve(20, store.clone(), promql.clone()).await;
    let sites = success(addr, "label/site/values").await;
    assert_eq!(sites["data"].as_array().unwrap().len(), 300);
    assert!(sites["warnings"].is_null(), "{sites}");
    let listing =
        tokio::spawn(async move { success(addr, "series?match[]={site!=%22%22}&limit=1").await });
    let mut answered_meanwhile = 0;
    while !listing.is_finished() {
        let alive = get(addr, "/livez").await;
        assert!(alive.starts_with("HTTP/1.1 200"), "{alive}");
        answered_meanwhile += 1;
        // Leaves the processor to the listing, whose thread has a low priority.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // After a listing that holds the only thread, one or two come before the client has read it.
    assert!(
        answered_meanwhile > 5,
        "/livez waited for the listing: {answered_meanwhile} answers during it"
    );
    let found = listing.await.unwrap();
    assert_eq!(found["data"].as_array().unwrap().len(), 1);
    assert_eq!(found["data"][0]["sensor_id"], "S00000");
    assert_eq!(found["warnings"][0], "results truncated due to limit");
    let hurried = Promql {
        timeout: Duration::from_millis(30),
        ..promql
    };
    let addr = serve(4, store, hurried).await;
    let late = get(addr, "/prometheus/api/v1/series?match[]={site!=%22%22}").await;
    assert!(late.starts_with("HTTP/1.1 503"), "{late:.500}");
    assert!(
        late.contains("query timed out in expression"),
        "{late:.500}"
    );
}

#[tokio::test]
async fn a_list_of_series_has_the_limit_of_queries() {
    let promql = Promql {
        series_max: 5,
        ..Config::default().promql
    };
    let addr = serve(4, catalogued(3, 2).await, promql).await;
    let all = "series?match[]={site!=%22%22}";
    let refused = get(addr, &format!("/prometheus/api/v1/{all}")).await;
    assert!(refused.starts_with("HTTP/1.1 422"), "{refused}");
    assert!(refused.contains("promql.series_max"), "{refused}");
    let some = success(addr, &format!("{all}&limit=5")).await;
    assert_eq!(some["data"].as_array().unwrap().len(), 5);
    assert_eq!(some["warnings"][0], "results truncated due to limit");
    let twice = success(addr, "series?match[]=f00000&match[]=f00000").await;
    assert_eq!(twice["data"].as_array().unwrap().len(), 3);
    assert_eq!(
        success(addr, "labels").await["data"]
            .as_array()
            .unwrap()
            .len(),
        3
    );
}

#[tokio::test]
async fn fields_that_the_catalogue_does_not_record_cause_a_warning() {
    let addr = serve(
        4,
        catalogued(1, CATALOG_FIELDS_MAX + 1).await,
        Config::default().promql,
    )
    .await;
    for (path, warns) in [
        // These queries select no field: the test has no shard that could load samples.
        ("query?query={__name__=~%22nosuch.*%22}&time=1", true),
        (
            "query?query={__name__=~%22nosuch.*%22,site=%22x%22}&time=1",
            false,
        ),
        (
            "query?query={__name__=~%22a|b%22,__name__!=%22a%22,__name__!=%22b%22}&time=1",
            false,
        ),
        ("series?match[]=nosuchmetric", true),
        ("series?match[]=f00000", false),
        ("label/__name__/values", true),
        ("label/__name__/values?match[]=nosuchmetric", true),
        ("label/__name__/values?match[]=f00000", false),
        ("label/site/values", false),
        ("label/site/values?match[]=nosuchmetric", true),
        ("metadata", true),
        ("metadata?metric=nosuchmetric", true),
        ("metadata?metric=f00000", false),
    ] {
        let found = success(addr, path).await;
        let text = found["warnings"][0].as_str().unwrap_or_default();
        assert_eq!(
            text.contains("more than 4096 field"),
            warns,
            "{path}: {text}"
        );
        assert!(
            !found["data"].to_string().contains("nosuchmetric"),
            "{path}"
        );
    }
}

/// The head, in lower case, and the body, of an answer to a client that accepts this encoding.
async fn encoded(addr: SocketAddr, path: &str, accepted: &str) -> (String, Vec<u8>) {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let request =
        format!("GET {path} HTTP/1.0\r\nhost: localhost\r\naccept-encoding: {accepted}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).await.unwrap();
    let end = all.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let head = String::from_utf8_lossy(&all[..end]).to_lowercase();
    (head, all.split_off(end + 4))
}

#[tokio::test]
async fn large_answers_are_compressed_if_the_client_accepts_it() {
    let addr = serve(4, catalogued(2000, 1).await, Config::default().promql).await;
    let large = "/prometheus/api/v1/label/site/values";
    let (head, plain) = encoded(addr, large, "identity").await;
    assert!(!head.contains("content-encoding"), "{head}");
    assert!(plain.len() > 10_000, "{}", plain.len());
    for (accepted, coding) in [
        ("gzip", "gzip"),
        ("deflate, zstd;q=0.5, gzip;q=0.4", "zstd"),
    ] {
        let (head, packed) = encoded(addr, large, accepted).await;
        assert!(
            head.contains(&format!("content-encoding: {coding}")) && head.contains("vary:"),
            "{head}"
        );
        let mut unpacked = vec![];
        match coding {
            "gzip" => std::io::copy(&mut GzDecoder::new(&*packed), &mut unpacked).map(drop),
            _ => zstd::stream::copy_decode(&*packed, &mut unpacked),
        }
        .unwrap();
        assert_eq!(unpacked, plain, "{coding}");
        assert!(packed.len() < plain.len() / 2, "{coding}: {}", packed.len());
    }
    for small in ["/prometheus/api/v1/labels", "/livez"] {
        let (head, _) = encoded(addr, small, "gzip, zstd").await;
        assert!(
            head.contains(" 200 ") && !head.contains("encoding"),
            "{head}"
        );
    }
    // What is watched comes line by line.
    let mut tail = TcpStream::connect(addr).await.unwrap();
    let request = "GET /v1/tail HTTP/1.1\r\nhost: localhost\r\naccept-encoding: gzip\r\n\r\n";
    tail.write_all(request.as_bytes()).await.unwrap();
    let mut first = vec![];
    while !first.ends_with(b"\r\n\n\r\n") {
        let read = timeout(Duration::from_secs(60), tail.read_buf(&mut first)).await;
        assert!(read.unwrap().unwrap() > 0, "the stream ended");
    }
    let first = String::from_utf8(first).unwrap().to_lowercase();
    assert!(
        first.contains(" 200 ") && !first.contains("content-encoding"),
        "{first}"
    );
}

/// So `{"a.b"}` finds what a sender calls so.
#[tokio::test]
async fn names_are_found_as_they_were_sent() {
    let store = Arc::new(MemoryStore::new());
    let update = CatalogUpdate {
        sensor_id: "S1".into(),
        tags: Some((1000, [("http_status".to_owned(), "200".to_owned())].into())),
        fields: [("a_b".into(), FieldKinds::NUMBER)].into(),
        first_ts_ms: 1000,
        last_ts_ms: 1000,
        arrived_ms: 1000,
        created_ms: 0,
    };
    store.merge_catalog(&[&update]).await.unwrap();
    let addr = serve(4, store, Config::default().promql).await;
    for selector in [
        "{%22a.b%22}",
        "{%22a.b%22,%22http.status%22=%22200%22}",
        "{__name__=%22a.b%22}",
        "{%22http.status%22=~%222.*%22}",
        "a_b",
    ] {
        let found = success(addr, &format!("series?match[]={selector}")).await;
        assert_eq!(found["data"][0]["__name__"], "a_b", "{selector}: {found}");
    }
    let values = success(addr, "label/U__http_2e_status/values").await;
    assert_eq!(values["data"], json!(["200"]));
    let metadata = success(addr, "metadata?metric=a.b").await;
    assert_eq!(metadata["data"].as_object().unwrap().len(), 1);
}

#[tokio::test]
async fn what_a_prometheus_also_has_is_answered_in_its_form_and_without_secrets() {
    let addr = port(4).await;
    for (path, wanted) in [
        ("rules", json!({ "groups": [] })),
        ("alerts", json!({ "alerts": [] })),
        ("query_exemplars?query=temp&start=1&end=2", json!([])),
        (
            "targets?state=active",
            json!({ "activeTargets": [], "droppedTargets": [], "droppedTargetCounts": {} }),
        ),
        ("status/config", json!({ "yaml": "" })),
        (
            "status/walreplay",
            json!({ "min": 0, "max": 0, "current": 0 }),
        ),
    ] {
        assert_eq!(success(addr, path).await["data"], wanted, "{path}");
    }
    let flags = &success(addr, "status/flags").await["data"];
    assert_eq!(flags["query.lookback-delta"], "5m");
    assert!(flags.as_object().unwrap().values().all(Value::is_string));
    let info = &success(addr, "status/runtimeinfo").await["data"];
    assert!(
        info["startTime"].as_str() <= info["serverTime"].as_str(),
        "{info}"
    );
    let tsdb = &success(addr, "status/tsdb").await["data"];
    assert_eq!(tsdb["headStats"]["numSeries"], 0);
    for path in ["/prometheus", "/prometheus/"] {
        let answer = get(addr, path).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        assert!(answer.contains("/prometheus/api/v1"), "{answer}");
    }
    let wrong = get(addr, "/prometheus/api/v1/query_exemplars?start=x").await;
    assert!(wrong.starts_with("HTTP/1.1 400"), "{wrong}");
}
