//! The keys of the objects of a spec that are read or edited.
//! <https://github.com/opencontainers/runtime-spec/blob/v1.2.1/config.md>, config-linux.md

#[rustfmt::skip]
const KEYS: [(&str, &[&str]); 13] = [
    ("", &["ociVersion", "process", "root", "hostname", "domainname", "mounts", "hooks", "annotations", "linux"]),
    ("process", &["terminal", "consoleSize", "user", "args", "env", "cwd", "capabilities", "rlimits", "noNewPrivileges", "apparmorProfile", "oomScoreAdj", "scheduler", "selinuxLabel", "ioPriority", "execCPUAffinity"]),
    ("process.capabilities", &["bounding", "effective", "inheritable", "permitted", "ambient"]),
    ("process.user", &["uid", "gid", "umask", "additionalGids", "username"]),
    ("root", &["path", "readonly"]),
    ("mounts", &["destination", "type", "source", "options", "uidMappings", "gidMappings"]),
    ("linux", &["uidMappings", "gidMappings", "sysctl", "resources", "cgroupsPath", "namespaces", "devices", "netDevices", "seccomp", "rootfsPropagation", "maskedPaths", "readonlyPaths", "mountLabel", "intelRdt", "personality", "timeOffsets"]),
    ("linux.resources", &["devices", "memory", "cpu", "pids", "blockIO", "hugepageLimits", "network", "rdma", "unified"]),
    ("linux.devices", &["path", "type", "major", "minor", "fileMode", "uid", "gid"]),
    ("linux.resources.devices", &["allow", "type", "major", "minor", "access"]),
    ("linux.namespaces", &["type", "path"]),
    ("hooks.", &["path", "args", "env", "timeout"]),
    ("hooks", &["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"]),
];

/// The keys of an object, by its place in the spec. Empty: no such object is read.
pub fn of(place: &str) -> &'static [&'static str] {
    let mut objects = KEYS.iter();
    let found = objects.find(|(known, _)| *known == place);
    found.map_or(&[], |(_, keys)| keys)
}
