//! Tests with the kernel's own verifier, in a cgroup of the test: which nodes open there, and which
//! do not.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{makedev, mknodat, FileType, Mode, OFlags, CWD};
use rustix::mount::{mount, unmount, MountFlags, UnmountFlags};

use super::*;
use crate::host::rootfs::{mountinfo, MountPoint};
use crate::need;

/// A cgroup of version 2, and a folder for nodes.
struct TestCgroup {
    folder: PathBuf,
    nodes: tempfile::TempDir,
}

impl TestCgroup {
    /// `None`: this machine has no cgroup that can be changed.
    fn make() -> Option<Self> {
        if !need::root("BPF programs of cgroups") {
            return None;
        }
        let mounts = mountinfo().unwrap();
        let made = MountPoint::all(&mounts)
            .filter(|mount| mount.kind == "cgroup2")
            .find_map(|mount| Self::below(Path::new(mount.point)).ok());
        need::need(made.is_some(), "a cgroup2 file system that can be written");
        made
    }

    fn below(mount: &Path) -> std::io::Result<Self> {
        let nodes = tempfile::tempdir()?;
        // Its name is unique. A process number is not: another namespace may use it.
        let name = nodes.path().file_name().unwrap().to_str().unwrap();
        let folder = mount.join(format!("oci-decorator-test{name}"));
        fs::create_dir(&folder)?;
        Ok(Self { folder, nodes })
    }

    /// A cgroup within this one.
    fn inner(&self) -> Self {
        let folder = self.folder.join("inner");
        fs::create_dir(&folder).unwrap();
        Self { folder, nodes: tempfile::tempdir().unwrap() }
    }

    fn open(&self) -> OwnedFd {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(&self.folder, flags, Mode::empty()).unwrap()
    }

    /// Attaches a program as runtimes do.
    fn attach(&self, program: &[Instruction], flags: u32) {
        let program = load_program(program).expect("the verifier's consent");
        let cgroup = self.open();
        let mut attributes = Attach {
            target: cgroup.as_raw_fd(),
            program: program.as_raw_fd(),
            kind: number::CGROUP_DEVICE,
            flags,
            ..Attach::default()
        };
        // SAFETY: the structure has no addresses in it.
        unsafe { bpf(number::ATTACH, &mut attributes) }.unwrap();
    }

    fn ids(&self) -> Vec<u32> {
        programs(&self.open(), 0).unwrap().0
    }

