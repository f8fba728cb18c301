//! Counts the instructions of the service for a reading, with valgrind's callgrind. Other load on the
//! machine changes them far less than times: only as far as more or fewer readings share a statement,
//! some three percent. They do not say what waits for memory or for the disk.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::Failure;
use crate::pair::Pair;
use crate::parts::program;
use crate::run::{self, Options};
use crate::spec::{Phase, Spec};

/// Readings of the two runs with each binary. The difference is counted, without start and end.
const FEW: u64 = 100_000;
const MANY: u64 = 300_000;

/// Sends so few readings of the scenario with each binary.
///
/// # Errors
/// Valgrind is not installed, or a run failed, lost a reading or stored one twice.
pub(crate) async fn run(spec: &Path, [before, after]: [Options; 2]) -> Result<Pair, Failure> {
    let spec = run::find_spec(spec, false)?;
    let before = per_reading(&spec, &before).await?;
    let after = per_reading(&spec, &after).await?;
    let what = "service instructions per reading";
    Ok(Pair::single(&spec.name, what, [before, after]))
}

async fn per_reading(spec: &Spec, options: &Options) -> Result<f64, Failure> {
    let few = Counted::of(spec, options, FEW).await?;
    let many = Counted::of(spec, options, MANY).await?;
    let instructions = many.instructions - few.instructions;
    Ok(instructions / (many.readings - few.readings))
}

/// A run.
struct Counted {
    instructions: f64,
    readings: f64,
}

impl Counted {
    async fn of(spec: &Spec, options: &Options, readings: u64) -> Result<Counted, Failure> {
        let dir = tempfile::tempdir()?;
        let counts = dir.path().join("counts");
        let binary = dir.path().join("hourbucket");
        std::fs::write(&binary, wrapper(&options.binary.canonicalize()?, &counts)?)?;
        std::fs::set_permissions(&binary, PermissionsExt::from_mode(0o755))?;
        let phase = Phase {
            name: "counted".into(),
            readings: Some(readings),
            ..Phase::default()
        };
        let spec = Spec {
            phases: vec![phase],
            ..spec.clone()
        };
        let options = Options {
            binary,
            ..options.clone()
        };
        let report = run::run(&spec, &options).await?;
        if let Some(problem) = report.check.problems.first() {
            return Err(problem.clone().into());
        }
        let counts = std::fs::read_to_string(counts)?;
        let sum = counts
            .lines()
            .find_map(|line| line.strip_prefix("totals: "));
        let instructions: f64 = sum.ok_or("callgrind has counted nothing")?.trim().parse()?;
        eprintln!("  {instructions:.0} instructions, {readings} readings");
        Ok(Counted {
            instructions,
            readings: report.readings as f64,
        })
    }
}

/// A script that runs the service under callgrind.
fn wrapper(binary: &Path, counts: &Path) -> Result<String, Failure> {
    let valgrind = program("HOURBUCKET_VALGRIND", "valgrind")
        .ok_or("valgrind is required: apt-get install valgrind")?;
    let quoted = |path: &Path| format!("'{}'", path.display().to_string().replace('\'', r"'\''"));
    let mut script = "#!/bin/sh\n".to_owned();
    writeln!(
        script,
        "exec {} --tool=callgrind --fair-sched=yes --callgrind-out-file={} {} \"$@\"",
        quoted(&valgrind),
        quoted(counts),
        quoted(binary)
    )?;
    Ok(script)
}
