//! The client of a trusted proxy: the address that the proxy names counts for limits, pauses and
//! logs, not its own.
//!
//! Only addresses in `trusted_proxies` of the port are believed. Whether they send a header or the
//! PROXY protocol is a setting, because a proxy that uses the protocol passes on headers as they
//! are: a client could send the header itself.
//!
//! - [`header`]: the PROXY protocol, version 2, on each port. Every connection from a trusted proxy
//!   must begin with it, so that one that bypasses the proxy's configuration is noticed. It is read
//!   within the time limit for the first request, and byte for byte, so that no byte after it is
//!   lost.
//! - [`forwarded`]: a header of each request, on the HTTP ports.

pub mod forwarded;
pub mod header;

use std::net::SocketAddr;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use self::header::{Beginning, FIXED_BYTES, Fixed, HeaderFault, beginning};
use config::Proxies;
use model::Named;

/// Why a connection is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum ProxyFault {
    #[error(transparent)]
    Header(#[from] HeaderFault),
    #[error("the connection ended within its PROXY header")]
    Cut,
    #[error("the PROXY header did not arrive in time")]
    Late,
    #[error("a PROXY header from an address that is not in trusted_proxies")]
    Untrusted,
}

impl Named for ProxyFault {
    fn as_str(&self) -> &'static str {
        "proxy_header"
    }
}

/// Reads the header of a new connection, if there must be one. Returns the client of the proxy;
/// `None`: `peer` itself.
///
/// Takes as long as the peer likes; the caller has the time limit.
///
/// # Errors
/// The connection must be closed.
pub async fn client(
    stream: &mut TcpStream,
    peer: SocketAddr,
    proxies: &Proxies,
) -> Result<Option<SocketAddr>, ProxyFault> {
    if !proxies.trusts(peer.ip()) {
        let mut first = [0; FIXED_BYTES];
        // An error, or the end, is found again by the next read.
        let n = stream.peek(&mut first).await.unwrap_or_default();
        return match beginning(&first[..n]) {
            Beginning::Version1 | Beginning::Version2 => Err(ProxyFault::Untrusted),
            Beginning::Unclear | Beginning::Other => Ok(None),
        };
    }
    let mut fixed = [0; FIXED_BYTES];
    let mut n = 0;
    while n < FIXED_BYTES {
        match stream.read(&mut fixed[n..]).await {
            Ok(more) if more > 0 => n += more,
            _ => return Err(ProxyFault::Cut),
        }
        match beginning(&fixed[..n]) {
            Beginning::Version2 | Beginning::Unclear => {}
            Beginning::Version1 => return Err(HeaderFault::Version1.into()),
            Beginning::Other => return Err(HeaderFault::Missing.into()),
        }
    }
    let fixed = Fixed::parse(&fixed)?;
    let mut rest = vec![0; fixed.rest_bytes()];
    stream
        .read_exact(&mut rest)
        .await
        .map_err(|_| ProxyFault::Cut)?;
    Ok(fixed.client(&rest)?)
}
