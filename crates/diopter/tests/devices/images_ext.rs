//! The reader of unmounted ext2, ext3 and ext4 against images that the real tools made: filled by
//! mkfs, or through a mount of this kernel (needs root). What is missing is skipped by name;
//! `DIOPTER_CHECK=word` takes the formats whose name holds the word, `DIOPTER_ORACLE_COUNT=n` sets
//! the number of random files of each format.

mod filled;
mod mounted;
mod reserved;
mod source;
mod wrong;

use diopter_testkit::{env, files, machine};
