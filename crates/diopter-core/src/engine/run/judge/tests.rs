//! Each verdict, from results alone: no disk, no engine.

use std::cell::Cell;

use diopter_os::{Errno, RwFlags};

use super::*;
use crate::clock::Nanos;
use crate::engine::run::next::Phase;
use crate::engine::run::pending::State;
use crate::engine::target::Blocks;
use crate::outcome::DetourReason;
use crate::policy::RoutePolicy;
use crate::request::RequestOp;
use crate::units::FileRange;

const BLOCK: u64 = 512;

/// A file that is described, and not there.
struct Described {
    is_local: bool,
    is_striped: bool,
    is_in_image: bool,
    is_strict: bool,
    appends: bool,
    can_read_within_blocks: bool,
    size: Result<u64, Errno>,
    /// Bytes of the file that its objects have, by a first byte that none has.
    there_to: u64,
    limit: u64,
    is_cut_off: bool,
    free: Option<u64>,
    /// How often the kernel was asked for anything.
    asked: Cell<u32>,
}

/// A file of a local file system, which never ends.
fn local() -> Described {
    Described {
        is_local: true,
        is_striped: false,
        is_in_image: false,
        is_strict: false,
        appends: false,
        can_read_within_blocks: false,
        size: Ok(u64::MAX),
        there_to: u64::MAX,
        limit: u64::MAX,
        is_cut_off: false,
        free: None,
        asked: Cell::new(0),
    }
}

impl Facts for Described {
    fn blocks(&self) -> Blocks {
        Blocks { read: BLOCK, write: BLOCK, memory: BLOCK, page: 4096 }
    }

    fn is_local(&self) -> bool {
        self.is_local
    }

    fn is_striped(&self) -> bool {
        self.is_striped
    }

    fn is_in_image(&self) -> bool {
        self.is_in_image
    }

    fn is_strict(&self) -> bool {
        self.is_strict
    }

    fn kernel_appends(&self) -> bool {
        self.appends
    }

    fn can_read_within_blocks(&self) -> bool {
        self.can_read_within_blocks
    }

    fn unreadable(&self) -> Option<DetourReason> {
        None
    }

    fn never_direct(&self, _is_write: bool) -> Option<DetourReason> {
        None
    }

    fn cached_to(&self, rest: FileRange) -> u64 {
        rest.start()
    }

    fn detour(&self, _is_write: bool, _length: u64, _route: RoutePolicy) -> Option<DetourReason> {
        None
    }

    fn size(&self) -> Result<u64, Errno> {
        self.asked.set(self.asked.get() + 1);
        self.size
    }

    fn bytes_there(&self, runs: StridedRange) -> Result<u64, Errno> {
        self.asked.set(self.asked.get() + 1);
        Ok(self.there_to.saturating_sub(runs.start()).min(runs.length()))
    }

    fn write_limit(&self) -> u64 {
        self.asked.set(self.asked.get() + 1);
        self.limit
    }

    fn is_cut_off(&self, _at: u64) -> bool {
        self.is_cut_off
    }

    fn free_bytes(&self, _runs: StridedRange) -> Option<u64> {
        self.free
    }
}

/// A request whose only window is `range`, with these results of its bios, side by side in it.
fn back(op: RequestOp, (start, end): (u64, u64), bios: &[(u64, Result<u32, Errno>)]) -> Pending {
    let mut pending = Pending::vacant(0);
    pending.op = op;
    pending.range = FileRange::new(start, end);
    pending.at = start;
    pending.state = State::In(Phase::Transfer);
    (pending.window.range, pending.window.span) = (pending.range, pending.range);
    let mut at = start;
    for (length, result) in bios {
        let runs = StridedRange::one(FileRange::new(at, at + length));
        pending.window.ends.push(BioEnd { runs, result: *result });
        if let Err(errno) = *result
            && !matches!(errno, Errno::EINTR | Errno::EAGAIN)
        {
            let failure = Failure { errno, range: runs.first(), kind: None, is_edge_read: false };
            pending.report.failure.get_or_insert(failure);
        }
        at += length;
    }
    pending
}

fn read(range: (u64, u64), bios: &[(u64, Result<u32, Errno>)]) -> Pending {
    back(RequestOp::Read, range, bios)
}

