//! Files of btrfs: their subvolumes, and reads that end in the page cache.

use super::*;

/// A read of inode 12 of a file system without a device number, such as btrfs, that moves so many
/// bytes.
fn read_on_btrfs(script: &mut Script, position: u64, subvolume: Option<u64>, moved: u32) {
    let inode = Inode { device: Device::new(0, 39), number: 12 };
    let What::Begin(begin) = read_at(position) else { unreachable!("it is one") };
    script.at(ROOT, What::Begin(Begin { inode, file_size: u64::MAX, ..begin }));
    if let Some(subvolume) = subvolume {
        script.at(ROOT, What::BtrfsExtent { subvolume, number: 12 });
    }
    let (end, result) = (position + u64::from(moved), i64::from(moved));
    script.at(ROOT, What::Complete { inode, position: end, result });
}

#[test]
fn files_of_two_subvolumes_with_one_number_are_two_and_without_a_subvolume_there_is_no_name() {
    let mut script = Script::new();
    let inode = Inode { device: Device::new(0, 40), number: 12 };
    script.join.files.paths().add(FileId { inode, subvolume: Some(7) }, "/srv/a".into());
    for (position, subvolume) in [(0, Some(7)), (1 << 20, Some(8)), (2 << 20, None)] {
        read_on_btrfs(&mut script, position, subvolume, LENGTH);
    }
    let trace = script.end();
    let paths = trace.requests.iter().map(|request| trace.files[request.file].path.as_str());
    assert_eq!(paths.collect::<Vec<_>>(), ["/srv/a", "0:39:12", "0:39:12"]);
    assert_ne!(trace.requests[1].file, trace.requests[2].file);
}

#[test]
fn a_read_of_btrfs_that_moves_nothing_before_the_end_went_through_the_page_cache() {
    let mut script = Script::new();
    read_on_btrfs(&mut script, 0, Some(7), 0);
    read_on_btrfs(&mut script, 4096, Some(7), LENGTH);
    let trace = script.end();
    assert!(trace.requests[0].is_buffered && !trace.requests[1].is_buffered);
    assert!(!crate::totals::is_at_end(&trace.requests[0]));
}
