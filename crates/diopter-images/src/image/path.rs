//! From a path to its inode, inside one volume. Names of the machine's own file systems are not
//! used.

use crate::image::{ImageError, ImageErrorKind, Node, NodeKind, Volume};

/// Limit of symbolic links in one lookup: the kernel's (path_resolution(7)).
pub const SYMLINKS_MAX: u32 = 40;

/// Returns the node that `path` names, from the root of the volume on: symbolic links are followed,
/// also the last one, `..` at the root stays there, and an absolute target is inside the volume.
///
/// # Errors
/// Fails with `NotFound` for a missing name, an empty path and more than [`SYMLINKS_MAX`] links,
/// `NotADirectory` for a file with more behind it, and as the volume does.
pub fn resolve(volume: &dyn Volume, path: &[u8]) -> Result<Node, ImageError> {
    if path.is_empty() {
        return Err(ImageError::new(ImageErrorKind::NotFound, "the path is empty"));
    }
    // The next name is the last one here.
    let mut ahead: Vec<Vec<u8>> = Vec::new();
    push_names(&mut ahead, path);
    // Directories on the path, the root left out: `..` is resolved without asking the volume.
    let mut way: Vec<Node> = Vec::new();
    let mut links = 0;
    let mut searched = Searched::new(volume)?;
    while let Some(name) = ahead.pop() {
        match name.as_slice() {
            b"" | b"." => continue,
            b".." => {
                way.pop();
                continue;
            }
            _ => {}
        }
        let directory = way.last().map_or(volume.root(), |node| node.inode);
        searched.add(way.last())?;
        let node = volume.node(volume.lookup(directory, &name)?)?;
        match node.kind {
            NodeKind::Directory => way.push(node),
            NodeKind::Symlink => {
                links += 1;
                if links > SYMLINKS_MAX {
                    let what = format!("more than {SYMLINKS_MAX} symbolic links, as in a loop");
                    return Err(ImageError::new(ImageErrorKind::NotFound, what).on_inode(directory));
                }
                let target = volume.link_target(node.inode)?;
                if target.first() == Some(&b'/') {
                    way.clear();
                }
                push_names(&mut ahead, &target);
            }
            NodeKind::File | NodeKind::Other if ahead.is_empty() => return Ok(node),
            NodeKind::File | NodeKind::Other => {
                let what = format!("`{}` is not a directory", name.escape_ascii());
                return Err(
                    ImageError::new(ImageErrorKind::NotADirectory, what).on_inode(node.inode)
                );
            }
        }
    }
    way.pop().map_or_else(|| volume.node(volume.root()), Ok)
}

/// Counts the bytes of directories that are searched for names. A lookup in a sound volume meets
/// each directory once, and starts from the root again for each link; more than that costs more
/// than the volume is large, and fails.
struct Searched {
    bytes: u64,
    bytes_max: u64,
    /// Bytes of the volume.
    bytes_whole: u64,
    /// Bytes of the root directory.
    bytes_root: u64,
}

impl Searched {
    fn new(volume: &dyn Volume) -> Result<Searched, ImageError> {
        let bytes_whole = volume.blocks().saturating_mul(volume.block_size());
        let bytes_max = bytes_whole.saturating_mul(u64::from(SYMLINKS_MAX) + 1);
        let bytes_root = volume.node(volume.root())?.size;
        Ok(Searched { bytes: 0, bytes_max, bytes_whole, bytes_root })
    }

    /// Counts a directory, or the root; an empty one as one byte.
    fn add(&mut self, directory: Option<&Node>) -> Result<(), ImageError> {
        let size = directory.map_or(self.bytes_root, |node| node.size);
        let size = size.min(self.bytes_whole).max(1);
        self.bytes = self.bytes.saturating_add(size);
        if self.bytes > self.bytes_max {
            let what = "a path through more bytes of directories than the volume has, many times";
            return Err(ImageError::new(ImageErrorKind::Refused, what)
                .with_remedy("name the file by a path without links"));
        }
        Ok(())
    }
}

/// Puts the names of a path ahead of the present ones; an empty name means a last slash, which
/// demands a directory before it.
fn push_names(ahead: &mut Vec<Vec<u8>>, path: &[u8]) {
    ahead.extend(path.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec));
}

#[cfg(all(test, not(diopter_loom)))]
mod tests {
    use diopter_core::extent::Extent;
    use diopter_core::units::FileRange;

    use super::*;
    use crate::image::{Names, Use};

