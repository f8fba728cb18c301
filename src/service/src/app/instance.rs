//! The id of this instance, a file in the journal's directory: the owner of marks in
//! `rollup_pending`.

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::sync::Arc;

/// The name of the file.
const NAME: &str = "instance";

/// A new id: 16 hexadecimal digits.
pub(super) fn new_id() -> Arc<str> {
    Arc::from(format!("{:016x}", fastrand::u64(..)))
}

/// Reads the id, or creates it. The journal holds the directory's lock.
///
/// # Errors
/// The file cannot be read or written.
pub(super) fn id_in(dir: &Path) -> std::io::Result<Arc<str>> {
    let path = dir.join(NAME);
    match std::fs::read_to_string(&path) {
        Ok(text) if !text.trim().is_empty() => return Ok(Arc::from(text.trim())),
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let id = new_id();
    let unfinished = dir.join(format!("{NAME}.new"));
    let mut file = std::fs::File::create(&unfinished)?;
    writeln!(file, "{id}")?;
    file.sync_all()?;
    std::fs::rename(&unfinished, &path)?;
    std::fs::File::open(dir)?.sync_all()?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_stays_with_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let id = id_in(dir.path()).unwrap();
        assert_eq!((id.len(), id_in(dir.path()).unwrap()), (16, id));
    }
}
