//! Parsers on damaged input: each target takes bytes and panics when a promise is broken.
//! `tests/fuzz.rs` runs each a little, `benches/fuzz.rs` a million times.

use std::fs::File;
use std::io::{Seek, Write};

use oci_decorator::apply::spec::Spec;
use oci_decorator::config::cdi::{self, Syntax};
use oci_decorator::config::{nvidia, reader, vendor};
use oci_decorator::error::Result;
use oci_decorator::host::ldcache::{merge, parse, write, Addition};
use oci_decorator::host::libraries;
use oci_decorator::model::edits::{Device, Edits, Mount, Unseen};
use oci_decorator::model::request::{
    asked, Environment, Known, Outcome, RequestSource, Requirement,
};
use oci_decorator::spec::config::{ContainerConfig, ScanScope, State};

/// What is tried: a name, samples to damage, and what must hold for any bytes.
pub struct Target {
    pub name: &'static str,
    samples: Vec<Vec<u8>>,
    check: fn(&[u8]),
}

pub fn targets() -> Vec<Target> {
    let text = |texts: &[&str]| texts.iter().map(|t| t.as_bytes().to_vec()).collect();
    let vendors = [
        include_str!("../../vendors/oci-nvidia.json"),
        include_str!("../../vendors/oci-onload.json"),
    ];
    let target = |name, samples, check| Target { name, samples, check };
    vec![
        target("vendor", text(&vendors), check_vendor),
        target("spec", text(&SPECS), check_spec),
        target("environment", text(&[ENVIRONMENT]), check_environment),
        target("cache", vec![cache_sample()], check_cache),
        target("state", text(&[STATE]), check_state),
        target("elf", vec![elf_sample()], check_elf),
        target("cdi", text(&CDI), check_cdi),
        target("requirement", text(&REQUIREMENTS), check_requirement),
        target("nvidia", text(&[NVIDIA]), check_nvidia),
    ]
}

impl Target {
    /// Checks the samples, and as many damaged ones. The same seed gives the same ones.
    pub fn run(&self, rounds: u64, seed: u64) {
        self.samples.iter().for_each(|sample| (self.check)(sample));
        let mut random = Random(seed | 1);
        for _ in 0..rounds {
            let sample = &self.samples[random.below(self.samples.len())];
            (self.check)(&damaged(sample, &self.samples, &mut random));
        }
    }
}

const STATE: &str = r#"{"ociVersion":"1.0.2","id":"c","status":"creating","pid":4422,"bundle":"/run/b","annotations":{"a":"\u00e9"}}"#;
const ENVIRONMENT: &str =
    "PATH=/bin\0OCI_A=all\0OCI_A\0OCI_B=x,y\0OCI_B=none\0=\0\0A=\n\0OCI_A=x,,x";
