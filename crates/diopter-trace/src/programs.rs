//! eBPF programs for data that no tracepoint exposes: requests on raw devices, and files with
//! cached pages. Each program checks a condition and writes one record of fixed size.

use std::os::fd::{AsFd, AsRawFd};

use diopter_os::bpf::{Attached, Counter, Place, Program, Ring, attach};

use crate::btf::Btf;
use crate::code::{
    COUNT, Code, DEVICE, INODE, POSITION, R1, R6, R7, R8, R9, RECORD_BYTES, REST, SUBJECT,
};
use crate::event::{Device, Event, Inode, What};
use crate::locked_memory::Unlimited;
use crate::symbols;

/// Bytes of the ring: room for 260 000 records.
pub const RING_BYTES: usize = 16 << 20;

const KIND_BIO: i32 = 1;
const KIND_CACHED: i32 = 2;

/// The function that ends a bio of a raw device says how its request was asked for. Where there are
/// several names, the first that the kernel has is the one: Linux 6.12 has both of the last, and
/// there the second ends discards and zeroing only.
const ENDS: [(&[&str], i32); 3] = [
    (&["blkdev_bio_end_io_async"], FORM_ALONE),
    (&["blkdev_bio_end_io"], FORM_OF_SEVERAL),
    (&[END_BEFORE_5_16, "submit_bio_wait_endio", "bio_wait_end_io"], FORM_WAITED_FOR),
];
/// The end of a bio that is waited for, in kernels that may end all others like those of several.
const END_BEFORE_5_16: &str = "blkdev_bio_end_io_simple";
const FORM_ALONE: i32 = 1;
const FORM_OF_SEVERAL: i32 = 2;
const FORM_WAITED_FOR: i32 = 3;

/// Programs that run in the kernel until this is dropped.
#[derive(Debug)]
pub struct Programs {
    _attached: Vec<Attached>,
    ring: Ring,
    lost: Counter,
    /// True if cached pages are recorded.
    has_cached: bool,
    /// True if every request on a raw device is recorded.
    has_raw: bool,
}

/// Fields that lead from a request to its file's cached pages.
#[derive(Clone, Copy, Debug)]
struct Fields {
    file: i16,
    inode: i16,
    mapping: i16,
    cached_pages: i16,
    number: i16,
    super_block: i16,
    device: i16,
}

/// Fields that show the purpose of a bio.
#[derive(Clone, Copy, Debug)]
struct BioFields {
    end: i16,
    private: i16,
    /// Where a request on a raw device keeps its first bio.
    in_request: i16,
    /// Where the program finds the bio among its arguments.
    argument: i16,
}

impl Programs {
    /// Loads the programs that this kernel accepts; each that fails is reported as a sentence.
    /// Without `with_cached`, others show cached pages.
    #[must_use]
    pub fn load(with_cached: bool) -> (Option<Programs>, Vec<String>) {
        let nothing = match with_cached {
            true => "requests on raw devices, and whether files had cached pages",
            false => "requests on raw devices",
        };
        let none = |why: String| (None, vec![format!("{nothing}: {why}")]);
        let Some(btf) = Btf::of_kernel() else {
            return none("this kernel has no type information (CONFIG_DEBUG_INFO_BTF)".to_owned());
        };
        let Some(fields) = Fields::find(&btf) else {
            return none("this kernel's structures are not known".to_owned());
        };
        let _unlimited = Unlimited::lift();
        let made = Ring::new(RING_BYTES).and_then(|ring| Ok((ring, Counter::new()?)));
        let (ring, lost) = match made {
            Ok(made) => made,
            Err(errno) => return none(format!("the kernel lets no program in ({errno})")),
        };
        let mut unknown = Vec::new();
        let output = (ring.as_fd().as_raw_fd(), lost.as_fd().as_raw_fd());
        let mut attached = Vec::new();
        let (ends, missing) = ends(symbols::address);
        let has_raw = match raw_program(&btf, &ends, output) {
            Ok(program) => {
                attached.push(program);
                missing.is_empty()
            }
            Err(why) => {
                unknown.push(format!("requests on raw devices: {why}"));
                false
            }
        };
        if !ends.is_empty() {
            unknown.extend(missing);
        }
        let cached = with_cached.then(|| cached_program(&btf, fields, output));
        let has_cached = matches!(cached, Some(Ok(_)));
        match cached {
            Some(Ok(program)) => attached.push(program),
            Some(Err(why)) => unknown.push(format!("whether files had cached pages: {why}")),
            None => {}
        }
        (Some(Programs { _attached: attached, ring, lost, has_cached, has_raw }), unknown)
    }

