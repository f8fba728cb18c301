//! Import cycles between files: two files that name each other, directly or through others, can
//! only be understood together.
//!
//! A file names another one by an item of it, in an import or in its code. An item counts as that
//! of the file that declares it, regardless of the re-export, alias or imported module that the
//! name takes. A re-export (`pub use`) alone names nothing, and neither do `mod` and the import of
//! a module.
//!
//! Not seen: a file whose items are used without their names (methods of a value), the `super` of a
//! module inside a file, which is read as the file's, and a name that a macro makes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::source::{Code, module_of};

/// The maximum depth of re-exports of re-exports.
const DEPTH_MAX: usize = 8;

/// For each file in a cycle the shortest one, with a line per step; but no file appears in two.
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
            let steps: Vec<String> = cycle
                .windows(2)
                .map(|pair| graph.step(pair[0], pair[1]))
                .collect();
            found.push(steps.join("\n    "));
        }
    }
    found
}

/// Which files name which, and by which path.
struct Graph {
    /// For each file the files that it names, with a line and a path.
    uses: BTreeMap<String, BTreeMap<String, (usize, String)>>,
}

impl Graph {
    fn read(files: &[(String, String)]) -> Graph {
        let modules = Modules::read(files);
        let uses = modules
            .code
            .iter()
            .map(|(module, (_, code))| (modules.file(module), modules.uses(module, code)));
        Graph {
            uses: uses.collect(),
        }
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
    /// The modules that declare macros, by the macro's name.
    macros: BTreeMap<String, String>,
}

impl Modules {
    fn read(files: &[(String, String)]) -> Modules {
        let path = |file: &str| {
            ["crate".to_owned()]
                .into_iter()
                .chain(module_of(file))
                .collect::<Vec<_>>()
                .join("::")
        };
        let code = files.iter().filter(|(file, _)| file != "src/main.rs");
        let code: BTreeMap<_, _> = code
            .map(|(file, text)| (path(file), (file.clone(), Code::read(file, text))))
            .collect();
        let macros = code.iter().flat_map(|(module, (_, code))| {
            let declared = code
                .paths
                .windows(2)
                .filter(|pair| pair[0].1 == "macro_rules!");
            declared.map(|pair| (pair[1].1.clone(), module.clone()))
        });
        Modules {
            macros: macros.collect(),
            code,
        }
    }

    fn file(&self, module: &str) -> String {
        self.code[module].0.clone()
    }

    /// The files that a module names.
    fn uses(&self, module: &str, code: &Code) -> BTreeMap<String, (usize, String)> {
        let reexports: BTreeSet<usize> = code
            .imports
            .iter()
            .filter(|i| i.is_public)
            .map(|i| i.at)
            .collect();
        let lines: Vec<&str> = code.text.lines().collect();
        let mut found = BTreeMap::new();
        for (at, (line, path)) in code.paths.iter().enumerate() {
            if reexports.contains(&at) || !is_item(lines[line - 1], path) {
                continue;
            }
            let target = match path.strip_suffix("::*") {
                // Named items are more precise; but the methods of a trait are used without a name.
                Some(all) => self
                    .module(module, all)
                    .or_else(|| self.declaring(module, all, 0)),
                None => self
                    .called(path)
                    .or_else(|| self.declaring(module, path, 0)),
            };
            if let Some(target) = target.filter(|target| target != module) {
                found
                    .entry(self.file(&target))
                    .or_insert_with(|| (*line, path.clone()));
            }
        }
        found
    }

    /// The module that declares a macro: without a path, or with the crate's, it is found by its
    /// name alone.
    fn called(&self, path: &str) -> Option<String> {
        let name = path.strip_suffix('!')?;
        self.macros
            .get(name.strip_prefix("crate::").unwrap_or(name))
            .cloned()
    }

    /// The module that declares the item of a path read in `scope`; none for an item of another
    /// crate or of the language, for an undeclared one, and for a module itself.
    fn declaring(&self, scope: &str, path: &str, depth: usize) -> Option<String> {
        match path.strip_prefix("crate::") {
            Some(path) => self.item("crate", path, true, depth),
            None => self.item(scope, path, false, depth),
        }
    }

