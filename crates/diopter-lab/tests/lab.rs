//! A real kernel of a real suite, booted. Needs QEMU and the suites (or a filled cache).

use diopter_lab::kernels::{BootOptions, Initramfs, Machine, Progress, Store, StoreOptions, Watch};

const SCRIPT: &str = "
echo release=$(uname -r)
mkdir /sys/kernel/config/nullb/n0
cd /sys/kernel/config/nullb/n0
echo 4096 >blocksize; echo 64 >size; echo 1 >memory_backed; echo 1 >power
cd /
[ -b /dev/n0 ] && device=/dev/n0 || device=/dev/nullb0
mkfs.ext4 -q $device && mount -t ext4 $device /mnt && echo mounted
fio --name=j --direct=1 --thread=1 --filename=/mnt/f --size=4M --rw=write --bs=4k \\
  --ioengine=libaio --iodepth=4 --output-format=terse | cut -d';' -f1-6
";

#[test]
fn a_kernel_of_a_series_boots_and_runs_a_script() {
    let machine = match Machine::find() {
        Ok(machine) => machine,
        Err(error) => {
            println!("SKIP qemu: {error}");
            return;
        }
    };
    let watch = Watch::new(
        |progress| {
            if let Progress::Note(_) | Progress::Unpacking(_) = progress {
                println!("{progress:?}");
            }
        },
        std::sync::Arc::default(),
    );
    let mut store = Store::open(StoreOptions::default(), watch).unwrap();
    let series = std::env::var("DIOPTER_LAB_SERIES").unwrap_or("6.1".to_owned());
    let kernel = store.kernel(&series).unwrap();
    let programs = store.programs().unwrap();
    let mut initramfs = Initramfs::on(&programs.archive).unwrap();
    initramfs.add_modules(&kernel, &["null_blk", "ext4"]).unwrap();
    let options = BootOptions { cpu: Some(1), ..BootOptions::default() };
    let console = machine.boot(&kernel, &initramfs, SCRIPT, &options);
    let console = console.unwrap();
    let release = format!("release={}\nmounted\n3;fio-", kernel.release);
    assert!(console.results.starts_with(&release), "{console:?}");
    assert_eq!(console.status, 0, "{console:?}");
}
