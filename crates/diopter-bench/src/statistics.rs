//! Statistics of a few figures, such as the rounds of a cell.

use crate::number::count;

/// Returns the median of the finite figures; `None` if there are none.
#[must_use]
pub fn median(figures: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = figures.into_iter().filter(|figure| figure.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (sorted.len().checked_sub(1)? / 2, sorted.len() / 2);
    Some(f64::midpoint(sorted[low], sorted[high]))
}

/// Returns Spearman's rank correlation of figures with their positions.
#[must_use]
pub fn rank_correlation(figures: &[f64]) -> f64 {
    let n = count(figures.len());
    let mut order: Vec<usize> = (0..figures.len()).collect();
    order.sort_by(|one, other| figures[*one].total_cmp(&figures[*other]));
    let ranks = order.iter().enumerate();
    let sum: f64 = ranks.map(|(rank, place)| count(rank.abs_diff(*place)).powi(2)).sum();
    1.0 - 6.0 * sum / (n * (n * n - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_is_between_two() {
        assert_eq!(median([]), None);
        assert_eq!(median([f64::NAN, f64::INFINITY]), None);
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn ranks_correlate_with_their_positions() {
        assert_eq!(rank_correlation(&[1.0, 2.0, 5.0]), 1.0);
        assert_eq!(rank_correlation(&[5.0, 2.0, 1.0]), -1.0);
    }
}
