//! Which size of request a file wants: its stripe width where it is a striped file, or where a
//! distributed file system told it, else what its device prefers. How that becomes blocks within
//! the bound is in [`super::shape`].

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use diopter::File;
use diopter_core::stripe::Striping;
use diopter_layouts::foreign;
use diopter_layouts::foreign::ForeignLayout;
use diopter_os::file::FileKind;
use diopter_os::queue::BlockQueue;

/// Sizes that a request to a file had better have, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// All objects or disks of the file at once.
    pub width: u64,
    /// One object's or disk's turn: second best.
    pub stripe: u64,
}

/// Looks up wishes. A device is looked at once: a directory of files has one.
#[derive(Default)]
pub struct Wishes {
    by_device: BTreeMap<u64, Option<Wish>>,
}

impl Wishes {
    /// What an open file of `size` bytes wants, if anything.
    pub fn of(&mut self, file: &File, size: u64) -> Option<Wish> {
        if let Some(striping) = file.striping() {
            return Wish::of_striping(striping);
        }
        // What is not understood is served all the same, with requests as usual.
        let layout = foreign::of_descriptor(file.as_fd()).ok().flatten();
        let metadata = file.metadata().ok()?;
        let device = match file.kind() {
            FileKind::BlockDevice => metadata.rdev(),
            _ => metadata.dev(),
        };
        layout.and_then(|layout| Wish::of_layout(&layout, size)).or_else(|| {
            let looked_at = self.by_device.entry(device);
            *looked_at.or_insert_with(|| Wish::of_queue(&BlockQueue::of_device(device)?))
        })
    }
}

impl Wish {
    /// What a striped file wants; `None` where it has one object.
    fn of_striping(striping: Striping) -> Option<Wish> {
        let wish = Wish { width: striping.width(), stripe: striping.stripe_size() };
        (striping.object_count() > 1).then_some(wish)
    }

    /// What a layout wants; `None` where a file lies on one object.
    fn of_layout(layout: &ForeignLayout, size: u64) -> Option<Wish> {
        let shape = layout.request_shape(size).filter(|shape| shape.stripe_count > 1)?;
        Some(Wish { width: shape.width, stripe: shape.stripe_size })
    }

    /// What a device wants: a RAID its full stripe, and its chunk as second best.
    fn of_queue(queue: &BlockQueue) -> Option<Wish> {
        let width = queue.optimal_io_size.filter(|bytes| *bytes > 0)?;
        let chunk =
            queue.minimum_io_size.filter(|bytes| *bytes > 0 && width.is_multiple_of(*bytes));
        Some(Wish { width, stripe: chunk.unwrap_or(width) })
    }
}

#[cfg(test)]
mod tests {
    use diopter::layouts::StripedFile;
    use diopter_layouts::foreign::of_attributes;
    use diopter_layouts::layout::{CreateOptions, ObjectPlace};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn layout(text: &str) -> ForeignLayout {
        let value = |name: &str| (name == "ceph.file.layout").then(|| text.as_bytes().to_vec());
        of_attributes(|name| Ok(value(name))).unwrap().unwrap()
    }

    #[test]
    fn a_striped_file_wants_its_stripe_width() {
        let striped = layout("stripe_unit=1048576 stripe_count=8 object_size=4194304 pool=a");
        let wish = Wish { width: 8 * MIB, stripe: MIB };
        assert_eq!(Wish::of_layout(&striped, MIB), Some(wish));
        let plain = layout("stripe_unit=4194304 stripe_count=1 object_size=4194304 pool=a");
        assert_eq!(Wish::of_layout(&plain, MIB), None);
    }

    #[test]
    fn a_striped_file_of_ours_wants_its_width_and_one_of_a_single_object_nothing() {
        let striping = |count| Striping::new(65536, count).unwrap();
        let wish = Wish { width: 196_608, stripe: 65536 };
        assert_eq!(Wish::of_striping(striping(3)), Some(wish));
        assert_eq!(Wish::of_striping(striping(1)), None);
        let dir = tempfile::tempdir().unwrap();
        let place = ObjectPlace::Dir(dir.path().to_owned());
        let options = CreateOptions { objects: vec![place; 4], ..CreateOptions::default() };
        let file = StripedFile::create(dir.path().join("data"), &options).unwrap().into_file();
        let wish = Wish { width: 4 * MIB, stripe: MIB };
        assert_eq!(Wishes::default().of(&file, 0), Some(wish));
    }

    #[test]
    fn a_raid_wants_its_full_stripe_and_a_plain_disk_nothing() {
        let wish = |minimum, optimal| {
            Wish::of_queue(&BlockQueue {
                minimum_io_size: minimum,
                optimal_io_size: optimal,
                ..BlockQueue::default()
            })
        };
        let raid = Wish { width: 3 * MIB, stripe: MIB };
        assert_eq!(wish(Some(MIB), Some(3 * MIB)), Some(raid));
        assert_eq!(wish(None, Some(MIB)), Some(Wish { width: MIB, stripe: MIB }));
        assert_eq!(wish(Some(512), Some(0)), None);
        assert_eq!(wish(Some(512), None), None);
    }

    #[test]
    fn a_device_is_looked_at_once() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = File::open(file.path()).unwrap();
        let mut wishes = Wishes::default();
        let first = wishes.of(&open, MIB);
        assert_eq!((wishes.of(&open, MIB), wishes.by_device.len()), (first, 1));
        let device = open.metadata().unwrap().dev();
        let wish = Some(Wish { width: MIB, stripe: MIB });
        wishes.by_device.insert(device, wish);
        assert_eq!(wishes.of(&open, MIB), wish);
    }
}
