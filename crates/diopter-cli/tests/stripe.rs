//! `dio stripe`, and what `dio explain` and `dio probe` report on striped files. What `dio cp` does
//! with them is in the tests of its name.

mod command_output;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use command_output::Output;
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// A directory below cargo's own, which is on a disk where /tmp may not be, in which commands run.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, line: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dio"));
        command.args(line.split(' ')).current_dir(self.0.path()).stdin(Stdio::null());
        Output::of(command.env_clear())
    }

    /// Returns the output of a run that must succeed without a message.
    fn stdout(&self, line: &str) -> String {
        let output = self.run(line);
        assert_eq!((output.status, output.stderr.as_str()), (0, ""), "{line}");
        output.stdout
    }

    fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.stdout(line)).unwrap()
    }

    /// The document of a run that finds something wrong.
    fn json_of_trouble(&self, line: &str) -> Value {
        let output = self.run(line);
        assert_eq!((output.status, output.stderr.as_str()), (2, ""), "{line}");
        serde_json::from_str(&output.stdout).unwrap()
    }

    /// The message of a run that must be refused.
    fn refusal(&self, line: &str) -> String {
        let output = self.run(line);
        assert_eq!((output.status, output.stdout.as_str()), (2, ""), "{line}");
        output.stderr
    }

    /// `data`, striped over 4 objects in its directory.
    fn with_data(self) -> Place {
        self.stdout("stripe create data --objects . . . .");
        self
    }

    fn write(&self, name: &str, bytes: &[u8], offset: u64) {
        let file =
            diopter::File::options().write(true).striped(true).open(self.path(name)).unwrap();
        file.write_all_at(bytes, offset).unwrap();
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            entry.unwrap().file_name().into_string().unwrap()
        };
        let mut names: Vec<String> = entries.map(name).collect();
        names.sort();
        names
    }

    fn mark(&self, name: &str, mark: &str) {
        let flags = rustix::fs::XattrFlags::empty();
        let path = self.path(name);
        rustix::fs::setxattr(path, "user.diopter", mark.as_bytes(), flags).unwrap();
    }
}

fn ids(document: &Value) -> Vec<&str> {
    let all = document["findings"].as_array().unwrap();
    all.iter().map(|finding| finding["id"].as_str().unwrap()).collect()
}

fn replace_in(path: &Path, from: &str, to: &str) {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{from}: {text}");
    std::fs::write(path, text.replace(from, to)).unwrap();
}

#[test]
fn a_striped_file_is_made_listed_sealed_and_removed() {
    let place = Place::new().with_data();
    assert_eq!(place.names(), ["data", "data.0", "data.1", "data.2", "data.3"]);
    place.write("data", &[7; 5 << 20], 1);
    let report = place.json("stripe info data --json");
    assert_eq!(report["schema"], "diopter.stripe/1");
    assert_eq!(
        (report["stripe_size"].as_u64(), report["width"].as_u64()),
        (Some(MIB), Some(4 * MIB))
    );
    assert_eq!(
        (report["stripe_count"].as_u64(), report["size"].as_u64()),
        (Some(4), Some(5 * MIB + 1))
    );
    assert_eq!(
        (&report["is_well"], &report["is_sealed"]),
        (&Value::Bool(true), &Value::Bool(false))
    );
    let sizes: Vec<_> =
        report["objects"].as_array().unwrap().iter().map(|it| it["size"].as_u64()).collect();
    assert_eq!(sizes, [2 * MIB, MIB + 1, MIB, MIB].map(Some));
    assert_eq!(ids(&report), ["not-sealed"]);
    assert_eq!(place.stdout("stripe seal data"), "");
    let report = place.json("stripe info data --json");
    assert_eq!((&report["is_sealed"], ids(&report).len()), (&Value::Bool(true), 0));
    assert_eq!(report["objects"][1]["sealed_size"], MIB + 1);
    let text = place.stdout("stripe info data");
    assert!(text.starts_with("data: striped file, 5 MiB (5242881 B)\n"), "{text}");
    assert!(text.contains("1 MiB (1048576 B) over 4 objects, 4 MiB (4194304 B) a round"), "{text}");
    assert!(text.contains("findings    none: all objects exist and match the manifest"), "{text}");
    assert_eq!(place.stdout("stripe rm data"), "");
    assert_eq!(place.names().len(), 0);
}

