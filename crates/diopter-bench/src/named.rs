//! A list of names for the variants of an enum.

/// Implements `ALL` and `name` for an enum from its variants with their names.
macro_rules! named {
    ($type:ident { $($variant:ident => $name:literal),+ $(,)? }) => {
        impl $type {
            pub const ALL: [$type; [$($name),+].len()] = [$($type::$variant),+];

            /// Returns its name in documents and on the command line.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $name),+
                }
            }
        }
    };
}

pub(crate) use named;
