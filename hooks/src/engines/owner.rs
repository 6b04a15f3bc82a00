//! Finds the package that owns a file of the host, in the records of the package managers.
//!
//! dpkg's records are read. rpm has a database, so `rpm -qf` is run if there is one.
//! Sources: dpkg-query(1), dpkg-divert(1), update-alternatives(1), rpm(8).

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The folder of dpkg's records, below the host's root.
const DPKG: &str = "var/lib/dpkg";
/// The folders of rpm's database.
const RPM: [&str; 2] = ["var/lib/rpm", "usr/lib/sysimage/rpm"];
/// The folders in which `update-alternatives` records its names: Debian's, and the RPM family's.
const ALTERNATIVES: [&str; 2] = ["var/lib/dpkg/alternatives", "var/lib/alternatives"];
const LIMIT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(10);

/// The owner of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    Nothing,
    Package(String),
    /// `update-alternatives` manages it under this name.
    Alternatives(String),
    /// The owner can't be found, and why.
    Unknown(String),
}

/// The owner of a file of this host, by its absolute path.
pub fn owner(path: &Path) -> Owner {
    let by_files = by_files(Path::new("/"), path);
    match by_files {
        Owner::Nothing => by_rpm(path),
        other => other,
    }
}

/// The owner according to the files below a root.
fn by_files(root: &Path, path: &Path) -> Owner {
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    if ALTERNATIVES
        .iter()
        .any(|folder| root.join(folder).join(name).is_file())
    {
        return Owner::Alternatives(name.to_owned());
    }
    match by_dpkg(root, path) {
        Ok(Some(package)) => Owner::Package(package),
        Ok(None) => Owner::Nothing,
        Err(error) => Owner::Unknown(format!("dpkg's records can't be read: {error}")),
    }
}

/// The package whose list has the path, unless its file was diverted.
fn by_dpkg(root: &Path, path: &Path) -> std::io::Result<Option<String>> {
    let names = names_of(root, path);
    let diversions = text_of(&root.join(DPKG).join("diversions"))?;
    let lines: Vec<&str> = diversions.lines().collect();
    let mut diverted = lines.chunks_exact(3);
    let by = diverted.find(|entry| names.iter().any(|name| name == entry[0]));
    let by = by.map(|entry| entry[2]);
    let entries = match fs::read_dir(root.join(DPKG).join("info")) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let file = entry.file_name().to_string_lossy().into_owned();
        let Some(package) = file.strip_suffix(".list") else {
            continue;
        };
        let plain = package.split(':').next().unwrap_or(package);
        // A file that another package or the admin (":") diverted lies elsewhere.
        if by.is_some_and(|by| by != plain) {
            continue;
        }
        let list = fs::read(entry.path())?;
        let mut lines = list.split(|byte| *byte == b'\n');
        if lines.any(|line| names.iter().any(|name| name.as_bytes() == line)) {
            return Ok(Some(plain.to_owned()));
        }
    }
    Ok(None)
}

/// The path, and its name in lists that are older than the link from `/bin` to `/usr/bin`.
fn names_of(root: &Path, path: &Path) -> Vec<String> {
    let mut names = vec![path.display().to_string()];
    let folder = path.parent().unwrap_or(Path::new("/"));
    if let (Ok(below), Some(name)) = (folder.strip_prefix("/usr"), path.file_name()) {
        let link = fs::read_link(root.join(below));
        if link.is_ok_and(|to| to.ends_with(Path::new("usr").join(below))) {
            names.push(Path::new("/").join(below).join(name).display().to_string());
        }
    }
    names
}

fn text_of(path: &Path) -> std::io::Result<String> {
    match fs::read(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        bytes => Ok(String::from_utf8_lossy(&bytes?).into_owned()),
    }
}

fn by_rpm(path: &Path) -> Owner {
    let has_database = |folder: &&str| {
        let entries = fs::read_dir(Path::new("/").join(folder));
        entries.is_ok_and(|mut entries| entries.next().is_some())
    };
    if !RPM.iter().any(has_database) {
        return Owner::Nothing;
    }
    ask("rpm", path).unwrap_or_else(|problem| Owner::Unknown(format!("rpm {problem}")))
}

