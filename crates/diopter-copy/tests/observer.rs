//! The library's own door: what an observer hears, and how a run is ended from outside. What a copy
//! holds is tested through `dio cp`, in diopter-cli.

use std::path::{Path, PathBuf};

use diopter_copy::{Left, Notice, Observer, Options, Pass, Signal, StopFlag, copy};

const MIB: u64 = 1 << 20;

/// Records every call; sets the flag once a pass has reached a position.
#[derive(Default)]
struct Recorder {
    total: Option<u64>,
    passes: Vec<(Pass, PathBuf, u64)>,
    flushed: Vec<PathBuf>,
    /// The last position of each pass.
    reached: Vec<u64>,
    notices: Vec<String>,
    stop: Option<(StopFlag, u64)>,
}

impl Observer for Recorder {
    fn wants_total(&self) -> bool {
        true
    }

    fn total(&mut self, bytes: u64) {
        assert!(self.passes.is_empty() && self.total.is_none(), "once, and first");
        self.total = Some(bytes);
    }

    fn begins(&mut self, pass: Pass, path: &Path, bytes: u64) {
        self.passes.push((pass, path.to_owned(), bytes));
        self.reached.push(0);
    }

    fn flushes(&mut self, path: &Path) {
        self.flushed.push(path.to_owned());
    }

    fn reached(&mut self, position: u64) {
        let last = self.reached.last_mut().expect("a pass has begun");
        assert!(position >= *last, "positions only grow");
        *last = position;
        if let Some((flag, at)) = &self.stop
            && position >= *at
        {
            flag.set(Signal { number: 15 });
        }
    }

    fn notice(&mut self, notice: Notice<'_>) {
        self.notices.push(notice.to_string());
    }
}

/// Writes files of these sizes, with no block of zeros.
fn make_files(dir: &Path, sizes: &[u64]) -> Vec<PathBuf> {
    let make = |(number, size): (usize, &u64)| {
        let path = dir.join(format!("source{number}"));
        std::fs::write(&path, vec![7; usize::try_from(*size).unwrap()]).unwrap();
        path
    };
    sizes.iter().enumerate().map(make).collect()
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn an_observer_gets_the_total_and_each_pass_to_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let sizes = [5 * MIB + 3, 1, 0];
    let sources = make_files(dir.path(), &sizes);
    let target = dir.path().join("target");
    std::fs::create_dir(&target).unwrap();
    let mut recorder = Recorder::default();
    let options = Options { verify: true, ..Options::new(sources.clone(), &target) };
    let outcome = copy(&options, &StopFlag::default(), &mut recorder);
    assert_eq!((outcome.report.exit_status, outcome.report.files), (0, 3));
    assert!(outcome.ended.is_none() && outcome.report.failures.is_empty());
    assert_eq!(recorder.total, Some(2 * sizes.iter().sum::<u64>()));
    let expected = sources.iter().zip(sizes).flat_map(|(source, size)| {
        let copied = target.join(source.file_name().unwrap());
        [(Pass::Copy, source.clone(), size), (Pass::Verify, copied, size)]
    });
    assert_eq!(recorder.passes, expected.collect::<Vec<_>>());
    let ends: Vec<u64> = recorder.passes.iter().map(|(_, _, bytes)| *bytes).collect();
    assert_eq!(recorder.reached, ends);
    let copies = sources.iter().map(|source| target.join(source.file_name().unwrap()));
    // Before it is read back, and with its attributes.
    recorder.flushed.dedup();
    assert_eq!(recorder.flushed, copies.collect::<Vec<_>>());
    for (source, size) in sources.iter().zip(sizes) {
        let copied = std::fs::read(target.join(source.file_name().unwrap())).unwrap();
        assert_eq!(copied, std::fs::read(source).unwrap(), "{size} bytes");
    }
}

