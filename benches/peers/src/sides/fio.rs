//! fio as a side: its io_uring engine, and the program t/io_uring of its sources.

use std::process::{Command, Stdio};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike};
use serde_json::{Value, json};

use crate::content;
use crate::job::{Figures, Job, Row, WARM_UP};

/// Where t/io_uring is, if it is not in the path as `t_io_uring`.
const T_IO_URING: &str = "T_IO_URING";

pub fn plain(job: &Job) -> Result<Figures, String> {
    fio(job, &[])
}

pub fn registered(job: &Job) -> Result<Figures, String> {
    fio(job, &["--fixedbufs", "--registerfiles"])
}

fn fio(job: &Job, extra: &[&str]) -> Result<Figures, String> {
    if job.is_copying() {
        return Err("no copy was written for this side".to_owned());
    }
    let (rw, directions): (_, &[&str]) = match job.row {
        Row::Read => ("randread", &["read"]),
        Row::Overwrite => ("randwrite", &["write"]),
        Row::Mix => ("randrw", &["read", "write"]),
    };
    let jobs = job.cores.min(job.depth).max(1);
    let mut command = Command::new("fio");
    command.args([
        "--name=peers",
        "--thread",
        "--direct=1",
        "--ioengine=io_uring",
        "--norandommap",
        "--randrepeat=0",
        "--fallocate=none",
        "--rwmixread=70",
        "--group_reporting",
        "--time_based",
        "--output-format=json",
    ]);
    command.arg(format!("--ramp_time={}ms", WARM_UP.as_millis()));
    command.arg(format!("--filename={}", job.file.display())).arg(format!("--rw={rw}"));
    command.arg(format!("--size={}", job.file_bytes)).arg(format!("--bs={}", job.size));
    command.arg(format!("--numjobs={jobs}")).arg(format!("--iodepth={}", job.depth / jobs));
    command.arg(format!("--runtime={}ms", job.time.as_millis()));
    let pattern = job.file.with_file_name("pattern");
    std::fs::write(&pattern, content::pattern(job.content)).map_err(|error| error.to_string())?;
    command.arg(format!("--buffer_pattern='{}'", pattern.display()));
    command.args(extra);
    let output = output_of(&mut command)?;
    figures(&output, directions)
}

fn figures(output: &str, directions: &[&str]) -> Result<Figures, String> {
    // Notes of fio may precede it.
    let start = output.find('{').ok_or_else(|| format!("fio printed no JSON: {output}"))?;
    let output: Value =
        serde_json::from_str(&output[start..]).map_err(|error| format!("fio's JSON: {error}"))?;
    let job = &output["jobs"][0];
    let number = |value: &Value, name: &str| {
        value[name].as_f64().ok_or_else(|| format!("fio's JSON has no number `{name}`"))
    };
    if number(job, "error")? != 0.0 {
        return Err(format!("fio failed with error {}", job["error"]));
    }
    let (mut ios, mut seconds) = (0.0, 0.0_f64);
    for direction in directions {
        ios += number(&job[*direction], "total_ios")?;
        seconds = seconds.max(number(&job[*direction], "runtime")? / 1e3);
    }
    // With several threads the shares are those of the sum of their times.
    let share = (number(job, "usr_cpu")? + number(job, "sys_cpu")?) / 100.0;
    let cpu_seconds = share * number(job, "job_runtime")? / 1e3;
    let micros = |name: &str| job[directions[0]]["clat_ns"]["percentile"][name].as_f64();
    let more = json!({
        "p50": micros("50.000000").map(|nanos| nanos / 1e3),
        "p99": micros("99.000000").map(|nanos| nanos / 1e3),
        "p999": micros("99.900000").map(|nanos| nanos / 1e3),
    });
    Ok(Figures { ios, seconds, cpu_seconds, more })
}

/// t/io_uring: polled files and buffers are registered, and it prints its rate once a second.
pub fn t_io_uring(job: &Job) -> Result<Figures, String> {
    if job.row != Row::Read || job.is_timed || job.is_copying() {
        return Err("it only reads, without percentiles".to_owned());
    }
    let program = std::env::var(T_IO_URING).unwrap_or_else(|_| "t_io_uring".to_owned());
    let (threads, batch) = (job.cores.min(job.depth).max(1), job.depth.min(16));
    let seconds = job.time.as_secs().max(1) + 1;
    let mut command = Command::new(program);
    command.args(["-p0", "-B1", "-F1", "-R1", &format!("-d{}", job.depth / threads)]);
    command.args([format!("-s{batch}"), format!("-c{batch}"), format!("-b{}", job.size)]);
    command.args([format!("-n{threads}"), format!("-r{seconds}")]).arg(&job.file);
    let before = children_time()?;
    let output = output_of(&mut command)?;
    let cpu_seconds = children_time()? - before;
    let rates: Vec<f64> = output.lines().filter_map(rate).collect();
    // The first second has its warm-up.
    let rates = if rates.len() > 1 { &rates[1..] } else { &rates[..] };
    let rate = diopter_bench::statistics::median(rates.iter().copied());
    let rate = rate.ok_or_else(|| format!("t/io_uring printed no rate: {output}"))?;
    let seconds = seconds as f64;
    Ok(Figures { ios: rate * seconds, seconds, cpu_seconds, more: Value::Null })
}

/// `IOPS=1.23M, BW=...` or `IOPS=229K, ...`
fn rate(line: &str) -> Option<f64> {
    let text = line.trim().strip_prefix("IOPS=")?.split(',').next()?;
    let (digits, factor) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 1e3),
        b'M' => (&text[..text.len() - 1], 1e6),
        _ => (text, 1.0),
    };
    Some(digits.parse::<f64>().ok()? * factor)
}

fn output_of(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{name} can't be started: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!("{name}: {}: {text}{errors}", output.status))
}

/// Processor time of the children that were waited for.
fn children_time() -> Result<f64, String> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).map_err(|errno| errno.to_string())?;
    let seconds = |time: TimeVal| time.num_microseconds() as f64 / 1e6;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_from_t_io_urings_lines() {
        assert_eq!(rate("IOPS=229.5K, BW=896MiB/s, IOS/call=16/16"), Some(229_500.0));
        assert_eq!(rate("IOPS=1.5M, BW=5GiB/s"), Some(1_500_000.0));
        assert_eq!(rate("IOPS=980, BW=3MiB/s"), Some(980.0));
        assert_eq!(rate("Exiting on timeout"), None);
    }

    #[test]
    fn figures_are_the_sum_of_both_directions() {
        let text = r#"note {"jobs":[{"error":0,"usr_cpu":10.0,"sys_cpu":40.0,"job_runtime":2000,
            "read":{"total_ios":700,"runtime":1000,"clat_ns":{"percentile":{"50.000000":1500}}},
            "write":{"total_ios":300,"runtime":999}}]}"#;
        let found = figures(text, &["read", "write"]).unwrap();
        assert_eq!((found.ios, found.seconds, found.cpu_seconds), (1000.0, 1.0, 1.0));
        assert_eq!(found.more["p50"], 1.5);
        assert!(figures(r#"{"jobs":[{"error":5}]}"#, &["read"]).is_err());
        assert!(figures("nothing", &["read"]).is_err());
    }
}
