//! The documentation site: how the lane `book` builds it with mdBook from `docs/` and from the help
//! of each command. The result is `target/book`.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::repo::Outcome;
use crate::{repo, run, tools};

/// The line of `docs/SUMMARY.md` that the pages of the commands follow.
const REFERENCE: &str = "# Reference\n\n";

/// Builds the site. Broken links are findings of tidy; this fails if mdBook does.
pub fn build() -> Outcome {
    let mut command = tools::BOOK.command()?;
    let mut build = repo::cargo();
    build.args(["build", "--bin", "dio", "--examples"]);
    if !run::to_the_end(&mut build)?.0 {
        return Ok(false);
    }
    let source = repo::target_dir().join("book-source");
    let message = |error| format!("{}: {error}", source.display());
    if source.exists() {
        fs::remove_dir_all(&source).map_err(message)?;
    }
    copy(&repo::root().join("docs"), &source).map_err(message)?;
    let chapters = write_reference(&source)?;
    let summary = source.join("SUMMARY.md");
    let text = fs::read_to_string(&summary).map_err(message)?;
    let whole = with_chapters(&text, &chapters).ok_or("docs/SUMMARY.md has no `# Reference`")?;
    fs::write(&summary, whole).map_err(message)?;
    command.arg("build").arg(&source).arg("--dest-dir").arg(repo::target_dir().join("book"));
    run::to_the_end(&mut command).map(|(passed, _)| passed)
}

/// Writes a page with the help of each command, and returns their chapters.
fn write_reference(source: &Path) -> Result<String, String> {
    let dir = source.join("reference");
    let message = |error| format!("{}: {error}", dir.display());
    let dio = repo::target_dir().join("debug/dio");
    let pages = dir.join("man");
    fs::create_dir_all(&pages).map_err(message)?;
    repo::output_of(Command::new(&dio).args(["man", "--out"]).arg(&pages))?;
    let mut names = Vec::new();
    for entry in fs::read_dir(&pages).map_err(message)? {
        let name = entry.map_err(message)?.file_name().to_string_lossy().into_owned();
        names.extend(name.strip_suffix(".1").map(str::to_owned));
    }
    names.sort();
    let mut chapters = String::new();
    for name in &names {
        let words: Vec<&str> = name.split('-').collect();
        let help = repo::output_of(Command::new(&dio).args(&words[1..]).arg("--help"))?;
        let title = words.join(" ");
        let page = format!("# {title}\n\n```text\n{help}\n```\n");
        fs::write(dir.join(format!("{name}.md")), page).map_err(message)?;
        chapters.push_str(&format!("- [{title}](reference/{name}.md)\n"));
    }
    Ok(chapters)
}

/// Returns the summary with the chapters at the start of its reference.
fn with_chapters(summary: &str, chapters: &str) -> Option<String> {
    let (before, after) = summary.split_once(REFERENCE)?;
    Some(format!("{before}{REFERENCE}{chapters}{after}"))
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_has_a_place_for_the_commands() {
        let text = fs::read_to_string(repo::root().join("docs/SUMMARY.md")).unwrap();
        let whole = with_chapters(&text, "- [dio cp](reference/dio-cp.md)\n").unwrap();
        assert!(whole.contains("# Reference\n\n- [dio cp](reference/dio-cp.md)\n- ["));
        assert_eq!(with_chapters("# Guide\n", ""), None);
    }
}
