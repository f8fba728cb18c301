//! What the commands print: nothing is lost without an error, and nothing harms a terminal or shows
//! a password.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Output, Stdio};

use mongodb::bson::{Binary, DateTime, Document, doc, spec::BinarySubtype};

use crate::support::mongod::{Mongod, unique_database};
use crate::support::seed::{START, Seed, page, readings};

fn command(dir: &tempfile::TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hourbucket"));
    command
        .args(arguments)
        .current_dir(dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Exit code and standard error.
fn ended(child: Child) -> (i32, String) {
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    let text = String::from_utf8(stderr).unwrap();
    (status.code().expect("it ends by itself"), text)
}

/// With standard output on a full disk.
fn on_full_disk(dir: &tempfile::TempDir, arguments: &[&str]) -> (i32, String) {
    let full = File::options().write(true).open("/dev/full").unwrap();
    ended(command(dir, arguments).stdout(full).spawn().unwrap())
}

#[test]
fn a_full_disk_is_an_error_of_every_command_that_prints() {
    let dir = tempfile::tempdir().unwrap();
    for arguments in [
        &["config-reference"][..],
        &["completions", "bash"],
        &["decode", "--list"],
        &["init", "config", "--case", "http", "--output", "-"],
    ] {
        let (code, text) = on_full_disk(&dir, arguments);
        assert_eq!(code, 1, "{arguments:?}: {text}");
        assert!(text.contains("standard output"), "{arguments:?}: {text}");
    }
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut decode = command(&dir, &["decode", "--format", "line"]);
    let mut child = decode.stdin(Stdio::piped()).stdout(full).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"m,sensor_id=A v=1\n").unwrap();
    drop(stdin);
    let (code, text) = ended(child);
    assert!(code == 1 && text.contains("standard output"), "{text}");
}

#[test]
fn a_secret_that_cannot_be_printed_is_an_error_that_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    for arguments in [
        ["tokens", "add", "a", "--file", "tokens.toml"],
        ["tokens", "rotate", "a", "--file", "tokens.toml"],
    ] {
        let (code, text) = on_full_disk(&dir, &arguments);
        assert_eq!(code, 1, "{text}");
        assert!(text.contains("hourbucket tokens rotate a"), "{text}");
    }
    // A closed pipe loses it as well.
    let mut child = command(&dir, &["tokens", "rotate", "a", "--file", "tokens.toml"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let (code, text) = ended(child.stdout(writer).spawn().unwrap());
    assert!(code == 1 && text.contains("is lost"), "{text}");
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let dir = tempfile::tempdir().unwrap();
    for format in [&["decode"][..], &["decode", "--format", "line"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut decode = command(&dir, format);
        let mut child = decode.stdin(Stdio::piped()).stdout(writer).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin
            .write_all(b"m,sensor_id=A v=1\nm,sensor_id=B v=1\n")
            .unwrap();
        drop(stdin);
        let (code, text) = ended(child);
        assert!(code == 0 && !text.contains("roken pipe"), "{text}");
    }
}

#[test]
fn an_invalid_option_of_store_uri_is_named_without_the_password() {
    let dir = tempfile::tempdir().unwrap();
    for (uri, named) in [
        (
            "mongodb://u:geheim@127.0.0.1:1/?replicaSte=rs0",
            "replicaste",
        ),
        (
            "mongodb://u:geheim@127.0.0.1:1/?tls=yes",
            "`tls` option must be a boolean",
        ),
        ("mongodb://u:ge@heim@127.0.0.1:1/", "%40"),
    ] {
        for (arguments, expected) in [("run", 78), ("check", 1), ("reconcile", 2)] {
            let mut command = command(&dir, &[arguments]);
            command.env("HOURBUCKET_STORE__URI", uri);
            let Output {
                status,
                stdout,
                stderr,
            } = command.output().unwrap();
            let text = String::from_utf8([stdout, stderr].concat()).unwrap();
            assert_eq!(status.code(), Some(expected), "{arguments}: {text}");
            assert!(text.contains(named) && !text.contains("heim"), "{text}");
        }
    }
}

/// Above 256 MiB of payloads.
#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_listed_to_the_last_one_however_large_they_are() {
    const LARGE: i64 = 18;
    let dir = tempfile::tempdir().unwrap();
    let uri = Mongod::shared().uri();
    let database = unique_database("list_large");
    let client = mongodb::Client::with_uri_str(&uri).await.unwrap();
    let dead = client.database(&database).collection("dead_letters");
    let binary = Binary {
        subtype: BinarySubtype::Generic,
        bytes: vec![b'x'; 15 << 20],
    };
    let mut found = doc! { "source": "http", "topic": "", "payload": binary, "reason": "too_old" };
    let now_ms = DateTime::now().timestamp_millis();
    for n in 0..LARGE {
        found.insert("received_at", DateTime::from_millis(now_ms + n));
        dead.insert_one(found.clone()).await.unwrap();
    }
    let mut list = command(&dir, &["dead-letters", "list"]);
    list.env("HOURBUCKET_STORE__URI", &uri)
        .env("HOURBUCKET_STORE__DATABASE", &database);
    let mut child = list.spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut buffer = vec![0; 1 << 20];
    let mut lines = 0;
    loop {
        let n = out.read(&mut buffer).unwrap();
        if n == 0 {
            break;
        }
        lines += buffer[..n].iter().filter(|byte| **byte == b'\n').count() as i64;
    }
    assert_eq!(ended(child), (0, String::new()));
    assert_eq!(lines, LARGE);
    // A full disk.
    let full = File::options().write(true).open("/dev/full").unwrap();
    let (code, text) = ended(list.stdout(full).spawn().unwrap());
    assert!(code == 2 && text.contains("standard output"), "{text}");
    client.database(&database).drop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn control_characters_of_senders_do_not_reach_the_terminal() {
    let seed = Seed::new("terminal").await;
    seed.native().await;
    let mut wrong = page("S\u{1b}[2J", START, 0, false, &readings(START, 0..3));
    wrong.insert("count", 7);
    seed.pages([wrong]).await;
    let found = doc! {
        "source": "mqtt", "topic": "t\u{1b}[2J", "reason": "no_subscription",
        // Not so old that the server removes it.
        "received_at": DateTime::now(),
        "payload": Binary { subtype: BinarySubtype::Generic, bytes: b"x".to_vec() },
    };
    let dead = seed.db.collection::<Document>("dead_letters");
    dead.insert_one(found).await.unwrap();
    let range = ["--from", "2024-03-01", "--to", "2024-03-02"];
    let convert = ["convert", "--into", "timeseries"];
    for (arguments, shown) in [
        (&["reconcile"][..], "S\\u{1b}[2J"),
        (&convert, "skipped: S\\u{1b}[2J"),
        (&["dead-letters", "replay"], "t\\u{1b}[2J: no_subscription"),
    ] {
        let range = match arguments[0] {
            "dead-letters" => &[][..],
            _ => &range,
        };
        let (code, out, err) = seed.run(&[arguments, range].concat());
        let text = out + &err;
        assert_eq!(code, 1, "{text}");
        assert!(text.contains(shown) && !text.contains('\u{1b}'), "{text:?}");
    }
}
