//! Names that hold the process that gave them, so that what a killed process left is known.

/// Returns the name of this process: its number and when it began.
#[must_use]
pub fn own(separator: char) -> String {
    let own = std::process::id();
    format!("{own}{separator}{}", start_of(own).unwrap_or_default())
}

/// Returns true if a name begins with a process that is gone.
#[must_use]
pub fn is_gone(name: &str, separator: char) -> bool {
    owner(name, separator).is_some_and(|(process, start)| start_of(process) != Some(start))
}

/// Returns the process that a name begins with, and when that process began.
fn owner(name: &str, separator: char) -> Option<(u32, u64)> {
    let mut parts = name.split(separator).map(str::parse::<u64>);
    let (process, start) = (parts.next()?.ok()?, parts.next()?.ok()?);
    Some((u32::try_from(process).ok()?, start))
}

/// When a process began, in ticks since boot: with its number, it is never used again.
fn start_of(process: u32) -> Option<u64> {
    let process = procfs::process::Process::new(i32::try_from(process).ok()?).ok()?;
    Some(process.stat().ok()?.starttime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_an_orphan_once_its_process_is_gone_or_another() {
        assert!(!is_gone(&format!("{}-0", own('-')), '-'));
        let own = std::process::id();
        let start = start_of(own).unwrap();
        assert_eq!(owner(&format!("{own}_{start}_0"), '_'), Some((own, start)));
        assert!(is_gone(&format!("{own}_{}_0", start + 1), '_'), "another of the same number");
        assert!(!is_gone("x_1_0", '_'), "no process of ours");
        // Numbers of processes end far below this.
        assert!(is_gone(&format!("{}_1_0", u32::MAX / 2), '_'));
    }
}
