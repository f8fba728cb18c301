//! Whole imports against a server that answers as the service does.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

use clap::Parser;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    import: Import,
}

/// Records the bodies; answers each with the next answer of the list, then accepts everything.
struct Server {
    addr: SocketAddr,
    requests: Arc<Mutex<Vec<(String, String)>>>,
}

fn serve(answers: &[(u16, &str)]) -> Server {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    let requests: Arc<Mutex<Vec<(String, String)>>> = Arc::default();
    let mut answers: Vec<(u16, String)> = answers
        .iter()
        .rev()
        .map(|(n, text)| (*n, (*text).to_owned()))
        .collect();
    let kept = requests.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut head = vec![String::new()];
            while stream.read_line(head.last_mut().unwrap()).unwrap() > 2 {
                head.push(String::new());
            }
            let length = head.iter().find_map(|h| {
                h.to_lowercase()
                    .strip_prefix("content-length: ")?
                    .trim()
                    .parse()
                    .ok()
            });
            let mut body = vec![0; length.unwrap()];
            stream.read_exact(&mut body).unwrap();
            let body = String::from_utf8(body).unwrap();
            let accepted = body.lines().count();
            kept.lock().unwrap().push((head[0].clone(), body));
            let all = (
                200,
                format!("{{\"accepted\":{accepted},\"rejected\":0,\"errors\":[]}}"),
            );
            let (status, text) = answers.pop().unwrap_or(all);
            let head = format!(
                "HTTP/1.1 {status} x\r\nretry-after: 0\r\nconnection: close\r\ncontent-length: {}",
                text.len()
            );
            stream
                .get_mut()
                .write_all(format!("{head}\r\n\r\n{text}").as_bytes())
                .unwrap();
        }
    });
    Server { addr, requests }
}

impl Server {
    fn options(&self, path: &Path, more: &[&str]) -> (Import, Client) {
        let url = format!("http://{}", self.addr);
        let arguments = [&["import", path.to_str().unwrap(), "--url", &url], more].concat();
        let options = Line::try_parse_from(arguments).unwrap().import;
        let client = Client::new(&options.service, self.addr, false, Some(REQUEST)).unwrap();
        (options, client)
    }

    fn import(&self, path: &Path, more: &[&str]) -> Result<State, ImportError> {
        let (options, client) = self.options(path, more);
        Run::start(&options, &client, path).and_then(Run::run)
    }

    fn bodies(&self) -> Vec<String> {
        self.requests
            .lock()
            .unwrap()
            .drain(..)
            .map(|(_, body)| body)
            .collect()
    }
}

fn file(dir: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn a_complete_file_is_not_sent_again_and_one_that_grew_only_from_there() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(&[]);
    let path = file(&dir, "a.ndjson", "{\"a\":1}\n{\"a\":2}\r\n{\"a\":3}");
    let state = server
        .import(
            &path,
            &["--batch", "2", "--ts-unit", "ms", "--sensor-id", "S 1"],
        )
        .unwrap();
    assert_eq!((state.accepted, state.lines, state.complete), (3, 2, true));
    let (head, body) = server.requests.lock().unwrap()[0].clone();
    assert!(
        head.contains("/v1/readings?import=true&format=ndjson&ts_unit=ms&sensor_id=S%201"),
        "{head}"
    );
    assert_eq!(
        (body.as_str(), server.bodies().len()),
        ("{\"a\":1}\n{\"a\":2}\n", 2)
    );
    // The last line had no end, so it may have been cut.
    std::fs::write(&path, "{\"a\":1}\n{\"a\":2}\r\n{\"a\":30}\n").unwrap();
    let options = ["--ts-unit", "ms", "--sensor-id", "S 1"];
    server.import(&path, &options).unwrap();
    assert_eq!(server.bodies(), ["{\"a\":30}\n"]);
    server.import(&path, &options).unwrap();
    assert!(server.bodies().is_empty());
    server
        .import(&path, &[&options[..], &["--restart"]].concat())
        .unwrap();
    assert_eq!(server.bodies().len(), 1);
}

