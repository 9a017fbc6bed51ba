//! Feature bits of a volume and flags of an inode, with the accesses that they forbid. No structure
//! is read here.

use crate::image::{ImageError, ImageErrorKind};

/// Bits of `s_feature_compat`.
pub(super) mod compat {
    pub const HAS_JOURNAL: u32 = 0x4;
    pub const DIR_INDEX: u32 = 0x20;
    pub const SPARSE_SUPER2: u32 = 0x200;
}

/// Bits of `s_feature_incompat`.
pub(super) mod incompat {
    pub const COMPRESSION: u32 = 0x1;
    pub const FILETYPE: u32 = 0x2;
    pub const RECOVER: u32 = 0x4;
    pub const JOURNAL_DEV: u32 = 0x8;
    pub const META_BG: u32 = 0x10;
    pub const EXTENTS: u32 = 0x40;
    pub const WIDE: u32 = 0x80;
    pub const MMP: u32 = 0x100;
    pub const FLEX_BG: u32 = 0x200;
    pub const EA_INODE: u32 = 0x400;
    pub const DIRDATA: u32 = 0x1000;
    pub const CSUM_SEED: u32 = 0x2000;
    pub const LARGEDIR: u32 = 0x4000;
    pub const INLINE_DATA: u32 = 0x8000;
    pub const ENCRYPT: u32 = 0x1_0000;
    pub const CASEFOLD: u32 = 0x2_0000;

    /// Features of ext2 and ext3.
    pub const BEFORE_EXT4: u32 = FILETYPE | META_BG | RECOVER;
    /// Features that this reader supports.
    pub const KNOWN: u32 = FILETYPE
        | META_BG
        | EXTENTS
        | WIDE
        | MMP
        | FLEX_BG
        | EA_INODE
        | DIRDATA
        | CSUM_SEED
        | LARGEDIR
        | INLINE_DATA
        | ENCRYPT
        | CASEFOLD;
}

/// Bits of `s_feature_ro_compat`.
pub(super) mod ro_compat {
    pub const SPARSE_SUPER: u32 = 0x1;
    pub const LARGE_FILE: u32 = 0x2;
    pub const BTREE_DIR: u32 = 0x4;
    pub const HUGE_FILE: u32 = 0x8;
    pub const GDT_CSUM: u32 = 0x10;
    pub const DIR_NLINK: u32 = 0x20;
    pub const EXTRA_ISIZE: u32 = 0x40;
    pub const QUOTA: u32 = 0x100;
    pub const BIGALLOC: u32 = 0x200;
    pub const METADATA_CSUM: u32 = 0x400;
    pub const READONLY: u32 = 0x1000;
    pub const PROJECT: u32 = 0x2000;
    pub const SHARED_BLOCKS: u32 = 0x4000;
    pub const VERITY: u32 = 0x8000;
    pub const ORPHAN_PRESENT: u32 = 0x1_0000;

    /// Features of ext2 and ext3.
    pub const BEFORE_EXT4: u32 = SPARSE_SUPER | LARGE_FILE | BTREE_DIR;
    /// Features under which blocks may be overwritten.
    pub const KNOWN: u32 = BEFORE_EXT4
        | HUGE_FILE
        | GDT_CSUM
        | DIR_NLINK
        | EXTRA_ISIZE
        | QUOTA
        | BIGALLOC
        | METADATA_CSUM
        | READONLY
        | PROJECT
        | SHARED_BLOCKS
        | VERITY
        | ORPHAN_PRESENT;
}

/// Bits of `i_flags`.
pub(super) mod flag {
    pub const IMMUTABLE: u32 = 0x10;
    pub const APPEND: u32 = 0x20;
    pub const ENCRYPT: u32 = 0x800;
    pub const INDEX: u32 = 0x1000;
    pub const JOURNAL_DATA: u32 = 0x4000;
    pub const HUGE_FILE: u32 = 0x4_0000;
    pub const EXTENTS: u32 = 0x8_0000;
    pub const VERITY: u32 = 0x10_0000;
    pub const EA_INODE: u32 = 0x20_0000;
    pub const INLINE_DATA: u32 = 0x1000_0000;
    pub const CASEFOLD: u32 = 0x4000_0000;
}

/// Bits of `s_state`.
const STATE_CLEAN: u16 = 0x1;
const STATE_ERRORS: u16 = 0x2;

/// The bits of `s_default_mount_opts` that define how data is journalled, and the value for all of
/// it.
const MOUNT_JOURNALLING: u32 = 0x60;
const MOUNT_JOURNAL_DATA: u32 = 0x20;

const RUN_E2FSCK: &str = "run e2fsck on it";
const MOUNT_IT: &str = "mount it and write through the mount";

/// The volume's features and state in a superblock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Features {
    pub compat: u32,
    pub incompat: u32,
    pub ro_compat: u32,
    pub state: u16,
    pub mount_options: u32,
    /// The first inode of the list of orphans; 0 for none.
    pub last_orphan: u32,
}

