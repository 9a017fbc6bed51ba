//! The parser of safetensors headers, for Python.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::header::{self, HeaderError};

/// Name, type, shape, first byte and end of a tensor.
type TensorTuple = (String, &'static str, Vec<u64>, u64, u64);

/// The tensors of a header, and its metadata.
type HeaderTuple = (Vec<TensorTuple>, Vec<(String, String)>);

fn invalid(error: HeaderError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Returns the length of the header of a file of `file_size` bytes, from its first 8 bytes.
#[pyfunction]
pub fn safetensors_header_length(prefix: &[u8], file_size: u64) -> PyResult<u64> {
    header::header_length(prefix, file_size).map_err(invalid)
}

/// Parses a header that `data_size` bytes follow; returns the tensors in the order of their bytes,
/// and the metadata.
#[pyfunction]
pub fn safetensors_parse(py: Python<'_>, bytes: &[u8], data_size: u64) -> PyResult<HeaderTuple> {
    let header = py.detach(|| header::parse(bytes, data_size)).map_err(invalid)?;
    let tuple = |tensor: header::Tensor| {
        (tensor.name, tensor.dtype, tensor.shape, tensor.begin, tensor.end)
    };
    Ok((header.tensors.into_iter().map(tuple).collect(), header.metadata))
}
