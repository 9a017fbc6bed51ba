//! The live view, at several widths and of intervals of any kind.

use diopter_trace::flushes::{Flush, FlushKind};
use diopter_trace::model::{Context, Door, RequestTimes, TracedBio, TracedOp, TracedRequest};
use diopter_trace::phases::Phases;
use diopter_trace::totals::Totals;

use super::*;

fn request(number: u64) -> TracedRequest {
    let begin = number * 1_000;
    TracedRequest {
        file: 0,
        is_raw: false,
        thread: 1,
        thread_name: "postgres".to_owned(),
        door: Door::Aio,
        op: TracedOp::Write,
        offset: number * 8192,
        length: 8192,
        result: Some(8192),
        is_dsync: false,
        is_extending: Some(false),
        is_unwritten: Some(false),
        has_allocated: false,
        has_cached_pages: Some(false),
        is_buffered: number == 0,
        is_punted: false,
        is_copied_on_write: false,
        waited_for_journal: false,
        bios: vec![0],
        context: Some(Context::Kworker),
        deferred_by: None,
        times: RequestTimes {
            begin,
            submitted: Some(begin + 10),
            device_done: Some(begin + 80_000),
            completed: Some(begin + 90_000),
            woken: Some(begin + 100_000),
        },
    }
}

/// A second of 200 writes of 8 KiB, one of them through the page cache and a tenth cut.
fn interval() -> Interval {
    let mut totals = Totals::default();
    for number in 0..200 {
        let request = request(number);
        let bio = TracedBio {
            device: (8, 0),
            sector: 0,
            bytes: 8192,
            pieces: if number % 10 == 0 { 2 } else { 1 },
            merged: 0,
            queued: request.times.begin,
            issued: None,
            done: None,
            context: None,
        };
        let phases = Phases::with_bios(&request, [&bio].into_iter());
        totals.add(&request, [&bio].into_iter(), &phases);
        totals.add_to_file(&request, &phases);
    }
    let files = vec![("/srv/a\u{1b}[2Jb".into(), totals.files[&0].clone())];
    let elapsed = Duration::from_millis(500);
    Interval { elapsed, covered: elapsed, totals, files }
}

#[test]
fn a_second_is_one_block_without_escapes() {
    let interval = interval();
    let interval = Interval { elapsed: INTERVAL, covered: INTERVAL, ..interval };
    let text = block(&row(Duration::from_secs(3), &interval), &interval, 72);
    let expected = "   3 s  200 requests/s  1.5 MiB/s  p50 100 us  p99 100 us  \
                    direct 99.5%\n        buffered 0.5%  split 10.0%  kworker 100.0%\n        \
                    \u{20}      200    1.5  100 us  \"/srv/a\\u{1b}[2Jb\"\n";
    assert_eq!(text, expected);
    let half = Interval { elapsed: INTERVAL / 2, covered: INTERVAL / 2, ..interval };
    assert_eq!(row(Duration::from_millis(3_500), &half)[..2], ["3.5 s", "400"]);
}

#[test]
fn a_second_with_flushes_has_a_line_of_them_on_a_screen_too() {
    let mut totals = Totals::default();
    for _ in 0..12 {
        let (kind, end) = (FlushKind::Fdatasync, Some((4_000_000, 0)));
        totals.flushes.count(&Flush { kind, thread: 1, file: 0, end });
    }
    let interval = Interval { elapsed: INTERVAL, covered: INTERVAL, totals, files: Vec::new() };
    let row = row(INTERVAL, &interval);
    let expected = "12 flushes/s  p50 4.0 ms  p99 4.0 ms";
    let text = block(&row, &interval, 72);
    assert_eq!(text.lines().last().unwrap().trim(), expected, "{text}");
    let rows = VecDeque::from([row]);
    let screen = lines("process 1: 1 s", &rows, &interval, (80, 24));
    assert_eq!(screen.last().map(String::as_str), Some(expected), "{screen:#?}");
    let narrow = lines("process 1: 1 s", &rows, &interval, (20, 3));
    assert!(narrow.iter().all(|line| line.chars().count() <= 20), "{narrow:?}");
}

#[test]
fn a_path_without_room_loses_its_begin() {
    let path = "/var/lib/mysql/shop/customers.ibd";
    assert_eq!(ending(path, 33), path);
    assert_eq!(ending(path, 32), "\u{2026}/lib/mysql/shop/customers.ibd");
    assert_eq!(ending(path, 19), "\u{2026}/customers.ibd");
    assert_eq!(ending(path, 8), "\u{2026}ers.ibd");
    assert_eq!((ending(path, 1), ending(path, 0)), ("\u{2026}".to_owned(), String::new()));
    let one = interval().files[0].1.clone();
    let file = |name: &str| {
        (format!("/var/lib/mysql/a_long_name_of_a_shop/{name}.ibd").into(), one.clone())
    };
    let interval = Interval { files: vec![file("customers"), file("orders")], ..interval() };
    let rows = VecDeque::from([row(INTERVAL, &interval)]);
    for width in [40, 60] {
        let screen = lines("process 1: 1 s", &rows, &interval, (width, 24)).join("\n");
        assert!(screen.contains("/customers.ibd") && screen.contains("/orders.ibd"), "{screen}");
    }
}

#[test]
fn a_second_without_requests_has_no_shares() {
    let interval = Interval {
        elapsed: INTERVAL,
        covered: INTERVAL,
        totals: Totals::default(),
        files: Vec::new(),
    };
    let text = block(&row(INTERVAL, &interval), &interval, 200);
    let expected = "   1 s  0 requests/s  0.0 MiB/s  p50 -  p99 -  direct -  buffered -  \
                    split -\n";
    assert_eq!(text, expected);
}

#[test]
fn every_size_of_a_terminal_gets_lines_that_fit() {
    let interval = interval();
    let rows: VecDeque<Vec<String>> =
        (0..40).map(|second| row(Duration::from_secs(second), &interval)).collect();
    for width in [0, 1, 5, 19, 20, 40, 80, 200] {
        for height in [0, 1, 2, 3, 10, 24, 100] {
            let lines = lines("process 1: 40 s", &rows, &interval, (width, height));
            assert!(lines.len() <= height.max(1), "{width} x {height}: {lines:?}");
            assert!(lines.iter().all(|line| line.chars().count() <= width), "{lines:?}");
            assert!(!lines.concat().contains('\u{1b}'), "{lines:?}");
        }
    }
    let narrow = lines("process 1: 40 s", &rows, &interval, (60, 24));
    assert!(narrow[2].contains("kworker 100.0%") && !narrow[1].contains("direct"), "{narrow:#?}");
    let screen = lines("process 1: 40 s", &rows, &interval, (80, 24));
    assert_eq!(screen.len(), 24);
    assert!(screen[1].contains("requests/s") && screen[20].contains("39.0 s"), "{screen:#?}");
    assert!(screen[23].contains("/srv/a"), "{screen:#?}");
}