#[test]
fn a_flag_that_is_set_ends_the_run_and_leaves_the_target_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let sources = make_files(dir.path(), &[16 * MIB]);
    let target = dir.path().join("target");
    std::fs::write(&target, "old").unwrap();
    let flag = StopFlag::default();
    let mut recorder = Recorder { stop: Some((flag.clone(), MIB)), ..Recorder::default() };
    let mut options = Options::new(sources, &target);
    (options.bs, options.iodepth) = (Some(64 << 10), Some(1));
    options.reflink = diopter_copy::Reflink::Never;
    let outcome = copy(&options, &flag, &mut recorder);
    let ended = outcome.ended.expect("the flag was set");
    assert_eq!((ended.signal, ended.left), (Signal { number: 15 }, Left::Unchanged));
    assert_eq!((outcome.report.exit_status, outcome.report.files), (143, 0));
    assert!(recorder.reached[0] < 16 * MIB);
    assert_eq!(std::fs::read(&target).unwrap(), b"old");
    assert_eq!(names(dir.path()), ["source0", "target"]);
}

#[test]
fn a_failure_is_a_notice_and_in_the_report_and_the_run_continues() {
    let dir = tempfile::tempdir().unwrap();
    let mut sources = make_files(dir.path(), &[3]);
    sources.insert(0, dir.path().join("gone"));
    let target = dir.path().join("target");
    std::fs::create_dir(&target).unwrap();
    let mut recorder = Recorder::default();
    let outcome = copy(&Options::new(sources, &target), &StopFlag::default(), &mut recorder);
    assert_eq!((outcome.report.exit_status, outcome.report.files), (2, 1));
    let [failure] = &outcome.report.failures[..] else { panic!("one failure") };
    assert!(failure.path.ends_with("/gone") && failure.cause.contains("ENOENT"));
    let [notice] = &recorder.notices[..] else { panic!("one notice") };
    assert!(notice.contains("gone") && notice.ends_with("; check the path"), "{notice}");
    assert_eq!(names(&target), ["source0"]);
}

#[test]
fn an_option_that_cannot_be_is_refused_before_anything_is_opened() {
    let options = Options { bs: Some(1), ..Options::new([], Path::new("/nowhere/target")) };
    let mut recorder = Recorder::default();
    let outcome = copy(&options, &StopFlag::default(), &mut recorder);
    assert_eq!(outcome.report.exit_status, 2);
    assert_eq!(recorder.total, None);
    assert!(recorder.notices[0].contains("--bs"), "{:?}", recorder.notices);
}

/// Records for each file `other` how many of the files before it in its directory had no name when
/// it began. The copy takes the names in the order of the file system.
struct Names {
    source: PathBuf,
    target: PathBuf,
    unnamed: Vec<usize>,
}

impl Observer for Names {
    fn begins(&mut self, _pass: Pass, path: &Path, _bytes: u64) {
        if path.file_name().unwrap() != "other" {
            return;
        }
        let names = std::fs::read_dir(path.parent().unwrap()).unwrap();
        let before = names.map(|entry| entry.unwrap().path()).take_while(|name| name != path);
        let target = |name: &Path| self.target.join(name.strip_prefix(&self.source).unwrap());
        self.unnamed.push(before.filter(|name| !target(name).exists()).count());
    }
}

/// Copies a tree of small files, with a file of this size and one byte after every tenth.
fn unnamed_before(size: u64) -> Vec<usize> {
    // On a disk: a flush in memory takes no time.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
    for part in 0..10 {
        let part = source.join(part.to_string());
        std::fs::create_dir_all(&part).unwrap();
        make_files(&part, &[2000; 10]);
        let file = std::fs::File::create(part.join("other")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"x", size - 1).unwrap();
    }
    let options = Options { recursive: true, ..Options::new([source.clone()], &target) };
    let mut names = Names { source, target, unnamed: Vec::new() };
    let outcome = copy(&options, &StopFlag::default(), &mut names);
    assert_eq!((outcome.report.exit_status, outcome.report.files), (0, 110));
    names.unnamed
}

#[test]
fn the_small_files_of_a_tree_do_not_wait_for_a_large_one() {
    let unnamed = unnamed_before(64 * MIB);
    assert_eq!(unnamed, [0; 10]);
}

#[test]
fn a_file_that_is_copied_alone_does_not_wait_for_the_small_ones() {
    // It has a hole.
    let unnamed = unnamed_before(MIB);
    assert!(unnamed.iter().any(|unnamed| *unnamed > 0), "{unnamed:?}");
}
