//! The only access to randomness. A seed gives the same numbers in every version, so the generator
//! is part of diopter: splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
//! generators, OOPSLA 2014).

/// A seeded generator. The same seed gives the same numbers in every version of diopter.
#[derive(Clone, Debug)]
pub struct Prng(u64);

impl Prng {
    #[must_use]
    pub fn new(seed: u64) -> Prng {
        Prng(seed)
    }

    /// Returns a generator for one component, independent of further draws from this one.
    #[must_use]
    pub fn fork(&self, component: &str) -> Prng {
        let mut child = Prng(self.0);
        for byte in component.bytes() {
            child.0 ^= u64::from(byte);
            child.0 = child.next_u64();
        }
        child
    }

    /// Returns the next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number in `0..bound`; 0 if `bound` is 0. The bias is below 2^-32 for bounds below
    /// 2^32.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next_u64() % bound }
    }

    /// Returns true once in `n` times on average; never for 0.
    pub fn one_in(&mut self, n: u64) -> bool {
        n > 0 && self.below(n) == 0
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_numbers_of_a_seed_never_change() {
        let mut prng = Prng::new(0);
        assert_eq!(prng.next_u64(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(prng.next_u64(), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn children_of_one_seed_differ_by_component_and_not_by_what_was_drawn() {
        let parent = Prng::new(7);
        assert_ne!(parent.fork("faults").next_u64(), parent.fork("latency").next_u64());
        assert_eq!(parent.fork("faults").next_u64(), parent.clone().fork("faults").next_u64());
    }
}
