//! Records as events, on their own and against the kernel's event of the same bios.

use std::collections::HashSet;
use std::sync::{Arc, mpsc};
use std::thread;

use diopter_testkit::env::{Capability, is_root, skip};
use diopter_testkit::machine::{FileSystem, Loop, Mount, run};

use super::*;
use crate::event::{self, BIO};
use crate::files::devices_of;
use crate::instance::Instance;
use crate::pipes::Pipes;
use crate::reader::{Decoder, Events};

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

/// A record of a program: kind, thread, and the words behind them as halves.
fn record(kind: i32, thread: u32, rest: [u32; 12]) -> Vec<u8> {
    let halves = [7, 0, kind.cast_unsigned(), thread].into_iter().chain(rest);
    halves.flat_map(u32::to_ne_bytes).collect()
}

/// A record of a bio of 4096 bytes at sector 8 of device 5, with its form and operation.
fn whole_bio(form: i32, operation: u32) -> Vec<u8> {
    record(KIND_WHOLE_BIO, 3, [1, 0, 1, 0, form.cast_unsigned(), operation, 5, 4096, 8, 0, 0, 0])
}

#[test]
fn a_record_of_a_bio_has_its_sectors_and_for_a_raw_device_its_request() {
    let events: Vec<Event> = events(&whole_bio(FORM_WAITED_FOR, WRITE | 1 << DURABLE)).collect();
    let sectors = Sectors {
        device: Device(5),
        start: 8,
        count: 8,
        flow: Flow::Write,
        is_durable: true,
        error: 0,
    };
    let raw = What::RawBio { request: 1, is_first: true, is_waited_for: Some(true) };
    let event = |what| Event { time: 7, cpu: 0, thread: 3, flags: 0, what };
    assert_eq!(events, [event(What::BioQueued(sectors)), event(raw)]);
}

#[test]
fn a_bio_of_metadata_or_of_no_bytes_is_of_no_request() {
    let flow = |operation, bytes| {
        let mut record = whole_bio(FORM_OTHER, operation);
        record[44..48].copy_from_slice(&u32::to_ne_bytes(bytes));
        let events: Vec<Event> = events(&record).collect();
        let [Event { what: What::BioQueued(sectors), .. }] = &events[..] else {
            panic!("{events:?}")
        };
        sectors.flow
    };
    assert_eq!([flow(READ, 512), flow(WRITE, 512)], [Flow::Read, Flow::Write]);
    assert_eq!([flow(WRITE | 1 << METADATA, 512), flow(WRITE, 0)], [Flow::Other, Flow::Other]);
    const DISCARD: u32 = 3;
    assert_eq!(flow(DISCARD, 512), Flow::Other);
}

/// Here both record the bios of programs that write to a file and to a device.
#[test]
fn a_program_records_of_each_bio_what_its_event_shows() {
    if !is_root() || !std::path::Path::new("/sys/kernel/btf/vmlinux").exists() {
        skip(Capability::Tracefs, "the kernel's type information, and root, are not here");
        return;
    }
    let device = Loop::direct_in(&std::env::temp_dir(), "bios", 64 << 20).unwrap();
    let mount = Mount::on(device, FileSystem::Ext4 { block: 4096, extra: &[] }, "defaults");
    let mount = mount.unwrap();
    let raw = Loop::direct_in(&std::env::temp_dir(), "bios", 16 << 20).unwrap();
    let instance = Instance::create().unwrap();
    for (setting, value) in [("trace_clock", "mono"), ("buffer_size_kb", "4096")] {
        instance.set(setting, value).unwrap();
    }
    instance.set(&format!("events/{BIO}/enable"), "1").unwrap();
    let devices = [mount.path(), raw.device()].map(|path| devices_of(path).unwrap()).concat();
    let (programs, unknown) = Programs::load(true, &devices);
    assert!(programs.as_ref().is_some_and(Programs::has_bios), "{unknown:?}");
    let (decoder, pipes) =
        (Decoder::new(&instance), Pipes::open(&instance, programs, (4096, 1 << 30)));
    let pipes = pipes.unwrap();
    let spool = pipes.spool();
    let (stop, stopped) = mpsc::channel();
    let reader = thread::spawn(move || pipes.record(&stopped));
    instance.set("tracing_on", "1").unwrap();
    let since = event::now();
    let file = mount.path().join("file");
    for (to, how) in [
        (file.as_path(), "oflag=direct"),
        (&file, "oflag=direct,dsync"),
        (&file, "conv=fsync,notrunc"),
        (raw.device(), "oflag=direct,dsync"),
    ] {
        let to = format!("of={}", to.display());
        run("dd", &["if=/dev/urandom", &to, how, "bs=96k", "count=40", "status=none"]).unwrap();
    }
    let until = event::now();
    instance.set("tracing_on", "0").unwrap();
    drop(stop);
    assert_eq!(reader.join().unwrap().unwrap(), 0, "records lost");
    let mut events = Events::new(Arc::clone(&spool), decoder.unwrap(), since);
    events.end(until);
    let (mut bios, mut raw_bios, mut writes) = (Vec::new(), 0, HashSet::new());
    while let Some(event) = events.next_event(u64::MAX).unwrap() {
        match event.what {
            What::BioQueued(sectors) if devices.contains(&sectors.device) => {
                bios.push(format!("{} {sectors:?}", event.thread));
                if sectors.flow == Flow::Write {
                    writes.insert(event.time);
                }
            }
            // A flush is waited for in the same way.
            What::RawBio { is_first, is_waited_for, .. } if writes.contains(&event.time) => {
                assert_eq!((is_first, is_waited_for), (true, Some(true)));
                raw_bios += 1;
            }
            _ => {}
        }
    }
    assert_eq!(raw_bios, 40, "as many as dd wrote to the device");
    bios.sort_unstable();
    let differing = bios.chunks(2).find(|both| both.len() < 2 || both[0] != both[1]);
    assert_eq!(differing, None);
    for part in ["flow: Write, is_durable: true", "flow: Write, is_durable: false", "flow: Other"] {
        assert!(bios.iter().any(|bio| bio.contains(part)), "{part}: {bios:#?}");
    }
}
