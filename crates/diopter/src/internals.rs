//! Names that diopter's own tools and bindings use in addition to the public interface. **Not
//! promised**: any version may change them.

pub use crate::file::is_adaptive_by_default;
pub use diopter_core::backend::{
    Backend, Capabilities, Choice, Completions, LentBio, Register, SelectedBackend, Wait,
};
pub use diopter_core::clock::{self, Nanos};
pub use diopter_core::engine::depth::{DepthController, Progress};
pub use diopter_core::engine::target::{Target, TargetRef};
pub use diopter_core::error::RequestError;
pub use diopter_core::extent::ObjectIndex;
pub use diopter_core::limits;
pub use diopter_core::prng::Prng;
pub use diopter_core::stream::pump::{Ended, Event, Host, Limits, Pass, Pump, Step, Stopped};
pub use diopter_core::stream::{EngineRequest, Flight, Window, ZERO_BLOCK, next_data};
pub use diopter_core::stripe::Striping;
pub use diopter_core::sync::ForkMutex;
pub use diopter_core::units::ObjectOffset;

/// The mounts that this process sees.
pub mod mounts {
    pub use crate::mounts::{all, of_descriptor, of_device, unescaped, written};
}