#[test]
fn an_object_in_trouble_is_reported_with_what_is_wrong_and_exit_status_two() {
    let sealed = || {
        let place = Place::new().with_data();
        place.write("data", &[7; 8 << 20], 0);
        place.stdout("stripe seal data");
        place
    };
    let check = |place: &Place, id: &str, words: &str| {
        let report = place.json_of_trouble("stripe info data --json");
        assert_eq!(ids(&report), [id]);
        assert_eq!(report["size"], 8 * MIB, "the seal knows");
        let evidence = report["findings"][0]["evidence"].as_str().unwrap();
        assert!(evidence.starts_with("object 2, ") && evidence.contains(words), "{evidence}");
        let object = &report["objects"][2];
        assert_eq!(
            (&report["is_well"], &object["is_well"]),
            (&Value::Bool(false), &object["is_well"])
        );
        assert!(object["trouble"].as_str().unwrap().contains(words), "{object}");
        assert_eq!(report["objects"][3]["is_well"], true, "the others are looked at all the same");
        let text = place.run("stripe info data");
        assert_eq!(text.status, 2);
        assert!(text.stdout.contains("FAULTY  data.2"), "{}", text.stdout);
        assert!(text.stdout.contains(&format!("  {id} (severe)")), "{}", text.stdout);
    };
    let lost = sealed();
    std::fs::remove_file(lost.path("data.2")).unwrap();
    check(&lost, "object-missing", "the object is missing");

    let cut = sealed();
    File::options().write(true).open(cut.path("data.2")).unwrap().set_len(7).unwrap();
    check(&cut, "object-resized", "sealed with 2097152 bytes and has 7");

    let exchanged = sealed();
    let uuid = exchanged.json("stripe info data --json")["uuid"].as_str().unwrap().to_owned();
    exchanged.mark("data.2", &format!("{uuid} 1"));
    check(&exchanged, "object-foreign", "must be");

    let foreign = sealed();
    foreign.mark("data.2", "00000000-0000-0000-0000-000000000000 2");
    check(&foreign, "object-foreign", "another layout's");

    let linked = sealed();
    std::fs::rename(linked.path("data.2"), linked.path("moved")).unwrap();
    std::os::unix::fs::symlink("moved", linked.path("data.2")).unwrap();
    check(&linked, "object-wrong-kind", "a symbolic link");
}

#[test]
fn a_short_object_without_a_seal_is_reported_as_the_hole_that_it_reads_as() {
    let place = Place::new().with_data();
    place.write("data", &[7; 100], 3 * MIB);
    let report = place.json("stripe info data --json");
    assert_eq!(report["size"], 3 * MIB + 100);
    assert_eq!(ids(&report), ["short-object", "not-sealed"]);
    let evidence = report["findings"][0]["evidence"].as_str().unwrap();
    assert!(evidence.contains("object 2 has 0 B and lacks 1 MiB (1048576 B)"), "{evidence}");
    place.stdout("stripe seal data");
    assert_eq!(ids(&place.json("stripe info data --json")).len(), 0, "a seal knows its holes");
}

#[test]
fn what_was_sealed_and_has_another_size_is_taken_as_it_is_after_unseal() {
    let place = Place::new().with_data();
    place.write("data", &[7; 4 << 20], 0);
    place.stdout("stripe seal data");
    File::options().write(true).open(place.path("data.3")).unwrap().set_len(0).unwrap();
    let message = place.refusal("stripe seal data");
    assert!(message.contains("data.3: sealed with 1048576 bytes and has 0; restore"), "{message}");
    place.stdout("stripe unseal data");
    assert_eq!(place.json("stripe info data --json")["size"], 3 * MIB);
}

