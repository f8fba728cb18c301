//! The files in `deploy/` fit the service: their configurations load, the variables and ports in
//! the manifests exist, stop timeouts are long enough, copies are equal. The manifests are read as
//! text; `tests/deploy.sh` checks them with the schemas and tools of Docker, Kubernetes and
//! systemd.

#![allow(clippy::unwrap_used, reason = "what a helper cannot do fails the test")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use config::{Config, StoreMode, parse_duration};
use hourbucket::shutdown::ExitReason;
use telemetry::catalog::METRICS;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const COMPOSE: &str = "deploy/compose.yaml";
const UNIT: &str = "deploy/systemd/hourbucket.service";
const STATEFUL_SET: &str = "deploy/kubernetes/base/statefulset.yaml";

fn text(path: &str) -> String {
    std::fs::read_to_string(Path::new(ROOT).join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Lines without comments.
fn lines(path: &str) -> Vec<String> {
    let code = |line: &str| {
        line.split(" #")
            .next()
            .unwrap_or_default()
            .trim_end()
            .to_owned()
    };
    text(path)
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .map(code)
        .collect()
}

/// The rest of the lines that begin with `key`, without spaces and dashes.
fn values(path: &str, key: &str) -> Vec<String> {
    let value = |line: &String| {
        line.trim_start_matches([' ', '-'])
            .strip_prefix(key)
            .map(|v| v.trim().to_owned())
    };
    lines(path).iter().filter_map(value).collect()
}

#[track_caller]
fn value(path: &str, key: &str) -> String {
    let mut found = values(path, key);
    assert_eq!(found.len(), 1, "{path}: {key} {found:?}");
    found.remove(0)
}

/// Loads a shipped configuration with the variables of its manifest; secrets are files of this
/// test.
fn load(path: &str, secrets_at: &str, variables: &[(&str, &str)]) -> Config {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().display().to_string();
    for (name, content) in [
        ("tokens.toml", "[[tokens]]\nid = \"a\"\nsha256 = \"0\"\n"),
        ("mqtt_password", "x"),
        ("mqtt-password", "x"),
        ("mongodb-uri", "mongodb://u:p@mongodb/?replicaSet=rs0"),
        ("mongodb_uri", "mongodb://u:p@mongodb/?replicaSet=rs0"),
        ("forward_token", "site.x"),
    ] {
        std::fs::write(dir.path().join(name), content).unwrap();
    }
    let file = dir.path().join("hourbucket.toml");
    std::fs::write(&file, text(path).replace(secrets_at, &at)).unwrap();
    let variables = variables
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.replace(secrets_at, &at)));
    config::load(Some(&file), variables)
        .unwrap_or_else(|e| panic!("{path}:\n{e}"))
        .config
}

fn compose() -> Config {
    let uri = value(COMPOSE, "HOURBUCKET_STORE__URI_FILE:");
    load(
        "deploy/compose/hourbucket.toml",
        "/run/secrets",
        &[("HOURBUCKET_STORE__URI_FILE", &uri)],
    )
}

fn edge() -> Config {
    load("deploy/compose/edge.toml", "/run/secrets", &[])
}

fn kubernetes() -> Config {
    let path = "deploy/kubernetes/base/hourbucket.toml";
    let variables = [
        (
            "HOURBUCKET_STORE__URI_FILE",
            "/etc/hourbucket/secrets/mongodb-uri",
        ),
        ("HOURBUCKET_MQTT__0__CLIENT_ID", "hourbucket-0"),
        (
            "HOURBUCKET_MQTT__0__STATUS_TOPIC",
            "hourbucket/hourbucket-0/status",
        ),
    ];
    let named = |name: &str| text(STATEFUL_SET).contains(&format!("name: {name}\n"));
    assert!(
        variables.iter().all(|(name, _)| named(name)),
        "the variables of {STATEFUL_SET}"
    );
    load(path, "/etc/hourbucket/secrets", &variables)
}