    /// (directory, name, inode, kind, target) of each node but the root, which is 2.
    type Row = (u64, &'static str, u64, NodeKind, &'static str);

    const TREE: &[Row] = &[
        (2, "file", 10, NodeKind::File, ""),
        (2, "dir", 11, NodeKind::Directory, ""),
        (11, "file", 12, NodeKind::File, ""),
        (11, "sub", 13, NodeKind::Directory, ""),
        (13, "deep", 14, NodeKind::File, ""),
        (2, "absolute", 15, NodeKind::Symlink, "/dir/sub"),
        (13, "up", 16, NodeKind::Symlink, "../file"),
        (2, "loop", 17, NodeKind::Symlink, "loop"),
        (2, "slash", 18, NodeKind::Symlink, "file/"),
        (11, "device", 19, NodeKind::Other, ""),
        (2, "nothing", 20, NodeKind::Symlink, "gone"),
        (2, "root", 21, NodeKind::Symlink, "/.."),
    ];

    struct Tree;

    impl Volume for Tree {
        fn format(&self) -> &'static str {
            "tree"
        }

        fn warnings(&self) -> Vec<String> {
            Vec::new()
        }

        fn features(&self) -> Vec<&'static str> {
            Vec::new()
        }

        fn block_size(&self) -> u64 {
            1
        }

        fn node(&self, inode: u64) -> Result<Node, ImageError> {
            let row = TREE.iter().find(|row| row.2 == inode);
            let kind = row.map_or(NodeKind::Directory, |row| row.3);
            Ok(Node { inode, kind, size: 0, mode: 0, links: 1 })
        }

        fn root(&self) -> u64 {
            2
        }

        fn lookup(&self, directory: u64, name: &[u8]) -> Result<u64, ImageError> {
            let row = TREE.iter().find(|row| row.0 == directory && row.1.as_bytes() == name);
            let missing = || ImageError::new(ImageErrorKind::NotFound, "no such name");
            row.map(|row| row.2).ok_or_else(missing)
        }

        fn blocks(&self) -> u64 {
            1000
        }

        fn names(&self, _: u64, _: u64, _: usize) -> Result<Names, ImageError> {
            Ok(Names { entries: Vec::new(), next: None, block: None })
        }

        fn link_target(&self, inode: u64) -> Result<Vec<u8>, ImageError> {
            let row = TREE.iter().find(|row| row.2 == inode).expect("a link of the tree");
            Ok(row.4.as_bytes().to_vec())
        }

        fn check_use(&self, _: u64, _: Use) -> Result<(), ImageError> {
            Ok(())
        }

        fn inline_data(&self, _: u64) -> Result<Option<Vec<u8>>, ImageError> {
            Ok(None)
        }

        fn extent(&self, _: u64, _: FileRange) -> Result<Extent, ImageError> {
            Err(ImageError::new(ImageErrorKind::NotAFile, "the tree has no bytes"))
        }
    }

    fn check(path: &str, expected: Result<u64, ImageErrorKind>) {
        let found = resolve(&Tree, path.as_bytes());
        assert_eq!(found.map(|node| node.inode).map_err(|error| error.kind), expected, "{path}");
    }

    #[test]
    fn a_path_is_walked_name_by_name_from_the_root() {
        check("/", Ok(2));
        check("file", Ok(10));
        check("//dir/.//sub/deep", Ok(14));
        check("dir/", Ok(11));
        check("dir/device", Ok(19));
    }

    #[test]
    fn dot_dot_goes_up_and_stays_at_the_root() {
        check("../../file", Ok(10));
        check("dir/sub/../file", Ok(12));
        check("dir/sub/../..", Ok(2));
        check("root/dir", Ok(11));
    }

    #[test]
    fn symbolic_links_are_followed_inside_the_volume() {
        check("absolute/deep", Ok(14));
        check("absolute", Ok(13));
        check("absolute/../file", Ok(12));
        check("dir/sub/up", Ok(12));
    }

    #[test]
    fn what_can_not_be_walked_is_reported() {
        check("", Err(ImageErrorKind::NotFound));
        check("gone", Err(ImageErrorKind::NotFound));
        check("nothing", Err(ImageErrorKind::NotFound));
        check("loop", Err(ImageErrorKind::NotFound));
        check("file/", Err(ImageErrorKind::NotADirectory));
        check("slash", Err(ImageErrorKind::NotADirectory));
        check("file/..", Err(ImageErrorKind::NotADirectory));
        check("dir/device/x", Err(ImageErrorKind::NotADirectory));
    }
}
