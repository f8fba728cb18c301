//! A quantile sketch: how many values lie in each of many narrow bins, from which any quantile follows
//! with a relative error below 0.8 %. Sketches are merged without loss, so those of hours answer for
//! months.
//!
//! It is a DDSketch (Masson, Rim, Lee: DDSketch, a fast and fully-mergeable quantile sketch with
//! relative-error guarantees, 2019) with linearly interpolated logarithms: each power of two is divided
//! into 64 bins of equal width. A bin is then the upper bits of a double, and no logarithm is
//! computed, whose last digits would differ between machines. The crate `sketches-ddsketch` takes
//! logarithms, and does not give out its bins.
//!
//! **Bins.** The number of a value's bin is the exponent and the first six bits of the mantissa;
//! negative for negative values. So bins are in the order of their values. A bin stands for the middle
//! of its values.
//!
//! **Bounds.** A sketch has at most [`BINS_MAX`] bins. What is below the largest of them is counted in
//! the lowest one that is left. Which values these are does not depend on the order of additions and
//! merges.

use std::collections::BTreeMap;

/// Most bins: 32 powers of two, or factors up to four billion between values of one sign.
const BINS_MAX: usize = 2048;
/// The bits of the mantissa that distinguish no bins.
const SHIFT: u32 = 52 - 6;

/// The values of a field in a span, by bin.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sketch {
    bins: BTreeMap<i32, u64>,
}

/// The bin of a finite value.
fn bin_of(value: f64) -> i32 {
    let bin = (value.abs().to_bits() >> SHIFT) as i32;
    if value < 0.0 { -bin } else { bin }
}

/// The middle of a bin.
fn middle(bin: i32) -> f64 {
    if bin == 0 {
        return 0.0;
    }
    let half = 1 << (SHIFT - 1);
    let middle = f64::from_bits(u64::from(bin.unsigned_abs()) << SHIFT | half);
    if bin < 0 { -middle } else { middle }
}

impl Sketch {
    /// The sketch with these bins, each a number and how many values it has. Others than those of
    /// [`Sketch::bins`] give quantiles without meaning.
    pub fn of_bins(bins: impl IntoIterator<Item = (i32, u64)>) -> Sketch {
        let mut sketch = Sketch::default();
        for (bin, count) in bins {
            sketch.add_to_bin(bin, count);
        }
        sketch
    }

    /// The bins that have values, in order.
    pub fn bins(&self) -> impl DoubleEndedIterator<Item = (i32, u64)> + ExactSizeIterator {
        self.bins.iter().map(|(bin, count)| (*bin, *count))
    }

    /// Adds a value. One that is not finite does not count.
    pub fn add(&mut self, value: f64) {
        if value.is_finite() {
            self.add_to_bin(bin_of(value), 1);
        }
    }

    /// Takes back a value that was added.
    pub fn remove(&mut self, value: f64) {
        // Its bin may have been joined with the lowest one.
        let bin = bin_of(value);
        let found = self.bins.range_mut(bin..).next();
        if let Some((bin, count)) = found {
            let bin = *bin;
            *count -= 1;
            if *count == 0 {
                self.bins.remove(&bin);
            }
        }
    }

    /// Adds the values of another one.
    pub fn merge(&mut self, other: &Sketch) {
        other
            .bins()
            .for_each(|(bin, count)| self.add_to_bin(bin, count));
    }

    fn add_to_bin(&mut self, bin: i32, count: u64) {
        if count == 0 {
            return;
        }
        let in_bin = self.bins.entry(bin).or_default();
        *in_bin = in_bin.saturating_add(count);
        if self.bins.len() > BINS_MAX
            && let Some((_, joined)) = self.bins.pop_first()
            && let Some(mut lowest) = self.bins.first_entry()
        {
            let in_lowest = lowest.get().saturating_add(joined);
            lowest.insert(in_lowest);
        }
    }

