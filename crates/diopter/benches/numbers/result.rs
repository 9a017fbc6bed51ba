//! A row and what was found of it: goals, paired samples, medians, verdicts. Nothing is
//! measured and nothing printed here.

/// Requirement of a row on the ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    AtLeast(f64),
    AtMost(f64),
    /// Reported, and not judged.
    None,
}

/// Kind of a row's figures, and how their ratio is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Transfers a second.
    Iops,
    /// Time of one transfer, ours over theirs.
    NanosPerIo,
    /// Time of a whole job; the ratio is how many times as fast ours is.
    MillisFaster,
    /// Throughput.
    MebibytesPerSecond,
    /// Bios.
    Bios,
    /// A size.
    Mebibytes,
    /// How often.
    Count,
}

/// A row of the table, before it is measured.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub name: &'static str,
    pub device: &'static str,
    pub ours: &'static str,
    pub theirs: &'static str,
    pub unit: Unit,
    pub goal: Goal,
}

/// Samples of one row, and notes for the reader.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Ours and theirs of each round.
    pub pairs: Vec<(f64, f64)>,
    pub notes: Vec<String>,
}

/// A row's samples, or why there are none.
pub type Finding = Result<Measured, String>;

/// A row with what was found, on the device that it was found on.
#[derive(Clone, Debug)]
pub struct Judged {
    pub row: Row,
    pub device: String,
    pub finding: Finding,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Reached,
    NotReached,
    NotMeasured,
    NoGoal,
}

impl Measured {
    pub fn new(pairs: Vec<(f64, f64)>) -> Measured {
        Measured { pairs, notes: Vec::new() }
    }

    pub fn note(mut self, note: impl Into<String>) -> Measured {
        self.notes.push(note.into());
        self
    }

    pub fn ours(&self) -> f64 {
        median(self.pairs.iter().map(|pair| pair.0))
    }

    pub fn theirs(&self) -> f64 {
        median(self.pairs.iter().map(|pair| pair.1))
    }

    /// The ratio of each round.
    pub fn ratios(&self, unit: Unit) -> Vec<f64> {
        let ratio = |(ours, theirs): &(f64, f64)| match unit {
            Unit::MillisFaster => theirs / ours,
            _ => ours / theirs,
        };
        self.pairs.iter().map(ratio).collect()
    }
}

impl Judged {
    pub fn verdict(&self) -> Verdict {
        let Ok(measured) = &self.finding else { return Verdict::NotMeasured };
        let ratio = median(measured.ratios(self.row.unit));
        let is_reached = match self.row.goal {
            Goal::AtLeast(least) => ratio >= least,
            Goal::AtMost(most) => ratio <= most,
            Goal::None => return Verdict::NoGoal,
        };
        if is_reached { Verdict::Reached } else { Verdict::NotReached }
    }
}

impl Verdict {
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Reached => "reached",
            Verdict::NotReached => "NOT REACHED",
            Verdict::NotMeasured => "not measured",
            Verdict::NoGoal => "no goal",
        }
    }
}

/// The middle one, or between the two in the middle; not a number where there is none, which
/// reaches no goal.
pub fn median(samples: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = samples.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        length => f64::midpoint(sorted[(length - 1) / 2], sorted[length / 2]),
    }
}
