//! Many objects on many servers, of which some are slow and some are dead: what each request ends
//! with, the memory of requests in flight, and the time of a request.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use diopter::{Errno, Policies, RangeState, Request, RequestOp};
use diopter_core::backend::BackingObject;
use diopter_core::backend::sim::{Disk, Performance, Servers, Sim, World};
use diopter_core::engine::Engine;
use diopter_core::engine::target::{Access, Blocks, Target, TargetRef};
use diopter_core::prng::Prng;
use diopter_core::stripe::Striping;
use diopter_os::AnyBuf;

use super::{LONG, SLOW};

const STRIPE: u64 = 512;
const OBJECT_BYTES: u64 = 4096;
/// Objects of a file.
const WIDTH: usize = 2000;
const REQUEST_BYTES: u64 = 4 * STRIPE;
const REQUEST: usize = 2048;

struct Cluster {
    engine: Engine,
    targets: Vec<TargetRef>,
    servers: Servers,
}

impl Cluster {
    fn new(objects: usize, servers: Servers) -> Cluster {
        let world = World::new((0..objects).map(|_| Disk::new(OBJECT_BYTES, 512, 1)).collect());
        let slab = Engine::slab();
        let performance = Performance { channels: 4, bio_ns: 100_000, ..Performance::NONE };
        let sim = Sim::new(&slab, &world, SLOW).with_performance(performance);
        let sim = sim.with_servers(servers.clone());
        let engine = Engine::on_backend(slab, Box::new(sim), Policies::default());
        let striping = Striping::new(STRIPE, WIDTH).expect("a striping");
        let blocks = Blocks { read: 512, write: 512, memory: 1, page: 4096 };
        let access = Access { read: true, write: true, ..Access::default() };
        let target = |file: usize| {
            let numbers = file * WIDTH..(file + 1) * WIDTH;
            let object = |number| world.object(u32::try_from(number).expect("some thousands"));
            let backings = numbers.map(|n| Arc::new(object(n)) as Arc<dyn BackingObject>);
            Target::striped(backings.collect(), striping, blocks, access)
        };
        Cluster { engine, targets: (0..objects / WIDTH).map(target).collect(), servers }
    }

    /// Returns true if a byte of a request is on a dead server.
    fn meets_a_dead_server(&self, file: usize, offset: u64) -> bool {
        let stripes = (offset / STRIPE)..(offset + REQUEST_BYTES).div_ceil(STRIPE);
        stripes.into_iter().any(|stripe| {
            let in_row = usize::try_from(stripe).expect("a small file") % WIDTH;
            self.servers.dead.contains(&self.servers.server_of(file * WIDTH + in_row))
        })
    }

    /// A random file, and an offset in it.
    fn draw(&self, prng: &mut Prng) -> (usize, u64) {
        let files = u64::try_from(self.targets.len()).expect("few");
        let rows = OBJECT_BYTES / STRIPE * WIDTH as u64;
        let file = usize::try_from(prng.below(files)).expect("few");
        (file, prng.below(rows - REQUEST_BYTES / STRIPE) * STRIPE)
    }
}

fn servers() -> Servers {
    Servers {
        count: 1000,
        slow: (0..1000).step_by(50).collect(),
        dead: BTreeSet::from([17, 503, 998]),
        patience: Duration::from_secs(20),
    }
}

/// The bytes of a stripe, which are those of its place.
fn content(file: usize, offset: u64) -> Vec<u8> {
    let stripes = offset / STRIPE..(offset + REQUEST_BYTES) / STRIPE;
    let of_stripe = |stripe: u64| {
        let value = u64::try_from(file).expect("few").wrapping_mul(251).wrapping_add(stripe);
        std::iter::repeat_n(value.to_le_bytes(), 64).flatten()
    };
    stripes.flat_map(of_stripe).collect()
}

