//! The subscriptions of one connection: which are requested, granted and refused. Pure.
//!
//! One SUBSCRIBE has at most [`FILTERS_MAX`] filters, and the next one is sent after the answer to
//! it, so an answer always belongs to the filters that were requested last.

use super::event::Grant;
use config::Subscription;

/// Filters in one packet: AWS IoT Core closes the connection at a SUBSCRIBE with more.
const FILTERS_MAX: usize = 8;

#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    /// Still to be requested; the next ones are last.
    waiting: Vec<Subscription>,
    /// Requested, and not answered.
    requested: Vec<Subscription>,
    refused: Vec<Subscription>,
}

impl Subscriptions {
    /// None of these has been requested.
    pub(super) fn new(all: &[Subscription]) -> Subscriptions {
        Subscriptions {
            waiting: all.iter().rev().cloned().collect(),
            ..Subscriptions::default()
        }
    }

    /// The filters of the next SUBSCRIBE; `None` if an answer is outstanding, or all have been
    /// requested.
    pub(super) fn next(&mut self) -> Option<&[Subscription]> {
        if !self.requested.is_empty() || self.waiting.is_empty() {
            return None;
        }
        let n = self.waiting.len().min(FILTERS_MAX);
        self.requested
            .extend(self.waiting.drain(self.waiting.len() - n..).rev());
        Some(&self.requested)
    }

    /// Takes the broker's answer, one for each filter requested, and returns them together. A filter
    /// without an answer counts as not requested.
    pub(super) fn answered(&mut self, grants: &[Grant]) -> Vec<(Subscription, Grant)> {
        let mut requested = std::mem::take(&mut self.requested);
        let unanswered = requested.split_off(requested.len().min(grants.len()));
        self.waiting.extend(unanswered.into_iter().rev());
        let answers: Vec<_> = requested.into_iter().zip(grants.iter().copied()).collect();
        let refused = answers
            .iter()
            .filter(|(_, grant)| matches!(grant, Grant::Refused(_)));
        self.refused
            .extend(refused.map(|(subscription, _)| subscription.clone()));
        answers
    }

    /// Those that were refused or not answered have to be requested again.
    pub(super) fn again(&mut self) {
        self.waiting.append(&mut self.refused);
        self.waiting.extend(self.requested.drain(..).rev());
    }

    /// Whether an answer is outstanding.
    pub(super) fn is_unanswered(&self) -> bool {
        !self.requested.is_empty()
    }

    /// Whether all are granted.
    pub(super) fn is_granted(&self) -> bool {
        self.waiting.is_empty() && self.requested.is_empty() && self.refused.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::Retained;

    fn subscriptions(n: usize) -> Vec<Subscription> {
        let subscription = |i| Subscription {
            filter: format!("f{i}"),
            qos: 1,
            topic: "{sensor_id}".into(),
            format: "json".into(),
            ts_unit: None,
            zone: None,
            retained: Retained::Once,
            user_property_tags: vec![],
        };
        (0..n).map(subscription).collect()
    }

    fn filters(subscriptions: &[Subscription]) -> Vec<&str> {
        subscriptions.iter().map(|s| s.filter.as_str()).collect()
    }

    #[test]
    fn eight_filters_are_requested_at_a_time_in_order() {
        for n in [1, 8, 9, 16, 17] {
            let all = subscriptions(n);
            let mut rest = Subscriptions::new(&all);
            let mut seen = vec![];
            while let Some(packet) = rest.next().map(<[_]>::to_vec) {
                assert!(packet.len() <= 8);
                assert_eq!(rest.next(), None, "the answer is outstanding");
                assert!(rest.is_unanswered() && !rest.is_granted());
                let answers = rest.answered(&vec![Grant::Qos(1); packet.len()]);
                assert_eq!(answers.len(), packet.len());
                seen.extend(packet);
            }
            assert_eq!(filters(&seen), filters(&all));
            assert!(rest.is_granted());
        }
    }

    #[test]
    fn refused_and_unanswered_filters_are_requested_again() {
        let all = subscriptions(11);
        let mut rest = Subscriptions::new(&all);
        rest.next();
        let mut grants = vec![Grant::Qos(1); 8];
        grants[2] = Grant::Refused(0x87);
        let answers = rest.answered(&grants);
        assert_eq!(answers[2].0.filter, "f2");
        assert_eq!(rest.next().map(filters), Some(vec!["f8", "f9", "f10"]));
        rest.again();
        assert_eq!(
            rest.next().map(filters),
            Some(vec!["f8", "f9", "f10", "f2"])
        );
        // Too few answers.
        rest.answered(&[Grant::Qos(1); 3]);
        assert!(!rest.is_granted());
        assert_eq!(rest.next().map(filters), Some(vec!["f2"]));
        rest.answered(&[Grant::Qos(1)]);
        assert!(rest.is_granted());
        assert_eq!(
            rest.answered(&[Grant::Refused(0x80)]),
            [],
            "nothing was requested"
        );
        assert!(rest.is_granted());
    }
}
