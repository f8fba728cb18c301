//! How settings are declared: one struct for each section, one line for each key.
//!
//! ```text
//! settings! {
//!     /// The text of the section.
//!     pub struct Journal, restart("the journal is opened at startup") {
//!         /// The text of the key; a key without one belongs to the text above it.
//!         max_bytes: u64 = 16 * GIB, size(128 * KIB..=1024 * TIB);
//!         file: Option<PathBuf> = None, file().optional(), reload, example("\"a.pem\"");
//!     }
//! }
//! ```
//!
//! A line has the field, its type and default, its kind (`kinds`: how it is read, written and
//! limited), and what [`Key`] can say besides. The struct says whether a reload applies its keys, or
//! why it does not; a key can say otherwise.
//!
//! From the declaration come the struct with its default, and [`Settings::visit`], which shows each
//! key with its value to a [`Visitor`]. The visitors are the reader (`reader`), the masked dump
//! (`dump`), the difference of two configurations and what a reload applies (`reload`), and the
//! description (`describe`) that the reference, the shipped file and the JSON Schema are made of
//! (`reference`, `written`).
//! So a new key is one line here and its use.

use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value as Json;

use super::mapping::Mapping;
use super::reader::Bad;
use super::tree::Node;

/// What a declaration says about a key, or about the sections below it.
#[derive(Debug, Clone)]
pub(crate) struct Key {
    /// The name in the file.
    pub(crate) name: &'static str,
    /// The text of the reference: the lines of the comment above the declaration.
    pub(crate) text: &'static str,
    /// Why a change needs a restart; `None`: a reload applies it.
    pub(crate) restart: Option<&'static str>,
    /// A value, as TOML, for a key that the shipped file has commented out.
    pub(crate) example: Option<&'static str>,
    /// What the reference says in place of the default.
    pub(crate) instead_of_default: Option<&'static str>,
    /// It has no default.
    pub(crate) is_required: bool,
    /// Only the environment can set it, so the reference and the shipped file leave it out.
    pub(crate) is_hidden: bool,
}

impl Key {
    pub(crate) const fn new(name: &'static str, text: &'static str) -> Key {
        Key {
            name,
            text,
            restart: Some("it is read only at startup"),
            example: None,
            instead_of_default: None,
            is_required: false,
            is_hidden: false,
        }
    }

    /// The name in the file, if it is not that of the field.
    pub(crate) const fn named(mut self, name: &'static str) -> Key {
        self.name = name;
        self
    }

    pub(crate) const fn reload(mut self) -> Key {
        self.restart = None;
        self
    }

    pub(crate) const fn restart(mut self, why: &'static str) -> Key {
        self.restart = Some(why);
        self
    }

    pub(crate) const fn example(mut self, toml: &'static str) -> Key {
        self.example = Some(toml);
        self
    }

    pub(crate) const fn instead_of_default(mut self, text: &'static str) -> Key {
        self.instead_of_default = Some(text);
        self
    }

    pub(crate) const fn required(mut self) -> Key {
        self.is_required = true;
        self.instead_of_default("required")
    }

    pub(crate) const fn hidden(mut self) -> Key {
        self.is_hidden = true;
        self
    }

    /// With the text of the section, unless this declaration has one in its place.
    fn or_text(mut self, section: &impl Settings) -> Key {
        if self.text.is_empty() {
            self.text = section.text();
        }
        self
    }
}

/// A section, or keys that several sections share.
pub(crate) trait Settings {
    /// The text of the section.
    fn text(&self) -> &'static str;

    /// Shows each key, in the order of the file.
    fn visit(&mut self, visitor: &mut dyn Visitor);
}

/// Shows the keys of a section to a visitor.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(&mut dyn Visitor);

/// What is done with each setting.
pub(crate) trait Visitor {
    fn key(&mut self, key: &Key, value: &mut dyn Value);
    fn section(&mut self, key: &Key, keys: Visit<'_>);
    fn list(&mut self, key: &Key, list: &mut dyn List);
    fn formats(&mut self, key: &Key, formats: &mut Vec<Arc<Mapping>>);
}

/// The value of a key, with its kind.
pub(crate) trait Value {
    /// Type and range, for the reference.
    fn describe(&self) -> &str;
    #[cfg_attr(not(test), allow(dead_code, reason = "a test writes the schema"))]
    fn schema(&self) -> Json;
    fn read(&mut self, node: &Node) -> Result<(), Bad>;
    /// The value in the file, a secret masked; `None`: it is not set.
    fn write(&self) -> Option<toml::Value>;
    /// The file that must be readable.
    fn file(&self) -> Option<PathBuf>;
    fn copy(&self) -> Box<dyn Any>;
    fn is(&self, other: &dyn Any) -> bool;
    fn set(&mut self, other: &dyn Any);
}

/// A list of sections.
pub(crate) trait List {
    fn len(&self) -> usize;
    /// Appends an element with its defaults.
    fn push(&mut self);
    fn visit(&mut self, i: usize, visitor: &mut dyn Visitor);
}

/// What a field of a section is: a key of some kind, or sections below it.
pub(crate) trait How<T> {
    fn visit(&self, key: Key, value: &mut T, visitor: &mut dyn Visitor);
}

/// Keys of this section that other sections have too.
pub(crate) struct Shared;

/// A section below this one.
pub(crate) struct Section;

/// A list of sections.
pub(crate) struct Sections<T> {
    /// A new element.
    pub(crate) new: fn() -> T,
    /// Keys that its elements do not have.
    pub(crate) without: &'static [&'static str],
}

