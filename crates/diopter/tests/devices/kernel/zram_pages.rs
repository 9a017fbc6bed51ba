//! zram moves whole pages, whatever part of one is the memory of a bio.

use diopter::{File, IoBuf};
use diopter_testkit::env::Capability;

use super::zram::Zram;
use super::{env, machine};

#[test]
fn part_of_a_page_is_read_and_written_on_zram_without_its_neighbours() {
    let _alone = machine::alone();
    let zram = match Zram::set_up("8M") {
        Ok(zram) => zram,
        Err(why) => return env::skip(Capability::Zram, why),
    };
    let file = File::options().read(true).write(true).open(zram.device()).unwrap();
    let part = 512..512 + 4096;
    let mut source = IoBuf::new(16 << 10).unwrap();
    source.fill(1);
    source[part.clone()].fill(2);
    file.write_all_at(&source[part.clone()], 0).unwrap();
    let mut memory = IoBuf::new(16 << 10).unwrap();
    memory.fill(9);
    file.read_exact_at(&mut memory[part.clone()], 0).unwrap();
    assert!(memory[part.clone()].iter().all(|byte| *byte == 2), "what was written is read");
    let neighbours = memory[..part.start].iter().chain(&memory[part.end..]);
    assert!(neighbours.copied().all(|byte| byte == 9), "the bytes around it stay");
}
