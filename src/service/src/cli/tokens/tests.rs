//! The commands on files, and what they refuse.

use clap::Parser;

use super::list::{list, read_last_used};
use super::*;
use net::access::LastUsed;

#[derive(Parser)]
struct Line {
    #[command(subcommand)]
    command: TokensCommand,
}

/// Runs a command line on a file; returns what it prints.
fn tokens(path: &Path, line: &str) -> Result<Vec<String>, String> {
    let words = ["tokens"].into_iter().chain(line.split_whitespace());
    let done = match Line::try_parse_from(words)
        .map_err(|error| error.to_string())?
        .command
    {
        TokensCommand::Add {
            id,
            certificate: true,
            rules,
            ..
        } => add_certificate(path, &id, &rules),
        TokensCommand::Add { id, rules, .. } => add(path, &id, &rules),
        TokensCommand::List {
            json,
            all,
            last_used,
            ..
        } => {
            let last_used = last_used
                .first()
                .and_then(|_| read_last_used(&last_used, None));
            list(path, json, all, last_used.as_ref())
        }
        TokensCommand::Revoke { id, .. } => revoke(path, &id),
        TokensCommand::Rotate { id, .. } => rotate(path, &id),
    };
    done.map_err(|error| error.to_string())
}

fn load(path: &Path) -> Tokens {
    Tokens::load(KEY, path, &GrantDefaults::unlimited()).unwrap()
}

fn of(path: &Path, printed: &str) -> Option<std::sync::Arc<net::access::Grant>> {
    load(path).of_text(printed).cloned()
}

#[test]
fn a_token_is_added_rotated_and_revoked_and_the_rest_of_the_file_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens.toml");
    let first = tokens(&path, "add gw1").unwrap().remove(0);
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert_eq!((&first[..4], first.len()), ("gw1.", 4 + 2 * SECRET_BYTES));
    let with_comment = format!(
        "# Ours.\n\n# Of gw1.\n{}",
        std::fs::read_to_string(&path).unwrap()
    );
    std::fs::write(&path, with_comment).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let line = "add gw2 --write {id}-* --write x --no-read --via mqtt --expires \
        2999-01-31T00:00:00Z --note n --rate 5";
    let second = tokens(&path, line).unwrap().remove(0);
    let grant = of(&path, &second).unwrap();
    assert!(
        grant.write.as_ref().unwrap().matches("gw2-1") && grant.read.as_ref().unwrap().is_none()
    );
    assert_eq!(
        (grant.via.http, grant.quota.readings_per_second),
        (false, Some(5))
    );
    let rotated = tokens(&path, "rotate gw2").unwrap().remove(0);
    assert!(rotated != second && of(&path, &second).is_none());
    assert!(
        of(&path, &rotated).unwrap().write.is_some(),
        "the rules stay"
    );
    tokens(&path, "revoke gw1").unwrap();
    assert!(of(&path, &first).is_none() && of(&path, &rotated).is_some());
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o640
    );
    assert_eq!(
        std::fs::read_dir(dir.path()).unwrap().count(),
        1,
        "no other file is left"
    );
    let third = tokens(&path, "add gw3").unwrap().remove(0);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(
        text.starts_with("# Ours.\n\n[[tokens]]\nid = \"gw2\"\n"),
        "{text}"
    );
    assert!(
        !text.contains(third.split_once('.').unwrap().1),
        "the secret is not kept"
    );
}

#[test]
fn the_list_shows_rules_and_no_hash() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens.toml");
    tokens(&path, "add gw1 --write a* --expires 2999-01-31").unwrap();
    tokens(&path, "add gw2").unwrap();
    let lines = tokens(&path, "list").unwrap();
    assert!(
        lines[0].starts_with("gw1 ") && lines[0].contains(r#"write = ["a*"]"#),
        "{lines:?}"
    );
    assert!(lines[0].contains(r#"expires = "2999-01-31""#), "{lines:?}");
    assert_eq!(
        lines[1].split_once(' ').map(|(id, rest)| (id, rest.trim())),
        Some(("gw2", "last_used = unknown"))
    );
    let json: serde_json::Value =
        serde_json::from_str(&tokens(&path, "list --json").unwrap()[0]).unwrap();
    let expected = serde_json::json!({"id": "gw1", "write": ["a*"], "expires": "2999-01-31", "last_used": null});
    assert_eq!(json[0], expected);
    assert_eq!(json[1], serde_json::json!({"id": "gw2", "last_used": null}));
}

#[test]
fn the_list_shows_when_each_token_was_last_used_of_several_services_the_newest() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let tokens_file = path("tokens.toml");
    tokens(&tokens_file, "add gw1").unwrap();
    tokens(&tokens_file, "add gw2").unwrap();
    let write = |name: &str, since_s, uses: &[(&str, i64)]| {
        let mut used = LastUsed::new(since_s);
        uses.iter().for_each(|(id, at_s)| used.set(id, *at_s));
        used.write(&path(name)).unwrap();
    };
    write(
        "one",
        1_700_000_000,
        &[("gw1", 1_763_856_000), ("gone", 1_763_856_060)],
    );
    write("two", 1_700_000_060, &[("gw1", 1_763_856_120)]);
    let one = path("one").display().to_string();
    let two = path("two").display().to_string();
    let json = |line: &str| -> serde_json::Value {
        serde_json::from_str(&tokens(&tokens_file, &format!("list --json {line}")).unwrap()[0])
            .unwrap()
    };
    let of_one = json(&format!("--last-used {one}"));
    let unused = serde_json::json!({"id": "gw2", "unused_since": "2023-11-14T22:13:20Z"});
    assert_eq!(
        of_one[0],
        serde_json::json!({"id": "gw1", "last_used": "2025-11-23T00:00:00Z"})
    );
    assert_eq!((&of_one[1], of_one.as_array().unwrap().len()), (&unused, 2));
    let of_both = json(&format!("--all --last-used {one} --last-used {two}"));
    assert_eq!(of_both[0]["last_used"], "2025-11-23T00:02:00Z");
    assert_eq!(of_both[1]["unused_since"], "2023-11-14T22:14:20Z");
    let gone =
        serde_json::json!({"id": "gone", "entry": false, "last_used": "2025-11-23T00:01:00Z"});
    assert_eq!(of_both[2], gone);
    // Half an answer could be taken for a whole one.
    assert_eq!(
        json(&format!(
            "--last-used {one} --last-used {}",
            path("none").display()
        ))[0]["last_used"],
        serde_json::Value::Null
    );
}

#[test]
fn an_entry_for_a_certificate_has_no_secret() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens.toml");
    assert_eq!(
        tokens(&path, "add device-7.example --certificate --write {id}/*").unwrap(),
        [""; 0]
    );
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(
        text.contains("certificate = true") && !text.contains("sha256"),
        "{text}"
    );
    assert!(
        load(&path)
            .grants()
            .any(|grant| &*grant.id == "device-7.example")
    );
    assert!(
        tokens(&path, "add device-7.example --certificate")
            .unwrap_err()
            .contains("exists")
    );
    assert!(
        tokens(&path, "add device* --certificate")
            .unwrap_err()
            .contains("id of a certificate")
    );
    assert!(
        tokens(&path, "rotate device-7.example")
            .unwrap_err()
            .contains("certificate")
    );
}

