//! The port on a real socket: connections of one address, and devices with wrong passwords.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::Duration;

use bytes::BytesMut;
use rumqttc_v4::mqttbytes::v4::{Connect, ConnectAuth, ConnectReturnCode as Code};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::*;
use config::{AckMode, Config, Network};
use journal::admission::{AdmissionControl, admission_channel};
use net::access::{GrantDefaults, hash_secret};
use telemetry::metrics;
use testkit::SetClock;

const LONG: Duration = Duration::from_secs(20);

struct Rig {
    addr: SocketAddr,
    clock: Arc<SetClock>,
    _stop: tokio_util::sync::DropGuard,
    _tokens: tempfile::NamedTempFile,
}

impl Rig {
    /// A port for devices with the token `d1`, which limits this machine's addresses too.
    async fn new(change: impl FnOnce(&mut ListenMqtt)) -> Rig {
        metrics::install().unwrap();
        let tokens = tempfile::NamedTempFile::new().unwrap();
        let entry = format!(
            "[[tokens]]\nid = \"d1\"\nsha256 = \"{}\"\n",
            hash_secret("secret")
        );
        std::fs::write(tokens.path(), entry).unwrap();
        let mut settings = Config::default().listen.mqtt;
        settings.listen.set_port(0);
        settings.tokens_file = Some(tokens.path().to_owned());
        change(&mut settings);
        let (admission, _) = admission_channel(1, 1, AdmissionControl::default());
        let stop = CancellationToken::new();
        let clock = Arc::new(SetClock::new(1));
        let deps = IngestDeps {
            decoding: Live::fixed(Config::default().decoding()),
            on_tls: Arc::new(|_| {}),
            ack: AckMode::Journal,
            grants: GrantDefaults::unlimited(),
            admission,
            commit_delay: Duration::from_millis(2),
            clock: clock.clone(),
            births_dir: None,
            sparkplug_host: None,
            stop: stop.clone(),
            drained: stop.clone(),
        };
        let listener = MqttListener::bind(&settings, deps).await.unwrap();
        listener.shared.connections.exempt_none();
        let addr = listener.local_addr();
        listener.spawn();
        Rig {
            addr,
            clock,
            _stop: stop.drop_guard(),
            _tokens: tokens,
        }
    }

    /// Connects with this password; the open connection and CONNACK's code, or `None` if it was
    /// closed immediately.
    async fn connect(&self, password: &str) -> Option<(TcpStream, Code)> {
        self.connect_after(&[], password).await
    }

    /// The same after a header of a proxy.
    async fn connect_after(&self, header: &[u8], password: &str) -> Option<(TcpStream, Code)> {
        let mut packet = BytesMut::new();
        // A separate name: otherwise it ends the connection before it.
        let mut connect = Connect::new(format!("c{}", fastrand::u64(..)));
        connect.auth = ConnectAuth::UsernamePassword {
            username: "d1".into(),
            password: password.to_owned().into(),
        };
        connect.write(&mut packet).unwrap();
        let mut stream = TcpStream::connect(self.addr).await.unwrap();
        // A port that has closed the connection may answer with a reset.
        let _ = stream.write_all(&[header, &packet].concat()).await;
        let mut answer = [0; 4];
        let read = tokio::time::timeout(LONG, stream.read_exact(&mut answer))
            .await
            .expect("an answer or an end");
        read.ok()?;
        let code = match answer {
            [0x20, 2, 0, 0] => Code::Success,
            [0x20, 2, 0, 4] => Code::BadUserNamePassword,
            [0x20, 2, 0, 5] => Code::NotAuthorized,
            other => panic!("{other:?}"),
        };
        Some((stream, code))
    }
}

fn counted(metric: &str, label: &str) -> f64 {
    let text = metrics::render();
    let line = text
        .lines()
        .find(|line| line.starts_with(metric) && line.contains(label));
    line.map_or(0.0, |line| {
        line.rsplit(' ').next().unwrap().parse().unwrap()
    })
}

