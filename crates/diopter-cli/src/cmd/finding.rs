//! A finding in documents and texts.

use diopter::probe::Finding;
use schemars::JsonSchema;
use serde::Serialize;

use crate::output::{Look, Tone, put};

/// Column in which the values of a finding begin.
const INDENT: usize = 10;

/// Something that is wrong, or that slows direct I/O down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FindingText {
    /// Its name, which is stable.
    pub id: &'static str,
    /// `severe`, `warning`, `notice`.
    pub severity: &'static str,
    /// The evidence.
    pub evidence: String,
    /// The effect on direct I/O.
    pub cause: &'static str,
    /// The remedy.
    pub remedy: String,
}

impl FindingText {
    pub fn of(finding: &Finding) -> FindingText {
        FindingText {
            id: finding.id,
            severity: finding.severity.name(),
            evidence: finding.evidence.clone(),
            cause: finding.cause,
            remedy: finding.remedy.clone(),
        }
    }

    /// Returns its rank: the worst is 0.
    pub fn rank(&self) -> usize {
        SEVERITIES.iter().position(|known| *known == self.severity).unwrap_or(SEVERITIES.len())
    }
}

const SEVERITIES: [&str; 3] = ["severe", "warning", "notice"];

/// Returns the number of findings of each severity.
pub fn counts(findings: &[FindingText]) -> String {
    let count = |severity: &str| findings.iter().filter(|it| it.severity == severity).count();
    let counts: Vec<String> = SEVERITIES
        .into_iter()
        .map(|severity| (count(severity), severity))
        .filter(|(count, _)| *count > 0)
        .map(|(count, severity)| match severity {
            "severe" => format!("{count} severe"),
            word => number(u64::try_from(count).unwrap_or(u64::MAX), word),
        })
        .collect();
    counts.join(", ")
}

/// Returns the findings, each after an empty line.
pub fn text(findings: &[FindingText], look: &Look) -> String {
    let mut text = String::new();
    for finding in findings {
        let tone = match finding.severity {
            "severe" => Tone::Severe,
            "warning" => Tone::Warning,
            _ => Tone::Head,
        };
        let id = look.paint(tone, finding.id);
        put(&mut text, "");
        text.push_str(&look.entry(2, "", &format!("{id} ({})", finding.severity)));
        for (label, value) in [
            ("    seen", finding.evidence.as_str()),
            ("    means", finding.cause),
            ("    do", &finding.remedy),
        ] {
            text.push_str(&look.entry(INDENT, label, value));
        }
    }
    text
}

/// Returns a number with its noun.
pub fn number(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_counted_by_severity() {
        let of = |severity| FindingText {
            id: "a",
            severity,
            evidence: String::new(),
            cause: "",
            remedy: String::new(),
        };
        let all = ["severe", "notice", "warning", "severe", "notice"].map(of);
        assert_eq!(counts(&all), "2 severe, 1 warning, 2 notices");
    }
}
