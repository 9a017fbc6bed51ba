//! The program keeps its descriptors: each way in which one comes about, ends or is used, compared
//! with the same program on a descriptor without O_DIRECT.

use std::fs;

use diopter_testkit::files;

use crate::support::{command, compiled, pattern, text};

const FILE_BYTES: usize = 64 << 10;

/// Runs one way plainly without O_DIRECT, under `dio run` with it, and plainly with it.
fn check(way: &str, fails_plainly: bool) {
    let Some(program) = compiled("descriptors", &[]) else { return };
    let dir = files::dir();
    let run = |is_direct: bool, options: Option<&[&str]>| {
        let path = dir.path().join("file");
        fs::write(&path, pattern(FILE_BYTES)).expect("a file");
        let words = [program.to_str().expect("UTF-8"), way, path.to_str().expect("UTF-8")];
        let mut command = command(options, &words);
        if is_direct {
            command.env("DIRECT", "1");
        }
        let output = command.output().expect("it runs");
        (text(&output), fs::read(&path).expect("it is there"))
    };
    let (expected, expected_file) = run(false, None);
    let (plain, _) = run(true, None);
    assert_eq!(plain.contains("Invalid argument"), fails_plainly, "{plain}");
    let (under, under_file) = run(true, Some(&[]));
    assert_eq!(under, expected);
    assert!(under_file == expected_file, "the file differs");
}

macro_rules! ways {
    ($($name:ident $way:literal;)*) => {$(
        #[test]
        fn $name() {
            check($way, true);
        }
    )*};
}

ways! {
    reads_and_writes "plain";
    dup_dup2_dup3_and_f_dupfd "dup";
    close_range_closefrom_and_closes_of_all_numbers "close_range";
    children_of_fork "fork";
    children_of_vfork_that_close_all_numbers "vfork";
    a_program_that_is_executed "exec";
    a_descriptor_that_was_received "scm_rights";
    a_shared_mapping "mmap";
    record_locks_and_flock "locks";
    o_append "append";
    o_direct_that_is_set_later "setfl";
    readv_preadv_and_their_like "vectors";
    fortified_calls "fortified";
    copy_file_range_and_sendfile "copies";
    threads_and_signals "threads";
    what_the_kernel_refuses "refusals";
}

#[test]
fn closed_standard_descriptors() {
    check("no_standard", false);
}
