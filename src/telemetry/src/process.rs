//! The `process_*` metrics that Prometheus client libraries export (memory, CPU time, descriptors).
//! Read from /proc at each scrape; absent if there is no /proc. Written as text because the
//! recorder has no fractional counters.

use std::fs;

use super::metrics;

/// Values read from `/proc/self`.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Usage {
    cpu_seconds: f64,
    resident_bytes: u64,
    virtual_bytes: u64,
    open_fds: u64,
    /// `None`: unlimited.
    max_fds: Option<u64>,
    start_seconds: f64,
}

/// Appends the metrics of this process to a scrape.
pub(super) fn render(text: &mut String) {
    let Some(usage) = read_usage() else { return };
    metrics::process_cpu_seconds_total(text, usage.cpu_seconds);
    metrics::process_resident_memory_bytes(text, usage.resident_bytes);
    metrics::process_virtual_memory_bytes(text, usage.virtual_bytes);
    metrics::process_open_fds(text, usage.open_fds);
    if let Some(max) = usage.max_fds {
        metrics::process_max_fds(text, max);
    }
    metrics::process_start_time_seconds(text, usage.start_seconds);
}

fn read_usage() -> Option<Usage> {
    let text = |path: &str| fs::read_to_string(path).ok();
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    parse(text, ticks, open_fds()?)
}

/// Since Linux 6.2 the size of `/proc/self/fd` is the number of descriptors. Before, it is 0, and
/// they are counted.
fn open_fds() -> Option<u64> {
    match fs::metadata("/proc/self/fd").ok()?.len() {
        0 => Some(fs::read_dir("/proc/self/fd").ok()?.count() as u64),
        n => Some(n),
    }
}

/// `text`: of a file below /proc.
fn parse(text: impl Fn(&str) -> Option<String>, ticks: f64, open_fds: u64) -> Option<Usage> {
    let stat = text("/proc/self/stat")?;
    let status = text("/proc/self/status")?;
    let line = |text: &str, start: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(start))?;
        Some(found.trim().to_owned())
    };
    // The process name is in parentheses and may contain spaces and parentheses. Field 3 of
    // proc_pid_stat(5) follows it.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let seconds = |number: usize| Some(fields.get(number - 3)?.parse::<f64>().ok()? / ticks);
    let kib = |key: &str| {
        let kib = line(&status, key)?;
        Some(kib.strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
    };
    let max_fds = line(&text("/proc/self/limits")?, "Max open files")?;
    let booted: f64 = line(&text("/proc/stat")?, "btime ")?.parse().ok()?;
    Some(Usage {
        cpu_seconds: seconds(14)? + seconds(15)?,
        resident_bytes: kib("VmRSS:")?,
        virtual_bytes: kib("VmSize:")?,
        open_fds,
        max_fds: max_fds.split_ascii_whitespace().next()?.parse().ok(),
        start_seconds: booted + seconds(22)?,
    })
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_spaces_and_parentheses_shifts_nothing() {
        let rest: Vec<String> = (4..=30).map(|n| n.to_string()).collect();
        let stat = format!("77 (a b) c) S {}", rest.join(" "));
        let status = "Name:\ta b) c\nVmSize:\t    2000 kB\nVmRSS:\t     300 kB\n";
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max open files            1024                 unlimited            files\n";
        let parsed = |stat: &str, limits: &str| {
            let text = |path: &str| match path {
                "/proc/self/stat" => stat.to_owned(),
                "/proc/self/status" => status.to_owned(),
                "/proc/self/limits" => limits.to_owned(),
                _ => "cpu 1 2\nbtime 1000\n".to_owned(),
            };
            parse(|path| Some(text(path)), 10.0, 5)
        };
        let expected = Usage {
            cpu_seconds: 2.9,
            resident_bytes: 307_200,
            virtual_bytes: 2_048_000,
            open_fds: 5,
            max_fds: Some(1024),
            start_seconds: 1002.2,
        };
        assert_eq!(parsed(&stat, limits), Some(expected));
        let unlimited = limits.replace("1024 ", "unlimited ");
        assert_eq!(parsed(&stat, &unlimited).unwrap().max_fds, None);
        assert_eq!(parsed("77 (x", limits), None);
    }

    #[test]
    fn this_process_is_seen() {
        let usage = read_usage().expect("/proc");
        assert!(
            usage.resident_bytes > 1 << 20 && usage.resident_bytes < usage.virtual_bytes,
            "{usage:?}"
        );
        assert!(usage.cpu_seconds >= 0.0 && usage.open_fds >= 3, "{usage:?}");
        let open: Vec<_> = (0..50)
            .map(|_| fs::File::open("/proc/self/stat").unwrap())
            .collect();
        // Other tests open and close files concurrently.
        assert!(open_fds().unwrap() >= 50, "{} open", open.len());
        let mut text = String::new();
        render(&mut text);
        assert!(
            text.contains("# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total "),
            "{text}"
        );
    }
}
