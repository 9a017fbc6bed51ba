//! fio's job files, as far as the engine supports them. An unsupported option is an error that
//! names it, with its file and line: running part of a job would be another job.

mod source;

mod values;

mod section;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use diopter_text::untrusted;
pub use section::FileJob;
pub use source::{FILE_BYTES_MAX, is_job_file, looks_like_job_file};

use crate::fio::units::Base;
use section::Section;
use source::{SourceLine, excerpt};
use values::Given;

/// Largest number of jobs in a file.
const JOBS_MAX: usize = 1000;

/// Longest name of a job or an option.
const NAME_BYTES_MAX: usize = 255;

/// The jobs of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct JobFile {
    pub jobs: Vec<FileJob>,
    /// The directory of the file, without links; none for a text.
    pub home: Option<PathBuf>,
    /// Differences from a run by fio, for the user.
    pub notes: Vec<String>,
}

/// The meaning of a line.
enum Line<'a> {
    Section(&'a str),
    Option(Given<'a>),
}

/// Reads a job file and the files that it includes.
///
/// # Errors
/// The file and line, what is wrong with it, and what to do.
pub fn read(path: &Path) -> Result<JobFile, String> {
    let (lines, home) = source::lines_of_file(path)?;
    Ok(JobFile { home, ..jobs(&lines, &untrusted::name(path))? })
}

/// Reads a job file from a text, which can include no file.
///
/// # Errors
/// As [`read`].
pub fn parse(text: &str) -> Result<JobFile, String> {
    jobs(&source::lines_of_text(text)?, "job file")
}

fn jobs(lines: &[SourceLine], file: &str) -> Result<JobFile, String> {
    let base = base_of(lines)?;
    let mut global = Section::new(base);
    let mut sections: Vec<(&SourceLine, Section)> = Vec::new();
    let mut is_global = true;
    let (mut ignored, mut notes) = (BTreeSet::new(), BTreeSet::new());
    for line in lines {
        let failed = |why: String| line.failure(&why);
        match line_of(&line.text).map_err(failed)? {
            Line::Section(_) if line.is_included => {
                return Err(line.failure("a section in an included file; write it in the job file"));
            }
            Line::Section("global") => is_global = true,
            Line::Section(name) => {
                if sections.len() == JOBS_MAX {
                    let why = format!("more than {JOBS_MAX} jobs; make two files of it");
                    return Err(line.failure(&why));
                }
                is_global = false;
                let mut section = global.clone();
                name.clone_into(&mut section.file_job.name);
                sections.push((line, section));
            }
            Line::Option(given) => {
                let section = match sections.last_mut() {
                    Some((_, last)) if !is_global => last,
                    _ => &mut global,
                };
                section.set(given, &mut ignored).map_err(failed)?;
            }
        }
    }
    let Some((_, others)) = sections.split_first() else {
        return Err(format!("{file}: no job; a job begins with its name in brackets"));
    };
    if let Some((line, parallel)) = others.iter().find(|(_, section)| !section.waits) {
        let name = &parallel.file_job.name;
        return Err(line.failure(&format!(
            "job `{name}` would run concurrently with the one before it; give it stonewall, \
             or a separate file"
        )));
    }
    let finished = sections
        .into_iter()
        .map(|(line, section)| section.finish(&mut notes).map_err(|why| line.failure(&why)));
    let jobs = finished.collect::<Result<Vec<FileJob>, String>>()?;
    if !ignored.is_empty() {
        let names = ignored.into_iter().collect::<Vec<_>>().join(", ");
        notes.insert(format!("no effect in dio bench: {names}"));
    }
    Ok(JobFile { jobs, home: None, notes: notes.into_iter().collect() })
}

fn line_of(line: &str) -> Result<Line<'_>, String> {
    if let Some(rest) = line.strip_prefix('[') {
        let name = rest.split(']').next().unwrap_or_default().trim();
        let is_valid = rest.contains(']') && !name.is_empty() && name.len() <= NAME_BYTES_MAX;
        let invalid = || Err(format!("invalid section `{}`; write [name]", excerpt(line)));
        return if is_valid { Ok(Line::Section(name)) } else { invalid() };
    }
    if line.contains("${") || line.contains("$jobn") {
        let shown = excerpt(line);
        return Err(format!("`{shown}`: variables are not supported; write the value"));
    }
    Ok(Line::Option(match line.split_once('=') {
        Some((name, value)) => Given { name: name.trim(), value: Some(value.trim()) },
        None => Given { name: line, value: None },
    }))
}

/// Returns the unit of sizes that `kb_base` sets anywhere in the file.
fn base_of(lines: &[SourceLine]) -> Result<Base, String> {
    let mut base = Base::Binary;
    for line in lines {
        if let Ok(Line::Option(Given { name: "kb_base", value })) = line_of(&line.text) {
            base = match value {
                Some("1000") => Base::Si,
                Some("1024") => Base::Binary,
                _ => return Err(line.failure("invalid kb_base; write 1000 or 1024")),
            };
        }
    }
    Ok(base)
}

#[cfg(test)]
mod tests;
