//! The log of QEMU's `blklogwrites` driver: every write and flush of the guest's disk, in the order
//! in which the disk took them. The format is that of the kernel's dm-log-writes target
//! (Documentation/admin-guide/device-mapper/log-writes.rst): a super block, then entries of one
//! sector each, a write's data behind its entry.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

const MAGIC: u64 = 0x6a_7366_7773_6872;
const SECTOR: u64 = 512;
/// The length of an entry's fields.
const ENTRY: usize = 32;

const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;

/// One thing that the disk was asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where on the disk, in bytes.
    pub offset: u64,
    /// Bytes written; 0 for a flush alone.
    pub length: u64,
    /// Where the data is in the log.
    data: u64,
    /// Everything before it is durable.
    pub is_flush: bool,
    /// It is durable itself.
    pub is_fua: bool,
}

/// A log that is complete.
pub struct WriteLog {
    file: File,
    pub entries: Vec<Entry>,
}

impl WriteLog {
    /// Reads the entries of a log.
    pub fn open(path: &Path) -> Result<WriteLog, String> {
        let failed = |error: std::io::Error| format!("read {}: {error}", path.display());
        let file = File::open(path).map_err(failed)?;
        let mut head = [0; 28];
        file.read_exact_at(&mut head, 0).map_err(failed)?;
        if number(&head, 0) != MAGIC {
            return Err(format!("{}: not a write log", path.display()));
        }
        let (count, sector) = (number(&head, 16), u32::from_le_bytes(array(&head, 24)));
        if u64::from(sector) != SECTOR {
            return Err(format!("{}: sectors of {sector} bytes", path.display()));
        }
        let mut entries = Vec::new();
        let mut at = SECTOR;
        for _ in 0..count {
            let mut fields = [0; ENTRY];
            file.read_exact_at(&mut fields, at).map_err(failed)?;
            let (flags, length) = (number(&fields, 16), number(&fields, 8) * SECTOR);
            if flags & DISCARD != 0 {
                return Err(format!(
                    "{}: a discard, which the guest must not send",
                    path.display()
                ));
            }
            entries.push(Entry {
                offset: number(&fields, 0) * SECTOR,
                length,
                data: at + SECTOR,
                is_flush: flags & FLUSH != 0,
                is_fua: flags & FUA != 0,
            });
            at += SECTOR + length;
        }
        Ok(WriteLog { file, entries })
    }

    /// The data of an entry.
    pub fn data(&self, entry: &Entry) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(entry.length).unwrap()];
        self.file.read_exact_at(&mut bytes, entry.data).unwrap();
        bytes
    }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().unwrap()
}

/// A log of entries `(offset, flags, data)`, as QEMU writes it.
#[cfg(test)]
pub fn written(path: &Path, entries: &[(u64, u64, &[u8])]) {
    let mut bytes = Vec::new();
    let sector = |bytes: &mut Vec<u8>, fields: &[u8]| {
        let end = bytes.len() + usize::try_from(SECTOR).unwrap();
        bytes.extend(fields);
        bytes.resize(end, 0);
    };
    let count = u64::try_from(entries.len()).unwrap();
    let head = [MAGIC.to_le_bytes(), 1_u64.to_le_bytes(), count.to_le_bytes()].concat();
    sector(&mut bytes, &[head, 512_u32.to_le_bytes().to_vec()].concat());
    for (offset, flags, data) in entries {
        let length = u64::try_from(data.len()).unwrap();
        let fields = [offset / SECTOR, length / SECTOR, *flags, 0].map(u64::to_le_bytes).concat();
        sector(&mut bytes, &fields);
        bytes.extend(*data);
    }
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_log_is_read_entry_by_entry() {
    let directory = crate::cp_support::dir();
    let path = directory.path().join("log");
    written(&path, &[(4096, 0, &[1; 1024]), (0, FLUSH, &[]), (512, FUA, &[2; 512])]);
    let log = WriteLog::open(&path).unwrap();
    let seen: Vec<_> =
        log.entries.iter().map(|one| (one.offset, one.length, one.is_flush, one.is_fua)).collect();
    assert_eq!(seen, [(4096, 1024, false, false), (0, 0, true, false), (512, 512, false, true)]);
    assert_eq!(log.data(&log.entries[0]), [1; 1024]);
    assert_eq!(log.data(&log.entries[2]), [2; 512]);
    std::fs::write(&path, [7; 1024]).unwrap();
    assert!(WriteLog::open(&path).is_err());
}
