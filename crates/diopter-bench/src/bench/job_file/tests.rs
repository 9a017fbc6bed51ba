//! Job files as text, and in files that include each other.

use super::*;
use crate::document::{Job, ReadWrite, Span};

const REPORT: &str = "
; the job of the iomap report
[global]
ioengine=libaio
size=2G
direct=1
iodepth=64
time_based=1
thread=1
overwrite=1
runtime=100

[read-4k]
bs=4k
rw=read

[write-16k]
stonewall
bs=16k    # as in the second table
rw=write
";

fn sized(text: &str) -> Result<Vec<Job>, String> {
    parse(text)?.jobs.iter().map(|job| job.sized(None)).collect()
}

fn one(options: &str) -> Result<Job, String> {
    Ok(sized(&format!("[one]\nsize=1m\n{options}\n"))?.remove(0))
}

#[test]
fn the_job_of_a_report_is_read() {
    let file = parse(REPORT).unwrap();
    let names: Vec<&str> = file.jobs.iter().map(|job| job.name.as_str()).collect();
    assert_eq!(names, ["read-4k", "write-16k"]);
    let job = file.jobs[1].sized(None).unwrap();
    assert_eq!((job.rw, job.block_bytes, job.iodepth), (ReadWrite::Write, 16384, 64));
    assert_eq!((job.size, job.is_direct), (2 << 30, true));
    assert_eq!(job.span, Span::RuntimeNs(100_000_000_000));
    assert_eq!(file.jobs[0].ioengine.as_deref(), Some("libaio"));
    assert_eq!(file.notes, ["no effect in dio bench: overwrite, thread"]);
}

#[test]
fn sizes_obey_kb_base_wherever_it_stands() {
    let bytes = |options: &str| one(options).unwrap().block_bytes;
    assert_eq!(bytes("bs=4k"), 4096);
    assert_eq!(bytes("bs=4KB"), 4096);
    assert_eq!(bytes("bs=4ki"), 4000);
    assert_eq!(bytes("bs=4kib"), 4000);
    assert_eq!(bytes("bs=4k\nkb_base=1000"), 4000);
    assert_eq!(bytes("bs=4kib\nkb_base=1000"), 4096);
    assert_eq!(bytes("bs=512"), 512);
    assert!(one("kb_base=1001").unwrap_err().contains("1000 or 1024"));
}

#[test]
fn an_option_outside_is_named_with_its_line() {
    for (options, expected) in [
        ("zonemode=zbd", "file:3: option `zonemode` is not supported; take it out"),
        ("verify=crc32c", "file:3: option `verify` is not supported; dio verify compares"),
        ("nrfiles=8", "file:3: option `nrfiles` is not supported; write one file"),
        ("create_only=1", "file:3: option `create_only`"),
        ("ioengine=rbd", "file:3: ioengine=rbd: not an engine for files"),
        ("ioengine=external:/tmp/evil.so", "with --with fio:ENGINE"),
        ("filename=/dev/sda:/dev/sdb", "several files are not supported"),
        ("filename=", "write a path"),
        ("bs=4k,16k", "file:3: bs=4k,16k"),
        ("rate_iops=100,50", "file:3: rate_iops=100,50: write a number"),
        ("rate=1m", "write rate_iops"),
        ("size=0%", "file:3: size=0%: write percent from 1 to 100"),
        ("rw=trim", "file:3: rw=trim"),
        ("rw=randread:8", "file:3: rw=randread:8"),
        ("bs=${BS}", "variables"),
        ("filename=f.$jobnum", "variables"),
        ("include other.fio", "include is possible in a file only"),
        ("[two", "invalid section"),
        ("iodepth", "iodepth has no value"),
        ("iodepth=many", "write a number"),
        ("direct=yes", "write 0 or 1"),
        ("rwmixread=101", "percent"),
        ("runtime=soon", "invalid time"),
        ("sync=maybe", "dsync"),
        ("size=99999999999999999999g", "size"),
    ] {
        let message = one(options).unwrap_err();
        assert!(message.contains(expected), "{options}: {message}");
    }
    for accepted in
        ["nrfiles=1", "startdelay=0", "verify=0", "invalidate", "random_distribution=random"]
    {
        one(accepted).unwrap();
    }
}

#[test]
fn when_a_job_ends_is_as_with_fio() {
    let span = |options: &str| {
        let job = one(options).unwrap();
        (job.span, job.io_bytes_max)
    };
    assert_eq!(span(""), (Span::IoBytes(1 << 20), 0));
    assert_eq!(span("io_size=8m"), (Span::IoBytes(8 << 20), 0));
    assert_eq!(span("loops=3"), (Span::IoBytes(3 << 20), 0));
    assert_eq!(span("number_ios=5\nbs=8k"), (Span::IoBytes(40 << 10), 0));
    assert_eq!(span("runtime=5"), (Span::RuntimeNs(5_000_000_000), 1 << 20));
    assert_eq!(span("runtime=5\ntime_based"), (Span::RuntimeNs(5_000_000_000), 0));
    assert_eq!(span("runtime=0"), (Span::IoBytes(1 << 20), 0));
    assert!(one("time_based").unwrap_err().contains("no runtime"));
    let timed = &parse("[a]\nsize=1m\ntime_based\nruntime=500ms\nramp_time=1\n").unwrap().jobs[0];
    assert_eq!(timed.ramp_ns, Some(1_000_000_000));
}

