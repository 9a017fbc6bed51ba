//! The limits of a device, with and without an image on it: what a plan says of the bios, what the
//! engine sends, and what the device counts. On a loop device whose `max_sectors_kb` is changed.

use diopter_testkit::env::Capability;
use std::fs;
use std::io::{IoSlice, IoSliceMut};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use diopter::engine::{Plan, PlanQuery};
use diopter::history::BoundaryPolicy;
use diopter::images::Image;
use diopter::{File, IoBuf, OpenOptions, Policies};
use diopter_core::bio::EndedBy;
use diopter_os::buf::Pages;
use rustix::fs::OFlags;

use super::env;
use super::machine::{self, FileSystem, Loop, Mount};
use super::story::{KIB, Story};

const MIB: u64 = 1 << 20;

/// Requests that a device has had, each read or write counted before it was merged with another
/// one (Documentation/block/stat.rst).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    reads: u64,
    writes: u64,
}

struct Device {
    attached: Loop,
    story: Story,
}

impl Device {
    fn new() -> Option<Device> {
        if let Some(why) = machine::loop_missing() {
            env::skip(Capability::Loop, why);
            return None;
        }
        let story = Story::new()?;
        let attached = Loop::over_image(&story.image, 512).unwrap();
        Some(Device { attached, story })
    }

    fn set_max_sectors(&self, kib: u64) {
        set_max_sectors(&self.attached, kib);
    }

    /// The one file in it.
    fn file(&self) -> File {
        let options = OpenOptions::new().read(true).write(true).clone();
        Image::open_with(self.attached.device(), &options).unwrap().file(b"file").unwrap()
    }

    fn counted(&self, run: impl FnOnce()) -> Counts {
        counted(&self.attached, run)
    }
}

fn attribute(device: &Loop, name: &str) -> PathBuf {
    let device = device.device().file_name().unwrap().to_str().unwrap();
    PathBuf::from(format!("/sys/block/{device}/{name}"))
}

fn set_max_sectors(device: &Loop, kib: u64) {
    fs::write(attribute(device, "queue/max_sectors_kb"), kib.to_string()).unwrap();
}

/// The kernel completes a request before it counts it, and takes it out of `in_flight` (field 9)
/// after that: only the counts of an idle device are complete.
fn counts(device: &Loop) -> Counts {
    let limit = Instant::now() + Duration::from_secs(10);
    loop {
        let stat = fs::read_to_string(attribute(device, "stat")).unwrap();
        let fields: Vec<u64> =
            stat.split_whitespace().map(|field| field.parse().unwrap()).collect();
        if fields[8] == 0 {
            return Counts { reads: fields[0] + fields[1], writes: fields[4] + fields[5] };
        }
        assert!(Instant::now() < limit, "the device did not become idle: {stat}");
        thread::yield_now();
    }
}

/// Returns the device's counts of `run`.
fn counted(device: &Loop, run: impl FnOnce()) -> Counts {
    let before = counts(device);
    run();
    let after = counts(device);
    Counts { reads: after.reads - before.reads, writes: after.writes - before.writes }
}

fn plan(file: &File, is_write: bool, (offset, length): (u64, u64), policies: Policies) -> Plan {
    let query = PlanQuery {
        is_write,
        offset,
        length,
        address: 0,
        policies,
        bio_bytes_max: None,
        bio_vecs_max: None,
    };
    file.plan(&query).unwrap()
}

fn memory(bytes: u64) -> IoBuf {
    IoBuf::new(usize::try_from(bytes).unwrap()).unwrap()
}

const RANGES: [(u64, u64); 5] = [
    (0, 52 * KIB),
    (48 * KIB, 4 * MIB),
    (40 * KIB + 512, 3 * MIB),
    (4 * KIB, 4 * KIB),
    (12 * KIB, 64 * KIB),
];

#[test]
fn plan_engine_and_device_agree_on_the_bios_of_a_limited_device() {
    let _machine = machine::alone();
    let Some(device) = Device::new() else { return };
    for kib in [64, 100, 256] {
        device.set_max_sectors(kib);
        let file = device.file();
        for (offset, length) in RANGES {
            let what = format!("{length} bytes at {offset}, {kib} KiB at once");
            let read = plan(&file, false, (offset, length), Policies::default());
            let write = plan(&file, true, (offset, length), Policies::default());
            let longest = read.bios.iter().map(|bio| bio.draft.runs.length()).max().unwrap();
            assert!(longest <= kib * KIB, "{what}");
            assert_eq!(read.bios.len(), write.bios.len(), "{what}");
            let bios = u64::try_from(read.bios.len()).unwrap();
            let requests: u64 = read.bios.iter().map(|bio| bio.device_requests_max.unwrap()).sum();
            assert_eq!(requests, bios, "{what}: so few pages are one request wherever they lie");
            let mut memory = memory(length);
            let counted = device.counted(|| assert!(file.read_at(&mut memory, offset).is_ok()));
            assert_eq!(counted, Counts { reads: bios, writes: 0 }, "{what}");
            let from = usize::try_from(offset).unwrap();
            assert!(memory[..] == device.story.content[from..from + memory.len()], "{what}");
            let counted = device.counted(|| assert!(file.write_at(&memory, offset).is_ok()));
            assert_eq!(counted, Counts { reads: 0, writes: bios }, "{what}");
        }
    }
}

