//! containerd's `config.toml`, and the files that it imports.
//!
//! Sources: <https://github.com/containerd/containerd/blob/main/docs/cri/config.md>,
//! <https://github.com/containerd/containerd/blob/main/docs/man/containerd-config.toml.5.md>

use std::path::PathBuf;

use toml_edit::{DocumentMut, Item, Table, TableLike};

use crate::engines::toml_text::{self, get, get_table, get_text, parse, remove_default, table};
use crate::engines::{Result, RuntimeEntry};

/// The name of containerd's CRI plugin, by the version of the configuration.
const PLUGINS: [(i64, &str); 4] = [
    (1, "cri"),
    (2, "io.containerd.grpc.v1.cri"),
    (3, "io.containerd.cri.v1.runtime"),
    (4, "io.containerd.cri.v1.runtime"), // of containerd 2.3
];
/// The version of a new file: every containerd since 1.3 reads it.
const NEW: i64 = 2;
const BUILT_IN: &str = "runc";
const RUNC: &str = "io.containerd.runc.v2";
/// The shim of version 1, which has another key for the program.
const OLD: &str = "io.containerd.runtime.v1.linux";
const DEFAULT: &str = "default_runtime_name";
const CDI: &str = "enable_cdi";

pub fn with(text: &str, runtime: &RuntimeEntry, others: &[String]) -> Result<String> {
    let mut document = parse(text)?;
    let main = others.last().map(|text| parse(text)).transpose()?;
    let version = version_of(&document, main.as_ref());
    let plugin = plugin_of(version)?;
    if document.get("version").is_none() && (main.is_some() || document.is_empty()) {
        document.insert("version", toml_edit::value(version));
    }
    add_runtime(&mut document, main.as_ref(), plugin, runtime)?;
    let default = ["plugins", plugin, "containerd", DEFAULT];
    toml_text::set_default(&mut document, &default, runtime)?;
    match runtime.cdi {
        Some(true) if version == 1 => {
            return Err(format!(
                "its version is {version}, and CDI needs 2 or newer; `containerd config migrate` converts it"
            ))
        }
        Some(true) => toml_text::set(table(&mut document, &["plugins", plugin])?, CDI, true),
        Some(false) => remove_cdi(&mut document, plugin),
        None => {}
    }
    Ok(toml_text::text_of(&document))
}

/// The text without the runtime. Of a file that others write too, the setting for CDI stays.
pub fn without(text: &str, name: &str, is_drop_in: bool) -> Result<String> {
    let mut document = parse(text)?;
    let plugin = plugin_of(version_of(&document, None))?;
    remove_default(&mut document, &["plugins", plugin, "containerd", DEFAULT], name);
    let runtimes = ["plugins", plugin, "containerd", "runtimes"];
    toml_text::remove(&mut document, &[&runtimes[..], &[name]].concat());
    if is_bare(&document, plugin) {
        toml_text::remove(&mut document, &[&runtimes[..], &[BUILT_IN]].concat());
    }
    if is_drop_in {
        remove_cdi(&mut document, plugin);
        if document.len() == 1 {
            document.remove("version");
        }
    }
    Ok(toml_text::text_of(&document))
}

pub fn program(text: &str, name: &str) -> Result<Option<String>> {
    let document = parse(text)?;
    let plugin = plugin_of(version_of(&document, None))?;
    let runtime = ["plugins", plugin, "containerd", "runtimes", name];
    let Some(found) = get_table(&document, &runtime) else {
        return Ok(None);
    };
    let options = found.get("options").and_then(Item::as_table_like);
    let named = |key| options?.get(key)?.as_str();
    let program = named("BinaryName").or_else(|| named("Runtime"));
    Ok(Some(program.unwrap_or_default().to_owned()))
}

pub fn is_default(text: &str, name: &str) -> bool {
    let read = || {
        let document = parse(text)?;
        let default = ["plugins", plugin_of(version_of(&document, None))?, "containerd", DEFAULT];
        Ok::<_, String>(get_text(&document, &default) == Some(name))
    };
    read().unwrap_or_default()
}

/// What a text of containerd's own file says about where the runtime goes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outlook {
    /// Why the runtime may not be used although the file has it.
    pub notes: Vec<String>,
    pub has_runtime: bool,
    /// The folder of imported files, if containerd merges them key by key, as it does from version 3
    /// on. Before that, a file's section replaces the whole section of the other files:
    /// <https://github.com/containerd/containerd/pull/9982>.
    pub import_folder: Option<PathBuf>,
}

