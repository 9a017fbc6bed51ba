//! Makes the objects of a run in a Ceph cluster, and removes them.

use std::time::Duration;

use diopter::internals::Prng;
use diopter::{Preset, Request};
use diopter_os::Errno;
use diopter_rados::{Error, Pool, Queue, backend};

use super::fill::Stop;
use crate::bench::campaign::Trouble;
use crate::bench::round::ObjectsPlace;

/// Bytes of one write that fills them.
const PIECE_BYTES: u64 = 4 << 20;

/// Longest wait for such a write.
const PATIENCE: Duration = Duration::from_secs(60);

const ENOENT: i32 = Errno::ENOENT.raw();
const ETIMEDOUT: i32 = Errno::ETIMEDOUT.raw();

/// Objects that are removed at once.
const REMOVED_AT_ONCE: usize = 64;

/// Names in a message.
const SHOWN_MAX: usize = 8;

/// Objects of a run, which the drop removes.
pub struct Objects {
    pool: Pool,
    /// The names of those that this process created.
    created: Vec<Vec<u8>>,
    pub place: ObjectsPlace,
}

impl Objects {
    /// Makes the objects, with `bytes` in all.
    pub fn make(place: ObjectsPlace, bytes: u64, stop: &Stop) -> Result<Objects, Trouble> {
        let failed = |error: Error| Trouble::Run(error.to_string());
        let (pool, names) = place.pool().map_err(failed)?;
        let mut objects = Objects { pool, created: Vec::new(), place };
        for name in names {
            if stop() {
                return Err(Trouble::Interrupted);
            }
            objects.create(name)?;
        }
        objects.fill(bytes, stop)?;
        Ok(objects)
    }

    /// Creates an object, unless there is one.
    fn create(&mut self, name: Vec<u8>) -> Result<(), Trouble> {
        let steps = self.pool.write_op().create_exclusive();
        match self.pool.operate("create", &name, &steps) {
            Ok(()) => self.created.push(name),
            Err(error) if error.errno() == Some(Errno::EEXIST.raw()) => {
                let name = name.escape_ascii();
                return Err(Trouble::Run(format!("object `{name}` exists; name another NAME")));
            }
            Err(error) if error.is_unknown() => {
                let name = name.escape_ascii();
                return Err(Trouble::Run(format!("{error}; object `{name}` may be left")));
            }
            Err(error) => return Err(Trouble::Run(error.to_string())),
        }
        Ok(())
    }

    /// Removes what was created, many at once, until the cluster does not reply. Returns the
    /// names of those that may be left.
    fn remove(&self) -> Result<Vec<&[u8]>, Error> {
        let mut queue = Queue::new(&self.pool)?;
        let mut is_left = vec![true; self.created.len()];
        let mut is_dead = false;
        let mut take = |queue: &mut Queue| {
            let Some(one) = queue.wait(None) else { return false };
            let errno = one.result.as_ref().err().map(Error::errno);
            let index = usize::try_from(one.token).expect("an index");
            is_left[index] = !matches!(errno, None | Some(Some(ENOENT)));
            is_dead |= errno == Some(Some(ETIMEDOUT));
            !is_dead
        };
        for (token, name) in (0..).zip(&self.created) {
            if queue.in_flight() >= REMOVED_AT_ONCE && !take(&mut queue) {
                break;
            }
            queue.operate(token, "remove", name, self.pool.write_op().remove())?;
        }
        while queue.in_flight() > 0 {
            take(&mut queue);
        }
        let left = self.created.iter().zip(is_left).filter(|(_, is_left)| *is_left);
        Ok(left.map(|(name, _)| &name[..]).collect())
    }

    fn fill(&self, bytes: u64, stop: &Stop) -> Result<(), Trouble> {
        let target = self.place.open().map_err(Trouble::Run)?;
        let engine = backend::engine(Preset::Diopter.policies());
        let engine = engine.map_err(|error| Trouble::Run(error.to_string()))?;
        let mut content = vec![0; usize::try_from(PIECE_BYTES).expect("four mebibytes")];
        // Data that compresses or repeats would be cheaper than real data.
        Prng::new(bytes).fill(&mut content);
        for at in (0..bytes).step_by(content.len()) {
            if stop() {
                return Err(Trouble::Interrupted);
            }
            content[..8].copy_from_slice(&at.to_le_bytes());
            let piece = usize::try_from(PIECE_BYTES.min(bytes - at)).expect("at most 4 MiB");
            let write = Request::write(at, content[..piece].to_vec());
            engine
                .start(&target, write)
                .map_err(|refused| Trouble::Run(refused.error.to_string()))?;
            let done = engine.wait(PATIENCE).map_err(|error| Trouble::Run(error.to_string()))?;
            let done = done.ok_or_else(|| Trouble::Run("the cluster does not reply".to_owned()))?;
            done.check_whole()
                .map_err(|error| Trouble::Run(format!("fill {}: {error}", self.place.name)))?;
        }
        Ok(())
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        let all = || self.created.iter().map(Vec::as_slice).collect();
        let left: Vec<&[u8]> = self.remove().unwrap_or_else(|_| all());
        if left.is_empty() {
            return;
        }
        let shown = left.iter().take(SHOWN_MAX).map(|name| format!("`{}`", name.escape_ascii()));
        let mut shown = shown.collect::<Vec<_>>().join(", ");
        if left.len() > SHOWN_MAX {
            shown += &format!(" and {} more", left.len() - SHOWN_MAX);
        }
        eprintln!("dio: objects {shown} may be left; remove them with `rados rm`");
    }
}
