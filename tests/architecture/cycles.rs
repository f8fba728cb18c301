//! Import cycles between files: two files that name each other, directly or through others, can only be understood together.
//!
//! A file names another one by an item of it. A re-export (`pub use`) is not a use: whoever takes an item from there is
//! counted as naming the file that declares it. So is an item that is reached through an imported module.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::source::{Code, module_of};

/// The shortest cycle of each group of files that reach each other, one line each.
pub(crate) fn cycles(files: &[(String, String)]) -> Vec<String> {
    let graph = Graph::read(files);
    let mut found = Vec::new();
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    for file in graph.uses.keys() {
        if seen.contains(file.as_str()) {
            continue;
        }
        if let Some(cycle) = graph.cycle(file) {
            seen.extend(cycle.iter().copied());
            let steps: Vec<String> = cycle.windows(2).map(|pair| graph.step(pair[0], pair[1])).collect();
            found.push(steps.join("\n    "));
        }
    }
    found
}

/// Which files name which, and by what.
struct Graph {
    /// Per file the files that it names, with a line and a path.
    uses: BTreeMap<String, BTreeMap<String, (usize, String)>>,
}

impl Graph {
    fn read(files: &[(String, String)]) -> Graph {
        let modules = Modules::read(files);
        let uses = modules.code.iter().map(|(module, (_, code))| (modules.file(module), modules.uses(module, code)));
        Graph { uses: uses.collect() }
    }

    /// The shortest way from a file back to it.
    fn cycle(&self, start: &str) -> Option<Vec<&str>> {
        let (start, _) = self.uses.get_key_value(start)?;
        let mut from: BTreeMap<&str, &str> = BTreeMap::new();
        let mut next = VecDeque::from([start.as_str()]);
        while let Some(file) = next.pop_front() {
            for (target, _) in self.uses.get(file).into_iter().flatten() {
                if target == start {
                    let mut back = vec![start.as_str(), file];
                    while let Some(before) = from.get(back[back.len() - 1]) {
                        back.push(before);
                    }
                    back.reverse();
                    return Some(back);
                }
                if !from.contains_key(target.as_str()) {
                    from.insert(target, file);
                    next.push_back(target);
                }
            }
        }
        None
    }

    fn step(&self, from: &str, to: &str) -> String {
        let (line, path) = &self.uses[from][to];
        format!("{from}:{line} names `{path}` of {to}")
    }
}

/// The modules of the crate, by path (`crate::journal::writer`).
struct Modules {
    code: BTreeMap<String, (String, Code)>,
}

impl Modules {
    fn read(files: &[(String, String)]) -> Modules {
        let path = |file: &str| ["crate".to_owned()].into_iter().chain(module_of(file)).collect::<Vec<_>>().join("::");
        let code = files.iter().filter(|(file, _)| file != "src/main.rs");
        Modules { code: code.map(|(file, text)| (path(file), (file.clone(), Code::read(file, text)))).collect() }
    }

    fn file(&self, module: &str) -> String {
        self.code[module].0.clone()
    }

    /// The files that a module names.
    fn uses(&self, module: &str, code: &Code) -> BTreeMap<String, (usize, String)> {
        // Imported modules by their name in this file.
        let imported: BTreeMap<&str, &str> = code
            .paths
            .iter()
            .filter(|(_, path)| self.code.contains_key(path))
            .filter_map(|(_, path)| Some((path.rsplit_once("::")?.1, path.as_str())))
            .collect();
        let mut found = BTreeMap::new();
        for (line, path) in code.paths.iter().filter(|(_, path)| !code.reexports.contains(path)) {
            let (first, rest) = path.split_once("::").unwrap_or((path, ""));
            let child = format!("{module}::{first}");
            let full = match imported.get(first) {
                Some(module) if !rest.is_empty() => format!("{module}::{rest}"),
                _ if !rest.is_empty() && self.code.contains_key(&child) => format!("{child}::{rest}"),
                _ => path.clone(),
            };
            if let Some(target) = self.declaring(&full, 0).filter(|target| target != module) {
                found.entry(self.file(&target)).or_insert_with(|| (*line, path.clone()));
            }
        }
        found
    }

    /// The module that declares the item of a path; none for a path of another crate or of a module itself.
    fn declaring(&self, path: &str, depth: usize) -> Option<String> {
        if !path.starts_with("crate::") || depth > 8 || self.code.contains_key(path) {
            return None;
        }
        let mut module = path;
        while !self.code.contains_key(module) {
            module = module.rsplit_once("::")?.0;
        }
        let rest = &path[module.len() + 2..];
        let (item, more) = rest.split_once("::").unwrap_or((rest, ""));
        let exported = self.code[module].1.reexports.iter().find_map(|export| {
            let export = match export.split_once("::") {
                Some(("crate", _)) => export.clone(),
                _ => format!("{module}::{export}"),
            };
            (export.rsplit_once("::")?.1 == item).then_some(export)
        });
        match exported {
            Some(export) if more.is_empty() => self.declaring(&export, depth + 1),
            Some(export) => self.declaring(&format!("{export}::{more}"), depth + 1),
            None => Some(module.to_owned()),
        }
    }
}