#[test]
fn a_file_that_changed_or_was_cut_and_other_options_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(&[]);
    let path = file(&dir, "a.csv", "sensor_id,ts,t\nS1,1,1\nS1,2,2\n");
    server.import(&path, &[]).unwrap();
    assert!(matches!(
        server.import(&path, &["--decimal-comma"]),
        Err(ImportError::OtherOptions)
    ));
    for text in [
        "sensor_id,ts,t\nS1,1,1\n",
        "sensor_id,ts,t\nS1,1,7\nS1,2,2\n",
    ] {
        std::fs::write(&path, text).unwrap();
        assert!(matches!(
            server.import(&path, &[]),
            Err(ImportError::State(StateError::Changed))
        ));
    }
    server.import(&path, &["--restart"]).unwrap();
}

/// The other service has none of the readings, so a run that sends nothing would not be a success.
#[test]
fn a_file_that_was_sent_to_another_service_is_refused_until_restart() {
    let dir = tempfile::tempdir().unwrap();
    let first = serve(&[]);
    let second = serve(&[]);
    let path = file(&dir, "a.csv", "sensor_id,ts,t\nS1,1,1\n");
    first.import(&path, &[]).unwrap();
    let refused = second.import(&path, &[]).unwrap_err().to_string();
    let sent_to = format!("already sent to http://{}", first.addr);
    assert!(
        refused.contains(&sent_to) && refused.contains("--restart"),
        "{refused}"
    );
    first.import(&path, &[]).unwrap();
    second.import(&path, &["--restart"]).unwrap();
    assert_eq!(
        (first.bodies().len(), second.bodies().len()),
        (1, 1),
        "each service has got it once"
    );
}

#[test]
fn a_password_in_the_url_is_neither_recorded_nor_shown() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, "a.csv", "sensor_id,ts,t\nS1,1,1\n");
    let arguments = |url: &str| {
        let arguments = ["import", path.to_str().unwrap(), "--url", url];
        Line::try_parse_from(arguments).unwrap().import
    };
    let listen = SocketAddr::from(([127, 0, 0, 1], 80));
    for (url, recorded) in [
        ("http://u:p@h:80/x/", "http://h:80/x"),
        ("https://h/x@y", "https://h/x@y"),
        ("http://u:p@[::1]:80", "http://[::1]:80"),
        ("http://u:p@x@h:1", "http://h:1"),
    ] {
        let options = arguments(url);
        let client = Client::new(&options.service, listen, false, None).unwrap();
        assert_eq!(client.base(), recorded);
    }
    for url in [
        "http://u:geheim/x@h",
        "http://u:geheim?x@h",
        "u:geheim@h",
        "ftp://u:geheim@h",
    ] {
        let options = arguments(url);
        let error = Client::new(&options.service, listen, false, None).err();
        let text = error.unwrap().to_string();
        assert!(
            text.contains("--url: expected") && !text.contains("geheim"),
            "{text}"
        );
    }
    let server = serve(&[(401, "{}")]);
    for addr in [server.addr, SocketAddr::from(([127, 0, 0, 1], 1))] {
        let mut options = arguments(&format!("http://u:geheim@{addr}"));
        options.patience = Duration::from_millis(10);
        let client = Client::new(&options.service, listen, false, None).unwrap();
        let run = Run::start(&options, &client, &path).and_then(Run::run);
        let text = run.unwrap_err().to_string();
        assert!(
            text.contains(&addr.to_string()) && !text.contains("geheim"),
            "{text}"
        );
        std::fs::remove_file(dir.path().join("a.csv.import")).unwrap();
    }
}

#[test]
fn a_service_that_asks_for_no_wait_is_not_asked_again_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(&[(429, "{}"), (429, "{}"), (429, "{}")]);
    let path = file(&dir, "a.lp", "a v=1 1\n");
    let since = Instant::now();
    server.import(&path, &[]).unwrap();
    assert!(since.elapsed() >= Duration::from_millis(100 + 200 + 400));
    let server = serve(&[(429, "{}"); 20]);
    let options = ["--restart", "--patience", "500ms"];
    server.import(&path, &options).unwrap_err();
    assert_eq!(server.bodies().len(), 3);
}

#[test]
fn rejects_are_counted_by_reason_with_the_first_line_by_service_and_client() {
    let answer = r#"{"accepted":1,"rejected":2,"errors":[{"index":1,"reason":"too_old","detail":"x"},{"index":2,"reason":"too_old","detail":"y"}]}"#;
    let dir = tempfile::tempdir().unwrap();
    let server = serve(&[(200, answer)]);
    let path = file(
        &dir,
        "a.csv",
        "sensor_id,ts,t\nS1,1,1\nS1,2\nS1,3,2\nS1,4,2\n",
    );
    let state = server.import(&path, &[]).unwrap();
    let text = state.summary(&path);
    assert!(
        text.contains("1 readings accepted") && text.contains("3 rejected"),
        "{text}"
    );
    assert!(
        text.contains("2 too_old, first on line 4: x")
            && text.contains("1 wrong_columns, first on line 3"),
        "{text}"
    );
}

