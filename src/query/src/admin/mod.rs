//! The admin port, for operators: the fleet page, metrics, health, the read API, Prometheus' API,
//! and the OpenAPI description of both ports.
//!
//! A separate port lets it stay on an internal network while readings arrive from outside. The app
//! stops it last, so that it answers during the whole shutdown. Nothing here waits for another
//! stage, and its connections have separate limits: probes and scrapes are answered whatever the
//! load on the ports for readings.

pub mod access;
mod answer;
pub(crate) mod api;
mod compressed;
mod cursor;
pub mod health;
mod page;
mod params;
pub mod prometheus;
mod render;
mod tail;

pub use self::access::TokenSource;
pub use self::health::{Health, JournalState};

use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::FutureExt;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::access::Access;
use self::answer::ApiError;
use crate::read::ReadService;
use model::Clock;
use net::access::Credentials;
use net::http::BindError;
use net::http::Port;
use net::http::PortSetter;
use net::http::json;
use net::http::open_tls;
use net::http::refused_body::discard_rest;
use net::http::server::{self, End};
use net::tls::{Certificates, OnTls, TlsError};
use telemetry::metrics::{self, PortName};

/// All routes except those of [`api`].
pub const ROUTES: [&str; 6] = [
    "/",
    "/metrics",
    "/livez",
    "/readyz",
    "/openapi.json",
    tail::ROUTE,
];

/// How long open connections may take to finish at shutdown.
const LAST_ANSWERS: Duration = Duration::from_millis(500);

/// For senders that confuse the two ports.
const TO_SEND: &str = "readings are sent to the port of http.listen";

/// The OpenAPI 3.1 description of both ports, written by hand.
const OPENAPI: &str = include_str!("openapi.json");