#[test]
fn what_is_left_of_a_killed_copy_is_reported() {
    let place = Place::new().with_data();
    for name in ["data.0.0123abcd", "data.1.0123abcd", "data.2.0123abcd", "data.10"] {
        std::fs::write(place.path(name), "").unwrap();
    }
    place.mark("data.0.0123abcd", "00000000-0000-0000-0000-000000000000 0");
    place.mark("data.1.0123abcd", "00000000-0000-0000-0000-000000000000 1");
    let report = place.json("stripe info data --json");
    assert_eq!(ids(&report), ["leftover-objects"]);
    let evidence = report["findings"][0]["evidence"].as_str().unwrap();
    assert_eq!(evidence, "2 objects without a layout: data.0.0123abcd; data.1.0123abcd");
}

#[test]
fn objects_of_a_manifest_that_was_renamed_are_not_left_over() {
    let place = Place::new().with_data();
    let small = place.path("small");
    std::fs::write(&small, [5; 9000]).unwrap();
    place.stdout("cp small data");
    std::fs::rename(place.path("data"), place.path("kept")).unwrap();
    place.stdout("stripe create data --objects . .");
    assert_eq!(ids(&place.json("stripe info data --json")).len(), 0, "they are those of `kept`");
    std::fs::remove_file(place.path("kept")).unwrap();
    assert_eq!(ids(&place.json("stripe info data --json")), ["leftover-objects"]);
}

#[test]
fn adopt_names_the_objects_of_a_plain_copy_that_lack_their_attribute() {
    let place = Place::new().with_data();
    std::fs::create_dir(place.path("copy")).unwrap();
    for name in place.names().iter().filter(|name| name.starts_with("data")) {
        std::fs::write(place.path("copy").join(name), std::fs::read(place.path(name)).unwrap())
            .unwrap();
    }
    let adopted = place.run("stripe adopt copy/data");
    assert_eq!((adopted.status, adopted.stderr.lines().count()), (0, 4), "{}", adopted.stderr);
    let expected = ["copy/data.0", "it has no user.diopter", "setfattr", "docs/striped-files.md"];
    let said = adopted.stderr.lines().next().unwrap();
    assert!(expected.iter().all(|word| said.contains(word)), "{said}");
    let refusal = place.refusal("sum copy/data");
    assert!(expected.iter().skip(1).all(|word| refusal.contains(word)), "{refusal}");
    let uuid = place.json("stripe info data --json")["uuid"].as_str().unwrap().to_owned();
    for number in 0..4 {
        place.mark(&format!("copy/data.{number}"), &format!("{uuid} {number}"));
    }
    assert_eq!(place.run("stripe adopt copy/data").stderr, "");
    place.stdout("sum copy/data");
}

#[test]
fn what_cannot_be_made_is_refused_with_what_to_do_and_leaves_nothing() {
    let place = Place::new();
    std::fs::write(place.path("taken"), "text").unwrap();
    std::fs::write(place.path("odd.1"), "text").unwrap();
    let before = place.names();
    for (line, words) in [
        (
            "create data --objects . . --stripe-size 0",
            "a stripe size of 0 bytes; choose a multiple",
        ),
        ("create data --objects . . --stripe-size 1", "1 is not a multiple of 512 bytes; choose"),
        ("create data --objects . . --stripe-size 1000", "1000 is not a multiple of"),
        ("create data --objects . . --size 1M", "needs a device among the objects; leave the size"),
        ("create data --objects . taken", "taken: neither a directory nor a block device; name a"),
        ("create data --objects . nowhere", "nowhere: No such file or directory (ENOENT); check"),
        ("create taken --objects . .", "taken: it exists already; choose another name, or remove"),
        ("create odd --objects . .", "odd.1: it exists already; choose another name, or remove"),
        ("create nowhere/data --objects . .", "No such file or directory (ENOENT); check the path"),
        ("create data --objects", "a value is required for '--objects"),
        ("create data", "--objects <DIR|DEVICE>..."),
        ("create data --objects . --stripe-size 1mi", "`1mi` could mean 1 MiB"),
        ("info taken", "taken: not the manifest of a striped file; name a file that"),
        ("seal taken", "taken: not the manifest of a striped file; name a file that"),
        ("unseal taken", "taken: not the manifest of a striped file; name a file that"),
        ("rm taken", "taken: not the manifest of a striped file; name a file that"),
        ("rm nowhere", "nowhere: No such file or directory (ENOENT); check the path"),
    ] {
        let message = place.refusal(&format!("stripe {line}"));
        assert!(message.contains(words), "{line}: {message}");
        assert_eq!(place.names(), before, "{line}");
    }
    let many = format!("stripe create data --objects{}", " .".repeat(2001));
    let reported = place.refusal(&many);
    assert!(reported.contains("striped over 2001 objects; name 1 to 2000"), "{reported}");
    assert_eq!(place.names(), before);
}

