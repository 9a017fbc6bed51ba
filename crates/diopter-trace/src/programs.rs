//! eBPF programs for data that no tracepoint exposes: requests on raw devices, and files with
//! cached pages. Each program checks a condition and writes one record of fixed size. What a
//! program records of a bio is in one record, which costs less time than an event and a record.

use std::os::fd::{AsFd, AsRawFd};

use diopter_os::bpf::{Attached, Counter, Place, Program, Ring, attach};

use crate::btf::Btf;
use crate::code::{
    COUNT, Code, DEVICE, INODE, POSITION, R1, R6, R7, R8, R9, RECORD_BYTES, REST, SUBJECT,
};
use crate::event::{Device, Event, Flow, Inode, Sectors, What};
use crate::locked_memory::Unlimited;
use crate::symbols;

/// Bytes of the ring: room for 230 000 records.
pub const RING_BYTES: usize = 16 << 20;

/// A bio of a raw device, whose sectors an event shows.
const KIND_BIO: i32 = 1;
const KIND_CACHED: i32 = 2;
/// A bio, with its sectors.
const KIND_WHOLE_BIO: i32 = 3;
/// Bytes from the first half of a word to its second.
const HALF: i16 = 4;

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
/// Not of a raw device.
const FORM_OTHER: i32 = 0;
const FORM_ALONE: i32 = 1;
const FORM_OF_SEVERAL: i32 = 2;
const FORM_WAITED_FOR: i32 = 3;

