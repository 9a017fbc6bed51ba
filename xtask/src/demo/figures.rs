//! The figures of a measurement in a page: the text between `<!-- figures: NAME -->` and
//! `<!-- end of figures -->` is replaced. Nothing is measured here.

use super::options::Options;
use super::table::{Row, cached_percent};
use crate::repo;
use std::path::Path;
use std::process::Command;

const END: &str = "<!-- end of figures -->";

/// The machine of a measurement.
pub struct Machine {
    pub date: String,
    pub kernel: String,
    pub cores: usize,
    pub file_system: String,
    /// The load average of the last minute, before the first copy.
    pub load: String,
}

impl Machine {
    /// Returns this machine, for files below `dir`.
    pub fn of(dir: &Path) -> Result<Machine, String> {
        let load = std::fs::read_to_string("/proc/loadavg");
        let load = load.map_err(|error| format!("/proc/loadavg: {error}"))?;
        let mut findmnt = Command::new("findmnt");
        findmnt.args(["--noheadings", "--output=FSTYPE", "--target"]).arg(dir);
        Ok(Machine {
            date: repo::output_of(Command::new("date").arg("+%Y-%m-%d"))?.trim().to_owned(),
            kernel: repo::output_of(Command::new("uname").arg("-r"))?.trim().to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            file_system: repo::output_of(&mut findmnt)?.trim().to_owned(),
            load: load.split(' ').next().unwrap_or_default().to_owned(),
        })
    }
}

/// Returns the page with the figures of these rows: the first one is that of `dio cp`.
pub fn written(
    page: &str,
    rows: &[Row],
    options: &Options,
    machine: &Machine,
) -> Result<String, String> {
    let page = replaced(page, "copy", &sentence(rows, options)?)?;
    replaced(&page, "copy-table", &table(rows, options, machine)?)
}

fn sentence(rows: &[Row], options: &Options) -> Result<String, String> {
    let seconds = |row: &Row| row.median().ok_or_else(|| format!("{} has no figure", row.name));
    let of = |prefix: &str| {
        let rows = rows.iter().filter(|row| row.name.starts_with(prefix));
        let all = rows.map(|row| Ok((seconds(row)?, row.name))).collect::<Result<Vec<_>, String>>();
        let fastest = all?.into_iter().min_by(|one, other| one.0.total_cmp(&other.0));
        fastest.ok_or_else(|| format!("no row of {prefix}"))
    };
    let (dio, (dd, dd_name), (cp, _)) = (of("dio cp")?.0, of("dd")?, of("cp")?);
    let gib = options.size as f64 / f64::from(1 << 30);
    Ok(format!(
        "Copying {gib} GiB with a cold cache, flush included, takes `dio cp` {dio:.2} s, the\n\
         fastest `{dd_name}` {dd:.2} s, and `cp` with `sync` {cp:.2} s.\n"
    ))
}

fn table(rows: &[Row], options: &Options, machine: &Machine) -> Result<String, String> {
    let Machine { date, kernel, cores, file_system, load } = machine;
    let gib = options.size as f64 / f64::from(1 << 30);
    let rounds = options.rounds;
    let mut text = format!(
        "The file has {gib} GiB of random bytes. The source is cold, there is no reflink, and\n\
         each copy is flushed. Medians of {rounds} interleaved rounds on {date}: Linux {kernel},\n\
         {cores} cores, {file_system}, load average {load} before the first copy.\n\n\
         | | seconds | GB/s | left in the page cache |\n|---|---|---|---|\n"
    );
    for row in rows {
        let seconds = row.median().ok_or_else(|| format!("{} has no figure", row.name))?;
        let rate = options.size as f64 / 1e9 / seconds;
        let cached = cached_percent(&row.cached, options.size);
        let cached = cached.map_or("unknown".to_owned(), |percent| format!("{percent:.1} %"));
        text.push_str(&format!("| `{}` | {seconds:.2} | {rate:.2} | {cached} |\n", row.name));
    }
    Ok(text)
}

/// Replaces the text of one name.
fn replaced(page: &str, name: &str, text: &str) -> Result<String, String> {
    let start = format!("<!-- figures: {name} -->\n");
    let missing = |part: &str| format!("the page has no `{}`", part.trim_end());
    let (before, rest) = page.split_once(&start).ok_or_else(|| missing(&start))?;
    let (_, after) = rest.split_once(END).ok_or_else(|| missing(END))?;
    Ok(format!("{before}{start}{text}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::super::tool::TOOLS;
    use super::*;
    use std::time::Duration;

    fn rows(seconds: u64) -> Vec<Row> {
        let rows = TOOLS.iter().zip(seconds..).map(|(tool, seconds)| {
            let mut row = Row::new(tool.name);
            row.add(Duration::from_secs(seconds), Some(1 << 29));
            row
        });
        rows.collect()
    }

    #[test]
    fn the_readme_takes_the_figures_and_nothing_else_of_it_changes() {
        let readme = std::fs::read_to_string(repo::root().join("README.md")).unwrap();
        let options = Options { size: 2 << 30, rounds: 3, dir: None, into: None };
        let machine = Machine::of(&repo::root()).unwrap();
        let first = written(&readme, &rows(3), &options, &machine).unwrap();
        assert!(first.contains("takes `dio cp` 3.00 s, the\nfastest `dd direct bs=1M` 5.00 s"));
        assert!(first.contains("| `cp --reflink=never; sync` | 4.00 | 0.54 | 12.5 % |"));
        let second = written(&first, &rows(8), &options, &machine).unwrap();
        assert_eq!(first.lines().count(), second.lines().count());
        let changed = first.lines().zip(second.lines()).filter(|(one, other)| one != other);
        assert_eq!(changed.count(), 2 + TOOLS.len());
        let other = [written("no marks", &rows(1), &options, &machine), {
            written(&readme, &[Row::new("dio cp")], &options, &machine)
        }];
        assert!(other.iter().all(Result::is_err));
    }
}