/// 128 segments of a loop device are 512 KiB where no two pages lie together, and more where some
/// do: the device counts something in between, and not what a limit of pages would make.
#[test]
fn a_bio_of_many_pages_is_as_many_requests_as_its_memory_makes_it() {
    let _machine = machine::alone();
    let Some(device) = Device::new() else { return };
    device.set_max_sectors(1280);
    let file = device.file();
    let (offset, length) = (48 * KIB, 4 * MIB);
    let plan = plan(&file, false, (offset, length), Policies::default());
    let lengths: Vec<u64> = plan.bios.iter().map(|bio| bio.draft.runs.length() / KIB).collect();
    assert_eq!(lengths, [1280, 1280, 1280, 256]);
    let most: u64 = plan.bios.iter().map(|bio| bio.device_requests_max.unwrap()).sum();
    assert_eq!(most, 13);
    let mut memory = memory(length);
    let counted = device.counted(|| assert!(file.read_at(&mut memory, offset).is_ok()));
    assert!((4..=most).contains(&counted.reads), "{counted:?}");
}

#[test]
fn memory_in_many_ranges_reads_what_is_there_on_a_limited_device() {
    let _machine = machine::alone();
    let Some(device) = Device::new() else { return };
    device.set_max_sectors(64);
    let file = device.file();
    let mut parts: Vec<IoBuf> = (1..40).map(|blocks| memory(blocks * 512)).collect();
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut slices: Vec<_> = parts.iter_mut().map(|part| IoSliceMut::new(part)).collect();
    assert_eq!(file.read_vectored_at(&mut slices, 512).unwrap(), length);
    let read: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
    assert!(read == device.story.content[512..512 + length]);
    let slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
    assert_eq!(file.write_vectored_at(&slices, 512).unwrap(), length);
}

#[test]
fn an_older_rule_keeps_a_devices_limits_as_its_kernel_did() {
    let _machine = machine::alone();
    let Some(device) = Device::new() else { return };
    let of = |boundary: BoundaryPolicy| {
        let policies = Policies { history: boundary.into(), ..Policies::default() };
        let plan = plan(&device.file(), false, (48 * KIB, 4 * MIB), policies);
        plan.bios.iter().map(|bio| bio.draft.runs.length() / KIB).collect::<Vec<u64>>()
    };
    device.set_max_sectors(1280);
    let in_segments = [vec![512; 7], vec![504, 8]].concat();
    assert_eq!(of(BoundaryPolicy::Patch1), in_segments, "128 segments are 128 pages to it");
    device.set_max_sectors(64);
    assert_eq!(of(BoundaryPolicy::V3_10), [64; 64]);
}

/// The least and the most requests of a read that a plan knows of.
fn requests(file: &File, (offset, length): (u64, u64)) -> (u64, u64) {
    let plan = plan(file, false, (offset, length), Policies::default());
    let least = plan.bios.iter().map(|bio| bio.device_requests_min.unwrap()).sum();
    (least, plan.bios.iter().map(|bio| bio.device_requests_max.unwrap()).sum())
}

/// Checks plans of reads of a file or device against what the device below counts.
fn check_requests(device: &Loop, file: &File) {
    for kib in [64, 512, 1280] {
        set_max_sectors(device, kib);
        for (offset, length) in [(0, 4 * MIB), (48 * KIB, MIB), (40 * KIB + 512, 3 * MIB)] {
            let (least, most) = requests(file, (offset, length));
            let mut memory = memory(length);
            let counted = counted(device, || assert!(file.read_at(&mut memory, offset).is_ok()));
            let what = format!("{length} bytes at {offset}, {kib} KiB at once");
            assert!(
                (least..=most).contains(&counted.reads),
                "{counted:?}, {least} to {most}, {what}"
            );
            assert!(least >= length.div_ceil(kib * KIB), "{least}, {what}");
        }
    }
}

#[test]
fn the_requests_of_a_raw_device_are_those_that_it_counts() {
    let _machine = machine::alone();
    if let Some(why) = machine::loop_missing() {
        return env::skip(Capability::Loop, why);
    }
    let device = Loop::new("requests", 8 * MIB, 512).unwrap();
    let file = File::open(device.device()).unwrap();
    check_requests(&device, &file);
    set_max_sectors(&device, 512);
    assert_eq!(requests(&file, (0, 4 * MIB)), (8, 8 + 3), "and the ends of three bios");
    assert_eq!(requests(&file, (0, MIB)), (2, 2), "one bio, however it lies");
}