const SPECS: [&str; 3] = [
    "{}",
    r#" { "mounts" : null , "linux" : { "devices":[ ] } , "n" : 1.50e3 } "#,
    r#"{"process":{"env":["A=1","OCI_A"]},"root":{"path":"rootfs"},"mounts":[{"destination":"/a","x":[1,{}]}],"linux":{"devices":[{"path":"/dev/n0"}],"resources":{"devices":[{"allow":false}]}},"z":"\u00e9"}"#,
];
const CDI: [&str; 2] = [
    r#"{"cdiVersion":"1.1.0","kind":"v.com/c","containerEdits":{"env":["S=1"]},"devices":[{"name":"0:1","annotations":{"a":"b"},"containerEdits":{"deviceNodes":[{"path":"/dev/x","hostPath":"/dev/y","type":"c","major":195,"permissions":"rw"}],"mounts":[{"hostPath":"/a","containerPath":"/b","options":["ro"]}],"hooks":[{"hookName":"createContainer","path":"/h","args":["h"],"timeout":3}],"additionalGids":[44],"intelRdt":{"closID":"x"},"netDevices":[{"hostInterfaceName":"a","name":"b"}]}}]}"#,
    "---\ncdiVersion: 0.5.0\nkind: v/c\ncontainerEdits: &e\n  env:\n  - A=1\n  - >-\n    B=2\ndevices:\n- name: \"0\"\n  containerEdits: *e\n- {name: 1, containerEdits: {deviceNodes: [{path: /dev/x, fileMode: 0660}]}}\n",
];
const REQUIREMENTS: [&str; 3] = [
    "cuda>=12.2 brand=tesla,driver>=470,driver<471 brand=unknown,driver>=470",
    "arch!=7.5,cuda<13",
    "driver=535.261.03",
];
const NVIDIA: &str = "disable-require = false\nswarm-resource = \"DOCKER_RESOURCE_GPU\"\n# c\n[nvidia-container-cli]\nno-cgroups = true\nuser = \"root:video\"\n[nvidia-container-runtime]\nmode = \"auto\"\nruntimes = [\"runc\", 'crun']\n[nvidia-container-runtime.modes.cdi]\ndefault-kind = \"v.com/c\"\n";
/// Parts that the formats are made of.
const WORDS: [&[u8]; 19] = [
    b"\"",
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"null",
    b"\\u0000",
    b"\xff",
    b"=",
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
    b"\"mounts\":",
    b"\"activation_flag\":",
    b">=",
    b"cuda",
    b"[[",
];

fn damaged(sample: &[u8], others: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bytes = sample.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() + 1);
        let end = at + random.below(bytes.len() - at + 1);
        match random.below(6) {
            0 => bytes.truncate(at),
            1 => drop(bytes.splice(at..end, [])),
            2 => drop(bytes.splice(at..at, WORDS[random.below(WORDS.len())].to_vec())),
            3 => {
                let other = &others[random.below(others.len())];
                let from = random.below(other.len() + 1);
                drop(bytes.splice(at..end, other[from..].to_vec()));
            }
            4 => {
                let again = bytes[at..end].to_vec();
                drop(bytes.splice(at..at, again));
            }
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = random.next().to_le_bytes()[0];
                }
            }
        }
        bytes.truncate(1 << 16);
    }
    bytes
}

/// Numbers that look random (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        let bound = bound as u64;
        usize::try_from((self.next() >> 11) % bound).expect("below a usize")
    }
}

fn check_vendor(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match vendor::parse(&text) {
        Ok(vendor) => assert!(vendor::is_flag(&vendor.activation_flag)),
        Err(mistakes) => assert!(!mistakes.is_empty()),
    }
}

fn check_cdi(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for syntax in [Syntax::Json, Syntax::Yaml] {
        match cdi::parse(&text, syntax) {
            Ok(document) => assert!(reader::is_kind(&document.kind)),
            Err(mistakes) => assert!(!mistakes.is_empty()),
        }
    }
}

/// The same requirement has one answer, and one of nothing but blanks is met.
fn check_requirement(bytes: &[u8]) {
    let requirement = Requirement {
        by: "NVIDIA_REQUIRE_CUDA".to_owned(),
        text: String::from_utf8_lossy(bytes).into_owned(),
    };
    let known = Known {
        cuda: Some("12.2"),
        driver: Some("535.261.03"),
        arch: Some("8.0"),
        brand: Some("tesla"),
    };
    let outcome = requirement.check(&known);
    assert_eq!(outcome, requirement.check(&known));
    // What is known leaves no doubt.
    assert!(!matches!(outcome, Outcome::MetUnlessKnown(_)));
    if let Outcome::Invalid(part) = &outcome {
        assert!(requirement.text.contains(part.as_str()), "{part}");
    }
    if requirement.text.trim_matches(' ').is_empty() {
        assert_eq!(outcome, Outcome::Met);
    }
}

fn check_nvidia(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for mistake in nvidia::mistakes(&text) {
        assert!(!mistake.is_empty() && !mistake.contains('\n'), "{mistake:?}");
    }
}

