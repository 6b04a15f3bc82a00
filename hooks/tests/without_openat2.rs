//! Kernels before 5.6, and filters of system calls that don't know openat2(2): the
//! error names what is missing, and blames no driver.
#![allow(unsafe_code)]

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::support::scene::{setup, CONFIG_DIR, SPEC, VENDOR};
use crate::support::{code, program, runtime, stderr};

/// Lets openat2(2) fail with this error in the program.
fn forbid(command: &mut Command, errno: i32) {
    let instruction =
        |code: u32, jt, jf, k| libc::sock_filter { code: u16::try_from(code).unwrap(), jt, jf, k };
    let openat2 = u32::try_from(libc::SYS_openat2).unwrap();
    let refuse = libc::SECCOMP_RET_ERRNO | u32::try_from(errno).unwrap();
    let mut filter = [
        // The number of the call is the first field of struct seccomp_data.
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, openat2),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, refuse),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let install = move || {
        let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
        // SAFETY: both calls take numbers and a program that lives until they are over.
        let results = unsafe {
            [
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
                libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program),
            ]
        };
        match results {
            [0, 0] => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec, only system calls are made.
    unsafe { command.pre_exec(install) };
}

#[test]
fn openat2_is_named_and_no_driver_blamed() {
    let tree = setup();
    // A Jetson has no vendor file, and is known by a file of the host.
    let nvidia = &SPEC.replace("OCI_X=run", "NVIDIA_VISIBLE_DEVICES=all");
    let rootless = &VENDOR.replace("\"root\": \"/store/current\",", "");
    for errno in [libc::ENOSYS, libc::EPERM] {
        for (name, vendor, spec) in [
            ("oci-decorator-runtime", VENDOR, SPEC),
            ("oci-decorator-runtime", rootless, SPEC),
            ("nvidia-container-runtime", VENDOR, nvidia),
        ] {
            tree.file(&format!("{CONFIG_DIR}/x.json"), vendor);
            tree.file("bundle/config.json", spec);
            let mut shim = program(name);
            shim.env("OCI_DECORATOR_CONFIG", tree.path("config.toml"));
            shim.env("PATH", tree.path("bin")).args(["create", "c"]);
            forbid(&mut shim, errno);
            let output = runtime::finish(shim.current_dir(tree.path("bundle")));
            let message = stderr(&output);
            assert_eq!(code(&output), 1, "{errno}: {message}");
            for part in ["the system call openat2 is missing", "Linux 5.6", "seccomp"] {
                assert!(message.contains(part), "{errno}: {message}");
            }
            assert!(!message.contains("driver"), "{errno}: {message}");
            assert_eq!(tree.text("bundle/config.json"), *spec);
        }
    }
}
