//! The output of a command as text. It has no test.

use std::process::Command;

/// The exit status of a command, and what it printed.
pub struct Output {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Output {
    /// Runs a command, which no signal may end and which prints UTF-8.
    pub fn of(command: &mut Command) -> Output {
        let output = command.output().unwrap();
        let [stdout, stderr] =
            [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        let status = output.status.code().expect("dio is not ended by a signal");
        Output { status, stdout, stderr }
    }
}
