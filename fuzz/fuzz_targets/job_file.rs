//! Any text as a job file of fio: refused with the line, or jobs that can be run.

#![no_main]

use diopter_bench::bench::job_file;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match job_file::parse(text) {
        Ok(file) => {
            assert!(!file.jobs.is_empty());
            for job in &file.jobs {
                assert!(job.sized(Some(4096)).is_ok(), "{job:?}");
            }
        }
        Err(why) => assert!(!why.is_empty()),
    }
});