#[test]
fn what_rm_could_not_remove_is_named() {
    let place = Place::new().with_data();
    place.mark("data.1", "00000000-0000-0000-0000-000000000000 1");
    let message = place.refusal("stripe rm data");
    assert!(message.starts_with("dio stripe rm: left behind: "), "{message}");
    assert!(
        message.contains("data.1: another layout's") && message.lines().count() == 1,
        "{message}"
    );
    assert_eq!(place.names(), ["data.1"]);
}

#[test]
fn presets_report_how_many_bios_and_waits_a_striped_write_is() {
    let place = Place::new().with_data();
    let line = "explain write data --offset 0 --length 64M --json";
    for (flags, bios, waits) in [
        ("", 4, 1),
        (" --preset lustre-2.13", 64, 64),
        (" --preset lustre-2.14", 64, 1),
        (" --merge per-stripe", 64, 1),
        // Bios that go one by one do so in file order, as the engine makes them.
        (" --preset lustre-2.13 --merge per-object", 64, 64),
    ] {
        let report = place.json(&format!("{line}{flags}"));
        assert_eq!(report["bios"].as_array().unwrap().len(), bios, "{flags}");
        assert_eq!(report["waits"], waits, "{flags}");
        assert_eq!(report["extents"].as_array().unwrap().len(), 64);
        assert_eq!(report["layout"]["kind"], "diopter");
    }
    let report = place.json(line);
    assert_eq!(report["policies"]["merge"], "per-object");
    assert_eq!(
        (&report["extents"][5]["object"], &report["extents"][5]["object_offset"]),
        (&1.into(), &MIB.into())
    );
    let stripes = place.json(&format!("{line} --merge per-stripe"));
    assert_eq!(
        (&stripes["bios"][0]["ended_by"], &stripes["bios"][0]["object"]),
        (&"stripe".into(), &0.into())
    );
    assert_eq!(stripes["bios"][6]["object"], 2);
}

#[test]
fn a_striped_request_of_many_stripes_is_reported_in_few_lines() {
    let place = Place::new().with_data();
    let line = "explain write data --offset 0 --length 1G --preset lustre-2.13";
    let text = place.stdout(line);
    assert!(text.contains("objects      4 objects, 256 MiB (268435456 B) in 256 bios on each"));
    assert!(text.contains("waits        1024: one after each bio, before the next"), "{text}");
    assert!(text.contains("  and 1016 more; --json lists all"), "{text}");
    assert!(text.lines().count() < 80, "{text}");
}

#[test]
fn the_devices_extents_of_a_striped_request_are_those_of_its_objects() {
    let place = Place::new().with_data();
    place.write("data", &[7; 1 << 20], 2 * MIB);
    place.write("data", &[7; 4096], 6 * MIB);
    for number in 0..4 {
        File::open(place.path(&format!("data.{number}"))).unwrap().sync_all().unwrap();
    }
    let report = place.json("explain read data --offset 1M --length 8M --json");
    let extents = report["device_extents"].as_array().unwrap();
    let states: Vec<(u64, &str)> = extents
        .iter()
        .map(|it| (it["file_offset"].as_u64().unwrap() / MIB, it["state"].as_str().unwrap()))
        .collect();
    let expected =
        [(1, "hole"), (2, "mapped"), (3, "hole"), (4, "hole"), (5, "hole"), (6, "mapped")];
    assert_eq!(states, expected);
    assert_eq!(extents[1]["object"], 2);
    assert!(extents[1]["device_offset"].as_u64().is_some());
}

