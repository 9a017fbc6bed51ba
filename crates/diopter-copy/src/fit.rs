//! The size of requests that a file prefers: the stripe width of a striped file or of a file on a
//! distributed file system, or the optimal size of its device. [`crate::shape`] makes blocks of it,
//! within the bound on memory.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;

use diopter::File;
use diopter::internals::Striping;
use diopter_layouts::foreign;
use diopter_layouts::foreign::ForeignLayout;
use diopter_os::file::FileKind;
use diopter_os::queue::BlockQueue;

/// Preferred sizes of a request, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preferred {
    /// One stripe over all objects or disks of the file.
    pub width: u64,
    /// One stripe of an object or disk: second best.
    pub stripe: u64,
}

/// Looks up preferred sizes. Each device is looked up once.
#[derive(Default)]
pub struct PreferredSizes {
    by_device: BTreeMap<u64, Option<Preferred>>,
}

impl PreferredSizes {
    /// Returns the preference of an open file of `size` bytes, if any.
    pub fn of(&mut self, file: &File, size: u64) -> Option<Preferred> {
        match (file.striping(), file.local_fd()) {
            // Each object of a cluster is one operation.
            (Some(striping), None) => return Some(Preferred::of(striping)),
            (Some(striping), Some(_)) => return Preferred::of_striping(striping),
            (None, _) => {}
        }
        // A layout that is not understood has no preference.
        let layout = foreign::of_descriptor(file.local_fd()?).ok().flatten();
        let metadata = file.metadata().ok()?;
        let device = match file.kind() {
            FileKind::BlockDevice => metadata.rdev(),
            _ => metadata.dev(),
        };
        layout.and_then(|layout| Preferred::of_layout(&layout, size)).or_else(|| {
            let looked_at = self.by_device.entry(device);
            *looked_at.or_insert_with(|| Preferred::of_queue(&BlockQueue::of_device(device)?))
        })
    }
}

impl Preferred {
    /// Returns the preference of a striped file; `None` if it has one object.
    fn of_striping(striping: Striping) -> Option<Preferred> {
        (striping.object_count() > 1).then(|| Preferred::of(striping))
    }

    fn of(striping: Striping) -> Preferred {
        Preferred { width: striping.width(), stripe: striping.stripe_size() }
    }

    /// Returns the preference of a layout; `None` if the file lies on one object.
    fn of_layout(layout: &ForeignLayout, size: u64) -> Option<Preferred> {
        let shape = layout.request_shape(size).filter(|shape| shape.stripe_count > 1)?;
        Some(Preferred { width: shape.width, stripe: shape.stripe_size })
    }

    /// Returns the preference of a device: the full stripe of a RAID, and its chunk as second best.
    fn of_queue(queue: &BlockQueue) -> Option<Preferred> {
        let width = queue.optimal_io_size.filter(|bytes| *bytes > 0)?;
        let chunk =
            queue.minimum_io_size.filter(|bytes| *bytes > 0 && width.is_multiple_of(*bytes));
        Some(Preferred { width, stripe: chunk.unwrap_or(width) })
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
        let preferred = Preferred { width: 8 * MIB, stripe: MIB };
        assert_eq!(Preferred::of_layout(&striped, MIB), Some(preferred));
        let plain = layout("stripe_unit=4194304 stripe_count=1 object_size=4194304 pool=a");
        assert_eq!(Preferred::of_layout(&plain, MIB), None);
    }

    #[test]
    fn a_striped_file_of_ours_wants_its_width_and_one_of_a_single_object_nothing() {
        let striping = |count| Striping::new(65536, count).unwrap();
        let preferred = Preferred { width: 196_608, stripe: 65536 };
        assert_eq!(Preferred::of_striping(striping(3)), Some(preferred));
        assert_eq!(Preferred::of_striping(striping(1)), None);
        let dir = tempfile::tempdir().unwrap();
        let place = ObjectPlace::Dir(dir.path().to_owned());
        let options = CreateOptions { objects: vec![place; 4], ..CreateOptions::default() };
        let file = StripedFile::create(dir.path().join("data"), &options).unwrap().into_file();
        let preferred = Preferred { width: 4 * MIB, stripe: MIB };
        assert_eq!(PreferredSizes::default().of(&file, 0), Some(preferred));
    }

    #[test]
    fn a_raid_wants_its_full_stripe_and_a_plain_disk_nothing() {
        let preferred = |minimum, optimal| {
            Preferred::of_queue(&BlockQueue {
                minimum_io_size: minimum,
                optimal_io_size: optimal,
                ..BlockQueue::default()
            })
        };
        let raid = Preferred { width: 3 * MIB, stripe: MIB };
        assert_eq!(preferred(Some(MIB), Some(3 * MIB)), Some(raid));
        assert_eq!(preferred(None, Some(MIB)), Some(Preferred { width: MIB, stripe: MIB }));
        assert_eq!(preferred(Some(512), Some(0)), None);
        assert_eq!(preferred(Some(512), None), None);
    }

    #[test]
    fn a_device_is_looked_at_once() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = File::open(file.path()).unwrap();
        let mut sizes = PreferredSizes::default();
        let first = sizes.of(&open, MIB);
        assert_eq!((sizes.of(&open, MIB), sizes.by_device.len()), (first, 1));
        let device = open.metadata().unwrap().dev();
        let preferred = Some(Preferred { width: MIB, stripe: MIB });
        sizes.by_device.insert(device, preferred);
        assert_eq!(sizes.of(&open, MIB), preferred);
    }
}