    /// True if every request on a raw device is recorded.
    #[must_use]
    pub fn has_raw(&self) -> bool {
        self.has_raw
    }

    /// True if cached pages are recorded.
    #[must_use]
    pub fn has_cached(&self) -> bool {
        self.has_cached
    }

    /// Records for which the ring had no room.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.value().unwrap_or_default()
    }

    /// Appends the records since the last call.
    pub fn take(&mut self, records: &mut Vec<u8>) {
        self.ring.take(|record| {
            if record.len() == RECORD_BYTES {
                records.extend_from_slice(record);
            }
        });
    }
}

#[must_use]
pub fn event(record: &[u8]) -> Option<Event> {
    let word = |index: usize| {
        let bytes = record.get(index * 8..index * 8 + 8)?;
        Some(u64::from_ne_bytes(bytes.try_into().ok()?))
    };
    // Two halves share a word; the first of them is first in memory.
    let half = |index: usize| {
        let bytes = record.get(index * 4..index * 4 + 4)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    };
    let kind = i32::try_from(half(2)?).ok()?;
    let what = match kind {
        KIND_BIO => {
            let (bio, request) = (word(2)?, word(3)?);
            let form = i32::try_from(word(4)?).ok()?;
            let is_of_several = form == FORM_OF_SEVERAL;
            What::RawBio {
                request: if is_of_several { request } else { bio },
                is_first: !is_of_several || bio.wrapping_sub(request) == word(7)?,
                is_waited_for: match form {
                    FORM_ALONE => Some(false),
                    FORM_WAITED_FOR => Some(true),
                    _ => None,
                },
            }
        }
        KIND_CACHED => {
            let device = Device(u32::try_from(word(5)?).ok()?);
            What::CachedPages(Inode { device, number: word(6)? })
        }
        _ => return None,
    };
    Some(Event { time: word(0)?, cpu: 0, thread: half(3)?, flags: 0, what })
}

/// The program that records which bios of raw devices are one request.
fn raw_program(btf: &Btf, ends: &[(u64, i32)], output: (i32, i32)) -> Result<Attached, String> {
    if ends.is_empty() {
        let names = ENDS.iter().flat_map(|(names, _)| *names).copied().collect::<Vec<_>>();
        return Err(format!("/proc/kallsyms has none of {}", names.join(", ")));
    }
    const EVENT: &str = "btf_trace_block_bio_queue";
    let target = btf.typedef(EVENT);
    let target = target.ok_or("the kernel's types name no block_bio_queue")?;
    // The first parameter is the kernel's own, the last one the bio; before 5.11 a queue is
    // between.
    let argument = match btf.parameters(EVENT) {
        Some(2) => 0,
        Some(3) => 8,
        _ => return Err("block_bio_queue has unknown parameters".to_owned()),
    };
    let field = |structure, field| {
        btf.field(structure, field).ok_or_else(|| format!("no {structure}.{field} in this kernel"))
    };
    let fields = BioFields {
        end: field("bio", "bi_end_io")?,
        private: field("bio", "bi_private")?,
        in_request: field("blkdev_dio", "bio")?,
        argument,
    };
    load_at(target, &bio_code(fields, ends).finish(output))
}

/// The functions of [`ENDS`] that a kernel has, and a sentence for each form that it lacks.
fn ends(address: impl Fn(&str) -> Option<u64>) -> (Vec<(u64, i32)>, Vec<String>) {
    let (mut ends, mut missing) = (Vec::new(), Vec::new());
    let is_before_5_16 = address(END_BEFORE_5_16).is_some();
    for (names, form) in ENDS {
        match names.iter().find_map(|name| address(name)) {
            Some(address) => ends.push((address, form)),
            None if form == FORM_ALONE && is_before_5_16 => {}
            None => missing.push(format!(
                "requests on raw devices that {}: this kernel has no function {}",
                match form {
                    FORM_ALONE => "are asynchronous and one bio",
                    FORM_OF_SEVERAL => "are several bios",
                    _ => "are waited for and one bio",
                },
                names.join(" or ")
            )),
        }
    }
    (ends, missing)
}

fn load_at(target: u32, instructions: &[u64]) -> Result<Attached, String> {
    let program = Program { instructions, place: Place::Tracepoint, target };
    attach(&program).map_err(|refused| format!("the kernel lets no program in ({refused})"))
}

