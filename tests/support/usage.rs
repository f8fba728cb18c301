//! Processor time and memory of processes, from `/proc`.

/// Processor time of a process, in seconds, to ten milliseconds.
pub fn cpu_s(pid: u32) -> f64 {
    stat_cpu_s(&format!("/proc/{pid}/stat"))
}

/// The same for the thread that calls.
pub fn thread_cpu_s() -> f64 {
    stat_cpu_s("/proc/thread-self/stat")
}

fn stat_cpu_s(path: &str) -> f64 {
    let stat = std::fs::read_to_string(path).expect("the process runs");
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .expect("a name")
        .1
        .split_whitespace()
        .collect();
    // utime and stime, in hundredths of a second.
    fields[11..13]
        .iter()
        .map(|ticks| ticks.parse::<f64>().expect("a number") / 100.0)
        .sum()
}

/// Resident memory of a process.
pub fn resident_kib(pid: u32) -> u64 {
    status_kib(pid, "VmRSS:")
}

/// The most resident memory of a process since the last [`reset_peak`].
pub fn peak_kib(pid: u32) -> u64 {
    status_kib(pid, "VmHWM:")
}

pub fn reset_peak(pid: u32) {
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5").expect("a process of this user");
}

fn status_kib(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status
        .lines()
        .find(|line| line.starts_with(name))
        .expect(name);
    line.split_whitespace()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .expect("a number")
}
