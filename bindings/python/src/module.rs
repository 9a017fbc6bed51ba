//! The module `diopter_io._native`.

use pyo3::prelude::*;

/// The native part of `diopter_io`.
#[pymodule(gil_used = false)]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::abandoned::AbandonedWrite;
    #[pymodule_export]
    use crate::backend::{set_in_flight, use_backend};
    #[pymodule_export]
    use crate::error::PyOutcome;
    #[pymodule_export]
    use crate::event_loop::LoopEngine;
    #[pymodule_export]
    use crate::event_loop::close_engines;
    #[pymodule_export]
    use crate::file::File;
    #[pymodule_export]
    use crate::memory::Buffer;
    #[pymodule_export]
    use crate::ranges::Ranges;
    #[pymodule_export]
    use crate::reader::ReadAhead;
    #[pymodule_export]
    use crate::tensors::{safetensors_header_length, safetensors_parse};
    #[pymodule_export]
    use crate::tools::{copy_json, explain_json, probe_json, stripe_create};
    #[pymodule_export]
    use crate::writer::WriteBehind;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        crate::interpreter::check()
    }
}