impl Features {
    pub(super) fn has_compat(self, bit: u32) -> bool {
        self.compat & bit != 0
    }

    pub(super) fn has_incompat(self, bit: u32) -> bool {
        self.incompat & bit != 0
    }

    pub(super) fn has_ro_compat(self, bit: u32) -> bool {
        self.ro_compat & bit != 0
    }

    /// Returns `ext2`, `ext3` or `ext4`: the oldest one with all of the features.
    pub(super) fn format(self) -> &'static str {
        let is_ext4 = self.incompat & !incompat::BEFORE_EXT4 != 0
            || self.ro_compat & !ro_compat::BEFORE_EXT4 != 0;
        match (is_ext4, self.has_compat(compat::HAS_JOURNAL)) {
            (true, _) => "ext4",
            (false, true) => "ext3",
            (false, false) => "ext2",
        }
    }

    /// Checks that the volume can be read at all.
    pub(super) fn check_readable(self) -> Result<(), ImageError> {
        let unknown = self.incompat
            & !(incompat::KNOWN
                | incompat::JOURNAL_DEV
                | incompat::COMPRESSION
                | incompat::RECOVER);
        let refusal = if self.has_incompat(incompat::JOURNAL_DEV) {
            ("the volume is the journal of another one", "open the volume that it belongs to")
        } else if self.has_incompat(incompat::COMPRESSION) {
            ("the volume has compressed files, of a kind that no kernel reads any more", "")
        } else if unknown != 0 {
            let what =
                format!("the volume has incompatible features that are unknown: {unknown:#x}");
            return Err(refused(what));
        } else if self.has_incompat(incompat::RECOVER) {
            let what = "the journal has changes that are not in their place yet";
            (what, "mount and unmount it, or run e2fsck on it, so that they get there")
        } else if self.has_incompat(incompat::META_BG) && self.has_compat(compat::SPARSE_SUPER2) {
            ("the volume has meta_bg and sparse_super2, whose meeting is not understood", "")
        } else {
            return Ok(());
        };
        Err(refused(refusal.0).with_remedy(refusal.1))
    }

    /// Checks that blocks of files may be overwritten on this volume.
    pub(super) fn check_writable(self) -> Result<(), ImageError> {
        let unknown = self.ro_compat & !ro_compat::KNOWN;
        let refusal = if unknown != 0 {
            let what = format!(
                "the volume has features that are unknown, under which it may only be read: \
                 {unknown:#x}"
            );
            return Err(refused(what));
        } else if self.has_ro_compat(ro_compat::READONLY) {
            ("the volume is marked read-only", "tune2fs -O ^read-only takes the mark off")
        } else if self.has_ro_compat(ro_compat::SHARED_BLOCKS) {
            ("files of the volume share blocks", "run e2fsck -E unshare_blocks on it")
        } else if self.state & STATE_ERRORS != 0 {
            ("the kernel found errors on the volume", RUN_E2FSCK)
        } else if self.state & STATE_CLEAN == 0 {
            ("the volume was not unmounted cleanly", RUN_E2FSCK)
        } else if self.last_orphan != 0 || self.has_ro_compat(ro_compat::ORPHAN_PRESENT) {
            ("the volume has deleted files whose blocks are not freed yet", RUN_E2FSCK)
        } else if self.mount_options & MOUNT_JOURNALLING == MOUNT_JOURNAL_DATA {
            ("data of the volume goes through its journal (data=journal)", MOUNT_IT)
        } else {
            return Ok(());
        };
        Err(refused(refusal.0).with_remedy(refusal.1))
    }

    /// Returns the warnings for a reader.
    pub(super) fn warnings(self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.state & STATE_ERRORS != 0 {
            warnings.push("the kernel found errors on the volume; run e2fsck on it".to_owned());
        }
        if self.state & STATE_CLEAN == 0 {
            let what = "the volume was not unmounted cleanly, or is mounted; what is read may be \
                        old or half written";
            warnings.push(what.to_owned());
        }
        warnings
    }
}

/// Checks that an inode with these flags can be read as a file.
pub(super) fn check_inode_readable(flags: u32) -> Result<(), ImageError> {
    if flags & flag::ENCRYPT != 0 {
        let remedy = "mount the volume and add the key (fscrypt)";
        return Err(refused("the file is encrypted").with_remedy(remedy));
    }
    if flags & flag::EA_INODE != 0 {
        return Err(refused("the inode is the value of another one's extended attribute"));
    }
    Ok(())
}