fn write(range: (u64, u64), bios: &[(u64, Result<u32, Errno>)]) -> Pending {
    back(RequestOp::Write, range, bios)
}

fn of(pending: &Pending, facts: &Described) -> Verdict {
    transfer(pending, facts, false)
}

fn to(end: u64) -> Moved {
    Moved::to(end)
}

#[test]
fn all_bytes_moved_advance_and_nothing_is_asked() {
    for pending in [
        read((0, 4096), &[(4096, Ok(4096))]),
        write((512, 4096), &[(512, Ok(512)), (3072, Ok(3072))]),
    ] {
        let facts = Described { is_local: false, is_striped: true, ..local() };
        assert_eq!(of(&pending, &facts), Verdict::Advance(to(4096)));
        assert_eq!(facts.asked.get(), 0);
    }
}

#[test]
fn a_local_read_ends_the_file_within_a_block_or_with_nothing_and_not_on_a_block() {
    let short = |moved| read((0, 4096), &[(4096, Ok(moved))]);
    assert_eq!(of(&short(700), &local()), Verdict::Done(to(700), StopReason::EndOfFile));
    assert_eq!(of(&short(0), &local()), Verdict::Done(to(0), StopReason::EndOfFile));
    assert_eq!(of(&short(1024), &local()), Verdict::Advance(to(1024)));
    let mut buffered = short(1024);
    buffered.window.path = IoPath::Buffered(DetourReason::MisalignedRange);
    assert_eq!(of(&buffered, &local()), Verdict::Advance(to(1024)));
}

#[test]
fn a_read_that_a_server_ends_within_a_block_ends_nothing_unless_none_can_go_on_there() {
    let short = read((0, 4096), &[(4096, Ok(700))]);
    let server = Described { can_read_within_blocks: true, ..server_of(Ok(700)) };
    assert_eq!(of(&short, &server), Verdict::Advance(to(700)), "it may say any size");
    assert_eq!(server.asked.get(), 0);
    let ends = Verdict::Done(to(700), StopReason::EndOfFile);
    assert_eq!(of(&short, &server_of(Ok(700))), ends, "no read can go on there");
    assert_eq!(of(&short, &server_of(Ok(4096))), Verdict::Advance(to(700)));
    assert_eq!(of(&short, &server_of(Err(Errno::EIO))), Verdict::Failed(Some(to(700)), Errno::EIO));
    let nothing = read((0, 4096), &[(4096, Ok(0))]);
    assert_eq!(of(&nothing, &server), Verdict::Done(to(0), StopReason::EndOfFile));
}

fn server_of(size: Result<u64, Errno>) -> Described {
    Described { is_local: false, size, ..local() }
}

#[test]
fn an_interrupted_bio_is_tried_again() {
    for errno in [Errno::EINTR, Errno::EAGAIN] {
        let pending = read((0, 4096), &[(2048, Ok(2048)), (2048, Err(errno))]);
        assert_eq!(of(&pending, &local()), Verdict::Advance(to(2048)));
    }
}

#[test]
fn the_policy_of_old_kernels_returns_a_short_request() {
    let pending = write((0, 4096), &[(4096, Ok(1024))]);
    let old = transfer(&pending, &local(), true);
    assert_eq!(old, Verdict::Done(to(1024), StopReason::Short));
    assert_eq!(of(&pending, &local()), Verdict::Advance(to(1024)));
}

#[test]
fn a_short_write_is_never_the_end_of_the_file() {
    let pending = write((0, 4096), &[(4096, Ok(700))]);
    assert_eq!(of(&pending, &local()), Verdict::Advance(to(700)));
    let nothing = write((0, 4096), &[(4096, Ok(0))]);
    assert_eq!(of(&nothing, &local()), Verdict::Advance(to(0)));
}