/// 17 pages that lie together are two segments of 64 KiB and one vec, so the first bio of 256 vecs
/// has 257 segments. [`File`] would make several calls of so many ranges, so this is a call of the
/// kernel.
#[test]
fn a_few_pages_that_lie_together_make_no_more_requests_than_the_plan_has() {
    let _machine = machine::alone();
    if let Some(why) = machine::loop_missing() {
        return env::skip(Capability::Loop, why);
    }
    let device = Loop::new("together", 8 * MIB, 512).unwrap();
    set_max_sectors(&device, 1280);
    let file = File::open(device.device()).unwrap();
    let (least, most) = requests(&file, (0, 1280 * KIB));
    assert_eq!((least, most), (1, 4));
    let mut huge = IoBuf::with_pages(2 << 20, Pages::Huge).unwrap();
    huge.fill(1);
    let address = huge.as_ptr().addr();
    let mut pages: Vec<_> = huge.chunks_mut(4096).map(Some).collect();
    let scattered = (19..pages.len()).step_by(2).chain((18..).step_by(2));
    let order = (0..17).chain(scattered).take(320);
    let mut slices: Vec<_> =
        order.map(|page| IoSliceMut::new(pages[page].take().unwrap())).collect();
    let direct = fs::OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::DIRECT.bits().cast_signed())
        .open(device.device())
        .unwrap();
    let counted = counted(&device, || {
        assert_eq!(rustix::io::preadv(&direct, &mut slices, 0), Ok(1280 << 10));
    });
    assert!((least..=most).contains(&counted.reads), "{counted:?}");
    // Without a huge page, as in fragmented memory, the pages are anywhere.
    if is_huge(address) {
        assert_eq!(counted.reads, most);
    }
}

/// Returns true if the mapping at an address is a huge page.
fn is_huge(address: usize) -> bool {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let here = |line: &str| {
        let (start, rest) = line.split_once('-')?;
        let bounds = [start, rest.split(' ').next()?].map(|text| usize::from_str_radix(text, 16));
        let [Ok(start), Ok(end)] = bounds else { return None };
        Some((start..end).contains(&address))
    };
    let lines = maps.lines().skip_while(|line| here(line) != Some(true)).skip(1);
    let mut huge = lines.filter_map(|line| line.strip_prefix("AnonHugePages:"));
    huge.next().is_some_and(|size| size.trim() != "0 kB")
}

#[test]
fn the_requests_of_a_plain_file_are_those_that_its_device_counts() {
    let _machine = machine::alone();
    let kind = FileSystem::Ext4 { block: 4096, extra: &[] };
    if let Some((capability, why)) = kind.missing() {
        return env::skip(capability, why);
    }
    if let Some(why) = machine::loop_missing() {
        return env::skip(Capability::Loop, why);
    }
    let mount = Mount::new(kind, 64 * MIB, "defaults").unwrap();
    let options = OpenOptions::new().read(true).write(true).create(true).clone();
    {
        let file = options.open(mount.path().join("file")).unwrap();
        assert!(file.write_all_at(&memory(5 * MIB), 0).is_ok());
        file.sync_all().unwrap();
        check_requests(mount.device(), &file);
        let hole = plan(&file, true, (8 * MIB, MIB), Policies::default());
        assert_eq!(hole.bios[0].device_requests_max, None, "its blocks are not chosen yet");
    }
    mount.finish().unwrap();
}

/// A limit of the file system's device is none of an image's that is a file there.
#[test]
fn an_image_in_a_file_is_cut_by_no_device() {
    let _machine = machine::alone();
    let Some(story) = Story::new() else { return };
    let plan = plan(&story.file(), false, (48 * KIB, 4 * MIB), Policies::default());
    let [bio] = &plan.bios[..] else { panic!("one bio: {plan:?}") };
    assert_eq!((bio.draft.ended_by, bio.device_requests_max), (EndedBy::EndOfRequest, None));
}

/// Writeback that a completion in the kernel would wait for is looked up by the file's blocks, not
/// by the bytes of the image that have the same numbers.
#[test]
fn the_completion_of_a_write_is_reported_by_the_files_own_blocks() {
    let _machine = machine::alone();
    let Some(story) = Story::new() else { return };
    let file = story.file();
    let length = u64::try_from(story.content.len()).unwrap();
    // The image is sparse, and its cache is not the file's.
    let kernels = Policies { completion: diopter::history::LINUX_7_0, ..Policies::default() };
    let last = length - 4096;
    let text_of = |offset| plan(&file, true, (offset, 4096), kernels).completion;
    let image = fs::File::open(&story.image).unwrap();
    image.sync_all().unwrap();
    let drop_cached = |file: &fs::File| {
        rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    };
    drop_cached(&image);
    assert_eq!(text_of(last), ("inline", "overwrite of mapped blocks"));
    assert_eq!(text_of(0), ("inline", "overwrite of mapped blocks"));
    let at = plan(&file, true, (last, 4096), kernels).extents[0].object_offset.get();
    let mut block = [0; 4096];
    std::os::unix::fs::FileExt::read_exact_at(&image, &mut block, last).unwrap();
    assert_eq!(text_of(0), ("inline", "overwrite of mapped blocks"), "another place is cached");
    std::os::unix::fs::FileExt::read_exact_at(&image, &mut block, at).unwrap();
    assert_eq!(text_of(last), ("worker", "the file has cached pages"));
}