/// It forwards to the centre of the same file, within that file's network.
#[test]
fn the_edge_of_a_site_forwards_to_the_centre() {
    let edge = edge();
    let centre = compose();
    let port = centre.http.listen.port();
    assert_eq!(edge.forward.url, Some(format!("http://hourbucket:{port}")));
    let [tls, forward] = &edge.warnings()[..] else {
        panic!("{:?}", edge.warnings());
    };
    assert!(tls.starts_with("http.tls.cert_file is not set"), "{tls}");
    assert!(forward.starts_with("forward.url is http://"), "{forward}");
    assert_eq!(edge.journal.dir, centre.journal.dir);
    assert!(!edge.http.allow_anonymous && edge.http.tokens_file.is_some());
    let setup = text("deploy/compose/setup.sh");
    assert!(setup.contains("id = \"site\"") && setup.contains("forward = true"));
}

/// Its first line names the schema, for editors.
#[test]
fn the_schema_is_shipped_beside_the_settings() {
    assert!(text("config/hourbucket.toml").starts_with("#:schema ./hourbucket.schema.json\n"));
    for path in ["src/service/Cargo.toml", "deploy/docker/Dockerfile"] {
        let count = |name: &str| text(path).matches(&format!("config/{name}")).count();
        assert_eq!(
            (count("hourbucket.toml"), count("hourbucket.schema.json")),
            (1, 1),
            "{path}"
        );
    }
}

#[test]
fn shipped_configurations_load_without_a_warning() {
    for config in [compose(), kubernetes()] {
        // In both, TLS is terminated before the service: docs/deploy.md.
        let of_tls = |warning: &String| warning.starts_with("http.tls.cert_file is not set");
        let warnings: Vec<String> = config
            .warnings()
            .into_iter()
            .filter(|warning| !of_tls(warning))
            .collect();
        assert_eq!(warnings, Vec::<String>::new());
        assert!(!config.http.listen.ip().is_loopback() && config.http.tokens_file.is_some());
        assert!(!config.http.allow_anonymous);
        assert_eq!(config.store.write_concern, "majority");
        assert_eq!(
            config.journal.dir,
            Path::new("/var/lib/hourbucket/journal"),
            "on the volume"
        );
        assert!(
            config
                .mqtt
                .iter()
                .all(|mqtt| mqtt.password_file.is_some() && !mqtt.clean_start)
        );
    }
    let shared = kubernetes();
    assert!(
        shared.mqtt[0]
            .subscriptions
            .iter()
            .all(|s| s.filter.starts_with("$share/"))
    );
    assert_eq!(
        shared.store.mode,
        StoreMode::Bucket,
        "several instances on one sensor"
    );
}

/// Every text file of ours below a directory.
fn files(dir: PathBuf) -> Vec<PathBuf> {
    let mut found = vec![];
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        match entry.path() {
            path if path.ends_with("secrets") || path.ends_with("__pycache__") => {}
            path if path.is_dir() => found.extend(files(path)),
            path => found.push(path),
        }
    }
    found
}

#[test]
fn deploy_holds_only_what_ships() {
    let mut developer_files = vec![];
    for path in files(Path::new(ROOT).join("deploy")) {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        if text.contains("tests/tools/") {
            developer_files.push(path.strip_prefix(ROOT).unwrap().display().to_string());
        }
    }
    developer_files.sort();
    // A user runs the demo first, and release.sh builds the shipped files.
    assert_eq!(
        developer_files,
        ["deploy/demo.sh", "deploy/release.sh"],
        "what installs test servers is in tests/tools"
    );
}

#[test]
fn every_variable_names_a_key() {
    let known = config::known_keys();
    let mut paths = files(Path::new(ROOT).join("deploy"));
    paths.extend(files(Path::new(ROOT).join("tests/tools")));
    paths.push(Path::new(ROOT).join("docs/deploy.md"));
    let mut seen = 0;
    for path in paths {
        let Ok(text) = std::fs::read_to_string(&path) else {
            continue;
        };
        for (at, _) in text.match_indices("HOURBUCKET_") {
            let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
            let name: String = text[at..].chars().take_while(|c| is_name(*c)).collect();
            // Variables without a double underscore are for the scripts.
            if !name.contains("__") {
                continue;
            }
            seen += 1;
            let key = |name: &str| {
                let steps = name["HOURBUCKET_".len()..]
                    .split("__")
                    .filter(|step| step.parse::<u32>().is_err());
                steps.map(str::to_lowercase).collect::<Vec<_>>().join(".")
            };
            let is_known = |name: &str| known.contains(&key(name));
            let good = is_known(&name) || name.strip_suffix("_FILE").is_some_and(is_known);
            // The password belongs to the environment, not to a settings file.
            let good = good || key(&name).starts_with("mqtt.password");
            assert!(
                good,
                "{}: {name} is not a key ({})",
                path.display(),
                key(&name)
            );
        }
    }
    assert!(seen > 8, "{seen}");
}

