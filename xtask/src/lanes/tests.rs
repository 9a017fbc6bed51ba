//! Tests of the table of lanes.

use super::table::{plain, test};
use super::*;

fn kernel() -> &'static Lane {
    chosen(&["kernel".to_owned()]).expect("the table has it")[0]
}

fn without(capability: Capability) -> Vec<Probe> {
    vec![Probe { capability, missing: Some("not here".to_owned()) }]
}

#[test]
fn every_lane_has_a_name_of_its_own_and_something_to_do() {
    for (index, lane) in LANES.iter().enumerate() {
        assert!(!lane.steps.is_empty(), "{}", lane.name);
        assert!(LANES[..index].iter().all(|before| before.name != lane.name), "{}", lane.name);
    }
}

/// Each module of the merged test programs of `diopter` is a filter of some lane.
#[test]
fn every_module_of_the_engines_tests_is_in_a_lane() {
    let commands: Vec<String> =
        LANES.iter().flat_map(|lane| lane.steps).map(|step| shown(step, &[])).collect();
    let programs = [
        ("all", include_str!("../../../crates/diopter/tests/all/main.rs")),
        ("devices", include_str!("../../../crates/diopter/tests/devices/main.rs")),
    ];
    for (program, source) in programs {
        let modules = source.lines().filter_map(|line| line.strip_prefix("mod "));
        for module in modules.map(|module| module.trim_end_matches(';')) {
            let is_run = |command: &String| {
                command.contains(&format!("--test {program} "))
                    && command.split(' ').any(|word| word == format!("{module}::"))
            };
            assert!(commands.iter().any(is_run), "no lane runs {program}, {module}::");
        }
    }
}

#[test]
fn contributing_lists_every_lane_in_order_with_its_needs() {
    let page = std::fs::read_to_string(repo::root().join("CONTRIBUTING.md")).unwrap();
    let section = page.split("\n## ").find(|section| section.starts_with("Lanes")).unwrap();
    let mut rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    for lane in LANES {
        let row = rows.next().unwrap_or_else(|| panic!("no row for {}", lane.name));
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        assert_eq!(cells[0].trim_end_matches('`'), lane.name);
        assert_eq!(cells[3], lane.budget.to_string(), "{}", lane.name);
        for need in lane.needs {
            assert!(cells[2].contains(need.name()), "{}: {}", lane.name, need.name());
        }
    }
    assert_eq!(rows.next(), None);
    assert!(page.contains("crates/diopter-skip"), "where the capabilities are listed");
}

#[test]
fn quick_lanes_are_among_all_lanes() {
    let quick = chosen(&["--quick".to_owned()]).expect("a part");
    assert_eq!(quick.len(), QUICK.len(), "each name is a lane");
    let all: Vec<&str> = chosen(&[]).expect("all").iter().map(|lane| lane.name).collect();
    assert!(quick.iter().all(|lane| all.contains(&lane.name)), "{all:?}");
}

#[test]
fn budgets_add_up_to_ten_minutes_for_the_quick_lanes_and_seventy_five_for_all() {
    let minutes = |names: &[String]| {
        let lanes = chosen(names).expect("a part");
        lanes.iter().map(|lane| lane.budget).sum::<u64>().div_ceil(60)
    };
    assert!(minutes(&["--quick".to_owned()]) <= 10);
    assert!(minutes(&[]) <= 75);
}

/// A lane that passed after so many seconds, with a budget of 10.
fn row(name: &'static str, seconds: u64) -> Row {
    let (took, budget) = (Duration::from_secs(seconds), Duration::from_secs(10));
    Row { name, verdict: Verdict::Passed, took, budget, skips: BTreeMap::new() }
}

#[test]
fn a_lane_over_its_budget_is_reported_and_passes() {
    let skipped = Verdict::Skipped("loop: not here".to_owned());
    let failed = Verdict::Failed("see above: cargo test".to_owned());
    let text = summary(&[
        row("in-time", 10),
        row("late", 11),
        Row { verdict: skipped, ..row("absent", 11) },
        Row { verdict: failed, ..row("broken", 11) },
    ]);
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(
        lines[1..],
        [
            "in-time     passed       10.0      10",
            "late        passed       11.0      10  over budget",
            "absent      skipped      11.0      10  loop: not here",
            "broken      failed       11.0      10  over budget; see above: cargo test",
            "2 passed, 1 failed, 1 skipped; 2 over budget; 0 skips of tests",
        ]
    );
}