#[test]
fn requests_on_a_hundred_thousand_objects_end_as_their_servers_are() {
    let cluster = Cluster::new(100_000, servers());
    let mut prng = Prng::new(11);
    let (mut flights, mut written) = (HashMap::new(), HashSet::new());
    let (mut ended, mut failed, mut compared) = (0, 0, 0);
    while ended < 40_000 {
        while flights.len() < 100 {
            let (file, offset) = cluster.draw(&mut prng);
            // Two in flight on the same bytes would have either result.
            if flights.values().any(|(its, at, _)| *its == file && at / 4096 == offset / 4096) {
                continue;
            }
            let is_write = prng.one_in(2);
            let request = if is_write {
                Request::write(offset, content(file, offset))
            } else {
                Request::read(offset, vec![0_u8; REQUEST])
            };
            let id = cluster.engine.start(&cluster.targets[file], request).expect("room");
            flights.insert(id, (file, offset, is_write));
        }
        let done = cluster.engine.wait(LONG).expect("a backend").expect("some are in flight");
        let (file, offset, is_write) = flights.remove(&done.id).expect("it was started");
        ended += 1;
        if cluster.meets_a_dead_server(file, offset) {
            failed += 1;
            assert_eq!(done.result.as_ref().unwrap_err().errno, Errno::ETIMEDOUT);
            let outcome = done.outcome();
            let mut states = outcome.ranges().iter().map(|part| part.state);
            assert!(!is_write || states.any(|state| state == RangeState::Unknown), "{outcome:?}");
        } else if done.op == RequestOp::Write {
            assert_eq!(done.result.as_ref().map(|bytes| bytes.get()), Ok(REQUEST_BYTES));
            written.insert((file, offset));
        } else if written.contains(&(file, offset)) {
            compared += 1;
            let memory = done.memory.as_ref().expect("it comes back");
            assert_eq!(memory[..], content(file, offset)[..]);
        }
    }
    println!("{failed} of {ended} met a dead server; {compared} reads compared");
    assert!(failed > 100 && compared > 100, "{failed} {compared}");
}

/// Runs reads with as many in flight as the engine takes, and returns the time of one.
fn time_of_a_read(cluster: &Cluster) -> Duration {
    const READS: u32 = 10_000;
    let mut prng = Prng::new(5);
    let mut memories: Vec<AnyBuf> = (0..64).map(|_| AnyBuf::new(vec![0_u8; REQUEST])).collect();
    let (mut started, mut ended) = (0, 0);
    let begin = Instant::now();
    while ended < READS {
        while let Some(memory) = memories.pop().filter(|_| started < READS) {
            let (file, offset) = cluster.draw(&mut prng);
            let request = Request::read(offset, memory);
            cluster.engine.start(&cluster.targets[file], request).expect("room");
            started += 1;
        }
        let done = cluster.engine.wait(LONG).expect("a backend").expect("some are in flight");
        ended += 1;
        memories.push(done.memory.expect("it comes back"));
    }
    begin.elapsed() / READS
}

#[test]
fn the_time_of_a_request_does_not_grow_with_the_objects() {
    let [few, many] = [WIDTH, 100_000].map(|objects| Cluster::new(objects, servers()));
    let mut ratios: Vec<f64> = (0..5)
        .map(|_| {
            let [few, many] = [&few, &many].map(|cluster| time_of_a_read(cluster).as_secs_f64());
            many / few
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    println!("a read on 100,000 objects takes {:.2} times as long as on 2,000", ratios[2]);
    // More than the caches of a processor make of 50 times the objects.
    assert!(ratios[2] < 3.0, "{ratios:?}");
}

#[test]
fn a_request_in_flight_takes_less_than_a_kibibyte() {
    let cluster = Cluster::new(100_000, servers());
    let mut prng = Prng::new(6);
    // The first ones fill what is used again.
    time_of_a_read(&cluster);
    let requests: Vec<_> = (0..128)
        .map(|_| {
            let (file, offset) = cluster.draw(&mut prng);
            (file, Request::read(offset, vec![0_u8; REQUEST]))
        })
        .collect();
    let count = u64::try_from(requests.len()).expect("few");
    let allocated = allocation_counter::measure(|| {
        for (file, request) in requests {
            cluster.engine.start(&cluster.targets[file], request).expect("room");
        }
        cluster.engine.tick();
    });
    let bytes = allocated.bytes_max / count;
    println!("{bytes} bytes for each of {count} requests in flight");
    assert!(bytes <= 1024, "{bytes}");
}