#[test]
fn ports_are_those_of_the_configurations() {
    let compose = compose();
    let kubernetes = kubernetes();
    let default = Config::default();
    let published = values(COMPOSE, "\"127.0.0.1:");
    for config in [&compose, &kubernetes, &default] {
        assert_eq!(
            (config.http.listen.port(), config.admin.listen.port()),
            (8080, 8081)
        );
    }
    for port in [8080, 8081] {
        assert!(
            published.contains(&format!("{port}:{port}\"")),
            "{COMPOSE}: {port} of {published:?}"
        );
        assert!(
            values(STATEFUL_SET, "containerPort:").contains(&port.to_string()),
            "{STATEFUL_SET}: {port}"
        );
        assert!(value("deploy/docker/Dockerfile", "EXPOSE").contains(&port.to_string()));
        assert!(
            values("deploy/kubernetes/base/services.yaml", "port:").contains(&port.to_string())
        );
    }
    assert!(
        text("deploy/prometheus/prometheus.yml").contains("hourbucket:8081"),
        "the target in compose"
    );
    // Ports are published on loopback only: readings without encryption, metrics and Grafana's
    // login must not be reachable from the network.
    assert!(
        lines(COMPOSE)
            .iter()
            .filter(|l| l.trim_start().starts_with("ports:") && l.contains('['))
            .all(|l| l.contains("127.0.0.1:"))
    );
}

#[test]
fn the_service_is_not_killed_while_it_drains() {
    let after = |deadline: Duration, limit: &str| {
        let limit = parse_duration(limit).unwrap_or_else(|| panic!("{limit} is not a duration"));
        assert!(
            limit >= deadline + Duration::from_secs(10),
            "{limit:?} for {deadline:?}"
        );
    };
    let graces = values(COMPOSE, "stop_grace_period:");
    assert!(graces.contains(&"45s".to_owned()), "{graces:?}");
    after(compose().shutdown.deadline, "45s");
    let seconds = |key: &str| value(STATEFUL_SET, key).parse::<u64>().unwrap();
    let left = seconds("terminationGracePeriodSeconds:") - seconds("seconds:");
    after(kubernetes().shutdown.deadline, &format!("{left}s"));
    after(
        Config::default().shutdown.deadline,
        &value(UNIT, "TimeoutStopSec="),
    );
}

#[test]
fn the_unit_knows_the_exit_codes() {
    assert_eq!(
        value(UNIT, "SuccessExitStatus="),
        ExitReason::Unstored { left: 1 }.exit_code().to_string()
    );
    // tests/servers/service_manager.rs checks that the binary ends with it.
    assert_eq!(value(UNIT, "RestartPreventExitStatus="), "78");
}

#[test]
fn the_journal_fits_its_volume() {
    let claim = value(STATEFUL_SET, "storage:");
    let gib: u64 = claim.strip_suffix("Gi").unwrap().parse().unwrap();
    let config = kubernetes();
    // There may be one more segment for a moment.
    assert!(
        config.journal.max_bytes + config.journal.segment_bytes <= gib << 30,
        "{claim}"
    );
}

#[test]
fn metrics_that_scale_exist() {
    for path in [
        "deploy/kubernetes/components/autoscale/hpa.yaml",
        "deploy/kubernetes/components/autoscale/adapter-rule.yaml",
    ] {
        let text = text(path);
        let names = text
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .filter(|w| w.starts_with("hourbucket_"));
        let names: Vec<&str> = names.collect();
        assert!(!names.is_empty(), "{path}");
        for name in names {
            let is_ours = METRICS.iter().any(|metric| metric.name == name);
            assert!(is_ours, "{path}: {name} is not a metric");
        }
    }
}

