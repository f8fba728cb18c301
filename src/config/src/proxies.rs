//! The proxies in front of a port, and how they name the address that they pass on.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use serde_json::json;
use toml::Value as Toml;

use super::declare::settings;
use super::kinds::{Kind, choice};
use super::reader::{Bad, wrong};
use super::tree::Node;

/// Networks that a list may have.
const NETWORKS_MAX: usize = 64;

/// A network of addresses; of one address, if its prefix has all bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

impl Network {
    /// `10.0.0.0/8`, `2001:db8::/32`, or an address. `None`: it is not one, or has bits behind its
    /// prefix.
    pub fn parse(text: &str) -> Option<Network> {
        let (address, prefix) = text
            .split_once('/')
            .map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let address: IpAddr = address.parse().ok()?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => bits,
            Some(prefix) if prefix.bytes().all(|b| b.is_ascii_digit()) => {
                prefix.parse().ok().filter(|n| *n <= bits)?
            }
            Some(_) => return None,
        };
        let network = Network { address, prefix };
        (network.masked(address) == address).then_some(network)
    }

    /// The bits of an address up to the prefix.
    fn masked(self, ip: IpAddr) -> IpAddr {
        match ip {
            IpAddr::V4(ip) => {
                let mask = u32::MAX
                    .checked_shl(32 - u32::from(self.prefix))
                    .unwrap_or(0);
                Ipv4Addr::from_bits(ip.to_bits() & mask).into()
            }
            IpAddr::V6(ip) => {
                let mask = u128::MAX
                    .checked_shl(128 - u32::from(self.prefix))
                    .unwrap_or(0);
                Ipv6Addr::from_bits(ip.to_bits() & mask).into()
            }
        }
    }

    /// Whether the address is in the network.
    pub fn contains(self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        ip.is_ipv4() == self.address.is_ipv4() && self.masked(ip) == self.address
    }

    /// Whether it has more addresses than a site has proxies: more than a /8 of IPv4, or a /16 of
    /// IPv6.
    pub fn is_wide(self) -> bool {
        self.prefix < if self.address.is_ipv4() { 8 } else { 16 }
    }
}

/// Whether it is a loopback address, also one of IPv4 that is written as IPv6 (`::ffff:127.0.0.1`).
pub fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

model::closed_set! {
    /// How a proxy names the address that it passes on.
    pub enum ProxyHeader {
        /// `"x-forwarded-for"`: a header of each request.
        XForwardedFor => "x-forwarded-for",
        /// `"proxy-v2"`: the PROXY protocol, version 2, before each connection.
        ProxyV2 => "proxy-v2",
    }
}

settings! {
    /// The proxies in front of a port.
    pub struct Proxies, reload() {
        /// Proxies in front of the port: addresses and networks whose word is taken for the address
        /// that they pass on, which then counts for limits, pauses and logs. Name no more than the
        /// proxies themselves: others could pretend any address.
        trusted: Arc<[Network]> = [].into(), networks(),
            named("trusted_proxies"), example("[\"10.0.0.0/8\", \"192.0.2.1\"]");
        /// What they send: "x-forwarded-for", with each request, of which the last address that is
        /// not a trusted proxy counts; or "proxy-v2", the PROXY protocol, with which then each of
        /// their connections must begin.
        header: ProxyHeader = ProxyHeader::XForwardedFor, choice(ProxyHeader::NAMES),
            named("proxy_header"), example("\"proxy-v2\"");
    }
}

impl Proxies {
    /// With this list, of a port with MQTT: only the PROXY protocol can name an address there.
    pub(super) fn over_mqtt(trusted: Arc<[Network]>) -> Proxies {
        Proxies {
            trusted,
            header: ProxyHeader::ProxyV2,
        }
    }

    /// Whether what this address says is believed.
    pub fn trusts(&self, ip: IpAddr) -> bool {
        self.trusted.iter().any(|network| network.contains(ip))
    }

    /// Whether connections begin with a header of the PROXY protocol.
    pub fn has_protocol(&self) -> bool {
        !self.trusted.is_empty() && self.header == ProxyHeader::ProxyV2
    }
}

/// The list of a port with MQTT.
pub(super) fn proxies_over_mqtt() -> Kind<Proxies> {
    networks().map(Proxies::over_mqtt, |proxies| proxies.trusted.clone())
}

fn networks() -> Kind<Arc<[Network]>> {
    let kind = "list of addresses and networks, up to 64";
    let schema =
        json!({ "type": "array", "items": { "type": "string" }, "maxItems": NETWORKS_MAX });
    Kind::unwritten(kind, schema, |node| read_networks(node).map(Arc::from)).written(|networks| {
        let texts = networks
            .iter()
            .map(|network| Toml::String(network.to_string()));
        Toml::Array(texts.collect())
    })
}

fn read_networks(node: &Node) -> Result<Vec<Network>, Bad> {
    let advice = "write a list of at most 64 addresses and networks, such as [\"10.0.0.0/8\", \
        \"192.0.2.1\"], without bits behind the prefix";
    let texts = node
        .texts()
        .filter(|texts| texts.len() <= NETWORKS_MAX)
        .ok_or_else(|| wrong(node, advice))?;
    let network = |text: &String| {
        Network::parse(text).ok_or_else(|| {
            Bad::new(
                format!("\"{}\" is not a network", text.escape_debug()),
                advice,
            )
        })
    };
    texts.iter().map(network).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_network_has_the_addresses_with_its_prefix() {
        for (network, inside, outside) in [
            (
                "10.0.0.0/8",
                &["10.0.0.0", "10.255.255.255", "::ffff:10.1.2.3"][..],
                &["11.0.0.0", "a00::", "9.9.9.9"][..],
            ),
            ("192.0.2.1", &["192.0.2.1"], &["192.0.2.0", "192.0.2.2"]),
            ("0.0.0.0/0", &["1.2.3.4"], &["2001:db8::1"]),
            ("::/0", &["2001:db8::1"], &["1.2.3.4"]),
            (
                "2001:db8::/33",
                &["2001:db8:7fff::1"],
                &["2001:db8:8000::1", "2001:db9::"],
            ),
            ("::1", &["::1"], &["::2", "127.0.0.1"]),
        ] {
            let network = Network::parse(network).unwrap();
            assert!(
                inside.iter().all(|text| network.contains(ip(text))),
                "{network}"
            );
            assert!(
                !outside.iter().any(|text| network.contains(ip(text))),
                "{network}"
            );
            assert_eq!(Network::parse(&network.to_string()), Some(network));
        }
        for text in [
            "",
            "10.0.0.1/8",
            "10.0.0.0/33",
            "::/129",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "10/8",
            "a",
            "10.0.0.0/8/8",
        ] {
            assert_eq!(Network::parse(text), None, "{text}");
        }
    }
}
