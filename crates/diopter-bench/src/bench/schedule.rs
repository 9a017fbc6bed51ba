//! The order in which the columns of a row take their turns: forward and backward (ABBA), so that a
//! drift affects all columns alike.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    pub round: u32,
    pub column: usize,
    /// Its position in the row, in time order.
    pub turn: u32,
}

/// Returns all turns of a row: every column once a round, every other round backwards.
pub fn turns(columns: usize, rounds: u32) -> impl Iterator<Item = Turn> {
    let places = (0..rounds).flat_map(move |round| (0..columns).map(move |place| (round, place)));
    (0..).zip(places).map(move |(turn, (round, place))| {
        let is_forward = round.is_multiple_of(2);
        let column = if is_forward { place } else { columns - 1 - place };
        Turn { round, column, turn }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_go_there_and_back() {
        let order: Vec<usize> = turns(3, 3).map(|turn| turn.column).collect();
        assert_eq!(order, [0, 1, 2, 2, 1, 0, 0, 1, 2]);
        let last = turns(3, 3).last();
        assert_eq!(last, Some(Turn { round: 2, column: 2, turn: 8 }));
    }

    #[test]
    fn over_two_rounds_every_column_is_as_late_as_any_other() {
        let mean_turn = |column| {
            turns(4, 8).filter(|turn| turn.column == column).map(|turn| turn.turn).sum::<u32>()
        };
        assert!((1..4).all(|column| mean_turn(column) == mean_turn(0)));
    }
}