#[test]
fn each_option_is_in_the_job() {
    let job = one("rw=randwrite\nfsync=8\nfdatasync=4\nend_fsync=1\nrate_iops=500\nthinktime=20\n\
         thinktime_blocks=4\nbuffer_compress_percentage=30\nnorandommap\nrandseed=7\noffset=8k")
    .unwrap();
    assert_eq!((job.fsync_every, job.fdatasync_every, job.ends_with_fsync), (8, 4, true));
    assert_eq!((job.rate_iops, job.think_ns, job.think_every), (500, 20_000, 4));
    assert_eq!((job.compress_percent, job.may_repeat_offsets), (30, true));
    assert_eq!((job.seed, job.offset), (7, 8192));
    assert_eq!(one("thinktime=2ms").unwrap().think_every, 1);
    assert_eq!(one("zero_buffers").unwrap().compress_percent, 100);
    assert!(one("rw=rw\nrate_iops=9").unwrap_err().contains("reads and writes"));
}

#[test]
fn places_are_as_with_fio() {
    let path = |options: &str| {
        let file = parse(&format!("[a]\nsize=1m\n{options}\n")).unwrap();
        file.jobs[0].path().map(|path| path.display().to_string())
    };
    assert_eq!(path(""), None);
    assert_eq!(path("directory=/mnt/a"), Some("/mnt/a".to_owned()));
    assert_eq!(path("directory=/mnt/a\nfilename=b"), Some("/mnt/a/b".to_owned()));
    assert_eq!(path("directory=/mnt/a\nfilename=/dev/b"), Some("/dev/b".to_owned()));
    assert_eq!(path("filename=a\\:b\\c"), Some("a:b\\c".to_owned()));
}

#[test]
fn a_size_may_be_that_of_the_file() {
    let size = |options: &str, whole| {
        let file = parse(&format!("[a]\nfilename=f\nbs=4k\n{options}\n"))?;
        Ok::<u64, String>(file.jobs[0].sized(whole)?.size)
    };
    assert_eq!(size("", Some(1 << 20)), Ok(1 << 20));
    assert_eq!(size("offset=4k", Some(1 << 20)), Ok((1 << 20) - 4096));
    assert_eq!(size("size=50%", Some(12 << 10)), Ok(4096), "in whole blocks");
    assert_eq!(size("size=100T", None), Ok(100 << 40));
    assert!(size("", None).unwrap_err().contains("job `a` has no size"));
    assert!(size("size=50%", None).unwrap_err().contains("has no size"));
}

#[test]
fn jobs_side_by_side_are_refused_and_so_is_a_file_without_one() {
    let message = parse("[a]\nsize=1m\n[b]\nsize=1m\n").unwrap_err();
    assert!(message.contains("file:3: job `b` would run concurrently"), "{message}");
    assert!(parse("[global]\nbs=4k\n").unwrap_err().contains("no job"));
}

#[test]
fn what_fio_would_do_otherwise_is_noted() {
    let notes = |options: &str| parse(&format!("[a]\nsize=1\n{options}\n")).unwrap().notes;
    assert_eq!(notes("numjobs=4"), ["job `a`: its 4 clones use one file; fio makes one for each"]);
    assert!(notes("numjobs=4\nfilename=f").is_empty());
    let sync = notes("iodepth=8\nioengine=psync");
    assert_eq!(sync, ["job `a`: fio's psync has one request in flight; diopter has 8"]);
}

#[test]
fn a_later_global_section_is_for_the_jobs_after_it() {
    let text = "[global]\nsize=1m\n[a]\n[global]\nbs=8k\nstonewall\n[b]\nname=c\n";
    let file = parse(text).unwrap();
    let jobs: Vec<(&str, u64)> =
        file.jobs.iter().map(|it| (it.name.as_str(), it.job.block_bytes)).collect();
    assert_eq!(jobs, [("a", 4096), ("c", 8192)]);
}

#[test]
fn long_lines_and_names_are_refused_and_not_repeated() {
    let long = "x".repeat(1 << 20);
    for text in [
        format!("[a]\nsize=1m\n{}=1\n", &long[..4000]),
        format!("[a]\nsize=1m\nbs={}\n", &long[..4000]),
        format!("[a]\nsize=1m\n{long}\n"),
        format!("[{}]\nsize=1m\n", &long[..300]),
        format!("[a]\nsize=1m\nfilename=a:{}\n", &long[..4000]),
    ] {
        let message = parse(&text).unwrap_err();
        assert!(message.len() < 300, "{message}");
    }
}