    /// The quantiles of the values, in the order of `quantiles`, each between 0 and 1: of the sorted
    /// values the one at `quantile * (count - 1)`, on the line between its neighbours, as Prometheus'
    /// `quantile_over_time`. `None` without values.
    pub fn quantiles(&self, quantiles: &[f64]) -> Option<Vec<f64>> {
        let last = self.bins.values().sum::<u64>().checked_sub(1)?;
        let each = quantiles.iter().map(|quantile| {
            let rank = quantile * last as f64;
            let lower = self.at(rank.floor());
            let upper = self.at(rank.ceil());
            lower + (upper - lower) * (rank - rank.floor())
        });
        Some(each.collect())
    }

    /// The value with so many smaller ones.
    fn at(&self, rank: f64) -> f64 {
        let mut before = 0.0;
        let bin = self.bins().find(|(_, count)| {
            before += *count as f64;
            before > rank
        });
        let bin = bin.or_else(|| self.bins().next_back());
        bin.map_or(f64::NAN, |(bin, _)| middle(bin))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Prometheus' rule on the sorted values.
    fn exact(values: &[f64], quantile: f64) -> (f64, f64) {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let rank = quantile * (sorted.len() - 1) as f64;
        (sorted[rank.floor() as usize], sorted[rank.ceil() as usize])
    }

    fn sketch_of(values: &[f64]) -> Sketch {
        let mut sketch = Sketch::default();
        values.iter().for_each(|value| sketch.add(*value));
        sketch
    }

    fn is_near(found: f64, value: f64) -> bool {
        (found - value).abs() <= value.abs() / 128.0 + 1e-300
    }

    proptest! {
        #[test]
        fn quantiles_are_within_a_hundredth_and_merges_lose_nothing(
            values in prop::collection::vec(
                prop_oneof![-50.0..50.0f64, -1e9..1e9f64, Just(0.0), -1e-6..1e-6f64], 1..200,
            ),
            cut in 0usize..200,
            quantile in 0.0..=1.0f64,
        ) {
            let whole = sketch_of(&values);
            let (a, b) = values.split_at(cut.min(values.len()));
            let mut merged = sketch_of(b);
            merged.merge(&sketch_of(a));
            prop_assert_eq!(&merged, &whole);
            prop_assert_eq!(&Sketch::of_bins(whole.bins()), &whole);
            b.iter().for_each(|value| merged.remove(*value));
            prop_assert_eq!(&merged, &sketch_of(a));
            let (lower, upper) = exact(&values, quantile);
            let found = whole.quantiles(&[quantile]).unwrap()[0];
            let bounds = (lower - lower.abs() / 128.0 - 1e-300, upper + upper.abs() / 128.0 + 1e-300);
            prop_assert!((bounds.0..=bounds.1).contains(&found), "{found} {bounds:?}");
            if lower == upper {
                prop_assert!(is_near(found, lower));
            }
        }
    }

    #[test]
    fn a_sketch_has_a_largest_size_whatever_the_order_of_its_values() {
        let mut values: Vec<f64> = (-1000..1000).map(|n| 1.1f64.powi(n)).collect();
        values.extend(values.clone().iter().map(|value| -value));
        let sketch = sketch_of(&values);
        assert_eq!(sketch.bins().len(), BINS_MAX);
        fastrand::Rng::with_seed(3).shuffle(&mut values);
        assert_eq!(sketch_of(&values), sketch);
        let (a, b) = values.split_at(1000);
        let mut merged = sketch_of(a);
        merged.merge(&sketch_of(b));
        assert_eq!(merged, sketch);
        let top = sketch.quantiles(&[0.9]).unwrap()[0];
        let (lower, upper) = exact(&values, 0.9);
        assert!((lower * 0.99..upper * 1.01).contains(&top), "{top}");
    }

    #[test]
    fn extremes_and_what_is_no_number_are_taken() {
        for value in [f64::MAX, f64::MIN, f64::MIN_POSITIVE, 0.0, -0.0, 5e-324] {
            let found = sketch_of(&[value]).quantiles(&[0.0, 1.0]).unwrap();
            assert!(
                found.iter().all(|found| is_near(*found, value)),
                "{value} {found:?}"
            );
        }
        assert_eq!(sketch_of(&[f64::NAN, f64::INFINITY]), Sketch::default());
        assert_eq!(Sketch::default().quantiles(&[0.5]), None);
        let mut empty = Sketch::default();
        empty.remove(1.0);
        assert_eq!(empty, Sketch::default());
    }
}
