//! Makes the objects of a run in a Ceph cluster, and removes them.

use std::time::Duration;

use diopter::{Preset, Request};
use diopter_core::prng::Prng;
use diopter_os::Errno;
use diopter_rados::{Error, Pool, backend};

use super::fill::Stop;
use crate::bench::campaign::Trouble;
use crate::bench::round::ObjectsPlace;

/// Bytes of one write that fills them.
const PIECE_BYTES: u64 = 4 << 20;

/// Longest wait for such a write.
const PATIENCE: Duration = Duration::from_secs(60);

/// Objects of a run, which the drop removes.
pub struct Objects {
    pool: Pool,
    names: Vec<Vec<u8>>,
    pub place: ObjectsPlace,
}

impl Objects {
    /// Makes the objects, with `bytes` in all.
    pub fn make(place: ObjectsPlace, bytes: u64, stop: &Stop) -> Result<Objects, Trouble> {
        let failed = |error: Error| Trouble::Run(error.to_string());
        let (pool, names) = place.pool().map_err(failed)?;
        for name in &names {
            match pool.stat(name) {
                Err(error) if error.errno() == Some(Errno::ENOENT.raw()) => {}
                Err(error) => return Err(failed(error)),
                Ok(_) => {
                    return Err(Trouble::Run(format!(
                        "object `{}` exists; name another NAME",
                        name.escape_ascii()
                    )));
                }
            }
        }
        let objects = Objects { pool, names, place };
        objects.fill(bytes, stop)?;
        Ok(objects)
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
            done.result
                .map_err(|error| Trouble::Run(format!("fill {}: {error}", self.place.name)))?;
        }
        Ok(())
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        for name in &self.names {
            // One that was not written is missing; one that stays is found by its name.
            self.pool.remove(name).ok();
        }
    }
}