/// Checks that blocks of an inode with these flags may be overwritten, if the volume's may.
pub(super) fn check_inode_writable(flags: u32) -> Result<(), ImageError> {
    let refusal = if flags & flag::IMMUTABLE != 0 {
        ("the file is immutable", "chattr -i on its mount takes that off")
    } else if flags & flag::APPEND != 0 {
        ("the file can only be appended to", "chattr -a on its mount takes that off")
    } else if flags & flag::VERITY != 0 {
        ("the file is sealed by fs-verity", "write a copy of it")
    } else if flags & flag::JOURNAL_DATA != 0 {
        ("the file's data goes through the journal", MOUNT_IT)
    } else if flags & flag::INLINE_DATA != 0 {
        ("the file has its bytes in its inode, and no blocks", MOUNT_IT)
    } else {
        return Ok(());
    };
    Err(refused(refusal.0).with_remedy(refusal.1))
}

pub(super) fn refused(what: impl Into<String>) -> ImageError {
    ImageError::new(ImageErrorKind::Refused, what)
}

#[cfg(all(test, not(diopter_loom)))]
mod tests {
    use super::*;

    const CLEAN: Features = Features {
        compat: compat::HAS_JOURNAL | compat::DIR_INDEX,
        incompat: incompat::FILETYPE | incompat::EXTENTS | incompat::WIDE | incompat::FLEX_BG,
        ro_compat: ro_compat::SPARSE_SUPER | ro_compat::METADATA_CSUM,
        state: STATE_CLEAN,
        mount_options: 0x40 | 0xc,
        last_orphan: 0,
    };

    /// Checks that the volume is read, and that it is overwritten if it is read.
    fn check(features: Features, is_read: bool, is_overwritten: bool) {
        assert_eq!(features.check_readable().is_ok(), is_read, "{features:x?}");
        assert_eq!(features.check_writable().is_ok(), is_overwritten, "{features:x?}");
    }

    #[test]
    fn a_clean_volume_is_read_and_overwritten() {
        check(CLEAN, true, true);
        let allowed = ro_compat::QUOTA | ro_compat::PROJECT | ro_compat::BIGALLOC;
        check(Features { ro_compat: allowed | ro_compat::VERITY, ..CLEAN }, true, true);
        assert!(CLEAN.warnings().is_empty());
    }

    #[test]
    fn every_incompatible_feature_that_is_not_known_is_refused() {
        for bit in 0..u32::BITS {
            let incompat = CLEAN.incompat | 1 << bit;
            check(Features { incompat, ..CLEAN }, incompat::KNOWN >> bit & 1 == 1, true);
        }
    }

    #[test]
    fn a_read_only_feature_that_is_not_known_forbids_overwriting() {
        for bit in [7, 11, 17, 31] {
            let ro_compat = CLEAN.ro_compat | 1 << bit;
            check(Features { ro_compat, ..CLEAN }, true, false);
        }
    }

    #[test]
    fn a_state_that_needs_repair_forbids_overwriting() {
        for ro in [ro_compat::READONLY, ro_compat::SHARED_BLOCKS, ro_compat::ORPHAN_PRESENT] {
            check(Features { ro_compat: ro, ..CLEAN }, true, false);
        }
        for state in [0, STATE_CLEAN | STATE_ERRORS] {
            check(Features { state, ..CLEAN }, true, false);
            assert_eq!(Features { state, ..CLEAN }.warnings().len(), 1);
        }
        check(Features { last_orphan: 12, ..CLEAN }, true, false);
        check(Features { mount_options: MOUNT_JOURNAL_DATA, ..CLEAN }, true, false);
    }

    #[test]
    fn each_refusal_has_words_of_its_own() {
        let mut reported: Vec<String> = Vec::new();
        let incompats = [0x1, 0x4, 0x8, 0x800];
        for incompat in incompats {
            reported.extend(Features { incompat, ..CLEAN }.check_readable().err().map(|e| e.what));
        }
        for ro_compat in [0x80, 0x1000, 0x4000, 0x1_0000] {
            reported.extend(Features { ro_compat, ..CLEAN }.check_writable().err().map(|e| e.what));
        }
        let flags = [flag::IMMUTABLE, flag::APPEND, flag::VERITY, flag::JOURNAL_DATA];
        for flags in flags.into_iter().chain([flag::INLINE_DATA]) {
            reported.extend(check_inode_writable(flags).err().map(|e| e.what));
        }
        for flags in [flag::ENCRYPT, flag::EA_INODE] {
            reported.extend(check_inode_readable(flags).err().map(|e| e.what));
        }
        let count = reported.len();
        reported.sort();
        reported.dedup();
        assert_eq!((reported.len(), count), (15, 15));
    }

    #[test]
    fn a_format_is_named_by_the_oldest_kernel_driver_that_knows_it() {
        let old = Features { incompat: incompat::FILETYPE, ro_compat: 0x3, ..CLEAN };
        assert_eq!(CLEAN.format(), "ext4");
        assert_eq!(old.format(), "ext3");
        assert_eq!(Features { compat: 0, ..old }.format(), "ext2");
    }
}