/// Programs that run in the kernel until this is dropped.
#[derive(Debug)]
pub struct Programs {
    attached: Vec<Attached>,
    ring: Ring,
    lost: Counter,
    /// True if cached pages are recorded.
    has_cached: bool,
    /// True if every request on a raw device is recorded.
    has_raw: bool,
    /// True if every bio is recorded.
    has_bios: bool,
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

/// Fields that show the sectors of a bio, and what is done to them.
#[derive(Clone, Copy, Debug)]
struct SectorFields {
    /// From 5.12 on.
    partition: i16,
    device: i16,
    start: i16,
    bytes: i16,
    operation: i16,
}

/// Bits of a bio's operation, and the names of their numbers.
const OPERATION: u32 = 0xff;
const READ: u32 = 0;
const WRITE: u32 = 1;
const METADATA: u32 = 12;
const DURABLE: u32 = 17;
const NAMES: [(&str, u32); 4] = [
    ("REQ_OP_READ", READ),
    ("REQ_OP_WRITE", WRITE),
    ("__REQ_META", METADATA),
    ("__REQ_FUA", DURABLE),
];

impl Programs {
    /// Loads the programs that this kernel accepts; each that fails is reported as a sentence.
    /// Without `with_cached`, others show cached pages. Bios are those of `devices`, or of all if
    /// it is empty.
    #[must_use]
    pub fn load(with_cached: bool, devices: &[Device]) -> (Option<Programs>, Vec<String>) {
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
        let (has_raw, has_bios) = match bio_program(&btf, (&ends, devices), output) {
            Ok((program, has_bios)) => {
                attached.push(program);
                (missing.is_empty(), has_bios)
            }
            Err(why) => {
                unknown.push(format!("requests on raw devices: {why}"));
                (false, false)
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
        (Some(Programs { attached, ring, lost, has_cached, has_raw, has_bios }), unknown)
    }

    /// True if every bio is recorded, which then needs no event.
    #[must_use]
    pub fn has_bios(&self) -> bool {
        self.has_bios
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

    /// Records that are missing: the ring had no room, or the kernel did not run the program. Some
    /// may be of devices that are not traced.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let missed: u64 = self.attached.iter().map(Attached::missed).sum();
        self.lost.value().unwrap_or_default() + missed
    }

    /// Appends the records since the last call. Returns how many are of bios of raw devices, of
    /// those that have no event.
    pub fn take(&mut self, records: &mut Vec<u8>) -> u64 {
        let mut bios = 0;
        self.ring.take(|record| {
            if let Some(words) = Words::of(record) {
                bios += u64::from(words.kind() == KIND_WHOLE_BIO && words.raw_bio().is_some());
                records.extend_from_slice(record);
            }
        });
        bios
    }
}

/// The events of a record, in their order.
pub fn events(record: &[u8]) -> impl Iterator<Item = Event> + use<> {
    let record = Words::of(record);
    let whats = record.map(|record| match record.kind() {
        KIND_BIO => [record.raw_bio(), None],
        KIND_WHOLE_BIO => [Some(What::BioQueued(record.sectors())), record.raw_bio()],
        KIND_CACHED => [Some(What::CachedPages(record.inode())), None],
        _ => [None, None],
    });
    let whats = whats.unwrap_or_default().into_iter().flatten();
    whats.zip(record.into_iter().cycle()).map(|(what, record)| Event {
        time: record.words[0],
        cpu: 0,
        thread: record.halves[THREAD_AT],
        flags: 0,
        what,
    })
}

/// Where a record has its kind and thread, and the halves of the words that have two, in the order
/// of the memory.
const KIND_AT: usize = 2;
const THREAD_AT: usize = 3;
const FORM_AT: usize = 8;
const OPERATION_AT: usize = 9;
const DEVICE_AT: usize = 10;
const BYTES_AT: usize = 11;

/// A record as numbers.
#[derive(Clone, Copy, Debug)]
struct Words {
    words: [u64; RECORD_BYTES / 8],
    halves: [u32; RECORD_BYTES / 4],
}

impl Words {
    fn of(record: &[u8]) -> Option<Words> {
        let mut all = Words { words: [0; RECORD_BYTES / 8], halves: [0; RECORD_BYTES / 4] };
        for (word, bytes) in all.words.iter_mut().zip(record.as_chunks().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        for (half, bytes) in all.halves.iter_mut().zip(record.as_chunks().0) {
            *half = u32::from_ne_bytes(*bytes);
        }
        (record.len() == RECORD_BYTES).then_some(all)
    }

    fn kind(&self) -> i32 {
        self.halves[KIND_AT].cast_signed()
    }

    /// Returns the request of a bio of a raw device; `None` for another bio.
    fn raw_bio(&self) -> Option<What> {
        let [_, _, bio, request, _, _, _, first] = self.words;
        let form = self.halves[FORM_AT].cast_signed();
        let is_of_several = form == FORM_OF_SEVERAL;
        (form != FORM_OTHER).then_some(What::RawBio {
            request: if is_of_several { request } else { bio },
            is_first: !is_of_several || bio.wrapping_sub(request) == first,
            is_waited_for: match form {
                FORM_ALONE => Some(false),
                FORM_WAITED_FOR => Some(true),
                _ => None,
            },
        })
    }

    /// The sectors of a bio, of the whole disk. The device is the partition, if it is of one: the
    /// event shows the disk.
    fn sectors(&self) -> Sectors {
        let operation = self.halves[OPERATION_AT];
        let has = |bit: u32| operation >> bit & 1 != 0;
        let count = self.halves[BYTES_AT] / 512;
        let flow = match operation & OPERATION {
            READ if count > 0 && !has(METADATA) => Flow::Read,
            WRITE if count > 0 && !has(METADATA) => Flow::Write,
            _ => Flow::Other,
        };
        let device = Device(self.halves[DEVICE_AT]);
        Sectors { device, start: self.words[6], count, flow, is_durable: has(DURABLE), error: 0 }
    }

    fn inode(&self) -> Inode {
        Inode { device: Device(self.halves[DEVICE_AT]), number: self.words[6] }
    }
}

/// The program that records bios, and which of raw devices are one request; true if it records
/// those of file systems too, and their sectors. That needs fields and numbers that not every
/// kernel has.
fn bio_program(
    btf: &Btf,
    (ends, devices): (&[(u64, i32)], &[Device]),
    output: (i32, i32),
) -> Result<(Attached, bool), String> {
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
    if let Some(sectors) = SectorFields::find(btf)
        && let Ok(whole) =
            load_at(target, &whole_bio_code((fields, sectors), ends, devices).finish(output))
    {
        return Ok((whole, true));
    }
    Ok((load_at(target, &bio_code(fields, ends).finish(output))?, false))
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
    set_form(&mut code, fields, ends);
    code.leave_if(R8, FORM_OTHER);
    code.stamp(KIND_BIO);
    code.store_constant(COUNT, 0);
    code.store_constant(DEVICE, 0);
    code.store_constant(INODE, 0);
    store_request(&mut code, fields);
    code
}

/// A bio is handed down: records it with its sectors, and for one of a raw device the same as
/// [`bio_code`].
fn whole_bio_code(
    (fields, sectors): (BioFields, SectorFields),
    ends: &[(u64, i32)],
    devices: &[Device],
) -> Code {
    let mut code = Code::default();
    code.load(R6, R1, fields.argument);
    code.load(R9, R6, sectors.partition);
    code.load_half(R9, R9, sectors.device);
    if !devices.is_empty() {
        code.set(R8, 0);
        for device in devices {
            code.set_if_equal(R8, 1, R9, u64::from(device.0));
        }
        code.leave_if(R8, 0);
    }
    set_form(&mut code, fields, ends);
    code.stamp(KIND_WHOLE_BIO);
    code.store_half(DEVICE, R9);
    code.move_half(DEVICE + HALF, R6, sectors.bytes);
    code.move_half(COUNT + HALF, R6, sectors.operation);
    code.move_field(INODE, R6, sectors.start);
    store_request(&mut code, fields);
    code
}

/// Sets `R8` to the form of the bio in `R6`.
fn set_form(code: &mut Code, fields: BioFields, ends: &[(u64, i32)]) {
    code.load(R7, R6, fields.end);
    code.set(R8, FORM_OTHER);
    for (address, form) in ends {
        code.set_if_equal(R8, *form, R7, *address);
    }
}

/// Records which request the bio in `R6` of the form in `R8` is of.
fn store_request(code: &mut Code, fields: BioFields) {
    code.store(SUBJECT, R6);
    code.move_field(POSITION, R6, fields.private);
    code.store_half(COUNT, R8);
    code.store_constant(REST, i32::from(fields.in_request));
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
    code.store_constant(DEVICE, 0);
    code.move_half(DEVICE, R9, fields.device);
    code.store_constant(REST, 0);
    code
}

impl SectorFields {
    /// Finds them; `None` if one is missing, or if the kernel has other numbers for what is done.
    fn find(btf: &Btf) -> Option<SectorFields> {
        let is_known = NAMES.iter().all(|(name, number)| btf.value(name) == Some(*number));
        let iterator = btf.field("bio", "bi_iter")?;
        is_known.then_some(SectorFields {
            partition: btf.field("bio", "bi_bdev")?,
            device: btf.field("block_device", "bd_dev")?,
            start: iterator + btf.field("bvec_iter", "bi_sector")?,
            bytes: iterator + btf.field("bvec_iter", "bi_size")?,
            operation: btf.field("bio", "bi_opf")?,
        })
    }
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
mod tests;
