//! The rules about text: what any committed file may hold, and the form of a source file's lines.

use super::{Finding, Source};

const COLUMNS_MAX: usize = 100;
const FILE_LINES_MAX: usize = 800;

/// Directories that exist on one machine only. In two parts, so that this file passes its own rule.
const MACHINE_DIRS: [(&str, &str); 3] = [("/wo", "rk/"), ("/fa", "rm/"), ("/ro", "ot/")];
const WORKFLOWS: &str = ".github/workflows/";
const HOMES: (&str, &str) = ("/ho", "me/");

/// The rules of this file, over one file.
pub fn check(source: &Source, findings: &mut Vec<Finding>) {
    for (index, line) in source.text.lines().enumerate() {
        let mut report = |what: String| findings.push(source.finding(index + 1, what));
        if source.has_code_form() && line.chars().count() > COLUMNS_MAX {
            report(format!("the line is longer than {COLUMNS_MAX} columns; break it"));
        }
        if source.is_prose_or_code()
            && let Some(odd) = line.chars().find(|character| !character.is_ascii())
        {
            let code = u32::from(odd);
            report(format!("U+{code:04X} is not ASCII; write it with ASCII characters"));
        }
        if source.path.starts_with(WORKFLOWS) && names_action_by_tag(line) {
            report("an action is named by a tag, which its owner may move; name its commit".into());
        }
        if let Some(path) = machine_path(line) {
            report(format!("`{path}` is a path of one machine; write a path any reader has"));
        }
    }
    if source.is_rust() {
        check_whole(source, findings);
    }
}

/// Returns true for a step of a workflow whose action is not `OWNER/NAME@` and a commit.
fn names_action_by_tag(line: &str) -> bool {
    let step = line.trim_start().trim_start_matches("- ");
    let Some(action) = step.strip_prefix("uses:") else { return false };
    let name = action.split('#').next().unwrap_or_default().trim();
    let commit = name.split_once('@').map_or("", |(_, commit)| commit);
    commit.len() != 40 || !commit.chars().all(|c| c.is_ascii_hexdigit())
}

fn check_whole(source: &Source, findings: &mut Vec<Finding>) {
    let lines = source.text.lines().count();
    if lines > FILE_LINES_MAX {
        let what = format!("{lines} lines, and {FILE_LINES_MAX} at most; split the file by topic");
        findings.push(source.finding(lines, what));
    }
    if !source.text.starts_with("//!") {
        let what = "the file does not open with `//!`; say what lives here, and what may not";
        findings.push(source.finding(1, what.to_owned()));
    }
}

fn machine_path(line: &str) -> Option<String> {
    let fixed = MACHINE_DIRS.iter().map(|(first, second)| format!("{first}{second}"));
    fixed.into_iter().find(|dir| starts_of(line, dir).next().is_some()).or_else(|| {
        let homes = format!("{}{}", HOMES.0, HOMES.1);
        let at = starts_of(line, &homes).find(|&at| names_a_dir(&line[at + homes.len()..]))?;
        Some(line[at..].split_inclusive('/').take(3).collect())
    })
}

/// Returns the places where an absolute path begins with `dir`: not those inside a longer path.
fn starts_of<'a>(line: &'a str, dir: &'a str) -> impl Iterator<Item = usize> + 'a {
    line.match_indices(dir).map(|(at, _)| at).filter(move |&at| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|before| before.is_ascii_alphanumeric() || "_-./".contains(before))
    })
}

fn names_a_dir(rest: &str) -> bool {
    let name = rest.split('/').next().unwrap_or_default();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    rest.contains('/') && !name.is_empty() && name.chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings_of;

    fn check(path: &str, text: &str, expected: usize) {
        assert_eq!(findings_of(super::check, path, text).len(), expected, "{path}: {text:?}");
    }

    #[test]
    fn a_line_has_a_hundred_columns_at_most() {
        check("a.rs", &format!("//! {}\n", "x".repeat(96)), 0);
        check("a.rs", &format!("//! {}\n", "x".repeat(97)), 1);
        check("a.md", &"x".repeat(200), 0);
    }

    #[test]
    fn source_and_prose_are_ascii() {
        check("README.md", "a - b", 0);
        check("README.md", "a \u{2014} b", 1);
        check("a.rs", "//! caf\u{e9}\n", 1);
        check("golden.txt", "\u{2014}", 0);
    }

    #[test]
    fn a_file_opens_by_saying_what_it_is() {
        check("a.rs", "//! What lives here.\n", 0);
        check("a.rs", "// What lives here.\n", 1);
    }

    #[test]
    fn a_file_has_eight_hundred_lines_at_most() {
        check("a.rs", &"//! a\n".repeat(800), 0);
        check("a.rs", &"//! a\n".repeat(801), 1);
    }

    #[test]
    fn a_workflow_names_the_commit_of_an_action() {
        let commit = "0123456789".repeat(4);
        let workflow = ".github/workflows/a.yml";
        check(workflow, &format!("      - uses: a/b@{commit} # v4\n        run: a@v4\n"), 0);
        check(workflow, "      - uses: a/b@v4\n", 1);
        check(workflow, &format!("        uses: a/b@{}\n", &commit[1..]), 1);
        check("docs/a.md", "      - uses: a/b@v4\n", 0);
    }

    #[test]
    fn a_path_of_one_machine_is_found_in_any_text() {
        let (root, home) = (["/ro", "ot/"].concat(), ["/ho", "me/"].concat());
        check("a.toml", &format!("path = \"{root}x\""), 1);
        check("a.txt", &format!("{home}somebody/x"), 1);
        check("a.txt", &format!("{home}<name>/x, and {home} alone"), 0);
        check("a.txt", &format!("target{root}x"), 0);
    }
}
