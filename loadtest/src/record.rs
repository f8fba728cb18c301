//! The log of results, `RESULTS.md`. Only this program writes it, so that no figure is typed by
//! hand.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use crate::Failure;
use crate::parts::program;

const RESULTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/RESULTS.md");

/// Date, commit and machine of a record.
pub(crate) struct Machine {
    date: String,
    commit: String,
    processor: String,
    cores: usize,
    kernel: String,
    mongod: String,
    /// The load average of one minute before the start.
    load: String,
}

impl Machine {
    pub(crate) fn now() -> Machine {
        let output_of = |program: &str, args: &[&str]| {
            let output = Command::new(program)
                .args(args)
                .current_dir(env!("CARGO_MANIFEST_DIR"))
                .output();
            let text = output
                .map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
                .unwrap_or_default();
            if text.is_empty() {
                "unknown".to_owned()
            } else {
                text
            }
        };
        let file = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let processor = file("/proc/cpuinfo");
        let processor = processor
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let mongod = program("HOURBUCKET_MONGOD", "mongod")
            .map(|path| output_of(&path.to_string_lossy(), &["--version"]));
        Machine {
            date: output_of("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
            commit: output_of("git", &["describe", "--always", "--dirty", "--abbrev=10"]),
            processor: processor.map_or("unknown", |(_, model)| model).to_owned(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            kernel: file("/proc/sys/kernel/osrelease").trim().to_owned(),
            mongod: mongod
                .unwrap_or_default()
                .lines()
                .next()
                .unwrap_or_default()
                .replace("db version ", ""),
            load: file("/proc/loadavg")
                .split(' ')
                .next()
                .unwrap_or_default()
                .to_owned(),
        }
    }

    fn lines(&self, short: bool, note: &str) -> Vec<String> {
        let Machine {
            date,
            commit,
            processor,
            cores,
            kernel,
            mongod,
            load,
        } = self;
        let short = if short {
            ", `--short`: for seeing that it works, not for its figures"
        } else {
            ""
        };
        let mut lines = vec![
            String::new(),
            format!("## {date}, {commit}{short}"),
            String::new(),
            format!(
                "{processor}, {cores} cores, Linux {kernel}, MongoDB {mongod}; load before it \
                 began: {load}."
            ),
        ];
        if !note.is_empty() {
            lines.extend([String::new(), note.to_owned()]);
        }
        lines.push(String::new());
        lines
    }
}

pub(crate) fn append(
    machine: &Machine,
    short: bool,
    note: &str,
    result: &[String],
) -> Result<(), Failure> {
    let mut file = std::fs::OpenOptions::new().append(true).open(RESULTS)?;
    let mut text = machine.lines(short, note);
    text.extend_from_slice(result);
    writeln!(file, "{}", text.join("\n"))?;
    eprintln!("added to {}", Path::new(RESULTS).display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_its_machine_and_time() {
        let machine = Machine::now();
        assert!(machine.cores > 0 && !machine.load.is_empty() && machine.date.ends_with("UTC"));
        let text = machine.lines(true, "a note").join("\n");
        assert!(
            text.contains("--short") && text.contains("a note") && text.contains(&machine.commit)
        );
    }
}
