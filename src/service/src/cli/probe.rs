//! `hourbucket probe`: queries the health of the running service on `admin.listen`, for containers
//! without curl.
//!
//! With `admin.tls` it connects over TLS and accepts any certificate: it connects to its own
//! machine and sends nothing secret, and a certificate that is about to be replaced must not cause
//! a restart.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::client::on_this_machine;
use net::tls;

/// Time limit for connection and response together.
const WITHIN: Duration = Duration::from_secs(5);
/// Far above the size of `/readyz`, which lists every broker.
const ANSWER_MAX_BYTES: u64 = 1 << 20;

/// Why the service does not report that it is healthy.
#[derive(Debug, thiserror::Error)]
#[error("{url}: {fault}")]
pub(super) struct ProbeError {
    url: String,
    #[source]
    fault: ProbeFault,
}

#[derive(Debug, thiserror::Error)]
enum ProbeFault {
    #[error(
        "admin.tls requires client certificates, and the probe has none; set admin.tls.client_auth \
         = \"optional\""
    )]
    ClientCertificate,
    /// The answer is not 200.
    #[error("{status}: {body}")]
    Status { status: u16, body: String },
    #[error("{0}; check that the service is running, with this admin.listen")]
    Connection(#[source] std::io::Error),
    #[error("no answer within {WITHIN:?}")]
    Timeout,
}

/// Requests `/livez`, or with `ready` `/readyz`. Returns the body of a 200 response.
///
/// # Errors
/// No response, or not 200.
pub(super) async fn probe(admin: &config::Admin, ready: bool) -> Result<String, ProbeError> {
    let addr = on_this_machine(admin.listen);
    let path = if ready { "/readyz" } else { "/livez" };
    let secure = admin.tls.cert_file.is_some();
    let url = format!("{}://{addr}{path}", if secure { "https" } else { "http" });
    if secure && admin.tls.is_gate() {
        return Err(ProbeError {
            url,
            fault: ProbeFault::ClientCertificate,
        });
    }
    let fault = match tokio::time::timeout(WITHIN, connect_and_ask(addr, path, secure)).await {
        Ok(Ok((200, body))) => return Ok(body),
        Ok(Ok((status, body))) => ProbeFault::Status { status, body },
        Ok(Err(error)) => ProbeFault::Connection(error),
        Err(_) => ProbeFault::Timeout,
    };
    Err(ProbeError { url, fault })
}

async fn connect_and_ask(
    addr: SocketAddr,
    path: &str,
    secure: bool,
) -> std::io::Result<(u16, String)> {
    let stream = TcpStream::connect(addr).await?;
    match secure {
        true => ask(tls::connect_to_any(stream, addr.ip()).await?, addr, path).await,
        false => ask(stream, addr, path).await,
    }
}

/// Returns status and body. With HTTP/1.0 the response ends with the connection and is not chunked.
async fn ask(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    addr: SocketAddr,
    path: &str,
) -> std::io::Result<(u16, String)> {
    stream
        .write_all(format!("GET {path} HTTP/1.0\r\nhost: {addr}\r\n\r\n").as_bytes())
        .await?;
    let mut answer = vec![];
    (&mut stream)
        .take(ANSWER_MAX_BYTES)
        .read_to_end(&mut answer)
        .await?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.get(2..5)?.parse().ok());
    let status = status.ok_or_else(|| std::io::Error::other("the response is not HTTP"))?;
    Ok((status, body.trim_end().to_owned()))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;

    use tokio_util::sync::CancellationToken;

    use super::*;
    use config::AckMode;
    use query::admin::{Admin, Health};

    #[tokio::test]
    async fn alive_before_ready_and_neither_if_nothing_listens() {
        let health = Arc::new(Health::new(AckMode::Journal));
        let mut admin = config::Config::default().admin;
        admin.listen = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let port = Admin::bind(&admin, health.clone(), Arc::new(model::SystemClock::new()))
            .await
            .unwrap();
        admin.listen.set_port(port.local_addr().port());
        let stop = CancellationToken::new();
        let serving = tokio::spawn(port.serve(stop.clone()));
        assert_eq!(probe(&admin, false).await.unwrap(), "ok");
        let error = probe(&admin, true).await.unwrap_err().to_string();
        assert!(
            error.contains("503") && error.contains("starting"),
            "{error}"
        );
        health.started();
        assert!(
            probe(&admin, true)
                .await
                .unwrap()
                .contains("\"ready\":true")
        );
        stop.cancel();
        serving.await.unwrap();
        let error = probe(&admin, false).await.unwrap_err().to_string();
        assert!(error.contains("the service is running"), "{error}");
    }

    #[tokio::test]
    async fn another_program_on_the_port_is_not_the_service() {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .unwrap();
        let mut admin = config::Config::default().admin;
        admin.listen = listener.local_addr().unwrap();
        let other = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 256]).await.unwrap();
            stream
                .write_all(b"220 smtp.example ready\r\n")
                .await
                .unwrap();
        });
        assert!(
            probe(&admin, false)
                .await
                .unwrap_err()
                .to_string()
                .contains("not HTTP")
        );
        other.await.unwrap();
    }
}
