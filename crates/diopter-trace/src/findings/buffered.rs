//! `buffered-fallback`: requests that went through the page cache although they were to be direct.

use super::{PER_MILLE_COSTLY, shown};
use crate::document::{Finding, Severity};
use crate::model::Trace;

pub(super) fn findings(trace: &Trace) -> Vec<Finding> {
    let found = shown(trace, PER_MILLE_COSTLY, |_| true, |request| request.is_buffered);
    let finding = found.map(|shown| Finding {
        id: "buffered-fallback".to_owned(),
        reason: None,
        severity: Severity::Severe,
        evidence: shown
            .evidence(trace, format!("{} went through the page cache", shown.share("requests"))),
        cause: "the file system could not serve them directly (alignment, compression, checksums, \
                inline data, journalled data, a hole that ext4 had to fill, on btrfs memory that \
                was not touched before) and copied the bytes through the page cache without saying \
                so"
        .to_owned(),
        remedy: "dio probe FILE reports the alignment and what keeps the file from being direct"
            .to_owned(),
    });
    finding.into_iter().collect()
}
