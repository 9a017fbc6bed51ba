//! The place where the bytes of a check come from.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The place that bytes were read from. Of several files, the last of these counts.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum ReadFrom {
    /// From a block device, directly or by a page cache that did not have them before.
    Device,
    /// From a server or a program, by a file system that is not known to be local. Where that has
    /// them from is not known.
    Server,
    /// They were in the page cache before, or may have been.
    Cache,
}

impl ReadFrom {
    /// Returns the place in words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            ReadFrom::Device => "the device",
            ReadFrom::Server => "a file system that is not known to be local",
            ReadFrom::Cache => "the page cache",
        }
    }

    /// Returns the place of what two processes have read; `None` for one that has read nothing.
    #[must_use]
    pub fn of_both(one: Option<ReadFrom>, other: Option<ReadFrom>) -> Option<ReadFrom> {
        one.max(other)
    }
}

/// The places that bytes came from.
pub type Places = BTreeSet<ReadFrom>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_places_the_one_that_says_least_counts() {
        use ReadFrom::{Cache, Device, Server};
        assert_eq!(ReadFrom::of_both(Some(Device), Some(Server)), Some(Server));
        assert_eq!(ReadFrom::of_both(Some(Cache), Some(Server)), Some(Cache));
        assert_eq!(ReadFrom::of_both(None, Some(Device)), Some(Device));
        assert_eq!(serde_json::to_value(Server).unwrap(), "server");
    }
}