fn edits() -> Edits {
    let device = |path: &str| Device {
        source: path.to_owned(),
        path: path.to_owned(),
        kind: 'c',
        major: 195,
        minor: 0,
        mode: 0o666,
        uid: Some(0),
        gid: Some(0),
        access: oci_decorator::model::edits::Access::ALL,
    };
    Edits {
        devices: vec![device("/dev/n0"), device("/dev/n1")],
        mounts: vec![Mount { source: "/h/a\"b".to_owned(), target: "/a\"b".to_owned() }],
        ..Edits::default()
    }
}

fn edited(spec: &Spec) -> Result<String> {
    let (settled, _) = edits().settle(&spec.present()?, &Unseen);
    spec.edited(&settled)
}

/// What was there stays, in its order; what is added makes a valid spec; twice is once.
fn check_spec(bytes: &[u8]) {
    let request = ContainerConfig::parse(bytes).request(&ScanScope::default());
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let Ok(spec) = Spec::parse(text) else {
        return;
    };
    let _ = request.get(RequestSource::Environment, "OCI_A");
    let _ = spec.root_path();
    let Ok(once) = edited(&spec) else {
        return;
    };
    let mut rest = once.bytes();
    let without_nulls = text.replace("null", "");
    let kept = without_nulls.bytes().all(|old| rest.any(|new| new == old));
    assert!(kept, "{text}\n{once}");
    let again = Spec::parse(&once).unwrap_or_else(|e| panic!("{e}\n{text}\n{once}"));
    assert_eq!(edited(&again).as_ref(), Ok(&once), "{text}");
}

fn check_environment(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let environment: Environment = text.split('\0').collect();
    for name in ["OCI_A", "OCI_B", "A", ""] {
        let _ = asked(environment.get(name));
    }
}

fn additions() -> [Addition; 2] {
    let addition = |soname: &str, path: &str| Addition {
        soname: soname.to_owned(),
        path: path.to_owned(),
        flags: 0x303,
    };
    [addition("liba.so.1", "/o/liba.so.1"), addition("libz.so.10", "/o/libz.so.10")]
}

fn cache_sample() -> Vec<u8> {
    let image: Vec<Addition> = (0..8)
        .map(|i| Addition {
            soname: format!("lib{i}.so.{i}"),
            path: format!("/lib/lib{i}.so.{i}"),
            flags: 0x303,
        })
        .collect();
    let empty = parse(b"").expect("an empty cache");
    write(&merge(empty, &image)).expect("a cache")
}

fn check_cache(bytes: &[u8]) {
    let Ok(cache) = parse(bytes) else { return };
    let ours = additions();
    let Some(once) = write(&merge(cache, &ours)) else {
        return;
    };
    let again = parse(&once).expect("what we wrote can be read");
    assert_eq!(write(&merge(again, &ours)), Some(once));
}

fn check_state(bytes: &[u8]) {
    if let Ok(state) = State::parse(&String::from_utf8_lossy(bytes)) {
        assert!(state.bundle.is_absolute() && state.pid.map_or(true, |pid| pid.as_raw_pid() > 1));
    }
}

/// This test's own program is an ELF file like any other; its beginning will do.
fn elf_sample() -> Vec<u8> {
    let program = std::fs::read("/proc/self/exe").expect("this program");
    program[..program.len().min(2048)].to_vec()
}

fn check_elf(bytes: &[u8]) {
    thread_local! {
        static FILE: File = tempfile::tempfile().expect("a file");
    }
    FILE.with(|mut file| {
        file.set_len(0).expect("an empty file");
        file.rewind().expect("its beginning");
        file.write_all(bytes).expect("its bytes");
        let _ = libraries::read_elf(file);
        let _ = libraries::elf_section(file, ".note.cuda.fwd_compatibility", 4096);
    });
}