    /// Like [`declaring`](Self::declaring), for what follows `module::`. If `is_certain`, the
    /// module has the item, even if no declaration is found (a macro may declare it).
    fn item(&self, module: &str, path: &str, is_certain: bool, depth: usize) -> Option<String> {
        let path = path.trim_end_matches("::self");
        let (first, rest) = path.split_once("::").unwrap_or((path, ""));
        let first = first.trim_end_matches('!');
        if depth > DEPTH_MAX || matches!(first, "self" | "crate" | "super" | "Self" | "_") {
            return None;
        }
        let child = format!("{module}::{first}");
        if self.code.contains_key(&child) {
            return (!rest.is_empty()).then(|| self.item(&child, rest, true, depth))?;
        }
        let code = &self.code[module].1;
        let imports: Vec<&str> = code
            .imports
            .iter()
            .filter(|i| i.name == first)
            .map(|i| code.paths[i.at].1.as_str())
            .collect();
        if !imports.is_empty() {
            let full = |import: &str| [import.trim_end_matches("::self"), rest].join("::");
            return imports
                .iter()
                .find_map(|i| self.declaring(module, full(i).trim_end_matches("::"), depth + 1));
        }
        if code.declared.contains(first) {
            return Some(module.to_owned());
        }
        let globs = code
            .imports
            .iter()
            .filter_map(|i| code.paths[i.at].1.strip_suffix("::*"));
        let all = globs
            .filter_map(|all| self.module(module, all))
            .filter(|all| all != module);
        let found = all
            .filter_map(|all| self.item(&all, path, false, depth + 1))
            .next();
        found.or_else(|| is_certain.then(|| module.to_owned()))
    }

