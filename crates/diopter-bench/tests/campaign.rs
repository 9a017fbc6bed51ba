//! Error rates of the judge on a simulated noisy device whose truth is known. Counts are printed;
//! `DIOPTER_SOAK` makes it twenty times as many runs, with other seeds.

use diopter_bench::compare::{self, ROUNDS_DEFAULT, Settings, Verdict, noisy};
use diopter_testkit::env;
use noisy::Noise;

/// Counts of verdicts in the order of [`ORDER`].
type Counts = [u32; 4];

const ORDER: [Verdict; 4] = [Verdict::Better, Verdict::Same, Verdict::Worse, Verdict::Inconclusive];

fn seed() -> u64 {
    env::number("DIOPTER_SEED").unwrap_or(1)
}

fn runs(usual: u32) -> u32 {
    if env::is_soak() { usual * 20 } else { usual }
}

/// Judges `usual` runs of a column at `speed` against one at 1, with a floor of 1 %.
fn campaign(name: &str, noise: Noise, speed: f64, usual: u32) -> (u32, Counts) {
    campaign_of(name, (noise, 0.01), speed, usual)
}

fn campaign_of(name: &str, (noise, floor): (Noise, f64), speed: f64, usual: u32) -> (u32, Counts) {
    let (seed, runs) = (seed(), runs(usual));
    let mut counts = [0; 4];
    for run in 0..runs {
        let own = diopter_core::prng::Prng::new(seed).fork(&format!("{name} {run}")).next_u64();
        let bench = noisy::bench(noise, own, &[1.0, speed], ROUNDS_DEFAULT);
        let settings = Settings { effect_floor: Some(floor), seed: own, ..Settings::default() };
        let verdict = compare::columns(&bench, &settings).verdict;
        counts[ORDER.iter().position(|one| *one == verdict).expect("all are there")] += 1;
    }
    let message: Vec<String> = ORDER
        .iter()
        .zip(counts)
        .map(|(verdict, count)| format!("{count} {}", verdict.name()))
        .collect();
    println!("{name}: seed {seed}, {runs} runs of {ROUNDS_DEFAULT} rounds: {}", message.join(", "));
    (runs, counts)
}

#[test]
fn the_same_thing_twice_is_seldom_called_better_or_worse() {
    let (runs, [better, _, worse, _]) = campaign("A/A", Noise::USUAL, 1.0, 200);
    assert!((better + worse) * 100 <= runs * 5, "{} of {runs}", better + worse);
}

/// Without a floor, which suppresses most verdicts, the method shows its own level.
#[test]
fn without_a_floor_one_in_a_hundred_is_called_better_or_worse() {
    let (runs, [better, _, worse, _]) = campaign_of("A/A, no floor", (Noise::USUAL, 0.0), 1.0, 600);
    assert!((better + worse) * 100 <= runs * 3, "{} of {runs}", better + worse);
}

#[test]
fn other_kinds_of_noise_raise_no_false_alarms_either() {
    let usual = Noise::USUAL;
    let kinds = [
        ("steep drift", Noise { drift: 0.4, ..usual }),
        ("long memory", Noise { lasting: 0.05, memory: 0.95, ..usual }),
        ("many bursts", Noise { bursts: 0.2, ..usual }),
        ("much noise", Noise { white: 0.1, ..usual }),
    ];
    for (name, noise) in kinds {
        let (runs, [better, _, worse, _]) = campaign(&format!("A/A, {name}"), noise, 1.0, 200);
        assert!((better + worse) * 100 <= runs * 5, "{name}: {} of {runs}", better + worse);
    }
}

/// The edge of the floor is where both errors are largest.
#[test]
fn what_lies_just_at_the_floor_is_seldom_called_anything_else() {
    let speed = 1.0 / 1.01;
    for (name, noise) in [("at the floor", Noise::USUAL), ("at the floor, quiet", Noise::QUIET)] {
        let (runs, [better, same, worse, _]) = campaign(name, noise, speed, 400);
        assert!((better + worse) * 100 <= runs * 3, "{name}: {} of {runs}", better + worse);
        assert!(same * 100 <= runs * 10, "{name}: {same} of {runs}");
    }
}

#[test]
fn five_percent_less_is_found() {
    let (runs, [_, _, worse, _]) = campaign("5 % slower", Noise::USUAL, 0.95, 200);
    assert!(worse * 100 >= runs * 90, "{worse} of {runs}");
}

#[test]
fn two_percent_less_is_seldom_called_the_same_with_a_floor_of_one() {
    for (name, noise) in [("2 % slower", Noise::USUAL), ("2 % slower, quiet", Noise::QUIET)] {
        let (runs, [_, same, _, _]) = campaign(name, noise, 0.98, 200);
        assert!(same * 100 <= runs * 5, "{name}: {same} of {runs}");
    }
}

#[test]
fn on_a_quiet_device_the_same_is_called_the_same() {
    let (runs, [_, same, _, _]) = campaign("A/A, quiet", Noise::QUIET, 1.0, 200);
    assert!(same * 100 >= runs * 95, "{same} of {runs}");
}