/// `[formats.NAME]`
pub(crate) struct Formats;

impl<T: Settings> How<T> for Shared {
    fn visit(&self, key: Key, value: &mut T, visitor: &mut dyn Visitor) {
        match key.text {
            "" => value.visit(visitor),
            text => value.visit(&mut Shown::with_text(text, visitor)),
        }
    }
}

impl<T: Settings> How<T> for Section {
    fn visit(&self, key: Key, value: &mut T, visitor: &mut dyn Visitor) {
        match key.text {
            "" => visitor.section(&key.or_text(value), &mut |visitor| value.visit(visitor)),
            _ => visitor.section(&key, &mut |visitor| {
                value.visit(&mut Shown::with_text("", visitor));
            }),
        }
    }
}

impl<T: Settings> How<Vec<T>> for Sections<T> {
    fn visit(&self, key: Key, list: &mut Vec<T>, visitor: &mut dyn Visitor) {
        let mut elements = Elements {
            list,
            how: self,
            key: &key,
        };
        visitor.list(&key.clone().or_text(&(self.new)()), &mut elements);
    }
}

impl How<Vec<Arc<Mapping>>> for Formats {
    fn visit(&self, key: Key, value: &mut Vec<Arc<Mapping>>, visitor: &mut dyn Visitor) {
        visitor.formats(&key, value);
    }
}

struct Elements<'a, T> {
    list: &'a mut Vec<T>,
    how: &'a Sections<T>,
    key: &'a Key,
}

impl<T: Settings> List for Elements<'_, T> {
    fn len(&self) -> usize {
        self.list.len()
    }

    fn push(&mut self) {
        self.list.push((self.how.new)());
    }

    fn visit(&mut self, i: usize, visitor: &mut dyn Visitor) {
        self.list[i].visit(&mut Shown {
            text: Some("").filter(|_| !self.key.text.is_empty()),
            without: self.how.without,
            restart: Some(self.key.restart),
            visitor,
        });
    }
}

/// Shows keys otherwise than their declaration says.
struct Shown<'a> {
    visitor: &'a mut dyn Visitor,
    /// The text of the first key, for all of them.
    text: Option<&'static str>,
    /// Keys that are left out.
    without: &'static [&'static str],
    /// A reload applies elements of a list together.
    restart: Option<Option<&'static str>>,
}

impl<'a> Shown<'a> {
    fn with_text(text: &'static str, visitor: &'a mut dyn Visitor) -> Shown<'a> {
        Shown {
            visitor,
            text: Some(text),
            without: &[],
            restart: None,
        }
    }
}

impl Visitor for Shown<'_> {
    fn key(&mut self, key: &Key, value: &mut dyn Value) {
        if self.without.contains(&key.name) {
            return;
        }
        let mut key = key.clone();
        if let Some(text) = &mut self.text {
            key.text = std::mem::take(text);
        }
        key.restart = self.restart.unwrap_or(key.restart);
        self.visitor.key(&key, value);
    }

    fn section(&mut self, key: &Key, keys: Visit<'_>) {
        self.visitor.section(key, keys);
    }

    fn list(&mut self, key: &Key, list: &mut dyn List) {
        self.visitor.list(key, list);
    }

    fn formats(&mut self, key: &Key, formats: &mut Vec<Arc<Mapping>>) {
        self.visitor.formats(key, formats);
    }
}

/// Declares a section; see the head of this file.
macro_rules! settings {
    (
        $(#[doc = $about:literal])*
        pub struct $Section:ident, $reload:ident $why:tt {
            $(
                $(#[doc = $text:literal])*
                $field:ident : $type:ty = $default:expr, $how:expr $(, $mark:ident $(($with:expr))?)* ;
            )*
        }
    ) => {
        #[doc = "Settings, as they are declared."]
        #[doc = ""]
        $(#[doc = $about])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[allow(rustdoc::all, reason = "texts in brackets are sections of the file")]
        pub struct $Section {
            $(
                #[doc = concat!("`", stringify!($field), "`")]
                #[doc = ""]
                $(#[doc = $text])*
                pub $field: $type,
            )*
        }

        impl Default for $Section {
            fn default() -> $Section {
                $Section { $($field: $default),* }
            }
        }

        impl $crate::declare::Settings for $Section {
            fn text(&self) -> &'static str {
                concat!($($about, "\n"),*)
            }

            fn visit(&mut self, visitor: &mut dyn $crate::declare::Visitor) {
                use $crate::declare::{How, Key};
                $(
                    let key = Key::new(stringify!($field), concat!($($text, "\n"),*))
                        .$reload $why
                        $(.$mark($($with)?))*;
                    How::visit(&$how, key, &mut self.$field, visitor);
                )*
            }
        }
    };
}
pub(crate) use settings;
