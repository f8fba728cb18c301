//! Generates readings from a seed: the trucks of the TSBS use case `iot` (timescale/tsbs,
//! `pkg/data/usecases/iot`).
//!
//! A truck is two sensors, because TSBS has two measurements for it: `truck_000017` with the seven
//! fields of `readings`, and `truck_000017_diag` with the three of `diagnostics`. So half of all
//! readings have seven fields, and half have three. The tags are `fleet`, `driver`, `model` and
//! `device_version`. `name` is the sensor id. The three numeric tags of TSBS are omitted because
//! the model determines them.
//!
//! A value is kept as an integer multiple of its last decimal place, so that text, BSON and sums
//! use the same number.

use fastrand::Rng;

/// A field: its name, its number of decimals, and whether it is an integer instead of a double.
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) decimals: u32,
    pub(crate) integer: bool,
}

const fn field(name: &'static str, decimals: u32) -> Field {
    Field {
        name,
        decimals,
        integer: false,
    }
}

const READINGS: [Field; 7] = [
    field("latitude", 5),
    field("longitude", 5),
    field("elevation", 0),
    field("velocity", 0),
    field("heading", 0),
    field("grade", 0),
    field("fuel_consumption", 1),
];

const DIAGNOSTICS: [Field; 3] = [
    field("fuel_state", 1),
    field("current_load", 0),
    Field {
        name: "status",
        decimals: 0,
        integer: true,
    },
];

/// Maximum number of fields of a reading.
pub(crate) const FIELDS_MAX: usize = READINGS.len();

/// The values of a reading, in the order of its sensor's fields; unused elements are 0.
pub(crate) type Values = [i32; FIELDS_MAX];

pub(crate) fn fields(sensor: u32) -> &'static [Field] {
    if sensor.is_multiple_of(2) {
        &READINGS
    } else {
        &DIAGNOSTICS
    }
}

pub(crate) fn id(sensor: u32) -> String {
    format!(
        "truck_{:06}{}",
        sensor / 2,
        if sensor.is_multiple_of(2) {
            ""
        } else {
            "_diag"
        }
    )
}

/// The sensor with this id; `None` if [`id`] cannot have produced it.
pub(crate) fn parse_id(id: &str) -> Option<u32> {
    let number = id.strip_prefix("truck_")?;
    let (number, odd) = number
        .strip_suffix("_diag")
        .map_or((number, 0), |number| (number, 1));
    Some(number.parse::<u32>().ok()?.checked_mul(2)? + odd)
}

/// The double nearest to the decimal text of the value, as decoders parse it.
pub(crate) fn double(value: i32, field: &Field) -> f64 {
    f64::from(value) / f64::from(10u32.pow(field.decimals))
}

const FLEETS: [&str; 4] = ["East", "West", "North", "South"];
const DRIVERS: [&str; 6] = ["Derek", "Rodney", "Albert", "Andy", "Seth", "Trish"];
const MODELS: [&str; 3] = ["F-150", "G-2000", "H-2"];
const VERSIONS: [&str; 4] = ["v1.0", "v1.5", "v2.0", "v2.3"];

/// The tags of a sensor: those of its truck.
pub(crate) fn tags(seed: u64, sensor: u32) -> [(&'static str, &'static str); 4] {
    let mut rng = truck_rng(seed, sensor / 2);
    let mut one = |choices: &[&'static str]| choices[rng.usize(..choices.len())];
    [
        ("fleet", one(&FLEETS)),
        ("driver", one(&DRIVERS)),
        ("model", one(&MODELS)),
        ("device_version", one(&VERSIONS)),
    ]
}

fn truck_rng(seed: u64, truck: u32) -> Rng {
    Rng::with_seed(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ u64::from(truck))
}

/// A random walk within bounds.
struct Walk {
    value: f64,
    step: f64,
    bounds: (f64, f64),
    decimals: u32,
}

impl Walk {
    fn new(step: f64, bounds: (f64, f64), value: f64, decimals: u32) -> Walk {
        Walk {
            value,
            step,
            bounds,
            decimals,
        }
    }

    fn next(&mut self, rng: &mut Rng) -> i32 {
        let value = truncated(self.value, self.decimals);
        let step = (rng.f64() * 2.0 - 1.0) * self.step;
        self.value = (self.value + step).clamp(self.bounds.0, self.bounds.1);
        value
    }
}

/// The state keeps full precision; the value is truncated to the field's decimals.
fn truncated(value: f64, decimals: u32) -> i32 {
    (value * f64::from(10u32.pow(decimals))).trunc() as i32
}

/// The next `n` readings of a sensor, from its start.
pub(crate) fn series(seed: u64, sensor: u32, n: usize) -> Vec<Values> {
    let mut rng = truck_rng(seed ^ (u64::from(sensor % 2) + 1), sensor / 2);
    if sensor.is_multiple_of(2) {
        trips(&mut rng, n)
    } else {
        states(&mut rng, n)
    }
}

fn trips(rng: &mut Rng, n: usize) -> Vec<Values> {
    let mut start = |most: f64| rng.f64() * most;
    let mut walks = [
        Walk::new(0.005, (-90.0, 90.0), start(90.0), 5),
        Walk::new(0.005, (-180.0, 180.0), start(180.0), 5),
        Walk::new(10.0, (0.0, 5000.0), start(500.0), 0),
        Walk::new(10.0, (0.0, 100.0), 0.0, 0),
        Walk::new(5.0, (0.0, 360.0), start(360.0), 0),
        Walk::new(5.0, (0.0, 100.0), 0.0, 0),
        Walk::new(5.0, (0.0, 50.0), 25.0, 1),
    ];
    (0..n)
        .map(|_| std::array::from_fn(|i| walks[i].next(rng)))
        .collect()
}

fn states(rng: &mut Rng, n: usize) -> Vec<Values> {
    let mut fuel = 1.0f64;
    let mut load = 0.0f64;
    let mut status = 0.0f64;
    let one = |_| {
        let values = [
            truncated(fuel, 1),
            truncated(load, 0),
            truncated(status, 0),
            0,
            0,
            0,
            0,
        ];
        fuel -= rng.f64() * 0.001;
        if fuel <= 0.0 {
            fuel = 1.0;
        }
        if rng.f64() < 0.05 {
            load = rng.f64() * 5000.0;
        }
        // The sum of twelve uniform values approximates a normal distribution.
        let normal: f64 = (0..12).map(|_| rng.f64()).sum::<f64>() - 6.0;
        status = (status + normal).clamp(0.0, 5.0);
        values
    };
    (0..n).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_trucks_within_their_bounds() {
        assert_eq!(series(1, 4, 50), series(1, 4, 50));
        assert_ne!(series(1, 4, 50), series(2, 4, 50));
        for sensor in 0..20 {
            for values in series(123, sensor, 200) {
                let of = |i: usize| double(values[i], &fields(sensor)[i]);
                if sensor % 2 == 0 {
                    assert!(
                        of(0).abs() <= 90.0
                            && of(1).abs() <= 180.0
                            && (0.0..=50.0).contains(&of(6))
                    );
                } else {
                    assert!(
                        (0.0..=1.0).contains(&of(0))
                            && (0.0..=5000.0).contains(&of(1))
                            && of(2) <= 5.0
                    );
                }
            }
        }
    }

    #[test]
    fn ids_are_parsed_back_to_their_sensors() {
        for sensor in [0, 1, 17, 1_999_999] {
            assert_eq!(parse_id(&id(sensor)), Some(sensor));
        }
        assert_eq!(parse_id("S1"), None);
        assert_eq!(parse_id("truck_x"), None);
    }
}
