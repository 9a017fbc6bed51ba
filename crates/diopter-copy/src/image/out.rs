//! One file out of an image: into a temporary that becomes the target.

use rustix::fs::Mode;

use super::input::Input;
use crate::dir::{Entry, fd_of};
use crate::failure::{Failure, Step, Stop};
use crate::options::Sparse;
use crate::record::SourceIdentity;
use crate::segments::Holes;
use crate::session::{Output, Passed, Session, alignment_of};
use crate::temporary::{Temporary, Wanted};

/// Bits of a mode that a copy has: permissions and the sticky bit.
pub const KEPT_MODE: u32 = 0o1777;

/// Makes the file `target`, or replaces it. Its directory is not flushed.
pub fn replace(session: &mut Session<'_>, input: &Input, target: &Entry) -> Step<()> {
    let identity = SourceIdentity::of(&input.metadata, input.size);
    let wanted = Wanted {
        source: &identity,
        boot: session.boot(),
        is_resumed: false,
        replaces: true,
        given_to: None,
    };
    let temporary = Temporary::take(target, &wanted)?;
    match fill(session, input, &temporary, target) {
        Ok(passed) => {
            temporary.publish(target)?;
            session.count(input, &passed);
            Ok(())
        }
        Err(stop) => {
            temporary.discard();
            // A search for data that a signal ended is not a failure of the image.
            Err(session.stop().requested().map_or(stop, Stop::Signal))
        }
    }
}

fn fill(
    session: &mut Session<'_>,
    input: &Input,
    temporary: &Temporary,
    target: &Entry,
) -> Step<Passed> {
    let (file, path) = (&temporary.file, target.path());
    let output = Output::of(file, &path);
    let keeps_holes = session.options.sparse != Sparse::Never;
    let segments = input.segments(keeps_holes, alignment_of(input, file));
    session.reserve(input, output, segments.clone())?;
    let zeros = session.zeros();
    let passed = Passed::whole(session.move_all(input, output, (segments, zeros))?);
    session.flush(output)?;
    session.read_back(input, output, &passed, Holes::Kept)?;
    // The owner in the image is not kept, so set-id bits would be another user's.
    let mode = Mode::from_bits_truncate(input.mode & KEPT_MODE);
    rustix::fs::fchmod(fd_of(file), mode)
        .map_err(|errno| Failure::of_errno("setting the permissions", &path, errno.into()))?;
    session.flush(output)?;
    session.check_stop()?;
    Ok(passed)
}
