//! When each sender or reader was last accepted, by its id, as `hourbucket tokens list` shows it.
//!
//! The service notes the time in its memory ([`Usage::note_used`](super::Usage::note_used)) and
//! from time to time replaces a file next to the journal; the tokens file belongs to the operator,
//! and the service never writes it. The file has ids and times only. It is replaced by a rename, so
//! that a reader finds a whole one. It is not synced: a power failure may cost the last minute, or
//! the file, and syncing it would delay the journal on the same disk.
//!
//! If an id has several times, the newest counts. The number of ids is bounded: the longest unused
//! are forgotten, and [`LastUsed::unused_since`] then says how far back the file knows.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use chrono::{DateTime, SecondsFormat};
use serde::{Deserialize, Serialize};

/// Name of the file in `journal.dir`.
pub const LAST_USED_FILE: &str = "last-used.json";
/// Ids in a file. Each has up to 128 bytes.
const IDS_MAX: usize = 65_536;
/// A file of [`IDS_MAX`] ids has up to 11 MiB.
const FILE_MAX_BYTES: u64 = 16 << 20;

/// When each id was last accepted. Times are in seconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastUsed {
    /// Uses before this time are not known.
    since_s: i64,
    by_id: BTreeMap<Box<str>, i64>,
}

/// The file.
#[derive(Serialize, Deserialize)]
struct Content {
    since: String,
    last_used: BTreeMap<Box<str>, String>,
}

impl LastUsed {
    /// Nothing is known yet.
    pub fn new(since_s: i64) -> LastUsed {
        LastUsed {
            since_s,
            by_id: BTreeMap::new(),
        }
    }

    /// Reads a file; blocks for the disk.
    ///
    /// # Errors
    /// It cannot be read (the kind is `NotFound` if there is none), or is not one.
    pub fn load(path: &Path) -> io::Result<LastUsed> {
        let mut text = String::new();
        File::open(path)?
            .take(FILE_MAX_BYTES)
            .read_to_string(&mut text)?;
        let bad = || io::Error::new(io::ErrorKind::InvalidData, "it is not a file of last uses");
        let content: Content = serde_json::from_str(&text).map_err(|_| bad())?;
        let used = content
            .last_used
            .into_iter()
            .map(|(id, at)| Some((id, seconds(&at)?)));
        let by_id: Option<BTreeMap<_, _>> = used.collect();
        Ok(LastUsed {
            since_s: seconds(&content.since).ok_or_else(bad)?,
            by_id: by_id.ok_or_else(bad)?,
        })
    }

    /// Replaces a file; blocks for the disk.
    ///
    /// # Errors
    /// It cannot be written; the one before stays.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let last_used = self
            .by_id
            .iter()
            .map(|(id, at_s)| (id.clone(), text(*at_s)))
            .collect();
        let content = Content {
            since: text(self.since_s),
            last_used,
        };
        let new = path.with_extension("new");
        // Like the files of the journal, for their owner only.
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&new)?;
        file.write_all(serde_json::to_string_pretty(&content)?.as_bytes())?;
        std::fs::rename(&new, path)
    }

    /// Sets the time of an id, also to an earlier one: the clock of this process may have been
    /// wrong before.
    pub fn set(&mut self, id: &str, at_s: i64) {
        self.by_id.insert(id.into(), at_s);
    }

    /// Adds the times of another instance: the newest of each id counts, and an id that neither has
    /// was not used since both know of uses.
    pub fn merge(&mut self, other: LastUsed) {
        self.since_s = self.since_s.max(other.since_s);
        for (id, at_s) in other.by_id {
            let own = self.by_id.entry(id).or_insert(at_s);
            *own = at_s.max(*own);
        }
    }

    /// Forgets the longest unused ids if there are too many.
    pub fn limit(&mut self) {
        self.limit_to(IDS_MAX);
    }

    fn limit_to(&mut self, ids_max: usize) {
        let Some(surplus) = self
            .by_id
            .len()
            .checked_sub(ids_max)
            .filter(|surplus| *surplus > 0)
        else {
            return;
        };
        let mut times: Vec<i64> = self.by_id.values().copied().collect();
        let (_, newest_forgotten, _) = times.select_nth_unstable(surplus - 1);
        let forgotten_s = *newest_forgotten;
        self.by_id.retain(|_, at_s| *at_s > forgotten_s);
        self.since_s = self.since_s.max(forgotten_s + 1);
    }

    /// When this id was last accepted, RFC 3339 in UTC.
    pub fn find(&self, id: &str) -> Option<String> {
        self.by_id.get(id).map(|at_s| text(*at_s))
    }

    /// Since when an id that has no time was not accepted, RFC 3339 in UTC.
    pub fn unused_since(&self) -> String {
        text(self.since_s)
    }

    /// The ids with their times, in the order of the ids.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.by_id.keys().map(|id| &**id)
    }

    /// Whether no id has a time.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }
}

