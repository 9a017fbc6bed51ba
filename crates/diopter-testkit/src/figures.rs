//! Figures of samples.

/// The middle sample, or the one above the middle of an even number.
///
/// # Panics
/// Without a sample.
pub fn median(samples: impl IntoIterator<Item = f64>) -> f64 {
    let mut samples: Vec<f64> = samples.into_iter().collect();
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}
