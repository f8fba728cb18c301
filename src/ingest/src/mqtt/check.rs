//! Logs in to a broker and subscribes, as the service does, for `hourbucket check`.
//!
//! It uses a separate client id, since a broker ends the connection of a running service with the
//! same one, and a session that ends with the connection. It does not use `$share`: a message that
//! a group sends to this connection would be lost for the group.

use std::time::Duration;

use super::event::{Event, Grant};
use super::link::LinkError;
use super::subscribe::Subscriptions;
use super::target::{Credentials, SetupError, Target};
use super::{link, reason};
use config::{Mqtt, Retained};

/// Time limit for everything.
const WITHIN: Duration = Duration::from_secs(10);
/// Appended to `mqtt.client_id`.
const SUFFIX: &str = "-check";

/// A problem that keeps the service from receiving messages.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    #[error(transparent)]
    Setup(#[from] SetupError),
    #[error("{0}")]
    File(String),
    #[error("{broker}: {error}; check mqtt.url, and that the broker runs")]
    Unreachable { broker: String, error: String },
    /// The broker's own answer says what to do.
    #[error("{broker}: {ended}")]
    Ended { broker: String, ended: String },
    #[error("{broker}: no answer within {WITHIN:?}")]
    Timeout { broker: String },
    #[error(
        "{broker}: logged in as {client_id}, but the subscription {filter} is not granted: {why}"
    )]
    Refused {
        broker: String,
        client_id: String,
        filter: String,
        why: String,
    },
}

/// Logs in and subscribes. Returns a short text.
///
/// # Errors
/// The service would receive no messages, or not all.
pub async fn check(config: &Mqtt) -> Result<String, CheckError> {
    let config = of_check(config);
    let target = Target::parse(&config.url)?;
    let broker = target.label();
    let read = config.clone();
    let to = target.clone();
    let read = tokio::task::spawn_blocking(move || Credentials::load(&read, &to, None)).await;
    let (material, problem) = read.map_err(|error| CheckError::File(error.to_string()))??;
    if let Some(problem) = problem {
        return Err(CheckError::File(problem));
    }
    let answers = tokio::time::timeout(WITHIN, async {
        let (sender, mut link) = link::open(&config, &target, &material, None)?;
        let failed = |error: LinkError| match error {
            LinkError::Ended(ended) => CheckError::Ended {
                broker: broker.clone(),
                ended: ended.to_string(),
            },
            error => CheckError::Unreachable {
                broker: broker.clone(),
                error: error.to_string(),
            },
        };
        let mut subscriptions = Subscriptions::new(&config.subscriptions);
        let mut answers = vec![];
        loop {
            match link.next().await.map_err(failed)? {
                Event::Connected { .. } => {}
                Event::Subscribed(grants) => answers.extend(subscriptions.answered(&grants)),
                Event::Message(_) | Event::Published => continue,
            }
            match subscriptions.next() {
                // It fails only if the connection has ended; that is the next event.
                Some(filters) => drop(sender.subscribe(filters)),
                None => {
                    sender.close(link, None).await;
                    return Ok::<_, CheckError>(answers);
                }
            }
        }
    });
    let answers = answers.await.map_err(|_| CheckError::Timeout {
        broker: broker.clone(),
    })??;
    let mut text = format!("{broker}: logged in and subscribed as {}", config.client_id);
    for (subscription, grant) in answers {
        let filter = subscription.filter.clone();
        match grant {
            Grant::Refused(code) => {
                let client_id = config.client_id.clone();
                return Err(CheckError::Refused {
                    broker,
                    client_id,
                    filter,
                    why: reason::refused(code),
                });
            }
            Grant::Qos(qos) if qos < subscription.qos_asked() => {
                text += &format!("; warning: {filter} is granted with QoS {qos} only");
            }
            Grant::Qos(_) => {}
        }
    }
    Ok(text)
}

/// The settings of the service, without those that would disturb it.
fn of_check(config: &Mqtt) -> Mqtt {
    let mut config = config.clone();
    config.client_id += SUFFIX;
    (
        config.clean_start,
        config.session_expiry,
        config.status_topic,
    ) = (true, Duration::ZERO, None);
    for subscription in &mut config.subscriptions {
        subscription.retained = Retained::Never;
        if let Some((_, filter)) = subscription
            .filter
            .strip_prefix("$share/")
            .and_then(|rest| rest.split_once('/'))
        {
            subscription.filter = filter.to_owned();
        }
    }
    config
}
