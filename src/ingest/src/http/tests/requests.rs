//! What is the same on every path that accepts readings.

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::rig::{Answer, Request, Rig, post};
use crate::http::routes::WRITE_ROUTES;

/// Every path that accepts readings, and a content type that it accepts.
fn write_paths() -> impl Iterator<Item = (String, &'static str)> {
    WRITE_ROUTES.into_iter().map(|route| {
        let path = route.replace("{format}", "json").replace("{token}", "D1");
        let content_type = match route {
            "/api/v1/write" => "application/x-protobuf",
            _ => "application/json",
        };
        (path, content_type)
    })
}

fn empty_post(path: &str, content_type: &str) -> Request {
    post("").to(path).header("content-type", content_type)
}

#[tokio::test]
async fn a_post_whose_head_has_no_length_is_411_on_every_path() {
    let mut rig = Rig::new(|_| {}).await;
    for (path, content_type) in write_paths() {
        let head = empty_post(&path, content_type).head();
        let old = head.replace("HTTP/1.1", "HTTP/1.0");
        for head in [head, old] {
            let mut stream = TcpStream::connect(rig.addr).await.unwrap();
            let bytes = format!("{head}\r\ntemp,sensor_id=S1 v=21.5\n");
            stream.write_all(bytes.as_bytes()).await.unwrap();
            let answer = Answer::read(&mut stream).await.expect("no answer");
            assert_eq!(answer.status, 411, "{path}: {}", answer.text);
            assert!(answer.text.contains("Content-Length"), "{}", answer.text);
        }
        let empty = empty_post(&path, content_type).send(rig.addr).await;
        assert_ne!(empty.status, 411, "{path}");
        let chunked = empty_post(&path, content_type).send_chunked(rig.addr).await;
        assert_eq!(chunked.status, empty.status, "{path}");
    }
    for (path, member) in [
        ("/write", "error"),
        ("/api/v2/write", "message"),
        ("/api/v3/write_lp", "error"),
    ] {
        let mut stream = TcpStream::connect(rig.addr).await.unwrap();
        let head = post("").to(path).head() + "\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        let answer = Answer::read(&mut stream).await.expect("no answer").json();
        let text = answer[member].as_str().unwrap();
        assert!(text.contains("Content-Length"), "{answer}");
    }
    rig.nothing_came();
}

/// Vector and load balancers ask so whether they may send.
#[tokio::test]
async fn get_and_head_are_a_health_check_on_every_path() {
    let mut rig = Rig::new(|_| {}).await;
    for (path, _) in write_paths() {
        for method in ["GET", "HEAD"] {
            let request = post("").method(method).to(&path);
            let answer = request.send(rig.addr).await;
            assert_eq!(answer.status, 200, "{method} {path}: {}", answer.text);
        }
    }
    rig.admission_control.full(true);
    for (path, _) in write_paths().filter(|(path, _)| !path.contains("hooks")) {
        let answer = post("").method("GET").to(&path).send(rig.addr).await;
        assert!(
            matches!(answer.status, 429 | 503),
            "{path}: {}",
            answer.text
        );
    }
    rig.nothing_came();
}

#[tokio::test]
async fn a_slash_at_the_end_of_a_path_changes_nothing() {
    let rig = Rig::new(|_| {}).await;
    for (path, content_type) in write_paths() {
        let plain = empty_post(&path, content_type).send(rig.addr).await;
        let request = empty_post(&format!("{path}/"), content_type);
        let answer = request.send(rig.addr).await;
        assert_eq!(
            (answer.status, answer.text),
            (plain.status, plain.text),
            "{path}/"
        );
        let foreign = request.header("origin", "http://elsewhere.example");
        let plain = empty_post(&path, content_type).header("origin", "http://elsewhere.example");
        let answer = foreign.send(rig.addr).await;
        let plain = plain.send(rig.addr).await;
        assert_eq!((answer.status, answer.text), (403, plain.text), "{path}/");
    }
}