#[test]
fn a_full_disk_is_the_error_of_one_object_and_a_short_write_of_several() {
    let full = |bios: &[_]| write((0, 2048), bios);
    let half = full(&[(1024, Ok(1024)), (1024, Err(Errno::ENOSPC))]);
    assert_eq!(of(&half, &local()), Verdict::FailedBio);
    let striped = Described { is_striped: true, ..local() };
    assert_eq!(of(&half, &striped), Verdict::Done(to(1024), StopReason::NoSpace));
    let quota = full(&[(1024, Ok(1024)), (1024, Err(Errno::EDQUOT))]);
    assert_eq!(of(&quota, &striped), Verdict::Done(to(1024), StopReason::NoSpace));
    let nothing = full(&[(1024, Err(Errno::ENOSPC)), (1024, Ok(0))]);
    assert_eq!(of(&nothing, &striped), Verdict::FailedBio, "nothing was written");
    let gap = full(&[(512, Ok(512)), (512, Err(Errno::ENOSPC)), (1024, Ok(1024))]);
    assert_eq!(of(&gap, &striped), Verdict::FailedBio, "bytes behind the gap are written");
}

#[test]
fn eio_past_the_end_is_read_again_up_to_the_end() {
    let mut pending = read((0, 8192), &[(8192, Err(Errno::EIO))]);
    let short = Described { there_to: 700, ..local() };
    assert_eq!(of(&pending, &short), Verdict::Replan(Changed::StopAtEnds));
    assert_eq!(of(&pending, &local()), Verdict::FailedBio, "all of it is there");
    let image = Described { is_in_image: true, ..short };
    assert_eq!(of(&pending, &image), Verdict::FailedBio);
    pending.window.stops_at_ends = true;
    let short = Described { there_to: 700, ..local() };
    assert_eq!(of(&pending, &short), Verdict::FailedBio, "once");
}

#[test]
fn an_append_that_lost_a_race_takes_its_lock_again() {
    let pending = write((0, 512), &[(512, Err(Errno::EINVAL))]);
    let appends = Described { appends: true, ..local() };
    assert_eq!(of(&pending, &appends), Verdict::Replan(Changed::LostAppend));
    assert_eq!(of(&pending, &local()), Verdict::FailedBio);
}

#[test]
fn a_write_across_the_limit_of_the_process_is_planned_up_to_it() {
    let mut pending = write((0, 4096), &[(4096, Err(Errno::EINVAL))]);
    let limited = Described { limit: 1000, ..local() };
    assert_eq!(of(&pending, &limited), Verdict::Replan(Changed::Limit(1000)));
    let far = Described { limit: 4096, ..local() };
    assert_eq!(of(&pending, &far), Verdict::FailedBio);
    pending.limit = Some(1000);
    assert_eq!(of(&pending, &Described { limit: 1000, ..local() }), Verdict::FailedBio, "known");
}

#[test]
fn a_kernel_without_dontcache_gets_the_request_without_it() {
    for errno in [Errno::EOPNOTSUPP, Errno::EINVAL] {
        let mut pending = read((0, 512), &[(512, Err(errno))]);
        assert_eq!(of(&pending, &local()), Verdict::FailedBio);
        pending.flags = RwFlags::DONTCACHE;
        assert_eq!(of(&pending, &local()), Verdict::Replan(Changed::NoDontcache));
    }
}

#[test]
fn a_server_that_refuses_direct_requests_gets_others_unless_that_is_forbidden() {
    let mut pending = read((0, 512), &[(512, Err(Errno::EINVAL))]);
    let server = server_of(Ok(4096));
    assert_eq!(of(&pending, &server), Verdict::Replan(Changed::NoDirect));
    assert_eq!(of(&pending, &Described { is_strict: true, ..server }), Verdict::FailedBio);
    pending.window.path = IoPath::Buffered(DetourReason::MisalignedRange);
    assert_eq!(of(&pending, &server_of(Ok(4096))), Verdict::FailedBio);
    let edge = write((0, 512), &[(512, Err(Errno::EINVAL))]);
    assert_eq!(edges(&edge, &server_of(Ok(4096))), Verdict::Replan(Changed::NoDirect));
    assert_eq!(edges(&edge, &local()), Verdict::FailedBio);
}

#[test]
fn other_errors_are_the_request_s() {
    for errno in [Errno::EIO, Errno::ECANCELED, Errno::ESHUTDOWN, Errno::EFBIG] {
        let pending = write((0, 512), &[(512, Err(errno))]);
        assert_eq!(of(&pending, &local()), Verdict::FailedBio);
    }
}