/// Runs `rpm -qf` with a time limit, because it may wait for a lock of its database.
fn ask(program: &str, path: &Path) -> Result<Owner, String> {
    let mut child = Command::new(program)
        .args(["-qf", "--queryformat", "%{NAME}\\n"])
        .arg(path)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("can't be started: {error}"))?;
    let deadline = Instant::now() + LIMIT;
    while child
        .try_wait()
        .map_err(|error| error.to_string())?
        .is_none()
    {
        if Instant::now() >= deadline {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("gave no answer in {} s", LIMIT.as_secs()));
        }
        std::thread::sleep(PAUSE);
    }
    let output = child.wait_with_output().map_err(|e| e.to_string())?;
    answer(
        output.status.success(),
        &String::from_utf8_lossy(&output.stdout),
    )
}

/// Reads rpm's answer: names of packages, or that no package owns the file.
fn answer(is_success: bool, said: &str) -> Result<Owner, String> {
    match (is_success, said.trim().lines().next()) {
        (true, Some(package)) => Ok(Owner::Package(package.to_owned())),
        (false, Some(line)) if line.ends_with("is not owned by any package") => Ok(Owner::Nothing),
        _ => Err(format!("gave an unknown answer: {said:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn host(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    fn found(dir: &tempfile::TempDir, path: &str) -> Owner {
        by_files(dir.path(), Path::new(path))
    }

    fn package(name: &str) -> Owner {
        Owner::Package(name.to_owned())
    }

    #[test]
    fn lists_of_dpkg_say_whose_a_file_is() {
        let dir = host(&[
            (
                "var/lib/dpkg/info/one:amd64.list",
                "/.\n/usr\n/usr/bin/nvidia-ctk\n",
            ),
            ("var/lib/dpkg/info/two.list", "/bin/old\n/usr/bin/nvidia-c"),
            ("var/lib/dpkg/info/two.md5sums", "/usr/bin/no-list\n"),
        ]);
        assert_eq!(found(&dir, "/usr/bin/nvidia-ctk"), package("one"));
        assert_eq!(found(&dir, "/usr/bin/nvidia-c"), package("two"));
        for path in ["/usr/bin/nvidia", "/usr/bin/no-list", "/usr/bin/old"] {
            assert_eq!(found(&dir, path), Owner::Nothing, "{path}");
        }
        symlink("usr/bin", dir.path().join("bin")).unwrap();
        assert_eq!(found(&dir, "/usr/bin/old"), package("two"));
        assert_eq!(found(&host(&[]), "/usr/bin/old"), Owner::Nothing);
    }

    #[test]
    fn a_file_that_was_diverted_lies_elsewhere() {
        let list = ("var/lib/dpkg/info/one.list", "/usr/bin/x\n");
        let other = ("var/lib/dpkg/info/two.list", "/usr/bin/x\n");
        for (by, expected) in [
            (":", Owner::Nothing),
            ("two", Owner::Nothing),
            ("one", package("one")),
        ] {
            let text = format!("/a\n/b\n:\n/usr/bin/x\n/usr/bin/x.distrib\n{by}\n");
            let dir = host(&[list, ("var/lib/dpkg/diversions", &text)]);
            assert_eq!(found(&dir, "/usr/bin/x"), expected, "{by}");
        }
        let text = "/usr/bin/x\n/usr/bin/x.distrib\ntwo\n";
        let dir = host(&[list, other, ("var/lib/dpkg/diversions", text)]);
        assert_eq!(found(&dir, "/usr/bin/x"), package("two"));
    }

    #[test]
    fn what_rpm_says_is_understood_or_unknown() {
        let none = "file /usr/bin/x is not owned by any package\n";
        for (is_success, said, expected) in [
            (true, "one\n", Some(package("one"))),
            (true, "one\ntwo\n", Some(package("one"))),
            (false, none, Some(Owner::Nothing)),
            (false, "error: can't open the database\n", None),
            (false, "", None),
            (true, "", None),
        ] {
            assert_eq!(answer(is_success, said).ok(), expected, "{said}");
        }
    }

    #[test]
    fn names_of_alternatives_are_managed() {
        for folder in ALTERNATIVES {
            let dir = host(&[(&format!("{folder}/nvidia-ctk"), "auto\n")]);
            let expected = Owner::Alternatives("nvidia-ctk".to_owned());
            assert_eq!(found(&dir, "/usr/bin/nvidia-ctk"), expected);
            assert_eq!(found(&dir, "/usr/bin/nvidia-cdi-hook"), Owner::Nothing);
        }
    }
}