fn cached_program(btf: &Btf, fields: Fields, output: (i32, i32)) -> Result<Attached, String> {
    let target = btf.typedef("btf_trace_iomap_dio_rw_begin");
    let target = target.ok_or("the kernel's types name no iomap_dio_rw_begin")?;
    load_at(target, &cached_code(fields).finish(output))
}

/// A bio is handed down: records one of a raw device, with what it has in common with others of its
/// request.
fn bio_code(fields: BioFields, ends: &[(u64, i32)]) -> Code {
    let mut code = Code::default();
    code.load(R6, R1, fields.argument);
    code.load(R7, R6, fields.end);
    code.set(R8, 0);
    for (address, form) in ends {
        code.set_if_equal(R8, *form, R7, *address);
    }
    code.leave_if(R8, 0);
    code.stamp(KIND_BIO);
    code.store(SUBJECT, R6);
    code.move_field(POSITION, R6, fields.private);
    code.store(COUNT, R8);
    code.store_constant(DEVICE, 0);
    code.store_constant(INODE, 0);
    code.store_constant(REST, i32::from(fields.in_request));
    code
}

/// The begin of a direct request on a file system: records a file with cached pages.
fn cached_code(fields: Fields) -> Code {
    let mut code = Code::default();
    code.load(R6, R1, 0);
    code.load(R7, R6, fields.file);
    code.load(R8, R7, fields.mapping);
    code.load(R8, R8, fields.cached_pages);
    code.leave_if(R8, 0);
    code.stamp(KIND_CACHED);
    code.store(SUBJECT, R6);
    code.store_constant(POSITION, 0);
    code.store(COUNT, R8);
    code.load(R9, R7, fields.inode);
    code.move_field(INODE, R9, fields.number);
    code.load(R9, R9, fields.super_block);
    code.move_half(DEVICE, R9, fields.device);
    code.store_constant(REST, 0);
    code
}

impl Fields {
    fn find(btf: &Btf) -> Option<Fields> {
        Some(Fields {
            file: btf.field("kiocb", "ki_filp")?,
            inode: btf.field("file", "f_inode")?,
            mapping: btf.field("file", "f_mapping")?,
            cached_pages: btf.field("address_space", "nrpages")?,
            number: btf.field("inode", "i_ino")?,
            super_block: btf.field("inode", "i_sb")?,
            device: btf.field("super_block", "s_dev")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forms_of(functions: &[&str]) -> (Vec<i32>, usize) {
        let (found, missing) = ends(|name| {
            let at = functions.iter().position(|known| *known == name)?;
            u64::try_from(at + 1).ok()
        });
        (found.into_iter().map(|(_, form)| form).collect(), missing.len())
    }

    #[test]
    fn a_bio_that_is_waited_for_is_found_under_either_name_of_its_end() {
        let all = (vec![FORM_ALONE, FORM_OF_SEVERAL, FORM_WAITED_FOR], 0);
        let common = ["blkdev_bio_end_io_async", "blkdev_bio_end_io"];
        let with = |more: &[&'static str]| forms_of(&[&common[..], more].concat());
        assert_eq!(with(&["submit_bio_wait_endio"]), all, "6.1");
        assert_eq!(with(&["blkdev_bio_end_io_simple", "submit_bio_wait_endio"]), all, "5.16");
        assert_eq!(with(&["bio_wait_end_io"]), all, "7.2");
        assert_eq!(with(&["bio_wait_end_io", "submit_bio_wait_endio"]), all, "6.12");
    }

    #[test]
    fn of_two_names_the_first_is_the_one() {
        let address = |name: &str| match name {
            "submit_bio_wait_endio" => Some(7),
            "bio_wait_end_io" => Some(8),
            _ => None,
        };
        assert_eq!(ends(address).0, [(7, FORM_WAITED_FOR)]);
    }

    #[test]
    fn before_5_16_one_bio_ends_like_several_unless_it_is_waited_for() {
        let address = |name: &str| match name {
            "blkdev_bio_end_io" => Some(6),
            "blkdev_bio_end_io_simple" => Some(7),
            // Of others who wait for a bio.
            "submit_bio_wait_endio" => Some(8),
            _ => None,
        };
        assert_eq!(ends(address), (vec![(6, FORM_OF_SEVERAL), (7, FORM_WAITED_FOR)], Vec::new()));
    }

    #[test]
    fn a_function_that_is_missing_does_not_take_the_others_away() {
        let (forms, missing) = forms_of(&["blkdev_bio_end_io_async", "bio_wait_end_io"]);
        assert_eq!((forms, missing), (vec![FORM_ALONE, FORM_WAITED_FOR], 1));
        assert_eq!(forms_of(&[]), (Vec::new(), 3));
    }
}