    /// The module that a path read in `scope` refers to.
    fn module(&self, scope: &str, path: &str) -> Option<String> {
        let below = format!("{scope}::{path}");
        [path, &below]
            .into_iter()
            .find(|path| self.code.contains_key(*path))
            .map(str::to_owned)
    }
}

/// Whether a name in a line is that of an item. A single word in lower case is usually a variable,
/// a field or a method, so only a call counts.
fn is_item(line: &str, name: &str) -> bool {
    let is_function = |at: usize| {
        let before = &line[..at];
        let is_word = !before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let is_other = ["fn", "."]
            .iter()
            .any(|mark| before.trim_end().ends_with(mark));
        let after = &line[at + name.len()..];
        is_word && !is_other && (after.starts_with('(') || after.starts_with("::<"))
    };
    name.contains("::")
        || name.contains(char::is_uppercase)
        || name.ends_with('!')
        || line.match_indices(name).any(|(at, _)| is_function(at))
}

/// The import cycles of made-up files: path below `src` and text.
fn import_cycles(files: &[(&str, &str)]) -> Vec<String> {
    let files: Vec<_> = files
        .iter()
        .map(|(path, text)| (format!("src/{path}.rs"), format!("//! X.\n{text}\n")))
        .collect();
    cycles(&files)
}

#[test]
fn an_import_cycle_is_found() {
    let found = import_cycles(&[
        ("a", "use crate::b::B;"),
        ("b", "fn f() { crate::a::g(); }"),
    ]);
    assert_eq!(
        found,
        [
            "src/a.rs:2 names `crate::b::B` of src/b.rs\n    src/b.rs:2 names `crate::a::g` of src/a.rs"
        ]
    );
    let found = import_cycles(&[
        ("a", "use crate::b::B;"),
        ("b", "use crate::c::C;"),
        ("c", "use crate::a::A;"),
    ]);
    assert_eq!(found.len(), 1, "three files make one cycle: {found:#?}");
    assert_eq!(found[0].lines().count(), 3, "{found:#?}");
    let exported = ("x/mod", "mod c;\npub use c::C;");
    let found = import_cycles(&[
        ("a", "use crate::x::C;"),
        exported,
        ("x/c", "use crate::a::A;\npub struct C;"),
    ]);
    assert_eq!(
        found.len(),
        1,
        "a re-export leads to the file that declares the item: {found:#?}"
    );
    assert!(
        found[0].contains("names `crate::x::C` of src/x/c.rs")
            && !found[0].contains("src/x/mod.rs"),
        "{found:#?}"
    );
    let found = import_cycles(&[
        ("x/mod", "mod c;\npub struct P;\nfn f() { c::g(); }"),
        ("x/c", "use super::P;"),
    ]);
    assert_eq!(found.len(), 1, "a parent and its child: {found:#?}");
}

#[test]
fn an_import_cycle_is_found_for_every_form_of_name() {
    // The text of a parent that also has `P`; its child `c` names that.
    for parent in [
        "mod c;\nuse c::g as other;",
        "mod c;\nuse c as d;\nfn f() { d::g(); }",
        "mod c;\nuse self::{c::{self, C}};",
        "mod c;\nfn f() -> Vec<c::C> {}",
        "mod c;\npub use c::C;\nfn f(x: C) {}",
        "mod c;\npub(super) use c::C as D;\nfn f(x: D) {}",
        "mod c;\npub use c::g;\nfn f() { g(); }",
        "mod c;\npub use c::g;\nfn f() { g::<u8>(); }",
        "mod c;\npub use c::*;\nfn f(x: C) {}",
        "mod c;\nuse c::*;",
        "#[macro_use]\nmod c;\nfn f() { m!(); }",
        "mod c;\nfn f() { crate::m!(); }",
    ] {
        let child = "use super::P;\npub struct C;\npub fn g() {}\nmacro_rules! m { () => {} }";
        let found = import_cycles(&[
            ("x/mod", &format!("{parent}\npub struct P;")),
            ("x/c", child),
        ]);
        assert_eq!(found.len(), 1, "{parent}: {found:#?}");
    }
    // How `a` names something of `x/c`, which names `a`.
    for user in [
        "use crate::x::D;",
        "use crate::x::c::C;",
        "use crate::x;\nfn f() { x::D::new(); }",
        "use crate::x::c as y;\nfn f() { y::C::new(); }",
        "use crate::y::E;",
        "use crate::z::C;",
        "macro_rules! n { () => { $crate::x::D } }",
    ] {
        let files = [
            ("a", user),
            ("x/mod", "pub mod c;\npub use c::C as D;"),
            ("x/c", "use crate::a::A;\npub struct C;"),
            ("y", "pub use crate::x::D as E;"),
            ("z", "pub use crate::x::c::*;"),
        ];
        let found = import_cycles(&files);
        assert_eq!(found.len(), 1, "{user}: {found:#?}");
        assert!(
            found[0].ends_with("src/x/c.rs:2 names `crate::a::A` of src/a.rs"),
            "{user}: {found:#?}"
        );
    }
}

#[test]
fn files_without_an_import_cycle_are_accepted() {
    // The text of a parent that also has `P`; its child `c` names that.
    for parent in [
        "mod c;",
        "mod c;\npub use c::C;",
        "mod c;\npub(crate) use self::c::{C, g as h};",
        "pub mod c;\npub use c::*;",
        "mod c;\nuse c as d;",
        "mod c;\npub use c::g;\nstruct S { g: u8 }\nfn f(s: S) { s.g(); let g = s.g; }",
        "mod c;\n// c::g();\nconst X: &str = \"c::g()\";\n#[cfg(test)]\n\
         mod tests { use super::c::C; }",
    ] {
        let child = "use super::P;\npub struct C;\npub fn g() {}";
        let found = import_cycles(&[
            ("x/mod", &format!("{parent}\npub struct P;")),
            ("x/c", child),
        ]);
        assert!(found.is_empty(), "{parent}: {found:#?}");
    }
    let down = [
        ("a", "use crate::b::B;\nuse crate::c::C;"),
        ("b", "use crate::c::C;"),
        ("c", "use chrono::Utc;"),
    ];
    assert!(import_cycles(&down).is_empty());
    let foreign = [
        ("x/mod", "mod c;\npub use chrono::Utc;\nfn f() { c::g(); }"),
        ("x/c", "use super::Utc;"),
    ];
    assert!(
        import_cycles(&foreign).is_empty(),
        "an item of another crate belongs to no file"
    );
}
