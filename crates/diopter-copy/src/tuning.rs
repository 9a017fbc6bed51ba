//! The number and size of requests in flight that the options leave open: those that move most
//! bytes, with as few requests as possible. The transfers are measured elsewhere.

use diopter::engine::DepthReport;
use diopter::internals::{DepthController, Progress};

use crate::shape::Shape;

/// Finds depth and size, separately for copying and for reading back: the target is written in one
/// and read in the other.
pub struct Tuning {
    shape: Shape,
    copying: DepthController,
    reading: DepthController,
}

/// The current size and number of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Bytes of one request.
    pub block: u64,
    /// Requests in flight at most.
    pub depth: usize,
}

impl Tuning {
    /// Begins with the whole shape, which is the maximum.
    pub fn new(shape: Shape) -> Tuning {
        let controller = DepthController::with_sizes(shape.depth, shape.halvings_max);
        Tuning { shape, copying: controller.clone(), reading: controller }
    }

    /// Returns the current size and number of requests.
    pub fn now(&self, is_copy: bool) -> Now {
        let controller = if is_copy { &self.copying } else { &self.reading };
        let (depth, halvings) = match self.shape.is_depth_open {
            true => (controller.depth(), controller.halvings()),
            false => (self.shape.depth, 0),
        };
        let depth = usize::try_from(depth).expect("at most IODEPTH_MAX");
        Now { block: self.shape.block >> halvings, depth }
    }

    /// Adds the progress of a transfer.
    pub fn note(&mut self, is_copy: bool, progress: Progress) {
        if self.shape.is_depth_open {
            self.controller(is_copy).note(progress);
        }
    }

    /// Notes that a transfer begins, with which earlier progress is not compared.
    pub fn interrupt(&mut self, is_copy: bool) {
        self.controller(is_copy).interrupt();
    }

    /// Returns the result for copying, if one was sought.
    pub fn report(&self) -> Option<DepthReport> {
        self.shape.is_depth_open.then(|| self.copying.report())
    }

    fn controller(&mut self, is_copy: bool) -> &mut DepthController {
        if is_copy { &mut self.copying } else { &mut self.reading }
    }
}
