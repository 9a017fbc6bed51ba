//! `journal-wait`: requests that waited until the file system's journal had committed.

use super::{PER_MILLE_COSTLY, shown};
use crate::document::{Finding, Severity};
use crate::model::Trace;

pub(super) fn findings(trace: &Trace) -> Vec<Finding> {
    let found = shown(trace, PER_MILLE_COSTLY, |_| true, |request| request.waited_for_journal);
    let finding = found.map(|shown| Finding {
        id: "journal-wait".to_owned(),
        reason: None,
        severity: Severity::Warning,
        evidence: shown
            .evidence(trace, format!("{} waited for the journal", shown.share("requests"))),
        cause:
            "each changed metadata (its size, blocks that were unwritten or not there, and with \
                O_SYNC its times) and was not done until a commit of the journal had that on \
                the device, with a flush of its cache"
                .to_owned(),
        remedy: "allocate and write the file before; use O_DSYNC and not O_SYNC, which waits for \
                 times too; or flush once after many writes (one fdatasync) instead of \
                 each; keep the journal on a separate device"
            .to_owned(),
    });
    finding.into_iter().collect()
}