#[test]
fn what_an_object_of_a_striped_file_lacks_before_the_end_of_the_file_is_a_hole() {
    // The second bio is of an object that ends at 1024; the file goes on to 3000.
    let pending = read((0, 4096), &[(1024, Ok(1024)), (1024, Ok(0)), (2048, Ok(952))]);
    let facts = Described { is_striped: true, size: Ok(3000), there_to: 1024, ..local() };
    let Verdict::Done(moved, StopReason::EndOfFile) = of(&pending, &facts) else {
        unreachable!("the file ends there")
    };
    assert_eq!(moved.end, 3000);
    let holes: Vec<FileRange> = moved.holes.iter().map(|runs| runs.first()).collect();
    assert_eq!(holes, [FileRange::new(1024, 2048), FileRange::new(3000, 4096)]);
    // A bio that is short where its object has more bytes.
    let facts = Described { is_striped: true, size: Ok(4096), ..local() };
    let short = read((0, 4096), &[(2048, Ok(100)), (2048, Ok(2048))]);
    assert_eq!(of(&short, &facts), Verdict::Advance(to(100)));
    let lost = Described { is_striped: true, size: Err(Errno::EIO), ..local() };
    assert_eq!(of(&short, &lost), Verdict::Failed(None, Errno::EIO));
}

#[test]
fn an_end_that_the_inode_of_an_image_contradicts_is_damage() {
    let pending = read((0, 4096), &[(4096, Ok(700))]);
    let facts = Described { is_cut_off: true, ..local() };
    assert_eq!(of(&pending, &facts), Verdict::Failed(Some(to(700)), Errno::EUCLEAN));
}

#[test]
fn edges_that_were_read_short_have_the_size_read_again() {
    let edge = |moved| {
        let mut pending = write((0, 512), &[(512, Ok(moved))]);
        pending.lock.size = 300;
        pending
    };
    assert_eq!(edges(&edge(300), &local()), Verdict::Advance(to(0)));
    assert_eq!(edges(&edge(200), &local()), Verdict::Replan(Changed::Size));
    let again = write((0, 512), &[(512, Err(Errno::EAGAIN))]);
    assert_eq!(edges(&again, &local()), Verdict::Replan(Changed::Size));
}

#[test]
fn space_is_assured_by_allocations_or_by_twice_the_free_bytes() {
    let ends = |bios: &[(u64, Result<u32, Errno>)]| write((0, 1024), bios).window.ends;
    let both = ends(&[(512, Ok(0)), (512, Ok(0))]);
    assert!(has_space_for_all(&both, &local()));
    let full = ends(&[(512, Ok(0)), (512, Err(Errno::ENOSPC))]);
    assert!(!has_space_for_all(&full, &local()));
    let cannot = ends(&[(512, Err(Errno::EOPNOTSUPP)), (512, Err(Errno::EOPNOTSUPP))]);
    assert!(!has_space_for_all(&cannot, &local()), "nothing is reported");
    assert!(!has_space_for_all(&cannot, &Described { free: Some(2048), ..local() }));
    assert!(has_space_for_all(&cannot, &Described { free: Some(2049), ..local() }));
}

#[test]
fn a_cancel_that_no_caller_asked_for_means_not_this_time_but_for_an_append() {
    let mut pending = write((0, 512), &[]);
    assert_eq!(result(&pending, Err(Errno::ECANCELED)), Err(Errno::EAGAIN));
    assert_eq!(result(&pending, Err(Errno::EIO)), Err(Errno::EIO));
    assert_eq!(result(&pending, Ok(512)), Ok(512));
    pending.is_cancelled = true;
    assert_eq!(result(&pending, Err(Errno::ECANCELED)), Err(Errno::ECANCELED));
    let mut append = write((0, 512), &[]);
    append.appends = true;
    assert_eq!(result(&append, Err(Errno::ECANCELED)), Err(Errno::ECANCELED));
}

