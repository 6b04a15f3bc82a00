//! Command lines, compared with the real runtimes: which config do runc and crun open, and is
//! that what we take them to open? Nothing starts, as every config here is cut off.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::runtime::{find, finish};
use crate::support::Tree;
use oci_decorator::spec::command_line::Arguments;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};

/// Lines that are tried; each takes two starts of a runtime, 50 ms.
const CASES: u32 = 120;

/// Folders with a config. Those with odd names are what some words mean to one runtime.
const BUNDLES: [&str; 8] = ["", "a", "b", "=a", "undle=a", "a/b", "=b", "create"];

/// A folder to start runtimes in, which has bundles and is one.
struct Bench {
    tree: Tree,
    watch: OwnedFd,
    /// Watched configs, by the kernel's numbers for them.
    configs: Vec<(i32, String)>,
}

impl Bench {
    fn new() -> Self {
        let tree = Tree::new();
        let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
        let mut configs = Vec::new();
        let names = BUNDLES.iter().map(|b| format!("{b}/config.json"));
        for name in names.chain(["other.json".to_owned(), "/a/other.json".to_owned()]) {
            let name = name.trim_start_matches('/').to_owned();
            let path = tree.file(&format!("cwd/{name}"), "{");
            let number = inotify::add_watch(&watch, &path, WatchFlags::OPEN).unwrap();
            configs.push((number, name));
        }
        Self { tree, watch, configs }
    }

    /// The configs that a runtime opens, by their paths from the current folder.
    fn opened_by(&self, runtime: &Path, words: &[&str]) -> BTreeSet<String> {
        let state = self.tree.path("state");
        let mut command = Command::new(runtime);
        command.current_dir(self.tree.path("cwd"));
        finish(command.arg("--root").arg(state).args(words));
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&self.watch, &mut buffer);
        let mut opened = BTreeSet::new();
        while let Ok(event) = reader.next() {
            let of = self.configs.iter().find(|(number, _)| *number == event.wd());
            opened.insert(of.unwrap().1.clone());
        }
        opened
    }

    /// The configs that we take a runtime to open, of those that are there, and whether the line
    /// is refused whatever they have.
    fn understood(&self, words: &[&str]) -> (BTreeSet<String>, bool) {
        let line: Vec<OsString> =
            ["--root", "state"].iter().chain(words).map(|word| OsString::from(*word)).collect();
        let arguments = Arguments::parse(&line);
        let cwd = self.tree.path("cwd");
        let there = arguments.creates.iter().map(|create| cwd.join(&create.config));
        let there = there.filter_map(|path| path.canonicalize().ok());
        let cwd = cwd.canonicalize().unwrap();
        let name = |path: PathBuf| path.strip_prefix(&cwd).unwrap().display().to_string();
        let is_refused = arguments.ambiguity.is_some() && arguments.creates.is_empty();
        (there.map(name).collect(), is_refused)
    }
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

