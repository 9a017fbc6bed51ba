//! One request at a time, on files.

use std::io::{IoSlice, IoSliceMut};

use diopter::layouts::StripedFile;
use diopter::{Engine, EngineOptions, File, IoBuf, Policies, Preset, Request, use_for_this_thread};

use super::{MIB, PAGE, SIZES, copy, dir, must_be, random, striped};

#[test]
fn sanity_119a_a_read_past_the_end_returns_what_there_is() {
    let Some(dir) = dir() else { return };
    let file = striped(dir.path(), "file", MIB, 2);
    let content = random(512 << 10, "119a");
    file.write_all_at(&content, 0).unwrap();
    let mut bytes = vec![0; 1 << 20];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), content.len());
    assert!(bytes.starts_with(&content));
}

#[test]
fn sanity_119b_and_119c_holes_read_as_zeros_and_are_counted() {
    let Some(dir) = dir() else { return };
    let file = striped(dir.path(), "file", MIB, 2);
    let content = random(MIB, "119b");
    file.write_all_at(&content, MIB).unwrap();
    let mut bytes = vec![9; 2 << 20];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 2 << 20);
    assert!(bytes[..1 << 20].iter().all(|byte| *byte == 0) && bytes[1 << 20..] == content);
    file.set_len(0).unwrap();
    file.write_all_at(&content, 3 * MIB).unwrap();
    bytes.fill(9);
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 2 << 20);
    assert!(bytes.iter().all(|byte| *byte == 0));
}

#[test]
fn sanity_119e_a_copy_is_equal_whatever_the_size_of_its_requests() {
    let Some(dir) = dir() else { return };
    let content = random(4 * MIB + 77, "119e");
    for size in SIZES {
        let file = striped(dir.path(), &format!("file-{size}"), MIB, 2);
        copy(&content, &file, size);
        must_be(&file, &content, &format!("requests of {size}"));
    }
}

#[test]
fn sanity_119h_memory_at_any_address_makes_no_difference() {
    let Some(dir) = dir() else { return };
    for (n, size) in SIZES.into_iter().enumerate() {
        let length = usize::try_from(size).unwrap();
        let file = striped(dir.path(), &format!("file-{size}"), MIB, 2);
        let content = random(5 * size, "119h");
        for (k, piece) in content.chunks(length).enumerate() {
            let skew = (n * 513 + k * 37 + 1) % 4096;
            let memory = [vec![0; skew], piece.to_vec()].concat();
            file.write_all_at(&memory[skew..], (k * length) as u64).unwrap();
            let mut back = vec![0; skew + length];
            file.read_exact_at(&mut back[skew..], (k * length) as u64).unwrap();
            assert!(back[skew..] == *piece, "{size} at address + {skew}");
        }
        must_be(&file, &content, &format!("5 requests of {size}"));
    }
}

/// Writes pieces of these lengths by one call and reads them back by another cut.
fn check_vectored(file: &StripedFile, written: &[usize], read: &[usize], what: &str) {
    let total: usize = written.iter().sum();
    assert_eq!(read.iter().sum::<usize>(), total);
    let content = random(total as u64, what);
    let mut rest = &content[..];
    let pieces = written.iter().map(|length| {
        let (piece, after) = rest.split_at(*length);
        rest = after;
        piece.to_vec()
    });
    let pieces: Vec<Vec<u8>> = pieces.collect();
    let slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
    assert_eq!(file.write_vectored_at(&slices, 0).unwrap(), total, "{what}");
    let mut parts: Vec<_> = read.iter().map(|length| vec![0; *length]).collect();
    let mut slices: Vec<_> = parts.iter_mut().map(|part| IoSliceMut::new(part)).collect();
    assert_eq!(file.read_vectored_at(&mut slices, 0).unwrap(), total, "{what}");
    assert!(parts.concat() == content, "{what}");
}

#[test]
fn sanity_119m_119p_and_119q_vectors_of_any_lengths_are_written_and_read_in_order() {
    let Some(dir) = dir() else { return };
    let file = striped(dir.path(), "file", MIB, 2);
    let table: [(&[usize], &[usize]); 2] = [
        (&[0x80000, 0x10_0000, 0x18_0000], &[0x18_0000, 0x10_0000, 0x80000]),
        (&[0x7ffff, 0x10_0001, 0x18_0000], &[0x18_0000, 0x7ffff, 0x10_0001]),
    ];
    for (written, read) in table {
        check_vectored(&file, written, read, &format!("{written:x?}"));
    }
    for page in [4 << 10, 8 << 10, 32 << 10, 64 << 10] {
        for first in [(64 << 10) + page - 1, (64 << 10) + page, (64 << 10) + page + 1] {
            let written = [first, 0x10_0001, 0x10_0000];
            check_vectored(&file, &written, &[0x10_0000, first, 0x10_0001], "119q");
        }
    }
}

#[test]
fn sanity_398h_and_398j_a_copy_is_equal_on_shared_targets_and_in_large_stripes() {
    let Some(dir) = dir() else { return };
    let content = random(64 * MIB, "398h");
    // Two objects on each of two targets; stripes of several bios.
    for (stripe_size, objects, preset) in
        [(MIB, 4, Preset::Diopter), (4 * MIB, 2, Preset::Lustre2_14)]
    {
        let policies: Policies = preset.policies();
        use_for_this_thread(EngineOptions { policies, ..EngineOptions::DEFAULT });
        let file = striped(dir.path(), &format!("file-{stripe_size}"), stripe_size, objects);
        copy(&content, &file, 8 * MIB);
        must_be(&file, &content, preset.name());
    }
    use_for_this_thread(EngineOptions::DEFAULT);
}

#[test]
fn sanity_398n_appends_follow_each_other() {
    let Some(dir) = dir() else { return };
    let made = striped(dir.path(), "file", MIB, 2);
    let file = File::options()
        .read(true)
        .append(true)
        .striped(true)
        .open(dir.path().join("file"))
        .unwrap();
    let content = random(32 * MIB, "398n");
    for piece in content.chunks(8 << 20) {
        file.write_all_at(piece, 0).unwrap();
    }
    must_be(&made, &content, "398n");
}

/// More bounced requests in flight than there are bounce buffers.
#[test]
fn sanity_398u_requests_wait_for_a_bounce_buffer_and_all_succeed() {
    let Some(dir) = dir() else { return };
    let file = striped(dir.path(), "file", MIB, 2);
    let (length, count) = (PAGE + 512, 40_u64);
    let content = random(count * length, "398u");
    // There already, so that no end is buffered.
    let mut expected = vec![9; content.len() + 4096];
    file.write_all_at(&expected, 0).unwrap();
    expected[1..=content.len()].copy_from_slice(&content);
    let engine = Engine::new(EngineOptions { checked: true, ..EngineOptions::DEFAULT }).unwrap();
    for (n, piece) in content.chunks(usize::try_from(length).unwrap()).enumerate() {
        let mut memory = IoBuf::new(piece.len()).unwrap();
        memory.copy_from_slice(piece);
        engine.start(&file, Request::write(1 + n as u64 * length, memory)).unwrap();
    }
    while engine.in_flight() > 0 {
        let finished = engine.wait(std::time::Duration::from_secs(60)).unwrap().expect("in time");
        assert_eq!(finished.result.clone().map(|moved| moved.get()), Ok(length));
        assert!(finished.route().bounced > 0);
    }
    must_be(&file, &expected, "398u");
}
