//! Findings by table: each needs its evidence, and disappears without one part of it.

use std::path::PathBuf;

use diopter_core::engine::BackendChoice;
use diopter_layouts::foreign;
use diopter_os::Errno;
use diopter_os::file::{Alignment, AlignmentSource, BufferedReason, DirectSupport};
use diopter_os::queue::BlockQueue;
use diopter_os::residency::{Residency, ResidencySource};

use super::*;
use crate::direct::{DirectState, DirectStates};
use crate::probe::{
    Ability, DirectFacts, ExtentShare, ExtentSummary, Kernel, MemoryLock, Mount, NameKind,
    UringRefusal,
};

/// A file on ext4, Linux 6.19, a device with nothing to complain about: no findings.
fn quiet() -> Facts {
    Facts {
        path: PathBuf::from("data.bin"),
        kind: NameKind::File,
        size: Some(1 << 30),
        kernel: Kernel { release: "6.19.1".to_owned() },
        mount: Some(Mount {
            id: 27,
            device: "254:0".to_owned(),
            file_system: "ext4".to_owned(),
            point: PathBuf::from("/"),
            source: PathBuf::from("/dev/vda"),
            options: vec!["rw".to_owned()],
        }),
        device_mounts: Vec::new(),
        queue: Some(BlockQueue {
            name: "vda".to_owned(),
            max_sectors_kb: Some(1280),
            max_hw_sectors_kb: Some(2_147_483_647),
            write_cache: Some("write back".to_owned()),
            fua: Some(true),
            rotational: Some(false),
            ..BlockQueue::default()
        }),
        direct: Some(DirectFacts {
            support: DirectSupport::Full,
            states: DirectStates::both(DirectState::Proved),
            alignment: Alignment {
                memory: 512,
                offset_read: 512,
                offset_write: 512,
                source: AlignmentSource::Statx,
            },
            atomic_write: None,
        }),
        backend: BackendChoice { name: "uring", why: String::new(), features: Vec::new() },
        backends: Vec::new(),
        uring_options: Vec::new(),
        uring_refusal: None,
        extents: Some(ExtentSummary {
            all: ExtentShare { count: 8, bytes: 1 << 30 },
            pieces: 1,
            ..ExtentSummary::default()
        }),
        cache: Some(residency(0, 0)),
        memory_lock: MemoryLock { bytes_max: None, is_exempt: false },
        layout: None,
    }
}

fn residency(cached: u64, dirty: u64) -> Residency {
    Residency {
        pages_cached: cached,
        pages_dirty: Some(dirty),
        pages_writeback: Some(0),
        page_size: 4096,
        source: ResidencySource::Cachestat,
    }
}

fn ids(facts: &Facts) -> Vec<&'static str> {
    findings(facts).iter().map(|finding| finding.id).collect()
}

/// Checks the findings that `change` adds to the quiet file.
fn check(change: impl FnOnce(&mut Facts), expected: &[&str]) {
    let mut facts = quiet();
    change(&mut facts);
    assert_eq!(ids(&facts), expected);
}

