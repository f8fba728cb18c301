//! A server process with its own directory, removed whenever the test ends.
//!
//! A test that fails, a test binary that is killed with SIGKILL and a Ctrl-C on `cargo test` must
//! leave no server and no directory behind, and a server shared by the tests of a binary is in a
//! `static`, which is never dropped. So each directory has a small shell (the leash) that reads
//! from a pipe whose other end only the test binary holds. When that end is closed, for any reason,
//! the shell kills the server and removes the directory.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// `$0` is the directory. The process id may have been reused, so the process is killed only if it
/// works in the directory.
const LEASH: &str = r#"
trap '' INT TERM HUP
pid=
while read -r line; do pid=$line; done
for try in 1 2 3 4 5 6 7 8 9 10; do
    [ -n "$pid" ] && [ "$(readlink "/proc/$pid/cwd")" = "$0" ] || break
    kill -9 "$pid"
    sleep 0.1
done
cd / && rm -rf "$0"
"#;

/// The part of a log that a panic shows.
const LOG_TAIL_BYTES: usize = 4_000;

/// A directory, and the process that works in it, if it runs.
pub struct Process {
    name: &'static str,
    dir: PathBuf,
    child: Option<Child>,
    leash: Child,
    leash_end: Option<ChildStdin>,
}

impl Process {
    /// Creates the directory, without a process. `name` is the name of the log.
    pub fn new(name: &'static str) -> Process {
        let dir = tempfile::Builder::new()
            .prefix(&format!("hourbucket-test-{name}."))
            .tempdir()
            .expect("a directory");
        let dir = dir.keep().canonicalize().expect("a directory");
        // In its own process group: Ctrl-C on the terminal must not reach it before its work is
        // done.
        let mut leash = Command::new("sh")
            .args(["-c", LEASH])
            .arg(&dir)
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("sh must start");
        let leash_end = leash.stdin.take();
        Process {
            name,
            dir,
            child: None,
            leash,
            leash_end,
        }
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Starts `command` in the directory; its output is appended to the log.
    pub fn spawn(&mut self, command: &mut Command) {
        assert!(self.child.is_none(), "{} runs already", self.name);
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_path())
            .expect("a log");
        let same: File = log.try_clone().expect("a log");
        let spawned = command
            .current_dir(&self.dir)
            .stdin(Stdio::null())
            .stdout(same)
            .stderr(log)
            .process_group(0)
            .spawn();
        let child = spawned.unwrap_or_else(|error| panic!("{} does not start: {error}", self.name));
        let end = self.leash_end.as_mut().expect("open until dropped");
        writeln!(end, "{}", child.id()).expect("the leash reads");
        self.child = Some(child);
    }

    /// Its process id, for /proc.
    ///
    /// # Panics
    /// It does not run.
    pub fn pid(&self) -> u32 {
        self.child
            .as_ref()
            .unwrap_or_else(|| panic!("{} does not run", self.name))
            .id()
    }

    /// Whether it was started and has not been killed or seen to [end](Process::ended).
    pub fn runs(&self) -> bool {
        self.child.is_some()
    }

    /// Whether it runs; its exit status if it has ended by itself.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let status = self
            .child
            .as_mut()?
            .try_wait()
            .expect("a child process of this one");
        if status.is_some() {
            self.child = None;
        }
        status
    }

    /// Sends SIGKILL, and returns when the process has ended. Does nothing if it does not run.
    pub fn kill9(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It fails only if the process has ended already.
            let _ = child.kill();
            child.wait().expect("a child process of this one");
        }
    }

    /// Sends SIGTERM, and returns immediately.
    pub fn sigterm(&self) {
        self.signal("TERM");
    }

    /// Sends SIGHUP, and returns immediately.
    pub fn sighup(&self) {
        self.signal("HUP");
    }

    fn signal(&self, signal: &str) {
        let pid = self.pid().to_string();
        // The built-in kill of the shell: the program of that name may not be installed.
        let status = Command::new("sh")
            .args(["-c", "kill -\"$1\" \"$0\"", &pid, signal])
            .status()
            .expect("sh must start");
        assert!(status.success(), "no SIG{signal} to {}", self.name);
    }

    /// Waits until it ends by itself.
    ///
    /// # Panics
    /// It did not end within `limit`.
    #[track_caller]
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        let deadline = Instant::now() + limit;
        loop {
            assert!(self.child.is_some(), "{} does not run", self.name);
            if let Some(status) = self.ended() {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "{} has not ended within {limit:?}:\n{}",
                self.name,
                self.log_tail()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Its whole output.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.log_path()).unwrap_or_default()).into_owned()
    }

    /// The end of its output.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let mut from = log.len().saturating_sub(LOG_TAIL_BYTES);
        while !log.is_char_boundary(from) {
            from += 1;
        }
        log[from..].to_owned()
    }

    fn log_path(&self) -> PathBuf {
        self.dir.join(format!("{}.log", self.name))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill9();
        drop(self.leash_end.take());
        let _ = self.leash.wait();
    }
}