pub fn look(text: &str, name: &str) -> Result<Outlook> {
    let document = parse(text)?;
    let list = |key: &str| {
        let list = document.get(key).and_then(Item::as_array);
        list.into_iter().flatten().filter_map(toml_edit::Value::as_str)
    };
    let mut found = Outlook { has_runtime: program(text, name)?.is_some(), ..Outlook::default() };
    if list("disabled_plugins").any(|word| PLUGINS.iter().any(|(_, plugin)| word == *plugin)) {
        found.notes.push(
            "disabled_plugins names CRI, so that Kubernetes' containers are not made at all"
                .to_owned(),
        );
    }
    match version_of(&document, None) {
        2 if list("imports").next().is_some() => found.notes.push(
            "containerd 1 takes the whole section of CRI from the last file of `imports` that has one".to_owned(),
        ),
        3 | 4 => {
            let folders = list("imports").filter_map(|pattern| pattern.strip_suffix("/*.toml"));
            let mut folders = folders.filter(|folder| folder.starts_with('/'));
            found.import_folder = folders.next().map(PathBuf::from);
        }
        _ => {}
    }
    Ok(found)
}

fn version_of(document: &DocumentMut, main: Option<&DocumentMut>) -> i64 {
    let version = |document: &DocumentMut| document.get("version").and_then(Item::as_integer);
    let implied = if document.is_empty() { NEW } else { 1 };
    version(document).or_else(|| main.map(|main| version(main).unwrap_or(1))).unwrap_or(implied)
}

fn plugin_of(version: i64) -> Result<&'static str> {
    let mut known = PLUGINS.into_iter();
    known.find_map(|(number, plugin)| (number == version).then_some(plugin)).ok_or_else(|| {
        format!("its version is {version}, and only the versions 1 to 4 can be changed")
    })
}

fn add_runtime(
    document: &mut DocumentMut,
    main: Option<&DocumentMut>,
    plugin: &str,
    runtime: &RuntimeEntry,
) -> Result<()> {
    let path = ["plugins", plugin, "containerd", "runtimes"];
    let count = |document: &DocumentMut| get_table(document, &path).map_or(0, TableLike::len);
    // The built-in runtimes disappear as soon as a file names a runtime.
    let lacks_built_in = count(document) + main.map_or(0, count) == 0;
    let model = model(document, plugin).or_else(|| model(main?, plugin));
    let runtimes = table(document, &path)?;
    if lacks_built_in {
        runtimes.insert(BUILT_IN, Item::Table(plain()));
    }
    if runtimes.get(&runtime.name).is_none() {
        runtimes.insert(&runtime.name, Item::Table(model.unwrap_or_else(plain)));
    }
    let ours = table(document, &[&path[..], &[&runtime.name]].concat())?;
    let kind = ours.get("runtime_type").and_then(Item::as_str);
    let key = if kind == Some(OLD) { "Runtime" } else { "BinaryName" };
    let options = table(document, &[&path[..], &[&runtime.name, "options"]].concat())?;
    toml_text::set(options, key, &runtime.program);
    Ok(())
}

fn plain() -> Table {
    let mut plain = Table::new();
    plain.insert("runtime_type", toml_edit::value(RUNC));
    plain
}

/// A copy of the default runtime, if it is one for runc.
fn model(document: &DocumentMut, plugin: &str) -> Option<Table> {
    let containerd = ["plugins", plugin, "containerd"];
    let default = get_text(document, &[&containerd[..], &[DEFAULT]].concat());
    let runtime = |name| get(document, &[&containerd[..], &["runtimes", name]].concat());
    let is_for_runc = |item: &&Item| {
        let kind = item.get("runtime_type").and_then(Item::as_str);
        kind.is_some_and(|kind| kind.starts_with("io.containerd.runc.") || kind == OLD)
    };
    let named = default.and_then(runtime).filter(is_for_runc);
    let found = named.or_else(|| runtime(BUILT_IN).filter(is_for_runc))?;
    Some(copy(found.as_table_like()?))
}

/// The values of a table in our layout, without comments.
pub fn copy(from: &dyn TableLike) -> Table {
    let mut made = Table::new();
    for (key, item) in from.iter() {
        let item = match item.as_table_like() {
            Some(inner) if item.is_table() => Item::Table(copy(inner)),
            _ => {
                let mut item = item.clone();
                if let Some(value) = item.as_value_mut() {
                    value.decor_mut().clear();
                }
                item
            }
        };
        made.insert(key, item);
    }
    made
}

/// True if the only runtime is the built-in one, as containerd has it without the entry.
fn is_bare(document: &DocumentMut, plugin: &str) -> bool {
    let path = ["plugins", plugin, "containerd", "runtimes"];
    let all = get_table(document, &path).map_or(0, TableLike::len);
    let built_in = get_table(document, &[&path[..], &[BUILT_IN]].concat());
    let kind = built_in.filter(|table| all == 1 && table.len() == 1);
    kind.and_then(|table| table.get("runtime_type")?.as_str()) == Some(RUNC)
}

fn remove_cdi(document: &mut DocumentMut, plugin: &str) {
    let path = ["plugins", plugin, CDI];
    if get(document, &path).and_then(Item::as_bool) == Some(true) {
        toml_text::remove(document, &path);
    }
}
