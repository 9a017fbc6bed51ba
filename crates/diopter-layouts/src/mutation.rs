//! Damages valid values at random, reproducibly for a seed: flips, cuts, splices, edge-case
//! numbers. For tests of the parsers, which define their invariants.

use diopter_core::prng::Prng;
use diopter_core::units::{to_u64, to_usize};

/// Numbers at the edges of widths, signs and counts.
const EDGES: [u64; 14] = [
    0,
    1,
    2,
    0x7f,
    0xff,
    2000,
    2001,
    0x7fff,
    0xffe0,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0xffff_ffff,
    u64::MAX,
];

/// Calls `check` with `rounds` values, each made of a seed by one to four changes.
pub fn run(name: &str, seeds: &[Vec<u8>], rounds: u32, mut check: impl FnMut(&[u8], &mut Prng)) {
    let mut prng = Prng::new(1).fork(name);
    for _ in 0..rounds {
        let mut value = pick(seeds, &mut prng).clone();
        for _ in 0..1 + prng.below(4) {
            change(&mut value, seeds, &mut prng);
        }
        check(&value, &mut prng);
    }
}

fn pick<'a>(seeds: &'a [Vec<u8>], prng: &mut Prng) -> &'a Vec<u8> {
    &seeds[below(seeds.len(), prng)]
}

fn below(bound: usize, prng: &mut Prng) -> usize {
    to_usize(prng.below(to_u64(bound)))
}

fn change(value: &mut Vec<u8>, seeds: &[Vec<u8>], prng: &mut Prng) {
    let at = below(value.len(), prng);
    match prng.below(6) {
        0 if !value.is_empty() => value[at] ^= 1 << prng.below(8),
        1 if !value.is_empty() => value[at] = prng.next_u64().to_le_bytes()[0],
        2 => value.truncate(at),
        3 => {
            let other = pick(seeds, prng);
            let from = below(other.len(), prng);
            value.truncate(at);
            value.extend(&other[from..]);
        }
        _ => {
            let edge = EDGES[below(EDGES.len(), prng)].to_le_bytes();
            let width = 1 << prng.below(4);
            // Fields are at multiples of their width.
            let at = at / width * width;
            let room = value.len().saturating_sub(at).min(width);
            value[at..at + room].copy_from_slice(&edge[..room]);
        }
    }
}