fn seconds(text: &str) -> Option<i64> {
    DateTime::parse_from_rfc3339(text)
        .ok()
        .map(|at| at.timestamp())
}

fn text(at_s: i64) -> String {
    DateTime::from_timestamp(at_s, 0)
        .unwrap_or_default()
        .to_rfc3339_opts(SecondsFormat::Secs, true)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn used(since_s: i64, uses: &[(&str, i64)]) -> LastUsed {
        let mut used = LastUsed::new(since_s);
        uses.iter().for_each(|(id, at_s)| used.set(id, *at_s));
        used
    }

    #[test]
    fn a_file_has_what_was_written_and_only_its_owner_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(LAST_USED_FILE);
        assert_eq!(
            LastUsed::load(&path).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        let written = used(
            1_700_000_000,
            &[("gw1", 1_763_856_000), ("CN=a/b|\"é", 1_763_856_001)],
        );
        used(5, &[("old", 7)]).write(&path).unwrap();
        written.write(&path).unwrap();
        assert_eq!(LastUsed::load(&path).unwrap(), written);
        assert_eq!(written.find("gw1").as_deref(), Some("2025-11-23T00:00:00Z"));
        assert_eq!(
            (written.find("gw2"), written.unused_since().as_str()),
            (None, "2023-11-14T22:13:20Z")
        );
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(
            std::fs::read_dir(dir.path()).unwrap().count(),
            1,
            "no temporary file is left"
        );
    }

    #[test]
    fn a_damaged_file_is_an_error_and_no_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(LAST_USED_FILE);
        used(5, &[("gw1", 7)]).write(&path).unwrap();
        let whole = std::fs::read_to_string(&path).unwrap();
        for n in 0..whole.len() {
            std::fs::write(&path, &whole[..n]).unwrap();
            assert_eq!(
                LastUsed::load(&path).unwrap_err().kind(),
                io::ErrorKind::InvalidData,
                "{n}"
            );
        }
        std::fs::write(&path, whole.replace("1970", "soon")).unwrap();
        assert!(LastUsed::load(&path).is_err());
    }

    #[test]
    fn of_several_instances_the_newest_use_counts() {
        let mut one = used(100, &[("a", 500), ("b", 200)]);
        one.merge(used(150, &[("a", 400), ("b", 300), ("c", 250)]));
        assert_eq!(one, used(150, &[("a", 500), ("b", 300), ("c", 250)]));
    }

    #[test]
    fn the_longest_unused_ids_are_forgotten_and_the_file_then_knows_less_far_back() {
        let mut used = used(0, &[("a", 10), ("b", 40), ("c", 20), ("d", 30)]);
        used.limit_to(4);
        assert_eq!((used.by_id.len(), used.since_s), (4, 0));
        used.limit_to(2);
        assert_eq!(
            (used.ids().collect::<Vec<_>>(), used.since_s),
            (vec!["b", "d"], 21)
        );
    }
}
