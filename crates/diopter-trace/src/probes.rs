//! Probes on functions of iomap, for kernels before 6.6: they have no events of direct I/O. The
//! probes record the same facts as the events do. Probes belong to the whole machine, so they have
//! names that no other process gives, and are removed with the trace.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::btf::Btf;
use crate::event::{Begin, IOCB_DURABLE, IOCB_NOWAIT, IOCB_POLLED, Need, Source, What};
use crate::event::{inode, source};
use crate::format::Record;
use crate::process;

/// The file of tracefs that makes and removes probes, one command a line.
pub const COMMANDS: &str = "kprobe_events";
/// The group of all our probes. Their names end with their process, as those of instances do.
const GROUP: &str = "diopter";
/// Completions that may run at a time: workers may sleep in them.
const RETURNS_MAX: u32 = 1024;
/// The begin of a request in Linux 5.10 and later, and its name before.
const BEGIN: &str = "__iomap_dio_rw";
const BEGIN_BEFORE_5_10: &str = "iomap_dio_rw";
/// The completion of a request.
const COMPLETE: &str = "iomap_dio_complete";
/// The least parameters of `iomap_dio_rw` from Linux 5.5 on. Before, ext4 did not use it.
const PARAMETERS_MIN: usize = 5;

const FIELDS_OF_BEGIN: &[&str] =
    &["dev", "ino", "size", "pos", "count", "flags", "done", "to_device", "cached", "block"];

/// The records of the probes, by the first part of their names.
static BEGINS: Source =
    source("begin", Need::Helps, FIELDS_OF_BEGIN, |record| What::Begin(begin(record, FLAGS)));
static BEGINS_BEFORE_5_10: Source = source("begin", Need::Helps, FIELDS_OF_BEGIN, |record| {
    What::Begin(begin(record, FLAGS_BEFORE_5_10))
});
static COMPLETING: Source = source("completing", Need::Helps, &["dev", "ino", "pos"], |record| {
    What::Completing { inode: inode(record), position: record.number(2) }
});
static COMPLETED: Source = source("completed", Need::Helps, &["result"], |record| {
    What::Completed { result: record.signed(0) }
});

/// Flags of a request that are read: those of this kernel, and what they are called here.
type Flags = [(u32, u32); 4];
const FLAGS: Flags = [(1, IOCB_POLLED), (2, 2), (4, 4), (8, IOCB_NOWAIT)];
const FLAGS_BEFORE_5_10: Flags =
    [(1 << 3, IOCB_POLLED), (1 << 4, 2), (1 << 5, 4), (1 << 7, IOCB_NOWAIT)];
const _: () = assert!(IOCB_DURABLE == 2 | 4, "the flags of a durable write");

/// Probes that exist until this is dropped.
#[derive(Debug)]
pub struct Probes {
    commands: PathBuf,
    made: Vec<Probe>,
}

#[derive(Debug)]
struct Probe {
    name: String,
    source: &'static Source,
}

/// The places of fields, as the commands name them: from a request's first argument on.
#[derive(Debug)]
struct Fetches {
    begin: String,
    completing: String,
}

