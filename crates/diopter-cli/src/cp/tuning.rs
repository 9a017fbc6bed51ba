//! How many requests of a copy are in flight, and how large each is, where the command line leaves
//! that open: what moves most bytes, with as few as do. Nothing is measured here but what a
//! transfer tells.

use diopter::engine::DepthReport;
use diopter_core::engine::depth::{DepthController, Progress};

use super::shape::Shape;

/// Finds depth and size, for copying and for reading back apart: a target that is written and one
/// that is read are two devices.
pub struct Tuning {
    shape: Shape,
    copying: DepthController,
    reading: DepthController,
}

/// What a request is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Bytes of one request.
    pub block: u64,
    /// Requests in flight at most.
    pub depth: usize,
}

impl Tuning {
    /// Begins with the whole shape, and never leaves it.
    pub fn new(shape: Shape) -> Tuning {
        let controller = DepthController::with_sizes(shape.depth, shape.halvings_max);
        Tuning { shape, copying: controller.clone(), reading: controller }
    }

    /// What to have in flight now.
    pub fn now(&self, is_copy: bool) -> Now {
        let controller = if is_copy { &self.copying } else { &self.reading };
        let (depth, halvings) = match self.shape.is_depth_open {
            true => (controller.depth(), controller.halvings()),
            false => (self.shape.depth, 0),
        };
        let depth = usize::try_from(depth).expect("at most IODEPTH_MAX");
        Now { block: self.shape.block >> halvings, depth }
    }

    /// Takes in what a transfer has done.
    pub fn note(&mut self, is_copy: bool, progress: Progress) {
        if self.shape.is_depth_open {
            self.controller(is_copy).note(progress);
        }
    }

    /// A transfer begins: what was before has nothing to do with it.
    pub fn interrupt(&mut self, is_copy: bool) {
        self.controller(is_copy).interrupt();
    }

    /// What was found for copying, if it was looked for.
    pub fn report(&self) -> Option<DepthReport> {
        self.shape.is_depth_open.then(|| self.copying.report())
    }

    fn controller(&mut self, is_copy: bool) -> &mut DepthController {
        if is_copy { &mut self.copying } else { &mut self.reading }
    }
}