    /// The nodes that a process in the cgroup may open.
    fn opened(&self, nodes: &[&str]) -> Vec<String> {
        let script = "echo $$ >\"$0/cgroup.procs\" || exit 1
            for node; do (: <\"$node\") 2>&1 | grep -q 'not permitted' || echo \"${node##*/}\"; done";
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(&self.folder);
        for node in nodes {
            command.arg(self.node(node));
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// `c126:125` as a node. Majors from 120 to 127 belong to no driver ("local use",
    /// <https://docs.kernel.org/admin-guide/devices.html>). Opening such a node touches no device
    /// and shows only whether the cgroup allows it.
    fn node(&self, name: &str) -> PathBuf {
        let path = self.nodes.path().join(name);
        let device = device(name);
        let kind = match device.kind {
            'b' => FileType::BlockDevice,
            _ => FileType::CharacterDevice,
        };
        let numbers = makedev(device.major, device.minor);
        let made = mknodat(CWD, &path, kind, Mode::from_raw_mode(0o666), numbers);
        assert!(matches!(made, Ok(()) | Err(Errno::EXIST)), "{made:?}");
        path
    }
}

/// The controller of version 1 that counts processes, mounted for a test: a host may not have it
/// mounted, or hide it.
struct CountsOfVersion1(tempfile::TempDir);

impl CountsOfVersion1 {
    fn mount() -> rustix::io::Result<Self> {
        let folder = tempfile::tempdir().unwrap();
        mount("cgroup", folder.path(), "cgroup", MountFlags::empty(), c"pids")?;
        Ok(Self(folder))
    }
}

impl Drop for CountsOfVersion1 {
    fn drop(&mut self) {
        let _ = unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

impl Drop for TestCgroup {
    fn drop(&mut self) {
        // Processes leave a cgroup a moment after they have ended.
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

fn device(name: &str) -> Device {
    let (major, minor) = name[1..].split_once(':').unwrap();
    Device {
        source: format!("/dev/{name}"),
        path: format!("/dev/{name}"),
        kind: name.chars().next().unwrap(),
        major: major.parse().unwrap(),
        minor: minor.parse().unwrap(),
        mode: 0o666,
        uid: Some(0),
        gid: Some(0),
        access: crate::model::edits::Access::ALL,
    }
}

/// A program like a runtime's: nodes with this minor open, with any major, and no other nodes. It
/// relies on the registers that the kernel sets.
fn runtime_program(minor: i32) -> Vec<Instruction> {
    vec![
        make(0x61, 0x12, 8, 0),     // r2 = the minor
        make(0xb7, 0x00, 0, 0),     // r0 = refuse
        make(0x55, 0x02, 1, minor), // if r2 is another: end
        make(0xb7, 0x00, 0, 1),     // r0 = allow
        make(0x95, 0x00, 0, 0),     // end
    ]
}

/// Devices with these rights, in words like `c126:1` or `c126:1/rw`.
fn devices(names: &str) -> Vec<Device> {
    let one = |name: &str| {
        let (name, access) = name.split_once('/').unwrap_or((name, "rwm"));
        Device { access: Access::parse(access).unwrap_or(Access::NONE), ..device(name) }
    };
    names.split_whitespace().map(one).collect()
}

/// What opened before still does, and of the rest only what is asked for. All programs of a cgroup
/// must allow an access, so each of them gets the rules; one without programs gets none.
#[test]
fn only_what_is_asked_for_opens_beside_what_opened_before() {
    for (programs, flags, asked, opens) in [
        (&[77][..], 0, "c126:125", "c126:125 c126:77 c125:77 b125:77"),
        (
            &[77],
            0,
            "c126:3 b125:4 c126:1048575",
            "c126:3 b125:4 c126:1048575 c126:77 c125:77 b125:77",
        ),
        (&[77, 78], number::ALLOW_MULTI, "c126:125", "c126:125"),
        // The test opens the nodes for reading.
        (&[77], 0, "c126:1/r c126:2/w c126:3/rm c126:4/", "c126:1 c126:3 c126:77 c125:77 b125:77"),
    ] {
        let Some(cgroup) = TestCgroup::make() else { return };
        for minor in programs {
            cgroup.attach(&runtime_program(*minor), flags);
        }
        add_rules(&cgroup.open(), &devices(asked)).unwrap();
        // The same numbers as a block device, the neighbours, and the numbers swapped.
        let near = "b126:125 c126:124 c126:126 c125:125 c127:125 c125:126 b126:3 c125:4 c126:4 \
            b125:3 c126:1048574 c126:0 c126:78";
        let asked = asked.split_whitespace().map(|name| name.split('/').next().unwrap());
        let nodes = asked.chain(["c126:77", "c125:77", "b125:77"]).chain(near.split_whitespace());
        let found = cgroup.opened(&nodes.collect::<Vec<_>>());
        assert_eq!(found.join(" "), opens);
        assert_eq!(cgroup.ids().len(), programs.len());
    }
    let Some(cgroup) = TestCgroup::make() else { return };
    add_rules(&cgroup.open(), &devices("c126:125")).unwrap();
    assert_eq!(cgroup.ids(), Vec::<u32>::new());
}

#[test]
fn twice_is_once() {
    for flags in [0, number::ALLOW_MULTI] {
        let Some(cgroup) = TestCgroup::make() else { return };
        cgroup.attach(&runtime_program(77), flags);
        let devices = [device("c126:125"), device("c126:4")];
        add_rules(&cgroup.open(), &devices).unwrap();
        let once = cgroup.ids();
        add_rules(&cgroup.open(), &devices).unwrap();
        assert_eq!(cgroup.ids(), once);
        // Another device makes another program.
        add_rules(&cgroup.open(), &[device("c126:5")]).unwrap();
        assert_ne!(cgroup.ids(), once);
        assert_eq!(cgroup.opened(&["c126:125", "c126:4", "c126:5", "c126:6"]).len(), 3);
    }
}

#[test]
fn what_is_not_there_is_not_forbidden() {
    let Some(cgroup) = TestCgroup::make() else { return };
    cgroup.attach(&runtime_program(77), 0);
    let at =
        |name: &str| Device { source: cgroup.node(name).display().to_string(), ..device(name) };
    let missing = Device { source: "/none".to_owned(), ..device("c126:1") };
    let devices = [at("c126:77"), missing, at("c126:78")];
    let found = forbidden_in(&cgroup.open(), &devices).unwrap();
    assert_eq!(found, Some(&devices[2]));
}

/// `pids.max` is reached: that of the cgroup, or in version 1 the one of this thread, which a child
/// would share.
#[test]
fn a_cgroup_without_room_for_a_process_forbids_no_start() {
    let Some(outer) = TestCgroup::make() else { return };
    outer.attach(&runtime_program(77), number::ALLOW_MULTI);
    let counts = fs::write(outer.folder.join("cgroup.subtree_control"), "+pids").is_ok();
    let inner = outer.inner();
    let name = "c126:78";
    let forbidden = [Device { source: inner.node(name).display().to_string(), ..device(name) }];
    let allow = || allow_by_program(&forbidden, &inner.folder, "c");
    assert!(allow().is_err());
    // The mount goes after the cgroup in it.
    let mounted;
    let full = if counts {
        fs::write(inner.folder.join("pids.max"), "0").unwrap();
        None
    } else {
        mounted = CountsOfVersion1::mount();
        if !need::need(mounted.is_ok(), "cgroups that count processes") {
            return;
        }
        Some(TestCgroup::below(mounted.as_ref().unwrap().0.path()).unwrap())
    };
    let allow_there = || {
        if let Some(TestCgroup { folder, .. }) = &full {
            fs::write(folder.join("pids.max"), "1").unwrap();
            fs::write(folder.join("tasks"), rustix::thread::gettid().to_string()).unwrap();
        }
        allow()
    };
    std::thread::scope(|scope| scope.spawn(allow_there).join()).unwrap().unwrap();
}

const HYBRID: &str = "30 29 0:25 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n\
    31 30 0:26 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
    32 30 0:27 / /sys/fs/cgroup/devices rw shared:9 - cgroup cgroup rw,devices\n\
    33 30 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup rw\n";
const TWO: &str = "30 29 0:25 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

#[test]
fn cgroups_of_every_kind_of_host() {
    let hybrid = "9:cpu,cpuacct:/docker/c\n5:devices:/docker/c\n0::/system.slice\n";
    let devices = Cgroup::One("/sys/fs/cgroup/devices/docker/c".into());
    assert_eq!(find(HYBRID, hybrid), Some(devices));
    let two = Cgroup::Two("/sys/fs/cgroup/machine.slice/c.scope".into());
    assert_eq!(find(TWO, "0::/machine.slice/c.scope\n"), Some(two));
    assert_eq!(find(TWO, "0::/\n"), Some(Cgroup::Two("/sys/fs/cgroup/".into())));
    // A controller of version 1 that is mounted nowhere, and a named one.
    let named = "3:name=devices:/x\n1:devices:/x\n7::/x\n0:odd:/x\n0::/c\n";
    let two = Cgroup::Two("/sys/fs/cgroup/c".into());
    assert_eq!(find(TWO, named), Some(two));
    assert_eq!(find(HYBRID, "0::/c\n"), Some(Cgroup::Two("/sys/fs/cgroup/unified/c".into())));
    assert_eq!(find(TWO, "1:cpu:/x\n"), None);
    assert_eq!(find("", "0::/x\n"), None);
    assert_eq!(find(TWO, "0::/../x\n"), None);
}

#[test]
fn version_one_is_set_in_its_own_file() {
    let folder = tempfile::tempdir().unwrap();
    let device = |kind, major, minor| Device {
        source: "/dev/x".to_owned(),
        path: "/dev/x".to_owned(),
        kind,
        major,
        minor,
        mode: 0o666,
        uid: Some(0),
        gid: Some(0),
        access: crate::model::edits::Access::ALL,
    };
    // A missing file is not made, as the folder would not be a cgroup.
    let one = [device('c', 195, 255)];
    let error = allow_by_file(&one, folder.path()).unwrap_err();
    assert!(error.to_string().contains("devices.allow"), "{error}");
    let file = folder.path().join("devices.allow");
    for (devices, expected) in [
        (&one[..], "c 195:255 rwm"),
        // The kernel takes one rule for each write, so each is written at the beginning.
        (&[device('c', 1, 3), device('b', 259, 1)], "b 259:1 rwm"),
    ] {
        std::fs::write(&file, "").unwrap();
        allow_by_file(devices, folder.path()).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), expected);
    }
    assert!(allow_by_program(&one, folder.path(), "c").is_err());
    assert!(allow_by_program(&one, &file, "c").is_err());
}

#[test]
fn a_mount_of_a_part_of_the_tree() {
    let mounts = TWO.replace("0:25 / ", "0:25 /outer ");
    let inner = Cgroup::Two("/sys/fs/cgroup/c".into());
    assert_eq!(find(&mounts, "0::/outer/c\n"), Some(inner));
    assert_eq!(find(&mounts, "0::/elsewhere/c\n"), None);
}