#[test]
fn each_run_counts_its_own_records_and_reads_a_last_line_without_an_end_again() {
    let reject = |accepted: u64, index: u64| {
        format!(
            r#"{{"accepted":{accepted},"rejected":1,"errors":[{{"index":{index},"reason":"invalid_json","detail":"cut"}}]}}"#
        )
    };
    let dir = tempfile::tempdir().unwrap();
    let server = serve(&[(200, reject(1, 1).as_str()), (400, reject(0, 0).as_str())]);
    let path = file(&dir, "a.ndjson", "{\"a\":1}\n{\"a\":");
    let run = || {
        let text = server.import(&path, &[]).unwrap().summary(&path);
        let (_, counts) = text.split_once(": ").unwrap();
        counts.replace(" (those already stored included)", "")
    };
    let cut = "1 rejected\n  1 invalid_json, first on line 2: cut\n  \
               line 2 has no line end; the next run reads it again";
    assert_eq!(run(), format!("2 lines: 1 readings accepted, {cut}"));
    assert_eq!(
        run(),
        format!("1 lines after line 1: 0 readings accepted, {cut}")
    );
    server.bodies();
    std::fs::write(&path, "{\"a\":1}\n{\"a\":2}\n{\"a\":3}").unwrap();
    let open_end = "0 rejected\n  line 3 has no line end; the next run reads it again";
    assert_eq!(
        run(),
        format!("2 lines after line 1: 2 readings accepted, {open_end}")
    );
    assert_eq!(server.bodies(), ["{\"a\":2}\n{\"a\":3}\n"]);
    assert_eq!(
        run(),
        format!("1 lines after line 2: 1 readings accepted, {open_end}")
    );
    std::fs::write(&path, "{\"a\":1}\n{\"a\":2}\n{\"a\":3}\n").unwrap();
    run();
    assert_eq!(
        run(),
        "0 lines after line 3: 0 readings accepted, 0 rejected"
    );
}

#[test]
fn a_row_that_was_cut_is_read_as_a_whole_when_the_file_has_grown() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(&[]);
    let cut = "sensor_id,ts,t\nS1,1,1\nS1,2,2";
    let path = file(&dir, "a.csv", cut);
    let state = server.import(&path, &[]).unwrap();
    assert_eq!((state.accepted, state.lines, state.last_line), (2, 2, 3));
    server.bodies();
    std::fs::write(&path, format!("{cut}5\nS1,3,3\n")).unwrap();
    let state = server.import(&path, &[]).unwrap();
    assert!(state.rejected.is_empty(), "{:?}", state.rejected);
    assert_eq!((state.accepted, state.lines, state.last_line), (2, 4, 4));
    let bodies = server.bodies();
    let values: Vec<serde_json::Value> = bodies[0]
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["values"].clone())
        .collect();
    assert_eq!(
        values,
        [serde_json::json!({"t": 25}), serde_json::json!({"t": 3})]
    );
}

#[test]
fn the_counts_of_an_interrupted_run_go_on_until_they_are_reported() {
    let one = r#"{"accepted":1,"rejected":0,"errors":[]}"#;
    let dir = tempfile::tempdir().unwrap();
    let server = serve(&[(200, one), (401, "{}")]);
    let path = file(&dir, "a.csv", "sensor_id,ts,t\nS1,1\nS1,2,2\nS1,3,3\n");
    server.import(&path, &["--batch", "1"]).unwrap_err();
    let state = server.import(&path, &[]).unwrap();
    assert_eq!(
        (state.accepted, state.counted_after, state.last_line),
        (2, 0, 4)
    );
    assert_eq!(state.rejected["wrong_columns"].records, 1);
    assert!(server.import(&path, &[]).unwrap().rejected.is_empty());
}

#[test]
fn a_second_import_of_a_file_is_refused_while_the_first_one_runs() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(&[]);
    let path = file(&dir, "a.ndjson", "{\"a\":1}\n");
    let (options, client) = server.options(&path, &[]);
    let first = Run::start(&options, &client, &path).unwrap();
    for more in [&[][..], &["--restart"]] {
        let error = server.import(&path, more).unwrap_err().to_string();
        assert!(error.contains("another import of this file"), "{error}");
    }
    assert_eq!(first.run().unwrap().accepted, 1);
    assert_eq!(server.import(&path, &[]).unwrap().accepted, 0);
    assert_eq!(server.bodies().len(), 1);
}

