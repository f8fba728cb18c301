//! Closed sets: enums whose values have names that others rely on, in labels of metrics, answers,
//! dead letters, logs and settings. So a released name keeps its meaning.

/// A value with a name from a closed set. Metrics accept only such values as labels, so their series
/// are limited. Errors have one too, besides their text.
pub trait Named {
    /// The name that others rely on.
    fn as_str(&self) -> &'static str;
}

impl<N: Named> Named for &N {
    fn as_str(&self) -> &'static str {
        N::as_str(self)
    }
}

/// Declares closed sets: for each the enum, its names, and the list of all values, so that none can
/// miss a value.
#[macro_export]
macro_rules! closed_set {
    ($(
        $(#[$of_set:meta])*
        pub enum $set:ident { $($(#[$of_value:meta])* $value:ident => $name:expr,)+ }
    )+) => {$(
        $(#[$of_set])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $set {
            $($(#[$of_value])* $value,)+
        }

        impl $set {
            /// All values, in the order of their declaration.
            pub const ALL: [$set; [$($set::$value),+].len()] = [$($set::$value),+];
            /// All values with their names.
            pub const NAMES: &'static [(&'static str, $set)] = &[$(($name, $set::$value)),+];

            /// The name that others rely on.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $($set::$value => $name,)+
                }
            }
        }

        impl $crate::Named for $set {
            fn as_str(&self) -> &'static str {
                $set::as_str(*self)
            }
        }

        impl ::std::fmt::Display for $set {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    )+};
}