#[test]
fn a_manifest_that_was_changed_is_refused_by_every_command_that_takes_its_name() {
    for (from, to, words) in [
        (
            "\"stripe_size\": 1048576",
            "\"stripe_size\": 2097152",
            "damaged: its checksum is crc32c:",
        ),
        ("\"diopter_layout\": 1", "\"diopter_layout\": 9", "made by a newer diopter (version 9"),
        ("\"objects\"", "\"subjects\"", "damaged: unknown field"),
    ] {
        let place = Place::new().with_data();
        std::fs::write(place.path("other"), "text").unwrap();
        replace_in(&place.path("data"), from, to);
        let before = place.names();
        for line in [
            "stripe info data",
            "stripe rm data",
            "stripe seal data",
            "explain read data --offset 0 --length 1",
            "probe data",
            "cp data copy",
            "cp other data",
        ] {
            let output = place.run(line);
            assert_eq!(output.status, 2, "{line}");
            assert!(output.stderr.contains(words), "{line}: {}", output.stderr);
            assert_eq!(place.names(), before, "{line}");
        }
    }
}

#[test]
fn probe_reports_the_layout_its_objects_and_what_follows() {
    let place = Place::new().with_data();
    place.write("data", &[7; 3 << 20], 0);
    let report = place.json("probe data data.0 --json");
    let (striped, object) = (&report["names"][0], &report["names"][1]);
    assert_eq!((&striped["kind"], &striped["size"]), (&"striped-file".into(), &(3 * MIB).into()));
    assert_eq!(object["kind"], "file");
    assert_eq!(striped["layout"]["stripe_count"], 4);
    assert_eq!(striped["layout"]["request_bytes"], 4 * MIB);
    let objects = striped["objects"].as_array().unwrap();
    assert_eq!(objects.len(), 4);
    assert_eq!((&objects[3]["index"], &objects[2]["size"]), (&3.into(), &MIB.into()));
    assert_eq!(objects[0]["file_system"], object["file_system"]["kind"]);
    assert_eq!(objects[0]["alignment"], object["direct"]["offset_write"]);
    assert!(ids(striped).contains(&"not-sealed"), "{striped}");
    assert!(ids(striped).contains(&"objects-share-a-device"), "{striped}");
    let text = place.stdout("probe data");
    assert!(text.starts_with("data: striped file, 3 MiB (3145728 B)\n"), "{text}");
    assert!(text.contains("stripes of 1 MiB (1048576 B) over 4 objects"), "{text}");
}

#[test]
fn probe_reports_an_object_in_trouble_with_exit_status_two() {
    let place = Place::new().with_data();
    std::fs::remove_file(place.path("data.1")).unwrap();
    let report = place.json_of_trouble("probe data --json");
    assert_eq!(report["names"][0]["findings"][0]["id"], "object-missing");
    assert_eq!(report["names"][0]["objects"][1]["is_well"], false);
    assert_eq!(report["names"][0]["size"], Value::Null);
}

#[test]
fn bytes_go_through_the_command_as_through_the_library() {
    let place = Place::new().with_data();
    let bytes: Vec<u8> =
        (0..3_000_001u32).map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[1]).collect();
    std::fs::write(place.path("plain"), &bytes).unwrap();
    place.stdout("cp --verify plain data");
    place.stdout("cp --verify data back");
    assert!(std::fs::read(place.path("back")).unwrap() == bytes);
    let mut second = vec![0; 1000];
    let object = File::open(place.path("data.1.").with_file_name(object_name(&place, 1))).unwrap();
    object.read_exact_at(&mut second, 0).unwrap();
    assert!(second == bytes[1 << 20..(1 << 20) + 1000]);
}

fn object_name(place: &Place, number: usize) -> String {
    let report = place.json("stripe info data --json");
    report["objects"][number]["recorded_path"].as_str().unwrap().to_owned()
}