/// Returns the one finding that `change` adds.
fn only(change: impl FnOnce(&mut Facts)) -> Finding {
    let mut facts = quiet();
    change(&mut facts);
    let mut found = findings(&facts);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

fn on(facts: &mut Facts, file_system: &str, release: &str) {
    file_system.clone_into(&mut facts.mount.as_mut().unwrap().file_system);
    release.clone_into(&mut facts.kernel.release);
}

fn support(facts: &mut Facts, support: DirectSupport) {
    facts.direct.as_mut().unwrap().support = support;
}

fn emulated(facts: &mut Facts) {
    let queue = queue(facts);
    (queue.logical_block_size, queue.physical_block_size) = (Some(512), Some(4096));
}

#[test]
fn a_disk_of_emulated_blocks_wants_writes_on_its_own() {
    let finding = only(emulated);
    assert_eq!((finding.id, finding.severity), ("emulated-blocks", Severity::Notice));
    assert!(finding.remedy.contains("multiples of 4 KiB"), "{}", finding.remedy);
    let no_smaller = |facts: &mut Facts| {
        emulated(facts);
        facts.direct.as_mut().unwrap().alignment.offset_write = 4096;
    };
    check(no_smaller, &[]);
    let native = |facts: &mut Facts| {
        emulated(facts);
        queue(facts).logical_block_size = Some(4096);
    };
    check(native, &[]);
}

fn queue(facts: &mut Facts) -> &mut BlockQueue {
    facts.queue.as_mut().unwrap()
}

fn extents(facts: &mut Facts) -> &mut ExtentSummary {
    facts.extents.as_mut().unwrap()
}

#[test]
fn without_evidence_there_is_no_finding() {
    check(|_| (), &[]);
    check(
        |facts| {
            facts.mount = None;
            facts.queue = None;
            facts.direct = None;
            facts.extents = None;
            facts.cache = None;
            facts.kernel.release.clear();
        },
        &[],
    );
}

#[test]
fn completions_are_deferred_by_iomap_up_to_linux_6_18() {
    for (file_system, release, is_deferred) in [
        ("ext4", "5.4.0", false),
        ("ext4", "5.5.0", true),
        ("ext4", "6.18.44-generic", true),
        ("ext4", "6.19.0", false),
        ("ext4", "7.0.0", false),
        ("xfs", "5.4.0", true),
        ("xfs", "6.19.0-rc1", false),
        ("ext2", "6.4.0", false),
        ("ext2", "6.5.0", true),
        ("nfs4", "6.18.0", false),
        ("ext4", "", false),
    ] {
        let expected: &[&str] = if is_deferred { &["deferred-completion"] } else { &[] };
        check(|facts| on(facts, file_system, release), expected);
    }
    let finding = only(|facts| on(facts, "ext4", "6.18.44"));
    assert_eq!(finding.evidence, "ext4 on Linux 6.18.44");
    assert!(finding.cause.starts_with("async writes complete in a worker on this kernel: "));
}

#[test]
fn nothing_is_deferred_that_is_not_direct() {
    let buffered = DirectSupport::None(BufferedReason::StatxSaysNo);
    check(
        |facts| {
            on(facts, "ext4", "6.18.0");
            support(facts, buffered);
        },
        &["no-direct-io"],
    );
}

#[test]
fn a_file_without_direct_io_says_why() {
    for (reason, words) in [
        (BufferedReason::MemoryFileSystem, "tmpfs keeps its files in memory"),
        (BufferedReason::RefusedByOpen, "open with O_DIRECT was refused by tmpfs"),
        (BufferedReason::StatxSaysNo, "statx reports an alignment of 0 on tmpfs"),
    ] {
        let finding = only(|facts| {
            on(facts, "tmpfs", "6.19.0");
            support(facts, DirectSupport::None(reason));
            facts.cache = Some(residency(5, 5));
        });
        assert_eq!((finding.id, finding.severity), ("no-direct-io", Severity::Severe));
        assert_eq!(finding.evidence, words);
    }
}

#[test]
fn a_directory_in_memory_has_no_direct_io() {
    let directory = |facts: &mut Facts, file_system: &str| {
        on(facts, file_system, "6.19.0");
        facts.direct = None;
        facts.kind = NameKind::Directory;
    };
    check(|facts| directory(facts, "tmpfs"), &["no-direct-io"]);
    check(|facts| directory(facts, "ext4"), &[]);
}

#[test]
fn btrfs_that_buffers_writes_is_reported() {
    let finding = only(|facts| {
        on(facts, "btrfs", "6.18.0");
        support(facts, DirectSupport::ReadsOnly);
    });
    assert_eq!((finding.id, finding.severity), ("kernel-buffers-writes", Severity::Severe));
}

#[test]
fn cached_pages_are_reported_in_pages_and_bytes_and_matter_more_when_dirty() {
    let clean = only(|facts| facts.cache = Some(residency(3, 0)));
    assert_eq!((clean.id, clean.severity), ("cached-pages", Severity::Notice));
    assert_eq!(clean.evidence, "3 of 262144 pages are cached: 12 KiB (12288 B)");
    assert!(
        clean.remedy.contains("sync data.bin; dd if=data.bin iflag=nocache count=0"),
        "{}",
        clean.remedy
    );
    let dirty = only(|facts| facts.cache = Some(residency(3, 2)));
    assert_eq!(dirty.severity, Severity::Warning);
    assert!(dirty.evidence.ends_with("; 2 of them not yet written back"), "{}", dirty.evidence);
}

#[test]
fn each_kind_of_extent_is_a_finding_of_its_own() {
    let some = ExtentShare { count: 2, bytes: 8192 };
    check(|facts| extents(facts).unwritten = some, &["unwritten-extents"]);
    check(|facts| extents(facts).shared = some, &["shared-extents"]);
    check(|facts| extents(facts).encoded = some, &["encoded-extents"]);
    check(|facts| extents(facts).delayed = some, &["delayed-extents"]);
    let finding = only(|facts| extents(facts).shared = some);
    assert!(finding.evidence.starts_with("2 of 8 extents, 8 KiB (8192 B), are shared"));
}

#[test]
fn a_file_is_fragmented_by_the_number_and_the_size_of_its_pieces() {
    for (pieces, bytes, is_fragmented) in [
        (16, 16 << 20, false),
        (16, (16 << 20) - 16, true),
        (15, 15 << 10, false),
        (1000, 1000 << 30, false),
    ] {
        let expected: &[&str] = if is_fragmented { &["split-by-extent"] } else { &[] };
        check(
            |facts| {
                extents(facts).pieces = pieces;
                extents(facts).all.bytes = bytes;
            },
            expected,
        );
    }
    let finding = only(|facts| {
        let all = ExtentShare { count: 100_000, bytes: 100_000 << 12 };
        *extents(facts) =
            ExtentSummary { all, pieces: 100_000, is_cut: true, ..Default::default() };
    });
    assert_eq!(finding.evidence, "at least 100000 pieces on the device, 4 KiB (4096 B) on average");
}

#[test]
fn a_guessed_alignment_is_reported_where_it_matters() {
    let guess = |facts: &mut Facts| {
        facts.direct.as_mut().unwrap().alignment.source = AlignmentSource::PageSize;
    };
    check(guess, &["alignment-guessed"]);
    check(
        |facts| {
            guess(facts);
            support(facts, DirectSupport::None(BufferedReason::RefusedByOpen));
        },
        &["no-direct-io"],
    );
}

#[test]
fn an_unavailable_ring_names_the_step_the_errno_and_the_remedy() {
    let refused = |errno, sysctl| {
        only(|facts| facts.uring_refusal = Some(UringRefusal { step: "set-up", errno, sysctl }))
    };
    let reported = refused(Errno::EPERM, Some(2));
    assert_eq!(reported.id, "uring-unavailable");
    assert_eq!(
        reported.evidence,
        "io_uring: set-up failed: Operation not permitted (EPERM); kernel.io_uring_disabled is 2"
    );
    assert_eq!(reported.remedy, "sysctl kernel.io_uring_disabled=0");
    assert!(refused(Errno::EPERM, Some(0)).remedy.contains("seccomp"));
    assert!(refused(Errno::ENOSYS, None).remedy.contains("CONFIG_IO_URING"));
    assert!(reported.cause.contains("worker thread"), "{}", reported.cause);
    let with_aio = only(|facts| {
        facts.backends = vec![Ability { name: "aio", refusal: None }];
        facts.uring_refusal =
            Some(UringRefusal { step: "set-up", errno: Errno::EPERM, sysctl: None });
    });
    assert!(with_aio.cause.starts_with("Linux AIO serves instead"), "{}", with_aio.cause);
}

#[test]
fn a_transfer_limit_is_small_only_when_the_device_takes_more() {
    for (now, most, is_small) in
        [(512, 4096, true), (512, 512, false), (1024, 4096, false), (1023, 1024, true)]
    {
        let expected: &[&str] = if is_small { &["split-by-size-limit"] } else { &[] };
        check(
            |facts| {
                queue(facts).max_sectors_kb = Some(now);
                queue(facts).max_hw_sectors_kb = Some(most);
            },
            expected,
        );
    }
    let finding = only(|facts| {
        queue(facts).max_sectors_kb = Some(128);
        queue(facts).max_hw_sectors_kb = Some(512);
    });
    assert!(finding.remedy.starts_with("echo 512 > "), "{}", finding.remedy);
}

#[test]
fn a_volatile_cache_needs_to_be_volatile_and_without_fua() {
    let id: &[&str] = &["volatile-write-cache-without-fua"];
    check(|facts| queue(facts).fua = Some(false), id);
    check(|facts| queue(facts).fua = None, &[]);
    check(
        |facts| {
            queue(facts).fua = Some(false);
            queue(facts).write_cache = Some("write through".to_owned());
        },
        &[],
    );
}

#[test]
fn a_spindle_is_reported() {
    check(|facts| queue(facts).rotational = Some(true), &["rotational"]);
    check(|facts| queue(facts).rotational = None, &[]);
}

#[test]
fn locked_memory_is_low_only_where_it_binds_and_buffers_are_registered() {
    let low = MemoryLock { bytes_max: Some(64 << 10), is_exempt: false };
    check(|facts| facts.memory_lock = low, &["memlock-low"]);
    check(|facts| facts.memory_lock = MemoryLock { is_exempt: true, ..low }, &[]);
    check(|facts| facts.memory_lock = MemoryLock { bytes_max: Some(1 << 30), ..low }, &[]);
    check(
        |facts| {
            facts.memory_lock = low;
            facts.backend.name = "threads";
        },
        &[],
    );
}

#[test]
fn a_mounted_device_is_severe_and_names_its_mounts() {
    let finding = only(|facts| {
        facts.kind = NameKind::BlockDevice;
        facts.mount = None;
        facts.device_mounts = vec![PathBuf::from("/"), PathBuf::from("/home")];
    });
    assert_eq!((finding.id, finding.severity), ("mounted-device", Severity::Severe));
    assert!(finding.evidence.ends_with("mounted at /, /home"), "{}", finding.evidence);
}

#[test]
fn the_worst_finding_comes_first() {
    let mut facts = quiet();
    queue(&mut facts).rotational = Some(true);
    on(&mut facts, "ext4", "6.18.0");
    facts.kind = NameKind::BlockDevice;
    facts.device_mounts = vec![PathBuf::from("/")];
    assert_eq!(ids(&facts), ["mounted-device", "deferred-completion", "rotational"]);
}

#[test]
fn a_size_is_reported_in_its_unit_and_in_bytes() {
    for (bytes, expected) in [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB (1024 B)"),
        (1536, "1.5 KiB (1536 B)"),
        (53248, "52 KiB (53248 B)"),
        ((1 << 20) - 1, "1023.9 KiB (1048575 B)"),
        (1 << 20, "1 MiB (1048576 B)"),
        (u64::MAX, "15.9 EiB (18446744073709551615 B)"),
    ] {
        assert_eq!(size_text(bytes), expected);
    }
}

#[test]
fn a_path_in_a_remedy_is_one_word_of_a_shell() {
    for (path, expected) in [
        ("a/b-1.bin", "a/b-1.bin"),
        ("a b", "'a b'"),
        ("it's", "'it'\\''s'"),
        ("-rf", "'./-rf'"),
        ("a\u{1b}b", "FILE"),
    ] {
        assert_eq!(known::shell_word(&PathBuf::from(path)), expected);
    }
}

/// A file of `CephFS`, `count` objects wide.
fn on_ceph(facts: &mut Facts, count: u64) {
    let text = format!("stripe_unit=1048576 stripe_count={count} object_size=4194304 pool=data");
    facts.layout = foreign::of_attributes(|name| {
        Ok((name == "ceph.file.layout").then(|| text.clone().into_bytes()))
    })
    .transpose();
}

#[test]
fn a_striped_file_reports_the_request_that_fills_all_objects() {
    let finding = only(|facts| on_ceph(facts, 8));
    assert_eq!((finding.id, finding.severity), ("striped-file", Severity::Notice));
    assert!(finding.evidence.contains("striped 1 MiB (1048576 B) over 8 objects"), "{finding:?}");
    assert!(finding.remedy.contains("requests of 8 MiB"), "{finding:?}");
    check(|facts| on_ceph(facts, 1), &[]);
}

#[test]
fn a_layout_that_is_not_understood_is_no_finding() {
    check(
        |facts| {
            let read = foreign::of_attributes(|_| Ok(Some(b"nonsense".to_vec())));
            assert!(read.is_err());
            facts.layout = read.transpose();
        },
        &[],
    );
}

#[test]
fn a_raid_reports_its_full_stripe_and_a_lone_disk_has_none() {
    let sizes = |chunk, full| {
        move |facts: &mut Facts| {
            queue(facts).minimum_io_size = Some(chunk);
            queue(facts).optimal_io_size = Some(full);
        }
    };
    let finding = only(sizes(512 << 10, 1536 << 10));
    assert_eq!((finding.id, finding.severity), ("striped-device", Severity::Notice));
    assert!(finding.remedy.contains("requests of 1.5 MiB"), "{finding:?}");
    for (chunk, full) in [(512, 0), (4096, 1 << 20), (1 << 19, 1 << 19), (1 << 19, (1 << 19) + 1)] {
        check(sizes(chunk, full), &[]);
    }
}