#[tokio::test]
async fn without_tokens_the_devices_behind_a_proxy_must_be_on_this_machine() {
    for (allow_anonymous, code) in [(false, Code::NotAuthorized), (true, Code::Success)] {
        let rig = Rig::new(|settings| {
            (settings.tokens_file, settings.allow_anonymous) = (None, allow_anonymous);
            settings.proxies.trusted = [Network::parse("127.0.0.1").unwrap()].into();
        })
        .await;
        let from = async |ip: [u8; 4]| {
            let header = [
                &b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"[..],
                &ip,
                &[10, 0, 0, 1, 0x12, 0x34, 0x07, 0x5b],
            ];
            rig.connect_after(&header.concat(), "").await.unwrap().1
        };
        assert_eq!(from([192, 0, 2, 1]).await, code);
        assert_eq!(from([127, 0, 0, 1]).await, Code::Success);
    }
}

#[tokio::test]
async fn an_address_has_its_share_of_the_connections() {
    let rig = Rig::new(|settings| settings.connections.max = 12).await;
    let mut open = Vec::new();
    for _ in 0..3 {
        open.push(rig.connect("secret").await.unwrap());
    }
    let refused = || {
        counted(
            "hourbucket_mqtt_direct_connects_total",
            "result=\"address_limit\"",
        )
    };
    let before = refused();
    assert!(rig.connect("secret").await.is_none() && refused() - before >= 1.0);
}

#[tokio::test]
async fn silent_connections_keep_no_others_out_and_devices_are_never_cut() {
    let limits = |settings: &mut ListenMqtt| {
        (
            settings.connections.max,
            settings.connections.per_address_max,
        ) = (3, 99)
    };
    let rig = Rig::new(|settings| limits(settings)).await;
    let mut silent = Vec::new();
    let mut devices = Vec::new();
    for _ in 0..3 {
        for _ in 0..3 {
            silent.push(TcpStream::connect(rig.addr).await.unwrap());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        let (device, code) = rig
            .connect("secret")
            .await
            .expect("shut out by connections that say nothing");
        assert_eq!(code, Code::Success);
        devices.push(device);
    }
    let refused = || {
        counted(
            "hourbucket_mqtt_direct_connects_total",
            "result=\"too_many\"",
        )
    };
    let before = refused();
    assert!(rig.connect("secret").await.is_none() && refused() - before >= 1.0);
    for device in &mut devices {
        device.write_all(&[0xc0, 0]).await.unwrap();
        let mut answer = [0; 2];
        tokio::time::timeout(LONG, device.read_exact(&mut answer))
            .await
            .expect("PINGRESP")
            .unwrap();
        assert_eq!(answer, [0xd0, 0]);
    }
}

#[tokio::test]
async fn wrong_passwords_pause_an_address_and_right_ones_pass() {
    let rig = Rig::new(|settings| settings.connections.failed_auth_max = 3).await;
    let failures = || {
        counted(
            "hourbucket_auth_failures_total",
            "reason=\"wrong_credentials\"",
        )
    };
    let before = failures();
    for _ in 0..10 {
        assert_eq!(
            rig.connect("wrong").await.unwrap().1,
            Code::BadUserNamePassword
        );
    }
    assert!(failures() - before >= 10.0);
    // Until the last of them has ended.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut silent = Vec::new();
    let refused = || counted("hourbucket_mqtt_direct_connects_total", "result=\"paused\"");
    let before = refused();
    for _ in 0..8 {
        assert_eq!(rig.connect("secret").await.unwrap().1, Code::Success);
        silent.push(TcpStream::connect(rig.addr).await.unwrap());
    }
    assert!(rig.connect("secret").await.is_none() && refused() - before >= 1.0);
    // Those that had time to send CONNECT, and have not, make room.
    rig.clock.advance(1000);
    assert_eq!(rig.connect("secret").await.unwrap().1, Code::Success);
}

#[tokio::test]
async fn a_connection_that_waits_for_the_header_of_its_proxy_counts_as_stopping() {
    let trusted = [Network::parse("127.0.0.1").unwrap()];
    let rig = Rig::new(|settings| settings.proxies.trusted = trusted.into()).await;
    let mut silent = TcpStream::connect(rig.addr).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let stopped = || {
        counted(
            "hourbucket_mqtt_direct_connects_total",
            "result=\"stopping\"",
        )
    };
    let before = stopped();
    drop(rig);
    let ended = tokio::time::timeout(LONG, silent.read(&mut [0])).await;
    assert!(!ended.expect("an end").is_ok_and(|n| n > 0));
    assert!(stopped() - before >= 1.0);
}
