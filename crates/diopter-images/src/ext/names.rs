//! Names of features, as in tune2fs(8) and ext4(5). `features` has their meaning.

use super::features::{Features, compat, incompat, ro_compat};

const COMPAT: [(u32, &str); 7] = [
    (0x1, "dir_prealloc"),
    (compat::HAS_JOURNAL, "has_journal"),
    (0x8, "ext_attr"),
    (0x10, "resize_inode"),
    (compat::DIR_INDEX, "dir_index"),
    (compat::SPARSE_SUPER2, "sparse_super2"),
    (0x1000, "orphan_file"),
];

const INCOMPAT: [(u32, &str); 13] = [
    (incompat::FILETYPE, "filetype"),
    (incompat::META_BG, "meta_bg"),
    (incompat::EXTENTS, "extent"),
    (incompat::WIDE, "64bit"),
    (incompat::MMP, "mmp"),
    (incompat::FLEX_BG, "flex_bg"),
    (incompat::EA_INODE, "ea_inode"),
    (incompat::DIRDATA, "dirdata"),
    (incompat::CSUM_SEED, "metadata_csum_seed"),
    (incompat::LARGEDIR, "large_dir"),
    (incompat::INLINE_DATA, "inline_data"),
    (incompat::ENCRYPT, "encrypt"),
    (incompat::CASEFOLD, "casefold"),
];

const RO_COMPAT: [(u32, &str); 14] = [
    (ro_compat::SPARSE_SUPER, "sparse_super"),
    (ro_compat::LARGE_FILE, "large_file"),
    (ro_compat::HUGE_FILE, "huge_file"),
    (ro_compat::GDT_CSUM, "uninit_bg"),
    (ro_compat::DIR_NLINK, "dir_nlink"),
    (ro_compat::EXTRA_ISIZE, "extra_isize"),
    (ro_compat::QUOTA, "quota"),
    (ro_compat::BIGALLOC, "bigalloc"),
    (ro_compat::METADATA_CSUM, "metadata_csum"),
    (ro_compat::READONLY, "read-only"),
    (ro_compat::PROJECT, "project"),
    (ro_compat::SHARED_BLOCKS, "shared_blocks"),
    (ro_compat::VERITY, "verity"),
    (ro_compat::ORPHAN_PRESENT, "orphan_present"),
];

impl Features {
    /// Returns the names of the features that have one, in the order of the three words of bits.
    pub(super) fn names(self) -> Vec<&'static str> {
        let words = [
            (self.compat, &COMPAT[..]),
            (self.incompat, &INCOMPAT[..]),
            (self.ro_compat, &RO_COMPAT[..]),
        ];
        let all =
            words.into_iter().flat_map(|(word, names)| names.iter().map(move |it| (word, it)));
        all.filter(|(word, (bit, _))| word & bit != 0).map(|(_, (_, name))| *name).collect()
    }
}

#[cfg(all(test, not(diopter_loom)))]
mod tests {
    use super::*;

    #[test]
    fn features_are_named_in_the_order_of_their_words() {
        let features = Features {
            compat: compat::HAS_JOURNAL | compat::DIR_INDEX,
            incompat: incompat::FILETYPE,
            ro_compat: ro_compat::LARGE_FILE,
            ..Features::default()
        };
        assert_eq!(features.names(), ["has_journal", "dir_index", "filetype", "large_file"]);
        assert_eq!(Features::default().names(), [""; 0]);
    }
}
