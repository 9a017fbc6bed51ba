//! Programs of eBPF in the making: instructions that fill one record of fixed size on the stack,
//! and write it to a ring.

use diopter_os::bpf::{HELPER_CLOCK, HELPER_OUTPUT, HELPER_TASK};

pub const RECORD_BYTES: usize = 64;

/// The offsets of a record's parts below the frame pointer, and what they are.
const TIME: i16 = -64;
const KIND: i16 = -56;
const THREAD: i16 = -52;
/// The first of the words that a program fills, and the others after it. Of a bio they are its
/// address, what its request has in common, form and operation, device and bytes, the first sector,
/// and where a request has its first bio.
pub const SUBJECT: i16 = -48;
pub const POSITION: i16 = -40;
pub const COUNT: i16 = -32;
pub const DEVICE: i16 = -24;
pub const INODE: i16 = -16;
pub const REST: i16 = -8;

/// `BPF_RB_NO_WAKEUP`: who reads looks often enough.
const NO_WAKEUP: i32 = 1;

#[derive(Clone, Copy)]
pub struct Register(u64);

const R0: Register = Register(0);
pub const R1: Register = Register(1);
const R2: Register = Register(2);
const R3: Register = Register(3);
const R4: Register = Register(4);
/// Kept over calls, as are the next ones.
pub const R6: Register = Register(6);
pub const R7: Register = Register(7);
pub const R8: Register = Register(8);
pub const R9: Register = Register(9);
const FRAME: Register = Register(10);

/// Instructions in the making.
#[derive(Default)]
pub struct Code {
    instructions: Vec<u64>,
    /// Jumps to the end.
    leaving: Vec<usize>,
}

impl Code {
    fn put(&mut self, opcode: u64, target: Register, from: Register, parts: (i16, i32)) {
        let (offset, value) = parts;
        let offset = u64::from(offset.cast_unsigned()) << 16;
        let value = u64::from(value.cast_unsigned()) << 32;
        self.instructions.push(opcode | target.0 << 8 | from.0 << 12 | offset | value);
    }

    pub fn load(&mut self, target: Register, base: Register, offset: i16) {
        self.put(0x79, target, base, (offset, 0));
    }

    /// To the record.
    pub fn store(&mut self, offset: i16, from: Register) {
        self.put(0x7b, FRAME, from, (offset, 0));
    }

    pub fn store_constant(&mut self, offset: i16, value: i32) {
        self.put(0x7a, FRAME, R0, (offset, value));
    }

    /// A field of four bytes.
    pub fn load_half(&mut self, target: Register, base: Register, offset: i16) {
        self.put(0x61, target, base, (offset, 0));
    }

    /// The lower four bytes to the record.
    pub fn store_half(&mut self, offset: i16, from: Register) {
        self.put(0x63, FRAME, from, (offset, 0));
    }

    /// From a field of a structure to the record.
    pub fn move_field(&mut self, to: i16, base: Register, field: i16) {
        self.load(R1, base, field);
        self.store(to, R1);
    }

    /// The same for a field of four bytes.
    pub fn move_half(&mut self, to: i16, base: Register, field: i16) {
        self.load_half(R1, base, field);
        self.store_half(to, R1);
    }

    /// `target = value` if `register` is `address`.
    pub fn set_if_equal(&mut self, target: Register, value: i32, register: Register, address: u64) {
        let (low, high) = (address << 32, address >> 32 << 32);
        self.instructions.extend([0x18 | R1.0 << 8 | low, high]);
        self.put(0x5d, register, R1, (1, 0));
        self.set(target, value);
    }

    fn copy(&mut self, target: Register, from: Register) {
        self.put(0xbf, target, from, (0, 0));
    }

    pub fn set(&mut self, target: Register, value: i32) {
        self.put(0xb7, target, R0, (0, value));
    }

    fn call(&mut self, helper: i32) {
        self.put(0x85, R0, R0, (0, helper));
    }

    pub fn leave_if(&mut self, register: Register, value: i32) {
        self.leaving.push(self.instructions.len());
        self.put(0x15, register, R0, (0, value));
    }

    /// A map's address, or with 2 for `kind` that of its first value.
    fn set_map(&mut self, target: Register, kind: u64, descriptor: i32) {
        self.put(0x18, target, Register(kind), (0, descriptor));
        self.put(0, R0, R0, (0, 0));
    }

    /// Time, kind and thread.
    pub fn stamp(&mut self, kind: i32) {
        self.call(HELPER_CLOCK);
        self.store(TIME, R0);
        self.call(HELPER_TASK);
        self.store_half(THREAD, R0);
        self.put(0x62, FRAME, R0, (KIND, kind));
    }

    /// The record goes out, or is counted as lost.
    pub fn finish(mut self, (ring, lost): (i32, i32)) -> Vec<u64> {
        self.set_map(R1, 1, ring);
        self.copy(R2, FRAME);
        self.put(0x07, R2, R0, (0, i32::from(TIME)));
        self.set(R3, i32::try_from(RECORD_BYTES).expect("a small record"));
        self.set(R4, NO_WAKEUP);
        self.call(HELPER_OUTPUT);
        self.leave_if(R0, 0);
        self.set_map(R1, 2, lost);
        self.set(R2, 1);
        self.put(0xdb, R1, R2, (0, 0));
        let end = self.instructions.len();
        for jump in std::mem::take(&mut self.leaving) {
            let distance = u64::try_from(end - jump - 1).expect("a short program");
            self.instructions[jump] |= distance << 16;
        }
        self.set(R0, 0);
        self.put(0x95, R0, R0, (0, 0));
        self.instructions
    }
}
