//! Parsers on damaged input: each target takes bytes and panics when a promise is broken.
//! `tests/fuzz.rs` runs each a little, `benches/fuzz.rs` a million times.

use std::fs::File;
use std::io::{Seek, Write};

use oci_decorator::edits::{Device, Edits, Mount};
use oci_decorator::environment::Environment;
use oci_decorator::hook::state::State;
use oci_decorator::ldcache::{merge, parse, write, Addition};
use oci_decorator::spec::Spec;
use oci_decorator::{decide, elf, vendor};

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
    let target = |name, samples, check| Target {
        name,
        samples,
        check,
    };
    vec![
        target("vendor", text(&vendors), check_vendor),
        target("spec", text(&SPECS), check_spec),
        target("environment", text(&[ENVIRONMENT]), check_environment),
        target("cache", vec![cache_sample()], check_cache),
        target("state", text(&[STATE]), check_state),
        target("elf", vec![elf_sample()], check_elf),
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
/// Parts that the formats are made of.
const WORDS: [&[u8]; 16] = [
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

fn edits() -> Edits {
    let device = |path: &str| Device {
        source: path.to_owned(),
        path: path.to_owned(),
        kind: 'c',
        major: 195,
        minor: 0,
        mode: 0o666,
        uid: 0,
        gid: 0,
    };
    Edits {
        devices: vec![device("/dev/n0"), device("/dev/n1")],
        mounts: vec![Mount {
            source: "/h/a\"b".to_owned(),
            target: "/a\"b".to_owned(),
        }],
        ..Edits::default()
    }
}

/// What was there stays, in its order; what is added makes a valid spec; twice is once.
fn check_spec(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let Ok(spec) = Spec::parse(text) else {
        return;
    };
    let _ = spec.environment();
    let _ = spec.root_path();
    let Ok(once) = spec.edited(&edits()) else {
        return;
    };
    let mut rest = once.bytes();
    let without_nulls = text.replace("null", "");
    let kept = without_nulls.bytes().all(|old| rest.any(|new| new == old));
    assert!(kept, "{text}\n{once}");
    let again = Spec::parse(&once).unwrap_or_else(|e| panic!("{e}\n{text}\n{once}"));
    assert_eq!(again.edited(&edits()).as_ref(), Ok(&once), "{text}");
}

fn check_environment(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let environment: Environment = text.split('\0').collect();
    for name in ["OCI_A", "OCI_B", "A", ""] {
        let _ = decide::asked(environment.get(name));
    }
}

fn additions() -> [Addition; 2] {
    let addition = |soname: &str, path: &str| Addition {
        soname: soname.to_owned(),
        path: path.to_owned(),
        flags: 0x303,
    };
    [
        addition("liba.so.1", "/o/liba.so.1"),
        addition("libz.so.10", "/o/libz.so.10"),
    ]
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
        assert!(state.bundle.is_absolute() && state.pid.as_raw_pid() > 1);
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
        let _ = elf::read(file);
    });
}