#[test]
fn a_lane_over_its_budget_fails_where_the_variable_says_so() {
    let limited = |seconds| {
        let mut row = row("late", seconds);
        row.limit();
        row.verdict
    };
    assert_eq!(limited(10), Verdict::Passed);
    assert_eq!(limited(11), Verdict::Failed("DIOPTER_BUDGET is set".to_owned()));
    assert_eq!((is_limited(None), is_limited(Some("fail"))), (Ok(false), Ok(true)));
    assert!(is_limited(Some("1")).is_err_and(|message| message.contains("use fail")));
}

#[test]
fn a_wrong_lane_is_an_error_that_names_the_lanes() {
    let reply = chosen(&["kernal".to_owned()]).map(|_| ());
    assert!(reply.is_err_and(|message| message.contains("kernel")));
}

#[test]
fn a_lane_is_skipped_without_what_it_needs() {
    let verdict = missing(kernel(), &without(Capability::Loop), &[]);
    assert_eq!(verdict, Some(Verdict::Skipped("loop: not here".to_owned())));
}

#[test]
fn a_lane_runs_without_what_only_some_of_its_tests_use() {
    assert_eq!(missing(kernel(), &without(Capability::Uring), &[]), None);
}

#[test]
fn a_lane_fails_without_what_is_required() {
    for capability in [Capability::Xfs, Capability::Uring] {
        let verdict = missing(kernel(), &without(capability), &[capability]);
        assert!(matches!(verdict, Some(Verdict::Failed(_))));
    }
}
/// Tests that skip when the variable orders it: in a module, in an integration test, and in a
/// process that such a test starts.
const DOORS: &[&str] = &["test", "--lib", "--test", "doors", "--", "skips_each_capability"];

#[test]
fn each_skip_of_each_kind_of_test_reaches_the_summary() {
    let lane = plain("doors", 1, const { &[test(DOORS)] });
    let order = [("DIOPTER_SKIP_EACH", "1"), (diopter_skip::REQUIRE, "")];
    let environment = order.map(|(name, value)| (name, value.to_owned()));
    let mut context = Context { environment, required: Vec::new(), execute: run::in_silence };
    let mut skips = BTreeMap::new();
    let verdict = run_steps(&lane, &context, &mut skips);
    assert_eq!(verdict, Verdict::Passed);
    let text = summary(&[Row { verdict, skips: skips.clone(), ..row("doors", 0) }]);
    for capability in Capability::ALL {
        let line = format!("3 skips of tests, {capability}: ordered by DIOPTER_SKIP_EACH\n");
        assert!(text.contains(&line), "{line}{text}");
    }
    let count = 3 * Capability::ALL.len();
    assert!(text.ends_with(&format!("; {count} skips of tests\n")), "{text}");
    context.required.push(Capability::Zram);
    let required = run_steps(&lane, &context, &mut skips);
    let why = "a test skipped what is required, zram".to_owned();
    assert_eq!(required, Verdict::Failed(why));
}

#[test]
fn what_a_lane_needs_or_uses_can_be_tried_without_a_test() {
    let probes = capability::probe_all();
    for lane in LANES {
        for capability in lane.needs.iter().chain(lane.uses) {
            let is_probed = probes.iter().any(|probe| probe.capability == *capability);
            assert!(is_probed, "{}: {capability}", lane.name);
        }
    }
}

/// A test program that no lane names would only be compiled.
#[test]
fn every_test_program_of_the_workspace_is_in_a_lane() {
    let mut metadata = repo::cargo();
    metadata.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]);
    let metadata = repo::output_of(&mut metadata).expect("the workspace is described");
    let programs: Vec<&str> = metadata
        .split(r#""kind":["test"]"#)
        .skip(1)
        .filter_map(|rest| rest.split(r#""name":""#).nth(1)?.split('"').next())
        .collect();
    assert!(programs.len() > 40, "{programs:?}");
    let steps = LANES.iter().flat_map(|lane| lane.steps);
    let words: Vec<String> = steps
        .flat_map(|step| shown(step, &[]).split(' ').map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let named: Vec<&str> = words
        .windows(2)
        .filter(|pair| pair[0] == "--test")
        .map(|pair| pair[1].trim_matches('\''))
        .collect();
    for program in &programs {
        let is_named = named.iter().any(|name| match name.strip_suffix('*') {
            Some(start) => program.starts_with(start),
            None => name == program,
        });
        assert!(is_named || *program == "doors", "no lane runs {program}");
        let same = programs.iter().filter(|other| other == &program).count();
        assert_eq!(same, 1, "{program} is the name of several test programs");
    }
}
