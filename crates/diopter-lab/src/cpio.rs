//! A cpio archive in the kernel's "newc" form. The same files make the same bytes: all belongs to
//! root, no times, inode numbers in the order of adding.

const MAGIC: &str = "070701";
const DIR: u32 = 0o040_755;
const LINK: u32 = 0o120_777;
const DEVICE: u32 = 0o020_600;
const TRAILER: &str = "TRAILER!!!";
/// Headers, names and contents begin at multiples of this.
const ALIGNMENT: usize = 4;

/// An archive being made.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    inode: u32,
}

struct Entry<'a> {
    name: &'a str,
    mode: u32,
    content: &'a [u8],
    device: (u32, u32),
}

impl Archive {
    /// A file with its permissions. The directory must have been added before.
    ///
    /// # Panics
    /// For a file of 4 GiB: the format holds no larger one, and guest memory neither.
    pub fn file(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entry(&Entry { name, mode: 0o100_000 | mode, content, device: (0, 0) });
    }

    /// A directory.
    pub fn dir(&mut self, name: &str) {
        self.entry(&Entry { name, mode: DIR, content: &[], device: (0, 0) });
    }

    /// A symbolic link.
    pub fn link(&mut self, name: &str, target: &str) {
        self.entry(&Entry { name, mode: LINK, content: target.as_bytes(), device: (0, 0) });
    }

    /// A character device.
    pub fn device(&mut self, name: &str, major: u32, minor: u32) {
        self.entry(&Entry { name, mode: DEVICE, content: &[], device: (major, minor) });
    }

    /// The bytes. The kernel unpacks several archives that lie behind each other.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.inode = 0;
        self.entry(&Entry { name: TRAILER, mode: 0, content: &[], device: (0, 0) });
        self.bytes
    }

    fn entry(&mut self, entry: &Entry<'_>) {
        let size = u32::try_from(entry.content.len()).expect("a file below 4 GiB");
        let name_size = u32::try_from(entry.name.len() + 1).expect("a name below 4 GiB");
        let inode = if entry.mode == 0 { 0 } else { self.inode + 1 };
        self.inode = inode;
        let (major, minor) = entry.device;
        // inode, mode, uid, gid, links, mtime, size, device of the file system (2), device (2),
        // size of the name, check sum.
        let numbers = [inode, entry.mode, 0, 0, 1, 0, size, 0, 0, major, minor, name_size, 0];
        self.bytes.extend(MAGIC.as_bytes());
        for number in numbers {
            self.bytes.extend(format!("{number:08x}").as_bytes());
        }
        self.bytes.extend(entry.name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend(entry.content);
        self.align();
    }

    fn align(&mut self) {
        let size = self.bytes.len().next_multiple_of(ALIGNMENT);
        self.bytes.resize(size, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use diopter_testkit::env::{Capability, skip};
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    fn sample() -> Vec<u8> {
        let mut archive = Archive::default();
        archive.dir("bin");
        archive.file("bin/tool", 0o755, b"12345");
        archive.link("bin/other", "tool");
        archive.device("console", 5, 1);
        archive.finish()
    }

    #[test]
    fn a_file_is_a_header_its_name_and_its_content_each_padded() {
        let mut archive = Archive::default();
        archive.file("ab", 0o644, b"12345");
        let bytes = archive.finish();
        let head = "070701000000010000 81a40000000000000000000000010000000000000005";
        assert!(bytes.starts_with(head.replace(' ', "").as_bytes()));
        // 110 bytes of header, 3 of the name, 3 of padding; then the content.
        assert_eq!(&bytes[110..116], b"ab\0\0\0\0".get(..6).unwrap());
        assert_eq!(bytes.len() % 4, 0);
        assert!(bytes.windows(5).any(|window| window == b"12345"));
    }

    #[test]
    fn the_same_files_make_the_same_bytes() {
        // Of any day and machine: a time, an owner or another order would change it.
        let digest = blake3::hash(&sample()).to_hex();
        assert_eq!(&digest[..16], "ee1e4c7864c7dde8");
    }

    #[test]
    fn cpio_reads_it() {
        let Ok(mut child) = Command::new("cpio")
            .args(["--list", "--verbose", "--quiet"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
        else {
            return skip(Capability::Cpio, "cpio is not installed");
        };
        child.stdin.take().unwrap().write_all(&sample()).unwrap();
        let listed = child.wait_with_output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        let lines: Vec<&str> = listed.lines().collect();
        assert_eq!(lines.len(), 4, "{listed}");
        assert!(lines[0].starts_with("drwxr-xr-x") && lines[0].ends_with("bin"), "{listed}");
        assert!(lines[1].starts_with("-rwxr-xr-x") && lines[1].contains(" 5 "), "{listed}");
        assert!(lines[2].ends_with("bin/other -> tool"), "{listed}");
        assert!(lines[3].starts_with("crw-------") && lines[3].contains("5,   1"), "{listed}");
    }
}
