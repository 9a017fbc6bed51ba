//! The disks of the guest, by the names that host and guest know them by, and the emulator's words
//! for them.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use diopter_lab::machine::inherited_name;

use crate::guest_support::open_to_all;
use crate::workload::{succeeds, wait_for};

/// Polled.
pub const NVME: &str = "/dev/nvme0n1";
/// The sector at [`BAD_BYTE`] cannot be read.
pub const UNREADABLE: &str = "/dev/vda";
/// The sector at [`BAD_BYTE`] cannot be written.
pub const UNWRITABLE: &str = "/dev/vdb";
/// Offset of the sector that fails. No file system has its own blocks there.
pub const BAD_BYTE: u64 = 40 << 20;
/// Bytes of a disk that fails.
const BAD_BYTES: u64 = 64 << 20;
/// Bytes of the other disks.
const BYTES: u64 = 160 << 20;
/// Requests a second of the slow disk: a copy there takes seconds, and can be met on its way.
const SLOW_REQUESTS: u32 = 400;

/// How long the emulator is given to plug a disk in before it is asked again.
const PLUG_AGAIN: Duration = Duration::from_secs(1);

/// A serial line to the emulator's monitor.
const MONITOR: &str = "/dev/ttyS2";

/// A disk of the SCSI controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scsi {
    /// Blocks of 4096 bytes.
    Native = 0,
    /// Blocks of 512 bytes on a disk of 4096.
    Emulated = 1,
    /// Blocks of 512 bytes, few requests a second.
    Slow = 2,
}

impl Scsi {
    /// Its device: the kernel looks for disks in any order, so the names say nothing.
    pub fn device(self) -> String {
        let mut found = None;
        wait_for(&format!("the disk {self:?}"), || {
            found = self.name().filter(|name| is_ready(&format!("/dev/{name}")));
            found.is_some()
        });
        format!("/dev/{}", found.expect("waited for"))
    }

    /// Pulls it out: the kernel hears of it once it is gone.
    pub fn unplug(self) {
        monitor(&format!("device_del scsi{}", self as u8));
    }

    /// Plugs it in again. The emulator refuses that until it has let go of the one that was pulled
    /// out, which may be after the kernel has; it is asked again, and refuses a second one.
    pub fn plug(self) {
        let mut asked: Option<Instant> = None;
        wait_for(&format!("the disk {self:?} to come back"), || {
            if asked.is_none_or(|asked| asked.elapsed() > PLUG_AGAIN) {
                monitor(&format!("device_add {}", self.words()));
                asked = Some(Instant::now());
            }
            self.name().is_some_and(|name| is_ready(&format!("/dev/{name}")))
        });
    }

    /// The emulator's words for it.
    fn words(self) -> String {
        let (drive, logical, physical) = match self {
            Scsi::Native => ("native", 4096, 4096),
            Scsi::Emulated => ("emulated", 512, 4096),
            Scsi::Slow => ("throttled", 512, 512),
        };
        let lun = self as u8;
        format!(
            "scsi-hd,id=scsi{lun},bus=scsi.0,lun={lun},drive={drive},\
             logical_block_size={logical},physical_block_size={physical}"
        )
    }

    fn name(self) -> Option<String> {
        let lun = self as u8;
        let entries = fs::read_dir("/sys/class/scsi_disk").ok()?.filter_map(Result::ok);
        let address = |entry: &fs::DirEntry| {
            entry.file_name().to_string_lossy().ends_with(&format!(":{lun}"))
        };
        let mut disks = entries.filter(address);
        let block = fs::read_dir(disks.next()?.path().join("device/block")).ok()?.next()?;
        Some(block.ok()?.file_name().to_string_lossy().into_owned())
    }
}

/// `true` when a disk can be opened: one that has just come has a name before that.
pub fn is_ready(device: &str) -> bool {
    fs::File::open(device).is_ok()
}