impl Probes {
    /// Makes the probes of a process, in a tracefs. `suffix` is in their names.
    ///
    /// # Errors
    /// Fails with the reason, as a sentence about the kernel.
    pub fn create(tracefs: &Path, suffix: &str) -> Result<Probes, String> {
        let btf = Btf::of_kernel();
        let btf = btf.ok_or("it has no type information (CONFIG_DEBUG_INFO_BTF)")?;
        if btf.parameters(BEGIN_BEFORE_5_10).is_none_or(|count| count < PARAMETERS_MIN) {
            return Err("its ext4 does direct I/O without iomap (before 5.5)".to_owned());
        }
        let fetches = Fetches::find(|structure, field| btf.field(structure, field))?;
        let mut probes = Probes { commands: tracefs.join(COMMANDS), made: Vec::new() };
        let refused = |function: &'static str| {
            move |error| format!("it refuses a probe on {function} ({error})")
        };
        let begins = probes.make(&BEGINS, suffix, &format!("p {BEGIN} {}", fetches.begin));
        match begins {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let probe = format!("p {BEGIN_BEFORE_5_10} {}", fetches.begin);
                let begins = probes.make(&BEGINS_BEFORE_5_10, suffix, &probe);
                begins.map_err(refused(BEGIN_BEFORE_5_10))?;
            }
            begins => begins.map_err(refused(BEGIN))?,
        }
        let completing = format!("p {COMPLETE} {}", fetches.completing);
        probes.make(&COMPLETING, suffix, &completing).map_err(refused(COMPLETE))?;
        let completed = format!("r{RETURNS_MAX} {COMPLETE} result=$retval:s64");
        probes.make(&COMPLETED, suffix, &completed).map_err(refused(COMPLETE))?;
        Ok(probes)
    }

    /// Makes a probe of `kind function fields`.
    fn make(&mut self, source: &'static Source, suffix: &str, probe: &str) -> io::Result<()> {
        let name = format!("{}_{suffix}", source.name);
        command_to(&self.commands, &definition(&name, probe))?;
        self.made.push(Probe { name, source });
        Ok(())
    }

    /// The events of the probes, by their paths below `events`.
    pub fn events(&self) -> impl Iterator<Item = (String, &'static Source)> {
        self.made.iter().map(|probe| (format!("{GROUP}/{}", probe.name), probe.source))
    }
}

impl Drop for Probes {
    /// They can be removed once no instance listens to them.
    fn drop(&mut self) {
        for probe in &self.made {
            // One that stays is an orphan, which the next trace removes.
            command_to(&self.commands, &format!("-:{GROUP}/{}", probe.name)).ok();
        }
    }
}

/// Removes the probes of processes that are gone.
pub fn remove_orphans(tracefs: &Path) {
    let commands = tracefs.join(COMMANDS);
    for name in orphans(&fs::read_to_string(&commands).unwrap_or_default()) {
        command_to(&commands, &format!("-:{GROUP}/{name}")).ok();
    }
}

/// The names of probes of ours whose process is gone, in a list of `p:group/name function ...`.
fn orphans(list: &str) -> Vec<&str> {
    list.lines()
        .filter_map(name_of_ours)
        .filter(|(_, own)| process::is_gone(own, '_'))
        .map(|(name, _)| name)
        .collect()
}

/// The name of a probe of ours, and its end.
fn name_of_ours(line: &str) -> Option<(&str, &str)> {
    let (_, name) = line.split_whitespace().next()?.split_once(':')?;
    let name = name.strip_prefix(GROUP)?.strip_prefix('/')?;
    Some((name, name.split_once('_')?.1))
}

/// The command that makes the probe `kind function fields`.
fn definition(name: &str, probe: &str) -> String {
    let (kind, place) = probe.split_once(' ').expect("a kind before the function");
    format!("{kind}:{GROUP}/{name} {place}")
}

/// Gives a command. The file is not truncated: that would remove the probes of every process.
fn command_to(file: &Path, command: &str) -> io::Result<()> {
    File::options().append(true).open(file)?.write_all(format!("{command}\n").as_bytes())
}

impl Fetches {
    /// With the places that `offset` gives, of a structure and a field.
    fn find(offset: impl Fn(&str, &str) -> Option<i16>) -> Result<Fetches, String> {
        let field = |structure: &str, name: &str| {
            offset(structure, name).ok_or_else(|| format!("it has no {structure}.{name}"))
        };
        let file = field("kiocb", "ki_filp")?;
        let position = field("kiocb", "ki_pos")?;
        let inode = field("file", "f_inode")?;
        let of_inode = |block: &str| {
            let inode = format!("+{inode}(+{file}({block}))");
            let device = format!(
                "+{}(+{}({inode}))",
                field("super_block", "s_dev")?,
                field("inode", "i_sb")?
            );
            let number = format!("+{}({inode})", field("inode", "i_ino")?);
            Ok::<_, String>((inode, format!("dev={device}:u32 ino={number}:u64")))
        };
        let (inode, names) = of_inode("$arg1")?;
        // The direction was the lowest bit of the type until it was a field.
        let to_device = match offset("iov_iter", "data_source") {
            Some(offset) => format!("+{offset}($arg2):u8"),
            None => format!("+{}($arg2):u32", field("iov_iter", "type")?),
        };
        let begin = format!(
            "{names} size=+{size}({inode}):s64 pos=+{position}($arg1):s64 \
             count=+{count}($arg2):u64 flags=+{flags}($arg1):u32 done=+{done}($arg1):u64 \
             to_device={to_device} cached=+{cached}(+{mapping}(+{file}($arg1))):u64 \
             block=$arg1:u64",
            size = field("inode", "i_size")?,
            count = field("iov_iter", "count")?,
            flags = field("kiocb", "ki_flags")?,
            done = field("kiocb", "ki_complete")?,
            cached = field("address_space", "nrpages")?,
            mapping = field("file", "f_mapping")?,
        );
        let block = format!("+{}($arg1)", field("iomap_dio", "iocb")?);
        let (_, names) = of_inode(&block)?;
        Ok(Fetches { begin, completing: format!("{names} pos=+{position}({block}):s64") })
    }
}

