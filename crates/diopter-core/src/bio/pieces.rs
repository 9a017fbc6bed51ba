//! The pieces of one range after the other: by the builder, or by the rule of a kernel of the past
//! that is set. The only reader of a [`CutRule`].

use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::panic::RefUnwindSafe;

use diopter_os::Errno;

use crate::bio::builder::{Builder, Fit, Piece};
use crate::map::Mapper;
use crate::stripe::StridedRange;
use crate::units::FileRange;

/// A rule of the past that cuts ranges of a file with boundaries into bios. Two rules of one name
/// are the same.
pub trait CutRule: Debug + Send + Sync + RefUnwindSafe {
    /// Returns its name on the command line.
    fn name(&self) -> &'static str;

    /// Starts with a range of the builder's file, whose first byte is at `address` in memory.
    fn start(&self, builder: &Builder<'_>, range: FileRange, address: u64) -> Box<dyn Cutter>;
}

/// A range that is cut by a rule of the past, front to back.
pub trait Cutter: Debug + Send {
    /// Returns the piece that starts at byte `at` of the file; `None` where the builder knows it.
    /// Every call names the builder of the start.
    ///
    /// # Errors
    /// Fails as the mapper does.
    fn next(&mut self, builder: &Builder<'_>, at: u64) -> Result<Option<Piece>, Errno>;
}

impl PartialEq for dyn CutRule {
    fn eq(&self, other: &dyn CutRule) -> bool {
        self.name() == other.name()
    }
}

impl Eq for dyn CutRule {}

impl Hash for dyn CutRule {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}

/// Returns the rule of the past that builds the bios of a file, if any: then even one extent may
/// become many. A file without boundaries has one rule, today's.
#[must_use]
#[inline]
pub(crate) fn rule_of(
    cut: Option<&'static dyn CutRule>,
    mapper: &dyn Mapper,
) -> Option<&'static dyn CutRule> {
    cut.filter(|_| mapper.has_boundaries())
}

/// The pieces of one range after the other.
#[derive(Debug, Default)]
pub struct Pieces {
    /// The range under a rule of the past.
    cutter: Option<Box<dyn Cutter>>,
}

impl Pieces {
    /// Starts again with a range of the builder's file, whose first byte is at `address` in memory.
    /// Buffered I/O has no blocks, and no rule of the past: the kernel builds those bios.
    pub fn start(
        &mut self,
        builder: &Builder<'_>,
        cut: Option<&'static dyn CutRule>,
        range: FileRange,
        address: u64,
    ) {
        let rule = rule_of(cut, builder.mapper).filter(|_| builder.limits.block > 1);
        self.cutter = rule.map(|rule| rule.start(builder, range, address));
    }

    /// Returns true if each bio is submitted before the next one is built.
    #[must_use]
    pub(crate) fn is_replay(&self) -> bool {
        self.cutter.is_some()
    }

    /// Returns the piece at the start of a strided range, as [`Builder::next`] does.
    ///
    /// # Errors
    /// Fails as the mapper does.
    pub fn next(
        &mut self,
        builder: &Builder<'_>,
        strided: StridedRange,
        fits: impl Fn(&StridedRange) -> Fit,
    ) -> Result<Piece, Errno> {
        if let Some(cutter) = &mut self.cutter
            && let Some(piece) = cutter.next(builder, strided.start())?
        {
            return Ok(piece);
        }
        builder.next(strided, fits)
    }
}