/// The admin port cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The certificates of `admin.tls` are not usable.
    #[error("admin.tls: {0}")]
    Tls(#[from] TlsError),
    /// The address of `admin.listen` is in use, or does not belong to this machine.
    #[error(transparent)]
    Bind(#[from] BindError),
}

/// The admin port, bound but not yet served.
pub struct Admin {
    listener: TcpListener,
    addr: SocketAddr,
    health: Arc<Health>,
    port: (Arc<Port>, PortSetter),
    certificates: Option<Certificates>,
    reads: Option<(Arc<ReadService>, config::Promql)>,
    /// Where readings are, if none are stored here.
    elsewhere: Option<String>,
    access: Access,
    clock: Arc<dyn Clock>,
}

/// Replaces settings and certificates of a port that is being served.
pub struct Renewal {
    port: PortSetter,
    /// `None` without TLS.
    pub certificates: Option<Certificates>,
}

impl Renewal {
    /// Applies the limits and time limits of connections.
    pub fn put(&self, cfg: &config::Admin) {
        self.port
            .set(cfg.connections, cfg.proxies.clone(), cfg.times);
    }

    /// Ends the idle connections of readers that these credentials do not accept any more.
    pub fn revoke(&self, credentials: Option<&Credentials>) {
        self.port.revoke(credentials);
    }
}

impl Admin {
    /// Loads the certificates and binds the address.
    ///
    /// # Errors
    /// The address or the certificates cannot be used.
    pub async fn bind(
        cfg: &config::Admin,
        health: Arc<Health>,
        clock: Arc<dyn Clock>,
    ) -> Result<Admin, AdminError> {
        let on_tls: OnTls = {
            let health = health.clone();
            Arc::new(move |status| health.tls(status))
        };
        let certificates = open_tls(PortName::Admin, &cfg.tls, &clock, &on_tls).await?;
        let listener = server::bind(cfg.listen, "admin.listen").await?;
        let addr = listener.local_addr().unwrap_or(cfg.listen);
        let access = Access::new(TokenSource::default(), addr, clock.clone());
        let port = Port::new(
            PortName::Admin,
            clock.clone(),
            cfg.connections,
            cfg.proxies.clone(),
            cfg.times,
        );
        Ok(Admin {
            listener,
            addr,
            health,
            port,
            certificates,
            reads: None,
            elsewhere: None,
            access,
            clock,
        })
    }

    /// Take it before [`Admin::serve`], which consumes the port.
    pub fn renewal(&self) -> Renewal {
        Renewal {
            port: self.port.1.clone(),
            certificates: self.certificates.clone(),
        }
    }

    /// Enables the read API and queries for senders that have one of these tokens.
    #[must_use]
    pub fn with_reads(
        self,
        reads: Arc<ReadService>,
        promql: config::Promql,
        tokens: TokenSource,
    ) -> Admin {
        let access = Access::new(tokens, self.addr, self.clock.clone());
        Admin {
            reads: Some((reads, promql)),
            access,
            ..self
        }
    }

    /// For an instance that stores no readings: the answer to who asks for some, and who may use what
    /// this port has besides.
    #[must_use]
    pub fn with_reads_elsewhere(self, elsewhere: String, tokens: TokenSource) -> Admin {
        let access = Access::new(tokens, self.addr, self.clock.clone());
        Admin {
            elsewhere: Some(elsewhere),
            access,
            ..self
        }
    }

    /// The bound address. Differs from the setting if that has port 0.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// Serves until `shutdown` is cancelled.
    pub async fn serve(self, shutdown: CancellationToken) {
        tracing::info!(addr = %self.addr, tls = self.certificates.is_some(), "admin port listening");
        if let Some(certificates) = self.certificates.clone() {
            tokio::spawn(certificates.watch(shutdown.clone()));
        }
        let routes = router(self.health, self.reads, self.elsewhere, self.access);
        let routes = watch::Sender::new(routes).subscribe();
        let end = End {
            token: shutdown,
            last_answers: LAST_ANSWERS,
        };
        server::serve(self.listener, routes, self.port.0, self.certificates, end).await;
    }
}

fn router(
    health: Arc<Health>,
    reads: Option<(Arc<ReadService>, config::Promql)>,
    elsewhere: Option<String>,
    access: Access,
) -> Router {
    let [root, metrics, livez, readyz, openapi, _] = ROUTES;
    let (unknown, of_reads) = match elsewhere {
        Some(elsewhere) => (format!("{elsewhere}; {TO_SEND}"), Router::new()),
        None => (
            format!("unknown path; /openapi.json lists the paths of this port; {TO_SEND}"),
            prometheus::routes(reads.clone(), access.clone())
                .merge(api::routes(reads.map(|(reads, _)| reads), access.clone())),
        ),
    };
    let not_found = async move || error(StatusCode::NOT_FOUND, "not_found", &unknown);
    let not_allowed = async || {
        error(
            StatusCode::METHOD_NOT_ALLOWED,
            "method_not_allowed",
            &format!("this port accepts only GET; {TO_SEND}"),
        )
    };
    Router::new()
        .route(root, get(page::page))
        .route(
            metrics,
            get(async || text("text/plain; version=0.0.4", metrics::render())),
        )
        // Reports only that the process answers. A restart would not bring MongoDB back.
        .route(livez, get(async || text("text/plain", "ok\n")))
        .route(readyz, get(ready))
        .route(openapi, get(async || text("application/json", OPENAPI)))
        .with_state(health)
        .merge(of_reads)
        .layer(from_fn(compressed::compress))
        // Its lines must not wait in a compressor.
        .merge(tail::routes(access))
        .fallback(not_found)
        .method_not_allowed_fallback(not_allowed)
        .layer(from_fn(discard_rest))
        .layer(from_fn(observe))
}

/// Counts the request, and turns a panic into a response instead of a broken connection.
async fn observe(request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().and_then(|path| {
        ROUTES
            .iter()
            .chain(&api::ROUTES)
            .chain(&prometheus::ROUTES)
            .find(|route| **route == path.as_str())
            .copied()
    });
    let route = route.unwrap_or("unmatched");
    let begun = Instant::now();
    let response = AssertUnwindSafe(next.run(request))
        .catch_unwind()
        .await
        .unwrap_or_else(|_| {
            tracing::error!(route, "request handler panicked; please report this bug");
            ApiError::Internal.into_response()
        });
    metrics::http_request(
        route,
        response.status().as_u16(),
        begun.elapsed().as_secs_f64(),
    );
    response
}

async fn ready(State(health): State<Arc<Health>>) -> Response {
    let report = health.report();
    json(
        if report.ready {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        },
        &report,
    )
}

fn text(content_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn error(status: StatusCode, reason: &str, detail: &str) -> Response {
    json(
        status,
        &serde_json::json!({ "error": { "reason": reason, "detail": detail } }),
    )
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use serde_json::Value;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;
    use config::AckMode;

    async fn ask(addr: SocketAddr, method: &str, path: &str) -> (u16, String, String) {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (
            head[9..12].parse().unwrap(),
            head.to_lowercase(),
            body.to_owned(),
        )
    }

    #[tokio::test]
    async fn every_route_answers_in_its_form_and_the_port_closes() {
        metrics::install().unwrap();
        let health = Arc::new(Health::new(AckMode::Journal));
        let mut cfg = config::Config::default().admin;
        cfg.listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let clock = Arc::new(model::SystemClock::new());
        let admin = Admin::bind(&cfg, health.clone(), clock).await.unwrap();
        let addr = admin.local_addr();
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(admin.serve(shutdown.clone()));

        let (status, head, body) = ask(addr, "GET", "/metrics").await;
        assert!(
            status == 200 && head.contains("content-type: text/plain; version=0.0.4"),
            "{head}"
        );
        assert!(body.contains("hourbucket_build_info{version="), "{body}");
        assert_eq!(ask(addr, "GET", "/livez").await.0, 200);

        let ready = async || {
            let (status, _, body) = ask(addr, "GET", "/readyz").await;
            (status, serde_json::from_str::<Value>(&body).unwrap())
        };
        let (status, json) = ready().await;
        assert_eq!(
            (status, &json["ready"], &json["reasons"][0]),
            (503, &Value::Bool(false), &"starting".into())
        );
        health.mode("timeseries", "the server has it", "6.0.5");
        health.mqtt("127.0.0.1:1883", true, None);
        health.journal(JournalState {
            bytes: 1,
            max_bytes: 2,
            full: false,
            ..JournalState::default()
        });
        let now = model::Now {
            wall_ms: 0,
            mono_ms: 0,
        };
        health.store_pinged(Ok(()), now);
        health.started();
        let (status, json) = ready().await;
        assert_eq!(
            (
                status,
                &json["ready"],
                json["reasons"].as_array().unwrap().len()
            ),
            (200, &Value::Bool(true), 0)
        );
        assert_eq!(
            (&json["mode"], &json["server_version"]),
            (&"timeseries".into(), &"6.0.5".into())
        );
        assert_eq!(
            json["mqtt"][0],
            serde_json::json!({"broker": "127.0.0.1:1883", "connected": true, "detail": null})
        );
        assert_eq!(
            (&json["store"]["ok"], &json["journal"]["max_bytes"]),
            (&Value::Bool(true), &2.into())
        );

        let (status, _, body) = ask(addr, "POST", "/api/v1/gw1.SECRET/telemetry").await;
        assert!(
            status == 404 && body.contains("http.listen") && !body.contains("SECRET"),
            "{body}"
        );
        let (status, head, body) = ask(addr, "POST", "/readyz").await;
        assert!(
            status == 405 && head.contains("allow: get") && body.contains("http.listen"),
            "{head}"
        );

        shutdown.cancel();
        tokio::time::timeout(Duration::from_secs(20), task)
            .await
            .expect("the port did not close")
            .unwrap();
    }

    #[test]
    fn the_description_parses_and_names_every_route() {
        let openapi: Value = serde_json::from_str(OPENAPI).unwrap();
        assert!(openapi["openapi"].as_str().unwrap().starts_with("3.1"));
        let mut described: Vec<&str> = openapi["paths"]
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        let mut served = [
            &ROUTES[..],
            &api::ROUTES[..],
            &prometheus::ROUTES[..],
            &ingest::http::ROUTES[..],
        ]
        .concat();
        described.sort_unstable();
        served.sort_unstable();
        assert_eq!(described, served);
        let text = OPENAPI
            .split("\"#/")
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap());
        for reference in text {
            let pointer = format!("/{reference}");
            assert!(
                openapi.pointer(&pointer).is_some(),
                "{pointer} does not exist"
            );
        }
    }
}