/// Checks that we know exactly what each runtime opens.
#[test]
fn what_a_runtime_takes_is_understood() {
    let bench = Bench::new();
    for (name, lines) in [
        (
            "runc",
            &[
                ("create --bundle a id", "a/config.json"),
                ("create id", "config.json"),
                ("create id --bundle a", "a/config.json"),
                ("create --bundle=a id", "a/config.json"),
                ("create -b b --bundle= id", ""),
                ("create -b a --no-pivot --pid-file b -- id", "a/config.json"),
                ("--debug --log b/log --log-format=json create --bundle a id", "a/config.json"),
                ("restore --bundle a --image-path b id", "a/config.json"),
                ("restore -d --work-path b --empty-ns network -b a id", "a/config.json"),
                ("state a", ""),
                ("--new create -b a id", ""),
            ][..],
        ),
        (
            "crun",
            &[
                ("create --bundle a id", "a/config.json"),
                ("create id", "config.json"),
                ("create id --bundle a", ""),
                ("run -b a -f other.json id", "other.json"),
                ("run -b a --config=config.json id", "a/config.json"),
                ("--cgroup-manager=cgroupfs --debug create -b a -- id", "a/config.json"),
                (
                    "--log-format json --log=b/log --cgroup-manager cgroupfs create -b a id",
                    "a/config.json",
                ),
                ("state a", ""),
                ("--new create -b a id", ""),
            ],
        ),
    ] {
        let Some(runtime) = find(name) else {
            continue;
        };
        for (line, expected) in lines {
            let opened = bench.opened_by(&runtime, &words(line));
            let expected: Vec<&str> =
                Some(*expected).into_iter().filter(|e| !e.is_empty()).collect();
            assert_eq!(opened, set(&expected), "{name} {line}");
            if opened.is_empty() {
                continue;
            }
            let (mut understood, is_refused) = bench.understood(&words(line));
            // A runtime that enters the bundle first would look there.
            if line.contains("-f other") {
                assert!(understood.remove("a/other.json"));
            }
            assert_eq!((understood, is_refused), (opened, false), "{name} {line}");
        }
    }
}

/// Options of the command, as lines write them: whole, cut off, or of one runtime only.
const OWN: [&str; 38] = [
    "--bundle a",
    "-b a",
    "--bundle=b",
    "-b=b",
    "-ba",
    "-b=a",
    "-bundle a",
    "-bundle=a",
    "--bund=a",
    "--b a",
    "--b=b",
    "--bundle=",
    "-db",
    "-dba",
    "-d",
    "--detach",
    "-f other.json",
    "-fother.json",
    "--conf=other.json",
    "--config a/other.json",
    "--config config.json",
    "--pid-file b",
    "--pid-file=b",
    "--pid -b",
    "--no-pivot",
    "--no-p",
    "--keep",
    "--preserve-fds=1",
    "--console-socket -b",
    "--new",
    "-x",
    "--image-path a",
    "--",
    "-",
    "id",
    "a",
    "--bundle",
    "-b",
];
/// Options before it.
const GLOBAL: [&str; 16] = [
    "--debug",
    "-debug",
    "--deb",
    "--log=b/log",
    "--log create",
    "--log-format json",
    "--log-f=json",
    "-log-format text",
    "--rootless=auto",
    "--rootless run",
    "--systemd-cgroup",
    "--systemd",
    "--new",
    "--cgroup-manager=cgroupfs",
    "--criu run",
    "--",
];

/// No line makes a container from a config that we don't know.
#[test]
fn no_runtime_opens_what_we_do_not_expect() {
    let runtimes = ["runc", "crun"].map(find);
    let line = (
        prop::collection::vec(prop::sample::select(GLOBAL.as_slice()), 0..2),
        prop::sample::select(vec!["create", "run", "restore"]),
        prop::collection::vec(prop::sample::select(OWN.as_slice()), 0..3),
        prop::sample::select(vec!["id", "id", "-- id", "id --bundle a", ""]),
    );
    let bench = Bench::new();
    let created = Cell::new(0);
    let mut runner = TestRunner::new(ProptestConfig::with_cases(CASES));
    let run = runner.run(&line, |(global, verb, own, end)| {
        let line = [&global[..], &[verb], &own, &[end]].concat().join(" ");
        let line = words(&line);
        let (understood, is_refused) = bench.understood(&line);
        for runtime in runtimes.iter().flatten() {
            let opened = bench.opened_by(runtime, &line);
            created.set(created.get() + u32::from(!opened.is_empty()));
            prop_assert!(
                is_refused || opened.is_subset(&understood),
                "{} opens {opened:?}; known were {understood:?}",
                runtime.display()
            );
        }
        Ok(())
    });
    run.unwrap_or_else(|failure| panic!("{failure}"));
    println!("{} of {CASES} lines were accepted", created.get());
    assert!(created.get() > CASES / 4 || runtimes.iter().all(Option::is_none));
}
