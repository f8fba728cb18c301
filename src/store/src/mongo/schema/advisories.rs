//! Server versions whose time-series collections are known to corrupt memory or data.

/// A fault in the versions `from..fixed` of each pair. Versions between the fix of one release line
/// and the start of the next are good. Rapid releases (such as 6.1 to 6.3) were never fixed, so
/// they belong to the line that follows them.
struct Advisory {
    name: &'static str,
    what: &'static str,
    affected: &'static [(Version, Version)],
}

type Version = (u32, u32, u32);

/// Sources: CVE-2026-8053 from the Canadian Centre for Cyber Security's AV26-468 of 2026-05-13; the
/// other two from <https://osv.dev/vulnerability/BIT-mongodb-2026-18692> and `…-18693`
/// (2026-09-17).
const ADVISORIES: [Advisory; 3] = [
    Advisory {
        name: "CVE-2026-8053",
        what: "writes outside of its memory when field names in a bucket clash",
        affected: &[
            ((5, 0, 0), (5, 0, 33)),
            ((5, 1, 0), (6, 0, 28)),
            ((6, 1, 0), (7, 0, 34)),
            ((7, 1, 0), (8, 0, 23)),
            ((8, 1, 0), (8, 2, 9)),
            ((8, 3, 0), (8, 3, 2)),
        ],
    },
    Advisory {
        name: "CVE-2026-18692",
        what: "uses memory of a bucket after it was freed",
        affected: &[((8, 0, 0), (8, 0, 29)), ((8, 1, 0), (8, 3, 8))],
    },
    Advisory {
        name: "CVE-2026-18693",
        what: "reads and writes outside of a bucket's memory after certain inserts",
        affected: &[
            ((7, 0, 0), (7, 0, 40)),
            ((7, 1, 0), (8, 0, 29)),
            ((8, 1, 0), (8, 3, 8)),
        ],
    },
];

/// The warning for an operator who uses time-series collections on this version. `None` if the
/// version has no known fault or cannot be parsed.
pub(crate) fn warning(version: &str) -> Option<String> {
    let found = parse(version)?;
    let hits = ADVISORIES.iter().filter_map(|a| {
        let (_, fixed) = a
            .affected
            .iter()
            .find(|(from, fixed)| (*from..*fixed).contains(&found))?;
        Some((a, *fixed))
    });
    let hits: Vec<_> = hits.collect();
    let (major, minor, patch) = hits.iter().map(|(_, fixed)| *fixed).max()?;
    let faults: Vec<_> = hits
        .iter()
        .map(|(a, _)| format!("{} ({})", a.name, a.what))
        .collect();
    Some(format!(
        "MongoDB {version} has known faults in time-series collections that can corrupt memory or \
         data: {}; update to {major}.{minor}.{patch} or later, or set store.mode = \"bucket\"",
        faults.join(", ")
    ))
}

/// Parses `major.minor.patch` at the start of a version such as `6.0.28-rc0`.
fn parse(version: &str) -> Option<Version> {
    let number = |text: &str| {
        text.split(|c: char| !c.is_ascii_digit())
            .next()?
            .parse()
            .ok()
    };
    let mut parts = version.split('.');
    Some((
        number(parts.next()?)?,
        number(parts.next()?)?,
        number(parts.next()?)?,
    ))
}

/// Whether a server of this version may support time-series collections: an estimate before it is
/// tried.
pub(crate) fn may_be_native(version: &str) -> bool {
    parse(version).is_some_and(|v| v >= (5, 0, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn affected_versions_are_named_with_the_fixed_one() {
        for (version, names, update) in [
            ("5.0.32", &["8053"][..], "5.0.33"),
            ("6.0.5", &["8053"], "6.0.28"),
            ("6.0.27", &["8053"], "6.0.28"),
            ("6.3.2", &["8053"], "7.0.34"),
            ("7.0.33", &["8053", "18693"], "7.0.40"),
            ("7.0.39-rc0", &["18693"], "7.0.40"),
            ("8.0.28", &["18692", "18693"], "8.0.29"),
            ("8.2.9", &["18692", "18693"], "8.3.8"),
        ] {
            let text = warning(version).unwrap_or_default();
            for name in ["8053", "18692", "18693"] {
                assert_eq!(
                    text.contains(&format!("CVE-2026-{name}")),
                    names.contains(&name),
                    "{version}: {text}"
                );
            }
            assert!(
                text.contains(&format!("update to {update} or later")),
                "{version}: {text}"
            );
        }
        for good in [
            "4.4.2", "5.0.33", "6.0.28", "6.0.30", "7.0.40", "8.0.29", "8.3.8", "9.0.0", "unknown",
            "",
        ] {
            assert_eq!(warning(good), None, "{good}");
        }
    }
}