#[test]
fn a_change_that_cannot_be_is_refused_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens.toml");
    tokens(&path, "add gw1").unwrap();
    let before = std::fs::read_to_string(&path).unwrap();
    for (line, error) in [
        ("add gw1", "exists"),
        ("add gw.1", "id must be 1 to 64"),
        ("add gw2 --write **********", "`*`"),
        ("add gw2 --via coap", "via must be"),
        ("add gw2 --expires tomorrow", "--expires"),
        ("add gw2 --expires 2027-01-31T12:00:00", "expires must be"),
        ("add gw2 --write a --no-write", "cannot be used with"),
        ("revoke gw2", "no token with the id gw2"),
        ("rotate gw2", "no token with the id gw2"),
        ("revoke gw1", "gw1 is the last entry"),
    ] {
        let refused = tokens(&path, line).unwrap_err();
        assert!(refused.contains(error), "{line}: {refused}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), before, "{line}");
    }
    std::fs::write(&path, "[[tokens]]\nid = \"gw1\"\nsha256 = \"hunter2\"\n").unwrap();
    let refused = tokens(&path, "add gw2").unwrap_err();
    assert!(
        refused.contains("entry 1 (gw1)") && !refused.contains("hunter2"),
        "{refused}"
    );
    let none = dir.path().join("none.toml");
    assert!(
        tokens(&none, "revoke gw1")
            .unwrap_err()
            .contains("cannot open")
    );
    assert!(tokens(&none, "add gw.1").is_err() && !none.exists());
}

#[test]
fn an_add_that_fails_takes_the_file_from_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens.toml");
    // What a failing first `add` does, slowly: it makes the file, locks it, and removes it.
    let made = std::fs::File::create(&path).unwrap();
    flock(&made, FlockOperation::LockExclusive).unwrap();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| tokens(&path, "add gw1"));
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert!(!other.is_finished(), "it waits for the lock");
        std::fs::remove_file(&path).unwrap();
        drop(made);
        other.join().unwrap().unwrap();
    });
    assert_eq!(load(&path).len(), 1);
}

#[test]
fn what_a_killed_command_has_left_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens.toml");
    tokens(&path, "add a").unwrap();
    std::fs::write(dir.path().join(".tokens.toml.new"), "half").unwrap();
    tokens(&path, "add b").unwrap();
    assert_eq!(load(&path).len(), 2);
    let names = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(names, 1);
}

#[test]
fn commands_at_the_same_time_lose_no_change() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens.toml");
    std::thread::scope(|scope| {
        for n in 0..8 {
            let path = &path;
            scope.spawn(move || {
                for i in 0..5 {
                    tokens(path, &format!("add gw{n}-{i}")).unwrap();
                }
            });
        }
    });
    assert_eq!(load(&path).len(), 40);
}

#[test]
fn the_configured_file_need_not_exist_for_an_add() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens.toml");
    let settings = dir.path().join("hourbucket.toml");
    std::fs::write(&settings, format!("http.tokens_file = {path:?}\n")).unwrap();
    let file = TokensFile { file: None };
    let error = file.path(Some(&settings)).unwrap_err().to_string();
    assert!(error.contains("cannot be read"), "{error}");
    assert_eq!(file.new_path(Some(&settings)).unwrap(), path);
    add(&path, "gw1", &Rules::default()).unwrap();
    assert_eq!(file.path(Some(&settings)).unwrap(), path);
    // Other mistakes are still reported.
    std::fs::write(&settings, format!("http.tokens_file = {:?}\n", dir.path())).unwrap();
    let error = file.new_path(Some(&settings)).unwrap_err().to_string();
    assert!(error.contains("is a directory"), "{error}");
}
