//! The documents about a striped object of a Ceph cluster, which the text is made from too. Fields
//! are only added.

use std::os::unix::ffi::OsStrExt;

use diopter::Errno;
use diopter_rados::Error;
use diopter_text::untrusted;
use schemars::JsonSchema;
use serde::Serialize;

use super::{ExplainArgs, OBJECTS_MAX, Opened, Operation, PIECES_MAX, object_name, striper};
use crate::output::name_bytes;

/// A striped object. Sizes are in bytes.
#[derive(Serialize, JsonSchema)]
pub struct Facts {
    /// As on the command line.
    pub name: String,
    /// The bytes of the name in base64; only if they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_bytes: Option<String>,
    /// The pool.
    pub pool: String,
    /// The namespace; null for the default one.
    pub namespace: Option<String>,
    /// Bytes in it.
    pub size: u64,
    /// Bytes written to one object before the next one.
    pub stripe_unit: u64,
    /// Objects of a set, which are written in turn.
    pub stripe_count: u64,
    /// Bytes of a full object.
    pub object_size: u64,
    /// Objects that it has if there are no holes.
    pub object_count: u64,
    /// False after a copy that was interrupted.
    pub is_complete: bool,
    /// False if the key may only read: then no lock keeps others from truncating it.
    pub has_lock: bool,
    /// The version of librados.
    pub librados: String,
    /// Bytes of the largest object that a store takes, as the configuration of this client says;
    /// null if unknown.
    pub object_size_max: Option<u64>,
}

/// The document of `dio stripe info`.
#[derive(Serialize, JsonSchema)]
#[schemars(title = "diopter.stripe-rados/1")]
pub struct Info {
    /// `diopter.stripe-rados/1`.
    schema: &'static str,
    /// The striped object.
    pub striped_object: Facts,
    /// Its objects, the first 10000.
    pub objects: Vec<Object>,
    /// Objects that are missing in the list.
    pub left_out: u64,
}

/// An object.
#[derive(Serialize, JsonSchema)]
pub struct Object {
    /// Its number.
    pub index: u64,
    /// Its name in the pool.
    pub name: String,
    /// Bytes in it; null if it is missing, and reads as zeros.
    pub size: Option<u64>,
    /// Bytes of the striped object that belong there.
    pub bytes: u64,
}

/// The document of `dio explain`.
#[derive(Serialize, JsonSchema)]
#[schemars(title = "diopter.explain-rados/1")]
pub struct Explain {
    /// `diopter.explain-rados/1`.
    schema: &'static str,
    /// The striped object.
    pub striped_object: Facts,
    /// `read` or `write`.
    pub op: &'static str,
    /// First byte of the request.
    pub offset: u64,
    /// Bytes of the request.
    pub length: u64,
    /// Bytes transferred: a read ends with the striped object.
    pub transferred: u64,
    /// The size that a write sets first; null if the size stays.
    pub new_size: Option<u64>,
    /// The operations on objects. All start before the first is waited for.
    pub operations: Vec<ObjectOperation>,
}

/// An operation on an object.
#[derive(Serialize, JsonSchema)]
pub struct ObjectOperation {
    /// Its number.
    pub object: u64,
    /// Its name in the pool.
    pub name: String,
    /// First byte in the object.
    pub object_offset: u64,
    /// Bytes.
    pub length: u64,
    /// Ranges of the request that they are.
    pub pieces: usize,
}

pub fn facts(opened: &Opened<'_>) -> Result<Facts, Error> {
    let Opened { path, name, library, cluster, file, .. } = opened;
    let (layout, size) = (file.layout(), file.size()?);
    let (major, minor, extra) = library.version();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Facts {
        name: path.display().to_string(),
        name_bytes: name_bytes(path.as_os_str().as_bytes()),
        pool: text(&name.pool),
        namespace: name.namespace.as_deref().map(text),
        size,
        stripe_unit: layout.stripe_unit(),
        stripe_count: layout.stripe_count(),
        object_size: layout.object_size(),
        object_count: layout.objects(size),
        is_complete: file.is_complete()?,
        has_lock: file.has_lock(),
        librados: format!("{major}.{minor}.{extra}"),
        object_size_max: cluster.option("osd_max_object_size").ok().and_then(|it| it.parse().ok()),
    })
}

pub fn info(opened: &Opened<'_>) -> Result<Info, String> {
    let facts = facts(opened).map_err(|error| error.to_string())?;
    let listed = facts.object_count.min(OBJECTS_MAX);
    let object = |index: u64| {
        let name = object_name(&opened.name.name, index);
        let size = match opened.pool.stat(&name) {
            Ok(stat) => Some(stat.size),
            Err(error) if error.errno() == Some(Errno::ENOENT.raw()) => None,
            Err(error) => return Err(error),
        };
        let bytes = opened.file.layout().object_bytes(index, facts.size);
        Ok(Object { index, name: String::from_utf8_lossy(&name).into_owned(), size, bytes })
    };
    let objects = (0..listed).map(object).collect::<Result<Vec<Object>, Error>>();
    let objects = objects.map_err(|error| error.to_string())?;
    let left_out = facts.object_count - listed;
    Ok(Info { schema: "diopter.stripe-rados/1", striped_object: facts, objects, left_out })
}

pub fn explain(opened: &Opened<'_>, args: &ExplainArgs) -> Result<Explain, String> {
    let facts = facts(opened).map_err(|error| error.to_string())?;
    let (offset, length) = (args.offset, args.length);
    let refused = |why: &str| Err(format!("{}: {why}", untrusted::name(&facts.name)));
    let Some(end) = offset.checked_add(length).filter(|end| *end <= i64::MAX.unsigned_abs()) else {
        return refused("the request ends past 2^63 - 1; give a smaller --offset or --length");
    };
    let is_write = args.operation == Operation::Write;
    let transferred = match is_write {
        true => length,
        false => facts.size.saturating_sub(offset).min(length),
    };
    if transferred / facts.stripe_unit >= PIECES_MAX {
        return refused("the request has too many stripes to list; give a smaller --length");
    }
    let ranges = striper::operations(
        opened.file.layout(),
        offset,
        usize::try_from(transferred).unwrap_or(usize::MAX),
    );
    let operation = |range: &striper::ObjectRange| ObjectOperation {
        object: range.object,
        name: String::from_utf8_lossy(&object_name(&opened.name.name, range.object)).into_owned(),
        object_offset: range.offset,
        length: range.length,
        pieces: range.pieces,
    };
    let operations = ranges.iter().map(operation).collect();
    let grows = is_write && length > 0 && end > facts.size;
    Ok(Explain {
        schema: "diopter.explain-rados/1",
        striped_object: facts,
        op: args.operation.name(),
        offset,
        length,
        transferred,
        new_size: grows.then_some(end),
        operations,
    })
}