#[test]
fn alert_rules_are_the_same_everywhere() {
    let rules = text("deploy/prometheus/rules/hourbucket.yml");
    let indented: String = rules
        .lines()
        .map(|line| {
            if line.is_empty() {
                "\n".to_owned()
            } else {
                format!("  {line}\n")
            }
        })
        .collect();
    let copy = text("deploy/kubernetes/components/monitoring/rules.yaml");
    let (_, spec) = copy.split_once("\nspec:\n").unwrap();
    assert!(spec == indented, "run deploy/kubernetes/rules.sh");
}

#[test]
fn files_that_compose_mounts_exist() {
    let dir = Path::new(ROOT).join("deploy");
    let mounts = lines(COMPOSE).into_iter().filter_map(|line| {
        let source = line
            .trim_start()
            .strip_prefix("- ./")?
            .split(':')
            .next()?
            .to_owned();
        Some(source)
    });
    let mounts: Vec<String> = mounts.collect();
    assert!(mounts.len() >= 7, "{mounts:?}");
    for source in mounts {
        assert!(dir.join(&source).exists(), "{COMPOSE}: {source}");
    }
}

#[test]
fn versions_are_pinned_and_ours_is_that_of_the_crate() {
    let version = env!("CARGO_PKG_VERSION");
    let images = values(COMPOSE, "image:").into_iter();
    let bases = [
        "deploy/docker/Dockerfile",
        "deploy/compose/fleet.Dockerfile",
    ]
    .into_iter()
    .flat_map(|p| values(p, "FROM "));
    let images: Vec<String> = images
        .chain(bases.map(|b| b.split(' ').next().unwrap().to_owned()))
        .collect();
    assert!(images.len() > 8, "{images:?}");
    for image in images {
        let tag = image
            .split_once(':')
            .unwrap_or_else(|| panic!("{image} has no tag"))
            .1;
        let numbers = tag
            .split(['.', '-'])
            .filter(|part| part.trim_start_matches('v').parse::<u32>().is_ok())
            .count();
        assert!(numbers >= 2, "{image} may change");
        assert!(
            !image.starts_with("hourbucket") || tag == version,
            "{image} is not {version}"
        );
    }
    assert_eq!(value("deploy/docker/Dockerfile", "ARG VERSION="), version);
    for path in [
        "deploy/kubernetes/base/kustomization.yaml",
        "deploy/kubernetes/example/kustomization.yaml",
    ] {
        assert_eq!(value(path, "newTag:"), version, "{path}");
    }
    assert!(text("deploy/deb/changelog").starts_with(&format!("hourbucket ({version}-1)")));
}

#[test]
fn the_debian_package_finds_its_files() {
    let manifest: toml::Table = text("src/service/Cargo.toml").parse().unwrap();
    let deb = &manifest["package"]["metadata"]["deb"];
    let sources: Vec<&str> = deb["assets"]
        .as_array()
        .unwrap()
        .iter()
        .map(|asset| asset[0].as_str().unwrap())
        .collect();
    assert!(sources.contains(&"target/release/hourbucket"));
    for source in sources
        .into_iter()
        .filter(|source| !source.starts_with("target/"))
    {
        // A pattern: its directory.
        let named = source
            .split_once("/*")
            .map_or(source, |(directory, _)| directory);
        let package = Path::new(ROOT).join("src/service");
        assert!(package.join(named).exists(), "{source}");
    }
    assert!(text("deploy/deb/postrm").contains("#DEBHELPER#"));
}

/// `loadtest pair gateway --set HTTP__TOKENS_FILE=…` compares a service that checks tokens with one
/// that does not.
#[test]
fn the_token_of_the_load_test_is_in_its_tokens_file() {
    use net::access::{GrantDefaults, Tokens};

    let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let tokens = Tokens::load(
        "test",
        &root.join("loadtest/tokens.toml"),
        &GrantDefaults::unlimited(),
    )
    .unwrap();
    let source = std::fs::read_to_string(root.join("loadtest/src/render.rs")).unwrap();
    let (_, rest) = source.split_once("Authorization: Bearer ").unwrap();
    let token = rest.split_once("\\r\\n").unwrap().0;
    let grant = tokens.of_text(token).expect("the token is accepted");
    assert!(grant.write.as_ref().unwrap().matches("truck_000001_diag") && tokens.len() > 1);
}
