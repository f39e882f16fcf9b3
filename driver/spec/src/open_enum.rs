//! Open enumerations: named values of a byte that may hold others.

/// Defines a newtype over `u8` with named constants, total over all 256 values. `Display` prints the spec's name with
/// the value, or the value alone where the spec has no name for it. The type can be a field of a bit field.
macro_rules! open_enum {
    ($(#[$meta:meta])* $name:ident { $($constant:ident = $value:literal $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout, zerocopy::Unaligned,
        )]
        #[repr(transparent)]
        pub struct $name(pub u8);

        impl $name {
            $(#[doc = $text] pub const $constant: Self = Self($value);)+

            /// The spec's name for this value, where it has one.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($text),)+
                    _ => None,
                }
            }

            /// The value as it stands in its field.
            pub const fn into_bits(self) -> u8 {
                self.0
            }

            /// Any value of the field, known or not.
            pub const fn from_bits(bits: u8) -> Self {
                Self(bits)
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => write!(f, "{name} ({:02X}h)", self.0),
                    None => write!(f, "unknown ({:02X}h)", self.0),
                }
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, concat!(stringify!($name), "[{}]"), self)
            }
        }

        impl From<u8> for $name {
            fn from(value: u8) -> Self {
                Self(value)
            }
        }

        impl From<$name> for u8 {
            fn from(value: $name) -> u8 {
                value.0
            }
        }
    };
}

pub(crate) use open_enum;
