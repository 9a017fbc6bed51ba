//! Programs at the edges of what reads, writes and closes do, each way compared with the same
//! program on a descriptor without O_DIRECT.

use std::fs;

use diopter_testkit::files;

use crate::support::{command, compiled, pattern, text};

const FILE_BYTES: usize = 64 << 10;

/// Runs one way plainly without O_DIRECT, under `dio run` with it, and under `dio run --all`.
fn check(program: &str, way: &str) {
    let Some(program) = compiled(program, &[]) else { return };
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
        assert!(output.status.success(), "{way}: {}\n{}", output.status, text(&output));
        (text(&output), fs::read(&path).expect("it is there"))
    };
    let (expected, expected_file) = run(false, None);
    for (is_direct, options) in [(true, &[] as &[&str]), (false, &["--all", "--min-size=4k"])] {
        let (got, file) = run(is_direct, Some(options));
        assert_eq!(got, expected, "{options:?}");
        assert!(file == expected_file, "{options:?}: the file differs");
    }
}

macro_rules! ways {
    ($program:literal $($name:ident $way:literal;)*) => {$(
        #[test]
        fn $name() {
            check($program, $way);
        }
    )*};
}

ways! {
    "edges"
    a_bad_address_is_efault "addresses";
    locks_of_a_child_that_takes_or_closes_all_numbers "fork_locks";
    locks_of_a_process_that_takes_numbers "dup2_locks";
    locks_until_fclose_has_written "fclose_locks";
    the_error_of_fclose "fclose_errors";
    a_stream_that_is_reopened "freopen";
    closefrom_without_close_range "closefrom_without";
    other_names_of_calls "names";
    splice_and_aio_see_what_was_written "passed";
    sendfile_to_a_socket_of_datagrams "datagrams";
    a_limit_on_the_size_of_files "limited";
    an_offset_that_cannot_be_written "constant_offset";
}

ways! {
    "numbers"
    numbers_that_are_closed_by_a_system_call "raw_closes";
    numbers_that_the_same_file_gets "raw_closes_of_one_file";
    numbers_that_a_thread_takes "dup2_thread";
    numbers_that_a_thread_closes "close_range_thread";
    the_number_0_that_a_thread_takes "standard_thread";
}

ways! {
    "limits"
    locks_stay_over_exec "exec_locks";
    a_child_that_executes_a_program_has_no_more_descriptors "exec_of_a_child";
    a_process_without_memory_goes_on "no_memory";
    an_alternate_stack_of_the_usual_size "alternate_stack";
    a_lease_of_the_program "leased";
    an_append_with_one_number_left "one_number";
}

ways! {
    "bystander"
    a_filter_that_refuses_calls "confined_errors";
    a_filter_that_ends_the_program "confined_kills";
    a_filter_that_is_begun_by_its_number "confined_by_number";
    closes_under_a_filter "confined_closes";
    calls_by_their_number "by_number";
    a_copy_leaves_one_thread "copy_threads";
    files_that_are_closed_past_libc_are_closed "raw_closes";
    a_program_that_was_just_written_is_executed "executed";
    copies_of_processes_to_one_file "parts";
    writes_next_to_a_copy "beside";
}
