//! `dio report` as a script sees it: the ratios of the mailing list, files, refusals. How a report
//! looks is tested where it is rendered, in diopter-bench.

use std::path::Path;
use std::process::Command;

/// Exit status, standard output and standard error of `dio report`.
fn report(arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dio"));
    command.arg("report").args(arguments).env_clear().env("COLUMNS", "80");
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// Returns the output of a run that must succeed silently.
fn stdout_of(arguments: &[&str]) -> String {
    let (status, stdout, stderr) = report(arguments);
    assert_eq!((status, stderr.as_str()), (0, ""), "{arguments:?}");
    stdout
}

/// The message of a run that must fail with exit status 2 and print nothing else.
fn refusal_of(arguments: &[&str]) -> String {
    let (status, stdout, stderr) = report(arguments);
    assert_eq!((status, stdout.as_str()), (2, ""), "{arguments:?}: {stderr}");
    stderr
}

/// A result that was made from a report of a mailing list.
fn recorded(name: &str) -> String {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../diopter-bench/tests/data/reports");
    data.join(name).to_str().unwrap().to_owned()
}

#[test]
fn a_report_of_several_runs_has_the_ratios_of_the_mailing_list() {
    let [base, old, new] = ["original-dio", "5.5.0-old-iomap-ext4", "5.13.0-rc3-iomap-ext4"]
        .map(|name| recorded(&format!("iomap-{name}.json")));
    let table = stdout_of(&[&base, &old, &new]);
    // The table is folded: a way has a line in each part of it.
    let lines =
        |label: &str| -> String { table.lines().filter(|line| line.starts_with(label)).collect() };
    for ratio in ["1.012", "0.999", "0.777", "1.000"] {
        assert!(lines("iomap-5.5.0-old").contains(ratio), "{ratio}: {table}");
    }
    assert!(lines("iomap-5.13.0-rc3").contains("0.806"), "{table}");
    let markdown = stdout_of(&["--markdown", &base, &old]);
    assert!(markdown.contains("| iomap-original-dio.json |"), "{markdown}");
    assert_eq!(stdout_of(&["--csv", &base]).lines().count(), 5, "four jobs, one round");
}

#[test]
fn a_page_and_the_files_of_fio_are_written_whole() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (page, fio) = (dir.path().join("report.html"), dir.path().join("fio"));
    let run = recorded("iomap-original-dio.json");
    let (html, files) = (page.to_str().unwrap(), fio.to_str().unwrap());
    assert_eq!(stdout_of(&[&run, "--html", html, "--fio-json", files]), "");
    assert!(std::fs::read_to_string(&page).unwrap().ends_with("</html>\n"));
    let written: Vec<_> = std::fs::read_dir(&fio).unwrap().map(|one| one.unwrap().path()).collect();
    assert_eq!(written.len(), 1, "one round of one way: {written:?}");
    assert_eq!(std::fs::read_dir(&written[0]).unwrap().count(), 4, "a file for each job");
    let again = stdout_of(&[written[0].to_str().unwrap(), "--csv"]);
    assert_eq!(again.lines().count(), 5, "what was written is read again");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "no other file is left");
}

#[test]
fn a_report_of_nothing_or_to_nowhere_is_refused() {
    let run = recorded("iomap-original-dio.json");
    let message = refusal_of(&[&run, "--html", "/nowhere/report.html"]);
    assert!(message.contains("write /nowhere/report.html: No such file"), "{message}");
    let message = refusal_of(&["/nowhere/run.json"]);
    assert!(
        message
            .contains("cannot open /nowhere/run.json: No such file or directory (ENOENT); check"),
        "{message}"
    );
    let message = refusal_of(&[&run, "--csv", "--json"]);
    assert!(message.contains("cannot be used with"), "{message}");
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    let [base, new] =
        ["patch-5.10", "patch-5.10-patched"].map(|it| recorded(&format!("{it}.json")));
    for names in [&[base.as_str()][..], &[base.as_str(), new.as_str()]] {
        for columns in [40, 72, 80, 200] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_dio"));
            command.arg("report").args(names).env_clear();
            if columns != 72 {
                // Without a terminal the width is 72.
                command.env("COLUMNS", columns.to_string());
            }
            let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
            assert!(text.contains("IOPS, bandwidth"), "{text}");
            for line in text.lines() {
                assert!(line.chars().count() <= columns, "{columns}: {line}\n{text}");
            }
        }
    }
}
