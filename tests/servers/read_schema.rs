//! Schemathesis calls every request of both ports as described by `/openapi.json`, and requests
//! that it does not describe: there is no server error, and every answer matches its description.
//! Seeded and short; `HOURBUCKET_SCHEMA_EXAMPLES` makes it long.

#![allow(clippy::unwrap_used, reason = "a test")]

use crate::support;
use std::path::PathBuf;
use std::process::Command;

use crate::support::fleet::now_ms;
use crate::support::mongod::{Mongod, python_packages, unique_database};
use crate::support::service::Service;

/// The paths of the admin port.
const ADMIN: &str =
    "^/(|v1/(sensors|fleet|dead-letters).*|prometheus(/.*)?|metrics|livez|readyz|openapi.json)$";
/// The same, and the one whose answer does not end.
const NOT_INGEST: &str = "^/(|v1/(sensors|fleet|dead-letters|tail).*|prometheus(/.*)?|metrics|livez|readyz|openapi.json)$";
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,\
                      response_schema_conformance";

fn call(service: &Service, url: &str, which: [&str; 2]) {
    let examples = std::env::var("HOURBUCKET_SCHEMA_EXAMPLES").unwrap_or_else(|_| "5".to_owned());
    let hooks = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests"));
    let output = Command::new("python3")
        .args([
            "-m",
            "schemathesis.cli",
            "run",
            &format!("{}/openapi.json", service.admin()),
            "--url",
            url,
        ])
        .args([
            "--checks",
            CHECKS,
            "--phases",
            "examples,coverage,fuzzing",
            "--seed",
            "7",
            "--max-examples",
            &examples,
        ])
        .args([
            "--continue-on-failure",
            "--no-color",
            "--warnings",
            "off",
            "--request-timeout",
            "20",
        ])
        .args([
            "--suppress-health-check",
            "all",
            "--generation-database",
            "none",
        ])
        .args(which)
        .current_dir(service.dir())
        .env(
            "PYTHONPATH",
            std::env::join_paths([
                python_packages("HOURBUCKET_SCHEMATHESIS_PYTHONPATH", "schemathesis"),
                hooks,
            ])
            .unwrap(),
        )
        .env("SCHEMATHESIS_HOOKS", "read_schema_hooks")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("no_proxy", "127.0.0.1")
        .output()
        .expect("python3 must start");
    let printed = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}\n{}", service.log());
    assert!(printed.contains("passed"), "nothing was called: {printed}");
}

#[test]
fn both_ports_answer_as_they_are_described() {
    let uri = Mongod::shared().uri();
    let database = unique_database("schema");
    let text = "flush.max_age = \"200ms\"\nlog.level = \"warn\"\n";
    let service = Service::start(
        text,
        &[("STORE__URI", &uri), ("STORE__DATABASE", &database)],
    );
    let body = format!(
        "{{\"sensor_id\":\"0\",\"ts\":{},\"n\":1,\"s\":\"x\",\"on\":true}}\n",
        now_ms()
    );
    assert_eq!(
        service
            .post("/v1/readings", "application/x-ndjson", body.as_bytes())
            .unwrap()
            .0,
        200
    );
    assert_eq!(
        service
            .post("/v1/hooks/json", "application/json", b"{broken")
            .unwrap()
            .0,
        202
    );
    support::wait_until(
        "the collections are prepared",
        std::time::Duration::from_secs(60),
        || (service.get_admin("/v1/sensors")?.0 == 200).then_some(()),
    );
    call(&service, &service.admin(), ["--include-path-regex", ADMIN]);
    call(
        &service,
        &service.http(),
        ["--exclude-path-regex", NOT_INGEST],
    );
    let (status, _) = service.get_admin("/readyz").unwrap();
    assert_eq!(status, 200);
}