#[test]
fn files_with_one_name_are_imported_with_one_directory_of_states() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(&[]);
    let states = dir.path().display().to_string();
    let options = ["--state-dir", &states];
    for _ in 0..2 {
        for name in ["a", "b"] {
            let path = dir.path().join(name).join("d.lp");
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, format!("{name} v=1 1\n")).unwrap();
            server.import(&path, &options).unwrap();
        }
    }
    assert_eq!(server.bodies(), ["a v=1 1\n", "b v=1 1\n"]);
}

#[test]
fn a_file_that_cannot_be_read_gets_no_state_and_a_damaged_state_can_be_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(&[]);
    server.import(&dir.path().join("a.lp"), &[]).unwrap_err();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    let path = file(&dir, "a.lp", "a v=1 1\n");
    file(&dir, "a.lp.import", "{");
    let error = server.import(&path, &[]).unwrap_err().to_string();
    assert!(error.contains("use --restart"), "{error}");
    assert_eq!(server.import(&path, &["--restart"]).unwrap().accepted, 1);
}

#[test]
fn a_busy_service_is_asked_again_a_large_batch_is_halved_and_a_refusal_ends_the_import() {
    let answers = [
        (429, "{\"error\":{\"detail\":\"busy\"}}"),
        (413, ""),
        (503, "stopping"),
    ];
    let dir = tempfile::tempdir().unwrap();
    let server = serve(&answers);
    let path = file(&dir, "a.lp", "# c\na v=1 1\nb v=1 1\nc v=1 1\n");
    assert_eq!(server.import(&path, &[]).unwrap().accepted, 3);
    let all = "a v=1 1\nb v=1 1\nc v=1 1\n";
    assert_eq!(
        server.bodies(),
        [all, all, "a v=1 1\n", "a v=1 1\n", "b v=1 1\nc v=1 1\n"]
    );
    let server = serve(&[(401, "{\"error\":{\"detail\":\"token missing\"}}")]);
    let error = server
        .import(&path, &["--restart"])
        .unwrap_err()
        .to_string();
    assert!(error.contains("401: token missing"), "{error}");
    let nothing = Server {
        addr: SocketAddr::from(([127, 0, 0, 1], 1)),
        requests: Arc::default(),
    };
    let error = nothing
        .import(&path, &["--restart", "--patience", "10ms"])
        .unwrap_err()
        .to_string();
    assert!(error.contains("gave up"), "{error}");
}

#[test]
fn a_record_or_payload_that_is_too_large_is_named_with_the_services_reason() {
    let too_large = (
        413,
        "{\"error\":{\"detail\":\"more than the journal holds\"}}",
    );
    let dir = tempfile::tempdir().unwrap();
    for (name, expected) in [
        ("a.lp", "the record of line 2 is too large"),
        ("a.json", "the file, which is one payload, is too large"),
    ] {
        let server = serve(&[too_large]);
        let path = file(&dir, name, "# c\na v=1 1\n");
        let error = server.import(&path, &[]).unwrap_err().to_string();
        assert_eq!(
            error,
            format!("{expected} for the service: more than the journal holds")
        );
    }
}

#[test]
fn a_file_in_another_format_is_one_payload_or_one_per_line() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(&[]);
    let path = file(&dir, "a.json", "[{\"a\":1},\n{\"a\":2}]\n");
    server.import(&path, &[]).unwrap();
    server.import(&path, &[]).unwrap();
    assert_eq!(server.bodies(), ["[{\"a\":1},\n{\"a\":2}]\n"]);
    // It has grown: no part of it is a payload.
    let grown = "[{\"a\":1},\n{\"a\":2}]\n{\"a\":3}";
    std::fs::write(&path, grown).unwrap();
    let state = server.import(&path, &[]).unwrap();
    assert_eq!(
        (state.accepted, state.counted_after, state.last_line),
        (3, 0, 3)
    );
    let state = server.import(&path, &[]).unwrap();
    assert_eq!((state.accepted, state.lines), (0, 3));
    assert_eq!(server.bodies(), [grown]);
    let path = file(&dir, "up.jsonl", "{\"a\":1}\n{\"a\":2}\n");
    server
        .import(&path, &["--format", "ttn-v3", "--per-line"])
        .unwrap();
    assert_eq!(server.bodies(), ["{\"a\":1}\n", "{\"a\":2}\n"]);
    let error = server
        .import(&file(&dir, "a.dat", "x"), &[])
        .unwrap_err()
        .to_string();
    assert!(error.contains("--format"), "{error}");
}