fn begin(record: Record<'_>, flags: Flags) -> Begin {
    let found = record.number32(5);
    let set = flags.iter().filter(|(bit, _)| found & bit != 0).map(|(_, flag)| flag);
    Begin {
        inode: inode(record),
        file_size: record.number(2),
        position: record.number(3),
        count: record.number(4),
        done_before: 0,
        flags: set.sum(),
        is_async: record.number(6) != 0,
        is_write: record.number(7) & 1 != 0,
        has_cached_pages: Some(record.number(8) != 0),
        block: record.number(9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Field;

    #[test]
    fn a_command_names_the_probe_after_its_process() {
        let begins = definition("begin_7_99_0", "p __iomap_dio_rw pos=+8($arg1):s64");
        assert_eq!(begins, "p:diopter/begin_7_99_0 __iomap_dio_rw pos=+8($arg1):s64");
        let completed =
            definition("completed_7_99_0", "r1024 iomap_dio_complete result=$retval:s64");
        assert_eq!(
            completed,
            "r1024:diopter/completed_7_99_0 iomap_dio_complete result=$retval:s64"
        );
    }

    #[test]
    fn only_probes_of_ours_whose_process_is_gone_are_orphans() {
        let own = process::own('_');
        let list = format!(
            "p:diopter/begin_{own}_0 __iomap_dio_rw\n\
             r1024:diopter/completed_1_0_3 iomap_dio_complete\n\
             p:lab/begin_1_0_0 __iomap_dio_rw\n\
             p:diopter/other __iomap_dio_rw\n\
             p:diopterx/begin_1_0_0 x\n"
        );
        assert_eq!(orphans(&list), ["completed_1_0_3"]);
    }

    #[test]
    fn probes_of_a_process_that_is_gone_are_removed_and_no_other_is() {
        let tracefs = tempfile::tempdir().unwrap();
        let commands = tracefs.path().join(COMMANDS);
        let before = "p:diopter/begin_1_0_0 __iomap_dio_rw\np:lab/mine vfs_read\n";
        fs::write(&commands, before).unwrap();
        remove_orphans(tracefs.path());
        // A file that is truncated loses the probes of every process.
        let after = fs::read_to_string(&commands).unwrap();
        assert_eq!(after, format!("{before}-:diopter/begin_1_0_0\n"));
    }

    #[test]
    fn the_probes_of_a_trace_are_removed_with_it() {
        let tracefs = tempfile::tempdir().unwrap();
        let commands = tracefs.path().join(COMMANDS);
        fs::write(&commands, "").unwrap();
        let mut probes = Probes { commands: commands.clone(), made: Vec::new() };
        probes.make(&COMPLETED, "7_9_0", "r8 iomap_dio_complete result=$retval:s64").unwrap();
        let paths: Vec<String> = probes.events().map(|(path, _)| path).collect();
        assert_eq!(paths, ["diopter/completed_7_9_0"]);
        drop(probes);
        assert_eq!(
            fs::read_to_string(&commands).unwrap(),
            "r8:diopter/completed_7_9_0 iomap_dio_complete result=$retval:s64\n\
             -:diopter/completed_7_9_0\n"
        );
    }

    /// Every field of a begin has eight bytes, in the order of [`FIELDS_OF_BEGIN`].
    fn begun(fields: [u64; 10], source: &Source) -> Begin {
        let places: Vec<Field> = (0..fields.len())
            .map(|at| Field { offset: at * 8, size: 8, is_signed: false })
            .collect();
        let bytes: Vec<u8> = fields.iter().flat_map(|field| field.to_ne_bytes()).collect();
        match (source.read)(Record { fields: &places, bytes: &bytes }) {
            What::Begin(begin) => begin,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn flags_have_the_same_meaning_on_every_kernel() {
        let with = |flags| [8 << 20, 12, 1 << 20, 4096, 512, flags, 0xffff, 1, 3, 0xabc0];
        let new = begun(with(2 | 8 | 1 << 17), &BEGINS);
        assert_eq!(new.flags, 2 | IOCB_NOWAIT);
        assert_eq!(begun(with(1 << 4 | 1 << 7 | 1 << 2), &BEGINS_BEFORE_5_10), new);
        assert_eq!((new.position, new.count, new.file_size), (4096, 512, 1 << 20));
        assert_eq!((new.is_async, new.is_write), (true, true));
        assert_eq!((new.has_cached_pages, new.block), (Some(true), 0xabc0));
    }

    #[test]
    fn a_request_that_is_waited_for_has_no_function_to_end_it() {
        // The direction is the lowest bit of a type whose others say where the memory is.
        let begun = begun([0, 1, 0, 0, 0, 0, 0, 4, 0, 0], &BEGINS);
        assert_eq!((begun.is_async, begun.is_write), (false, false));
        assert_eq!(begun.has_cached_pages, Some(false));
    }

    /// A number for each field, so that the commands show which field is where.
    fn offset(structure: &str, field: &str) -> Option<i16> {
        Some(match (structure, field) {
            ("kiocb", "ki_filp") => 1,
            ("kiocb", "ki_pos") => 2,
            ("kiocb", "ki_flags") => 3,
            ("kiocb", "ki_complete") => 4,
            ("file", "f_inode") => 5,
            ("file", "f_mapping") => 6,
            ("inode", "i_ino") => 7,
            ("inode", "i_sb") => 8,
            ("inode", "i_size") => 9,
            ("super_block", "s_dev") => 10,
            ("address_space", "nrpages") => 11,
            ("iov_iter", "count") => 12,
            ("iov_iter", "type") => 13,
            ("iomap_dio", "iocb") => 14,
            _ => return None,
        })
    }

    #[test]
    fn fields_are_fetched_from_where_the_kernels_types_say() {
        let fetches = Fetches::find(offset).unwrap();
        let begin = "dev=+10(+8(+5(+1($arg1)))):u32 ino=+7(+5(+1($arg1))):u64 \
            size=+9(+5(+1($arg1))):s64 pos=+2($arg1):s64 count=+12($arg2):u64 \
            flags=+3($arg1):u32 done=+4($arg1):u64 to_device=+13($arg2):u32 \
            cached=+11(+6(+1($arg1))):u64 block=$arg1:u64";
        assert_eq!(fetches.begin, begin);
        let completing = "dev=+10(+8(+5(+1(+14($arg1))))):u32 ino=+7(+5(+1(+14($arg1)))):u64 \
            pos=+2(+14($arg1)):s64";
        assert_eq!(fetches.completing, completing);
        let names = |fetch: &str| -> Vec<String> {
            fetch.split(' ').map(|word| word.split('=').next().unwrap().to_owned()).collect()
        };
        assert_eq!(names(&fetches.begin), FIELDS_OF_BEGIN);
        assert_eq!(names(&fetches.completing), COMPLETING.fields);
    }

    #[test]
    fn a_newer_kernel_has_the_direction_in_a_field() {
        let newer = |structure: &str, field: &str| match (structure, field) {
            ("iov_iter", "type") => None,
            ("iov_iter", "data_source") => Some(15),
            _ => offset(structure, field),
        };
        let begin = Fetches::find(newer).unwrap().begin;
        assert!(begin.contains(" to_device=+15($arg2):u8 "), "{begin}");
    }

    #[test]
    fn a_field_that_a_kernel_lacks_is_named() {
        let without = |structure: &str, field: &str| {
            offset(structure, field).filter(|_| structure != "iomap_dio")
        };
        assert_eq!(Fetches::find(without).unwrap_err(), "it has no iomap_dio.iocb");
    }
}
