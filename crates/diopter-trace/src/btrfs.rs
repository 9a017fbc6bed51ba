//! The subvolumes of btrfs, in which inode numbers are unique.

/// A subvolume of btrfs, as statvfs(2) reports it in `f_fsid` (`btrfs_statfs` in fs/btrfs/super.c):
/// the UUID of the file system and the number of the subvolume's root in one number.
#[must_use]
pub fn subvolume(uuid: &[u8], root: u64) -> u64 {
    let word = |index: usize| {
        let bytes = uuid.get(index * 4..index * 4 + 4).and_then(|bytes| bytes.try_into().ok());
        u64::from(bytes.map_or(0, u32::from_be_bytes))
    };
    let low = word(0) ^ word(2) ^ (root >> 32);
    let high = word(1) ^ word(3) ^ (root & u64::from(u32::MAX));
    low | high << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subvolume_is_the_uuid_folded_with_its_root() {
        let uuid: Vec<u8> = (0..16).collect();
        let of_root = |root| subvolume(&uuid, root);
        assert_eq!(of_root(5), 0x0808_080d_0808_0808);
        assert_eq!(of_root(1 << 32 | 5), 0x0808_080d_0808_0809);
        assert_eq!(subvolume(&[], 256), 256 << 32);
    }
}