#[test]
fn compressed_files_that_end_early_are_an_error_with_what_was_read_kept() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(&[]);
    let mut gzip = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
    let lines: String = (0..20_000)
        .map(|n| format!("{{\"n\":{}}}\n", n * 7919 % 10_007))
        .collect();
    gzip.write_all(lines.as_bytes()).unwrap();
    let bytes = gzip.finish().unwrap();
    let path = dir.path().join("a.ndjson.gz");
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let error = server.import(&path, &[]).unwrap_err().to_string();
    assert!(
        error.starts_with("after line ") && !error.starts_with("after line 0:"),
        "{error}"
    );
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(
        server.import(&path, &["--restart"]).unwrap().accepted,
        20_000
    );
}

#[test]
fn a_payload_above_the_limit_is_an_error_and_nothing_of_it_is_sent() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(&[]);
    let path = dir.path().join("a.json");
    let sparse = std::fs::File::create(&path).unwrap();
    sparse.set_len(PAYLOAD_BYTES_MAX + 4).unwrap();
    let error = server.import(&path, &[]).unwrap_err().to_string();
    assert!(error.contains("of at most 512 MiB"), "{error}");
    assert!(server.bodies().is_empty());
    // The size of a compressed file is not known before.
    let text = zstd::encode_all(&b"[{\"a\":1}]"[..], 1).unwrap();
    for (name, bytes) in [("b.json", &b"[{\"a\":1}]"[..]), ("b.json.zst", &text)] {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let (options, client) = server.options(&path, &[]);
        let run = Run::start(&options, &client, &path).unwrap();
        assert_eq!(run.payload_within(9).unwrap().1.len(), 9);
        let error = run.payload_within(8).unwrap_err();
        assert!(matches!(error, ImportError::PayloadBytes(8)), "{error}");
    }
}

#[test]
fn the_rows_before_a_fault_are_sent_before_it_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(&[]);
    let long = "x".repeat(2 << 20);
    let text = format!("sensor_id,ts,t\nS1,1,1\nS1,2,2\nS1,3,{long}\nS1,4,4\n");
    let path = file(&dir, "a.csv", &text);
    let error = server.import(&path, &[]).unwrap_err().to_string();
    assert!(error.contains("line 4: a row of more than"), "{error}");
    let bodies = server.bodies();
    assert_eq!((bodies.len(), bodies[0].lines().count()), (1, 2));
    // The next run begins after them.
    server.import(&path, &[]).unwrap_err();
    assert!(server.bodies().is_empty());
}

/// Imports a file that changes after it was opened; returns the error.
fn import_while(path: &Path, change: impl FnOnce()) -> (String, Server) {
    let server = serve(&[]);
    let (options, client) = server.options(path, &["--batch", "1"]);
    let run = Run::start(&options, &client, path).unwrap();
    change();
    (run.run().unwrap_err().to_string(), server)
}

#[test]
fn a_file_that_is_replaced_while_it_is_read_leaves_no_state_for_the_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let old = "sensor_id,ts,t\nS1,1,1\nS1,2,2\n";
    let new = "sensor_id,ts,t\nS1,7,7\nS1,8,8\nS1,9,9\n";
    let path = file(&dir, "a.csv", old);
    let at = path.clone();
    let (error, server) = import_while(&path, move || {
        let other = at.with_extension("new");
        std::fs::write(&other, new).unwrap();
        std::fs::rename(&other, &at).unwrap();
    });
    assert!(
        error.contains("another file has taken its place"),
        "{error}"
    );
    assert_eq!(server.bodies().len(), 2, "the old file");
    assert_eq!(server.import(&path, &[]).unwrap().accepted, 3);
    assert!(server.bodies()[0].contains("\"t\":7"));

    let path = file(&dir, "b.csv", old);
    let at = path.clone();
    let (error, server) = import_while(&path, move || std::fs::write(&at, new).unwrap());
    assert!(error.contains("it was overwritten"), "{error}");
    server.bodies();
    assert_eq!(server.import(&path, &[]).unwrap().accepted, 3);
    assert!(server.bodies()[0].contains("\"t\":7"));
}