/// Gives the emulator's monitor a command.
fn monitor(command: &str) {
    // Nothing of what it prints may come back to it.
    succeeds("stty", &["-F", MONITOR, "raw", "-echo"]);
    fs::write(MONITOR, format!("\n{command}\n")).unwrap();
}

/// Reads and writes that the kernel has counted for a disk, before it merged them
/// (Documentation/block/stat.rst).
pub fn requests_of(device: &str) -> u64 {
    let stat = format!("/sys/block/{}/stat", device.trim_start_matches("/dev/"));
    let text = fs::read_to_string(stat).unwrap();
    let fields: Vec<u64> = text.split_whitespace().map(|field| field.parse().unwrap()).collect();
    [0, 1, 4, 5].into_iter().map(|field| fields[field]).sum()
}

/// The files behind the disks, and a line from the guest to the emulator's monitor.
pub struct Disks {
    files: [(&'static str, Arc<OwnedFd>); 6],
    line: [Arc<OwnedFd>; 2],
}

impl Disks {
    /// Disks of zeros in a directory.
    pub fn make(directory: &Path) -> Disks {
        let make = |name: &'static str, bytes| {
            let path = directory.join(name);
            fs::File::create(&path).unwrap().set_len(bytes).unwrap();
            (name, Arc::new(open_to_all(&path).unwrap()))
        };
        let (guest, monitor) = UnixStream::pair().unwrap();
        let line = [guest, monitor].map(|end| Arc::new(end.into()));
        let files = [
            make("polled", BYTES),
            make("native", BYTES),
            make("emulated", BYTES),
            make("slow", BYTES),
            make("unreadable", BAD_BYTES),
            make("unwritable", BAD_BYTES),
        ];
        Disks { files, line }
    }

    pub fn files(&self) -> Vec<Arc<OwnedFd>> {
        self.files.iter().map(|(_, file)| file).chain(&self.line).cloned().collect()
    }

    /// The emulator's options.
    pub fn words(&self) -> Vec<String> {
        // These disks work in the host's time: a guest whose clock runs ahead gives them up.
        let mut words = vec!["-icount".to_owned(), "sleep=on".to_owned()];
        let mut add = |option: &str, value: &str| {
            words.extend([option.to_owned(), value.to_owned()]);
        };
        for (name, file) in &self.files {
            let file = inherited_name(file);
            add("-blockdev", &format!("driver=file,node-name={name},filename={file}"));
        }
        add("-object", &format!("throttle-group,id=few,x-iops-total={SLOW_REQUESTS}"));
        add("-blockdev", "driver=throttle,node-name=throttled,throttle-group=few,file=slow");
        add("-device", "nvme,drive=polled,serial=polled");
        add("-device", "virtio-scsi-pci,id=scsi");
        for disk in [Scsi::Native, Scsi::Emulated, Scsi::Slow] {
            add("-device", &disk.words());
        }
        for (name, end) in ["guest", "monitor"].into_iter().zip(&self.line) {
            add("-chardev", &format!("socket,id={name},fd={}", end.as_raw_fd()));
        }
        // A separate interrupt: that of a third serial port is the first one's.
        add("-device", "isa-serial,chardev=guest,index=2,irq=10");
        add("-mon", "chardev=monitor,mode=readline");
        let sector = BAD_BYTE / 512;
        for (name, operation) in [("unreadable", "read"), ("unwritable", "write")] {
            let fails = format!(
                "driver=blkdebug,node-name=failing-{name},image={name},\
                 inject-error.0.event=none,inject-error.0.iotype={operation},\
                 inject-error.0.errno=5,inject-error.0.sector={sector}"
            );
            add("-blockdev", &fails);
            // Requests that the emulator merges fail together, also those without the sector.
            let options = "request-merging=off,discard=off,write-zeroes=off";
            add("-device", &format!("virtio-blk-pci,drive=failing-{name},{options}"));
        }
        words
    }
}
