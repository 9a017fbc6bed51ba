//! The writer that writes behind its caller, on a file system that is soon full.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;

use diopter::engine::WriterOptions;
use diopter::{Errno, RangeState};

use super::machine::{self, FileSystem, Mount};
use super::row::{both_ways, has, uncache};

const MIB: u64 = 1 << 20;

const EXT4: FileSystem = FileSystem::Ext4 { block: 4096, extra: &["-m", "0"] };

fn byte_at(offset: usize) -> u8 {
    u8::try_from(1 + offset / 512 % 253).expect("below 254")
}

#[test]
fn a_stream_on_a_full_file_system_reports_what_was_written() {
    let _alone = machine::alone();
    if !has(Some(EXT4)) {
        return;
    }
    let mount = Mount::new(EXT4, 24 * MIB, "defaults").unwrap();
    let content: Vec<u8> = (0..64 << 20).map(byte_at).collect();
    let tight = WriterOptions::new().buffer_bytes(MIB / 4).in_flight(4);
    for options in [tight, tight.size_hint(64 * MIB), tight.preallocate(2 * MIB)] {
        let path = mount.path().join("full");
        let file = both_ways().open(&path).unwrap();
        let mut writer = file.writer_with(0, options);
        let error = content.chunks(70_001).find_map(|piece| writer.write_all(piece).err());
        assert_eq!(error.expect("it is a small one").kind(), ErrorKind::StorageFull);
        let taken = writer.position();
        let (result, outcome) = writer.finish();
        assert_eq!(result.unwrap_err().errno(), Errno::ECANCELED);
        let ranges = outcome.ranges();
        assert!(ranges[0].state == RangeState::Done && ranges[0].range.length() > 10 * MIB);
        let is_enospc = |state| state == RangeState::Failed(Errno::ENOSPC);
        assert!(ranges.iter().any(|part| is_enospc(part.state)), "{ranges:?}");
        assert_eq!((ranges[0].range.start(), ranges[ranges.len() - 1].range.end()), (0, taken));
        file.sync_all().unwrap();
        uncache(&path);
        let written = fs::read(&path).unwrap();
        for part in ranges.iter().filter(|part| part.state == RangeState::Done) {
            let [start, end] = [part.range.start(), part.range.end()]
                .map(|offset| usize::try_from(offset).expect("64-bit"));
            assert!(written[start..end] == content[start..end], "{part:?} of {ranges:?}");
        }
        let not_tried = ranges.iter().find(|part| part.state == RangeState::NotTried);
        let most = not_tried.map_or(taken, |part| part.range.start());
        assert!(file.size().unwrap() <= most, "no longer than what was tried");
        drop(file);
        fs::remove_file(&path).unwrap();
    }
    mount.finish().unwrap();
}

/// ext4 finds out that it is full after it has allocated what there was, and grown the file over
/// it.
#[test]
fn space_that_is_not_there_leaves_the_length_and_the_blocks_of_the_stream() {
    let _alone = machine::alone();
    if !has(Some(EXT4)) {
        return;
    }
    let mount = Mount::new(EXT4, 40 * MIB, "defaults").unwrap();
    let options = WriterOptions::new();
    let far = 200 * MIB;
    for (options, length) in [
        (options.size_hint(far), 1_000_000),
        (options.preallocate(far), 1_000_000),
        (options, 20_000_000),
    ] {
        let path = mount.path().join("stream");
        let content: Vec<u8> = (0..length).map(byte_at).collect();
        let mut writer = both_ways().open(&path).unwrap().writer_with(0, options);
        writer.write_all(&content).unwrap();
        writer.sync().unwrap();
        let (file, outcome) = writer.finish();
        assert!(outcome.is_all_done(), "{options:?}");
        drop(file.unwrap());
        let metadata = fs::metadata(&path).unwrap();
        let size = u64::try_from(length).expect("positive");
        assert_eq!(metadata.len(), size, "{options:?}");
        let occupied = metadata.blocks() * 512;
        assert!(occupied <= size + 2 * 4096, "{options:?} left {occupied} bytes of blocks");
        uncache(&path);
        assert!(fs::read(&path).unwrap() == content, "{options:?}");
        fs::remove_file(&path).unwrap();
    }
    mount.finish().unwrap();
}
