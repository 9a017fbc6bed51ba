//! Virtual machines at once: one for each of two processors, none shared. More would wait for each
//! other and end later.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Machines at once, at most.
const MACHINES_MAX: usize = 2;

/// Processors, each for one virtual machine at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fleet {
    cpus: Vec<usize>,
}

impl Fleet {
    /// The last two processors that this process may run on, or the only one.
    ///
    /// # Errors
    /// The system's, asking for them.
    pub fn of_this_host() -> io::Result<Fleet> {
        let allowed = diopter_os::child::allowed_cpus()?;
        Ok(Fleet { cpus: allowed.into_iter().rev().take(MACHINES_MAX).collect() })
    }

    /// Does `work` for every item, each with a processor to itself (for
    /// [`BootOptions::cpu`](super::BootOptions)), and gives the results in the items' order.
    pub fn each<T: Sync, R: Send>(
        &self,
        items: &[T],
        work: impl Fn(&T, Option<usize>) -> R + Sync,
    ) -> Vec<R> {
        let next = AtomicUsize::new(0);
        let results: Vec<Mutex<Option<R>>> = items.iter().map(|_| Mutex::new(None)).collect();
        let serve = |cpu: Option<usize>| {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(item) = items.get(at) else { return };
                let result = work(item, cpu);
                *results[at].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            }
        };
        std::thread::scope(|scope| {
            for cpu in &self.cpus {
                scope.spawn(|| serve(Some(*cpu)));
            }
            if self.cpus.is_empty() {
                serve(None);
            }
        });
        let result =
            |cell: Mutex<Option<R>>| cell.into_inner().unwrap_or_else(PoisonError::into_inner);
        results.into_iter().map(|cell| result(cell).expect("every item was worked on")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_items() {
        for cpus in [vec![], vec![0], vec![0, 1]] {
            let items: Vec<usize> = (0..20).collect();
            let results = Fleet { cpus }.each(&items, |item, _| item * 2);
            assert_eq!(results, items.iter().map(|item| item * 2).collect::<Vec<_>>());
        }
    }

    #[test]
    fn no_two_pieces_of_work_share_a_processor() {
        let fleet = Fleet { cpus: vec![0, 1] };
        let busy = [AtomicUsize::new(0), AtomicUsize::new(0)];
        fleet.each(&[(); 50], |(), cpu| {
            let cell = &busy[cpu.unwrap()];
            assert_eq!(cell.fetch_add(1, Ordering::SeqCst), 0);
            std::thread::yield_now();
            cell.fetch_sub(1, Ordering::SeqCst);
        });
    }
}
