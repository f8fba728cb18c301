//! Certificate facts that rustls does not expose: validity and names. Parses the outer fields of X.509 (RFC 5280 §4.1)
//! without interpreting them; rustls decides whether a certificate can be trusted.

use chrono::NaiveDate;

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// Context tag `[0]`: the version.
const VERSION: u8 = 0xa0;

/// The outer fields of a certificate. Times are in seconds since 1970, both inclusive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) not_before_s: i64,
    pub(super) not_after_s: i64,
    /// DER of the name.
    pub(super) issuer: Vec<u8>,
    pub(super) subject: Vec<u8>,
}

impl Facts {
    /// Parses a certificate; `None` if it is malformed.
    pub(super) fn read(der: &[u8]) -> Option<Facts> {
        let mut certificate = Der(Der(der).take(SEQUENCE)?);
        let mut fields = Der(certificate.take(SEQUENCE)?);
        if fields.0.first() == Some(&VERSION) {
            fields.take(VERSION)?;
        }
        fields.take(INTEGER)?;
        // The signature algorithm.
        fields.take(SEQUENCE)?;
        let issuer = fields.take(SEQUENCE)?.to_vec();
        let mut validity = Der(fields.take(SEQUENCE)?);
        let subject = fields.take(SEQUENCE)?.to_vec();
        Some(Facts { not_before_s: validity.time()?, not_after_s: validity.time()?, issuer, subject })
    }
}

/// The unread rest of a DER encoding.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// The content of the next element, which must have this tag.
    fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (&first, rest) = self.0.split_first()?;
        let (&length, rest) = rest.split_first()?;
        let (length, rest) = match length {
            0..=0x7f => (usize::from(length), rest),
            // Long form: the low bits give the number of length bytes. Four allow 4 GiB.
            0x81..=0x84 => {
                let (bytes, rest) = rest.split_at_checked(usize::from(length & 0x7f))?;
                (bytes.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        (first == tag).then_some(content)
    }

    /// The next element, a time: `YYMMDDHHMMSSZ` (1950 to 2049) or `YYYYMMDDHHMMSSZ`.
    fn time(&mut self) -> Option<i64> {
        let (text, century) = match self.0.first()? {
            &UTC_TIME => (self.take(UTC_TIME)?, None),
            _ => (self.take(GENERALIZED_TIME)?, Some(())),
        };
        let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
        let (year, rest) = text.split_at_checked(if century.is_some() { 4 } else { 2 })?;
        let year: i32 = year.parse().ok()?;
        let year = match century {
            Some(()) => year,
            None if year < 50 => 2000 + year,
            None => 1900 + year,
        };
        let is_plain = rest.len() == 10 && rest.bytes().all(|b| b.is_ascii_digit());
        let part = |at: usize| -> Option<u32> { rest[2 * at..2 * at + 2].parse().ok() };
        let [month, day, hour, minute, second] = is_plain.then(|| std::array::from_fn(part))?;
        let at = NaiveDate::from_ymd_opt(year, month?, day?)?.and_hms_opt(hour?, minute?, second?)?;
        Some(at.and_utc().timestamp())
    }
}

#[cfg(test)]
mod tests {
    use tokio_rustls::rustls::pki_types::CertificateDer;
    use tokio_rustls::rustls::pki_types::pem::PemObject;

    use super::*;

    fn der(pem: &[u8]) -> Vec<u8> {
        CertificateDer::from_pem_slice(pem).unwrap().to_vec()
    }

    #[test]
    fn the_times_and_names_are_those_that_openssl_shows() {
        // openssl x509 -in … -noout -startdate -enddate
        let server = Facts::read(&der(include_bytes!("../../../tests/support/mqtt_tls/server.pem"))).unwrap();
        let ca = Facts::read(&der(include_bytes!("../../../tests/support/mqtt_tls/ca.pem"))).unwrap();
        assert_eq!((server.not_before_s, server.not_after_s), (1_795_249_250, 4_948_849_250));
        assert_eq!((&server.issuer, &ca.issuer), (&ca.subject, &ca.subject), "issued by the CA, which is self-signed");
        assert_ne!(server.subject, ca.subject);
    }

    #[test]
    fn both_forms_of_time_are_read_and_others_refused() {
        let time = |tag, text: &str| Der(&[&[tag, text.len() as u8], text.as_bytes()].concat()).time();
        assert_eq!(time(UTC_TIME, "700101000000Z"), Some(0));
        assert_eq!(time(UTC_TIME, "491231235959Z"), Some(2_524_607_999));
        assert_eq!(time(UTC_TIME, "500101000000Z"), Some(-631_152_000));
        assert_eq!(time(GENERALIZED_TIME, "20500101000000Z"), Some(2_524_608_000));
        for bad in ["", "Z", "700101000000", "7001010000Z", "701301000000Z", "7001010000é0Z", "+0010100000+Z"] {
            assert_eq!(time(UTC_TIME, bad), None, "{bad}");
        }
    }

    #[test]
    fn a_truncated_or_invalid_certificate_is_refused() {
        let whole = der(include_bytes!("../../../tests/support/mqtt_tls/server.pem"));
        for n in 0..whole.len() {
            assert_eq!(Facts::read(&whole[..n]), None, "{n}");
        }
        assert_eq!(Facts::read(&[0x30, 0x85, 1, 1, 1, 1, 1, 0]), None);
    }

    proptest::proptest! {
        #[test]
        fn never_panics(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200), at in 0usize..700, to: u8) {
            let _ = Facts::read(&bytes);
            let mut near = der(include_bytes!("../../../tests/support/mqtt_tls/server.pem"));
            let at = at % near.len();
            near[at] = to;
            let _ = Facts::read(&near);
        }
    }
}