#[test]
fn attempts_that_move_nothing_end_by_number_by_time_and_when_cancelled() {
    let mut pending = read((0, 512), &[(512, Ok(0))]);
    for _ in 0..ATTEMPTS_MAX {
        pending.count_attempt();
    }
    assert_eq!(again(&pending), None);
    pending.count_attempt();
    assert_eq!(again(&pending), Some(Errno::EAGAIN), "by number");

    let mut pending = read((0, 512), &[(512, Ok(0))]);
    pending.timing.reaped = Nanos(1);
    pending.count_attempt();
    let limit = u64::try_from(ATTEMPTS_TIME_MAX.as_nanos()).expect("seconds");
    pending.timing.reaped = Nanos(1 + limit);
    pending.count_attempt();
    assert_eq!(again(&pending), None);
    pending.timing.reaped = Nanos(2 + limit);
    assert_eq!(again(&pending), Some(Errno::EAGAIN), "by time");

    let mut pending = read((0, 512), &[(512, Err(Errno::EAGAIN))]);
    for _ in 0..=ATTEMPTS_AGAIN_MAX {
        assert_eq!(again(&pending), None);
        pending.count_attempt();
    }
    assert_eq!(again(&pending), Some(Errno::EAGAIN), "refused, by number");

    let mut pending = read((0, 512), &[(512, Err(Errno::EINTR))]);
    assert_eq!(again(&pending), None);
    pending.is_cancelled = true;
    assert_eq!(again(&pending), Some(Errno::ECANCELED));
}

#[test]
fn a_lost_backend_leaves_unknown_only_what_was_in_the_device() {
    let mut pending = write((512, 2048), &[]);
    pending.at = 1024;
    pending.window.range = FileRange::new(1024, 1536);
    let (failure, unknown) = lost(&pending);
    assert_eq!((failure.errno, failure.kind), (Errno::EIO, Some(IoErrorKind::BackendLost)));
    assert_eq!((failure.range, unknown), (FileRange::new(1024, 2048), None));
    pending.outstanding = 1;
    let window = RangeOutcome { range: pending.window.range, state: RangeState::Unknown };
    assert_eq!(lost(&pending).1, Some(window));
}

#[test]
fn a_flush_that_was_not_made_is_made_again_and_a_flush_that_failed_is_not() {
    let range = (0, 512);
    assert!(matches!(flush(&write(range, &[(512, Ok(0))])), Verdict::Advance(_)));
    let interrupted = write(range, &[(256, Ok(0)), (256, Err(Errno::EINTR))]);
    assert_eq!(flush(&interrupted), Verdict::Replan(Changed::NotThisTime));
    assert_eq!(flush(&write(range, &[(512, Err(Errno::EIO))])), Verdict::FailedBio);
}

#[test]
fn the_fast_path_ends_only_with_what_one_call_decides() {
    let (read, write) = (RequestOp::Read, RequestOp::Write);
    let range = FileRange::new(0, 4 * BLOCK);
    let of = |op, facts: &Described, result| single(facts, (op, range), result);
    let ended = |bytes| Some(Ok(Bytes::new(bytes)));
    assert_eq!(of(read, &local(), Ok(700)), ended(700), "within a block");
    assert_eq!(of(read, &local(), Ok(0)), ended(0));
    assert_eq!(of(read, &local(), Ok(512)), None, "on a block it may be just short");
    assert_eq!(of(read, &Described { is_cut_off: true, ..local() }, Ok(700)), None);
    assert_eq!(of(write, &local(), Ok(700)), None, "a short write is never the end");
    for errno in [Errno::EINTR, Errno::EAGAIN] {
        assert_eq!(of(write, &local(), Err(errno)), None);
    }
    assert_eq!(of(read, &local(), Err(Errno::EIO)), None, "perhaps past the end");
    assert_eq!(of(write, &local(), Err(Errno::EINVAL)), None, "perhaps across a limit");
    let server = Described { is_local: false, ..local() };
    assert_eq!(of(read, &server, Err(Errno::EINVAL)), None, "perhaps refused");
    let failed = |op, errno| of(op, &local(), Err(errno)).and_then(Result::err).map(|it| it.errno);
    assert_eq!(failed(write, Errno::ENOSPC), Some(Errno::ENOSPC));
    assert_eq!(failed(write, Errno::EIO), Some(Errno::EIO));
    assert_eq!(failed(read, Errno::EINVAL), Some(Errno::EINVAL));
}
