//! The writer that writes behind its caller, on a file system that is soon full.

use std::fs;
use std::io::{ErrorKind, Write};

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