fn read_files(files: &[(&str, &str)]) -> Result<JobFile, String> {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    let shown = format!("{}/", dir.path().display());
    read(&dir.path().join(files[0].0)).map_err(|why| why.replace(&shown, ""))
}

#[test]
fn an_included_file_is_in_the_place_of_its_line() {
    let main =
        ("a.fio", "[global]\ninclude b.inc ; sizes\nbs=8k\n[a]\n[b]\nstonewall\ninclude c.inc\n");
    let file =
        read_files(&[main, ("b.inc", "size=1m\nbs=4k\n"), ("c.inc", "iodepth=9\n")]).unwrap();
    let of = |at: usize| (file.jobs[at].job.block_bytes, file.jobs[at].job.iodepth);
    assert_eq!((of(0), of(1)), ((8192, 1), (8192, 9)));
    let bad = read_files(&[main, ("b.inc", "\nbs=many\n"), ("c.inc", "")]).unwrap_err();
    assert!(bad.starts_with("b.inc:2: bs=many"), "{bad}");
    let section = read_files(&[main, ("b.inc", "[x]\n"), ("c.inc", "")]).unwrap_err();
    assert!(section.starts_with("b.inc:1: a section in an included file"), "{section}");
}

#[test]
fn what_must_not_be_included_is_refused() {
    let refused = |text: &str| read_files(&[("a.fio", text), ("b.inc", "include a.fio\n")]);
    for (text, expected) in [
        ("include a.fio\n", "a.fio:1: include: a.fio includes itself"),
        ("include b.inc\n", "a.fio:1: include: b.inc:1: include: a.fio includes itself"),
        ("include none.inc\n", "none.inc: No such file"),
        ("include /dev/zero\n", "/dev/zero: not a regular file"),
        ("include .\n", "not a regular file"),
        ("include /proc/self/exe\n", "/proc/self/exe: "),
    ] {
        let message = refused(text).unwrap_err();
        assert!(message.contains(expected), "{text}: {message}");
    }
    let deep: Vec<(String, String)> =
        (0..10).map(|at| (format!("{at}"), format!("include {}\n", at + 1))).collect();
    let deep: Vec<(&str, &str)> =
        deep.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let message = read_files(&deep).unwrap_err();
    assert!(message.contains("more than 8 nested files"), "{message}");
    // Each file includes the next one many times: the bytes of all are limited.
    let wide = format!("{}[a]\n", "include w\n".repeat(1000));
    let message = read_files(&[("a.fio", &wide), ("w", &"# w\n".repeat(1000))]).unwrap_err();
    assert!(message.contains("larger than 1 MiB"), "{message}");
}

#[test]
fn a_name_makes_a_job_file_and_content_only_looks_like_one() {
    let dir = tempfile::tempdir().unwrap();
    let of = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        (is_job_file(&path), looks_like_job_file(&path))
    };
    assert_eq!(of("a.fio", b""), (true, false));
    assert_eq!(of("a", b"; c\n\n[global]  # all\nbs=4k\n"), (false, true));
    assert_eq!(of("b", "[x]\n\u{e4}".repeat(2000).as_bytes()), (false, true));
    let large = format!("[x]\n{}", "# data\n".repeat(1 << 18));
    for data in [&[0; 8192][..], b"", b"[1,\n2]\n", b"[x]\n\xff\n", b"[x]\n\0", large.as_bytes()] {
        assert_eq!(of("data", data), (false, false));
    }
    assert!(!is_job_file(dir.path()) && !looks_like_job_file(dir.path()));
}

#[test]
fn lines_of_a_file_elsewhere_are_not_in_messages() {
    let elsewhere = tempfile::tempdir().unwrap();
    let secret = elsewhere.path().join("shadow");
    std::fs::write(&secret, "root:*:20228\n").unwrap();
    let text = format!("include {}\n[a]\nsize=1m\n", secret.display());
    let message = read_files(&[("a.fio", &text)]).unwrap_err();
    let place = format!("{}:1: not a line of a job file", secret.display());
    assert!(message.contains(&place) && !message.contains("root"), "{message}");
}

#[test]
fn objects_of_a_cluster_are_named_on_the_command_line_only() {
    for option in ["filename=rados\\:p/x", "directory=rados\\:/tmp/c.conf!p/x"] {
        let message = parse(&format!("[a]\nsize=1m\n{option}\n")).unwrap_err();
        assert!(message.contains("name it on the command line"), "{option}: {message}");
    }
}

proptest::proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "[\\[\\]a-z0-9=%,. \n;#$:\\\\]{0,200}") {
        if let Ok(file) = parse(&text) {
            file.jobs.iter().for_each(|job| { job.sized(Some(5)).map(drop).unwrap_or_default(); });
        }
    }
}
