//! Prints the configuration in the format of the file, for a log or a bug report. Secrets are
//! hidden.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Config;
use super::declare::{Key, List, Settings, Value, Visit, Visitor};
use super::describe::{defaults, join};
use super::mapping::Mapping;
use super::suggest::pattern;

impl Config {
    /// The settings in the format of the file, without those that are not set. Secrets are `"***"`;
    /// the store's URI shows hosts and options, never user or password.
    pub fn masked(&self) -> String {
        let mut dump = Dump {
            text: String::new(),
            path: String::new(),
            header: String::new(),
            defaults: defaults().collect(),
        };
        self.clone().visit(&mut dump);
        dump.text.trim_start().to_owned()
    }
}

struct Dump {
    text: String,
    path: String,
    /// Printed before the first key of its section.
    header: String,
    defaults: BTreeMap<String, Option<String>>,
}

impl Dump {
    fn section(&mut self, path: String, header: String, keys: Visit<'_>) {
        let above = std::mem::replace(&mut self.path, path);
        self.header = format!("\n{header}\n");
        keys(self);
        self.path = above;
    }
}

impl Visitor for Dump {
    fn key(&mut self, key: &Key, value: &mut dyn Value) {
        let Some(value) = value.write().map(|value| value.to_string()) else {
            return;
        };
        // The reader refuses some keys where they have no meaning, even with their default. The
        // shipped file has these commented out.
        let default = self.defaults.get(&pattern(&join(&self.path, key.name)));
        if key.example.is_some() && default.and_then(Option::as_ref) == Some(&value) {
            return;
        }
        self.text += &std::mem::take(&mut self.header);
        self.text += &format!("{} = {value}\n", key.name);
    }

    fn section(&mut self, key: &Key, keys: Visit<'_>) {
        let path = join(&self.path, key.name);
        let header = format!("[{path}]");
        self.section(path, header, keys);
    }

    fn list(&mut self, key: &Key, list: &mut dyn List) {
        let path = join(&self.path, key.name);
        for i in 0..list.len() {
            let header = format!("[[{path}]]");
            self.section(path.clone(), header, &mut |dump| list.visit(i, dump));
        }
    }

    fn formats(&mut self, _: &Key, formats: &mut Vec<Arc<Mapping>>) {
        for format in formats {
            self.text += &format!("\n{}\n", format.text.trim_end());
        }
    }
}
