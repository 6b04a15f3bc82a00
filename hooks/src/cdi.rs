//! The inventory as a specification of the Container Device Interface.
//! <https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md>

use std::path::Path;

use rustix::fs::{Mode, OFlags};
use serde_json::{json, Value};

use crate::collect::{collect_one, Report};
use crate::decide::{Choice, VendorFile};
use crate::edits::{Device, Edits, Mount};
use crate::error::{Error, Result};
use crate::host::Host;
use crate::publish::{publish, Temporary};
use crate::settings::Settings;
use crate::vendor::Vendor;
use crate::vendor_dir;

/// The oldest version that has all that we use (`hostPath` of a node), so that engines
/// of 2022 read it as well as today's.
const VERSION: &str = "0.5.0";
const OWN_VENDOR: &str = "oci-decorator";
const TEMPORARY: &str = ".oci-decorator.cdi.tmp";

/// What is to be generated.
#[derive(Debug)]
pub struct Request<'a> {
    pub settings: &'a Settings,
    /// Name of a vendor file, without `.json`. `None`: all of them, in one document.
    pub vendor: Option<&'a str>,
    /// Options that a hook needs to find the same host and vendor files.
    pub hook_words: Vec<String>,
}

/// The specification as text.
/// Errors: a vendor file with mistakes, a driver that isn't installed, no devices at all.
pub fn generate(request: &Request) -> Result<String> {
    let files = vendor_dir::read(&request.settings.config_dir)?;
    let chosen = choose(&files, request)?;
    let host = Host::open(&request.settings.root)?;
    let mut devices = Devices {
        host: &host,
        hook: Hook::new(&request.hook_words)?,
        found: Vec::new(),
    };
    let alone = chosen.len() == 1;
    let mut all = Edits::default();
    let mut flags = Vec::new();
    for (file, vendor) in &chosen {
        let prefix = if alone {
            String::new()
        } else {
            format!("{}-", file.name)
        };
        all.append(devices.add_vendor(file, vendor, &prefix)?);
        flags.push(format!("{}=all", vendor.activation_flag));
    }
    all.sort();
    devices.add("all", &all, &flags);
    let document = json!({
        "cdiVersion": VERSION,
        "kind": kind(&chosen)?,
        "devices": devices.found,
    });
    Ok(format!("{document:#}\n"))
}

/// Writes the file, whole or not at all. Its folder is made where there is none: on a new
/// host nobody has made `/etc/cdi` yet.
pub fn write(path: &Path, text: &str) -> Result<()> {
    let fail = |e: rustix::io::Errno| Error::failed(format!("can't write {}: {e}", path.display()));
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(fail(rustix::io::Errno::ISDIR));
    };
    let folder = if folder == Path::new("") {
        Path::new(".")
    } else {
        folder
    };
    std::fs::create_dir_all(folder)
        .map_err(|e| Error::failed(format!("can't make {}: {e}", folder.display())))?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags, Mode::empty()).map_err(fail)?;
    let mut like = rustix::fs::fstat(&folder).map_err(fail)?;
    like.st_mode = 0o644;
    publish(
        &folder,
        Temporary::Alone(TEMPORARY),
        name,
        text.as_bytes(),
        &like,
    )
    .map_err(fail)
}

fn choose<'a>(
    files: &'a [VendorFile],
    request: &Request,
) -> Result<Vec<(&'a VendorFile, &'a Vendor)>> {
    let folder = request.settings.config_dir.display();
    let mut chosen = Vec::new();
    for file in files {
        if request.vendor.is_none_or(|name| name == file.name) {
            let vendor = file.content.as_ref().map_err(|_| {
                Error::usage(format!("{} can't be used", file.path))
                    .resolve("`oci-decorator check` lists every mistake")
            })?;
            chosen.push((file, vendor));
        }
    }
    match (chosen.is_empty(), request.vendor) {
        (false, _) => Ok(chosen),
        (true, Some(name)) => Err(Error::not_found(format!("{folder} has no {name}.json"))),
        (true, None) => Err(Error::not_found(format!("{folder} has no vendor files"))),
    }
}

/// The vendor's own kind, or one that its file's name makes. Several vendors share ours.
fn kind(chosen: &[(&VendorFile, &Vendor)]) -> Result<String> {
    let [(file, vendor)] = chosen else {
        return Ok(format!("{OWN_VENDOR}/driver"));
    };
    if let Some(kind) = &vendor.cdi_kind {
        return Ok(kind.clone());
    }
    let kind = format!("{OWN_VENDOR}/{}", plain(&file.name, "_-"));
    match crate::vendor::check_kind(&kind) {
        None => Ok(kind),
        Some(problem) => Err(Error::usage(format!("{}: {problem}", file.path))
            .resolve("give the file a \"cdi_kind\"")),
    }
}

/// The text with everything else than letters, digits and these as a dash.
fn plain(text: &str, others: &str) -> String {
    let known = |c: char| c.is_ascii_alphanumeric() || others.contains(c);
    text.chars()
        .map(|c| if known(c) { c } else { '-' })
        .collect()
}

struct Devices<'a> {
    host: &'a Host,
    hook: Hook<'a>,
    found: Vec<Value>,
}

impl Devices<'_> {
    /// Adds the vendor's devices; gives all that its features need together.
    fn add_vendor(&mut self, file: &VendorFile, vendor: &Vendor, prefix: &str) -> Result<Edits> {
        let collect = |features: Vec<&str>| {
            let choice = Choice {
                file,
                vendor,
                features,
            };
            collect_one(self.host, &choice, Report::Missing).map(|(mut edits, _)| {
                edits.sort();
                edits
            })
        };
        let mut by_feature = Vec::new();
        for name in vendor.feature_names() {
            by_feature.push((name, collect(vec![name])?));
        }
        let all = collect(vendor.feature_names().collect())?;
        for device in &all.devices {
            let (features, edits) = around(device, &by_feature);
            let flag = format!("{}={}", vendor.activation_flag, features.join(","));
            self.add(&format!("{prefix}{}", name(device)), &edits, &[flag]);
        }
        for (feature, edits) in &by_feature {
            let flag = format!("{}={feature}", vendor.activation_flag);
            self.add(&format!("{prefix}feature-{feature}"), edits, &[flag]);
        }
        if !prefix.is_empty() {
            let flag = format!("{}=all", vendor.activation_flag);
            self.add(&format!("{prefix}all"), &all, &[flag]);
        }
        Ok(all)
    }

    /// What has the name already stays: nodes come before features.
    fn add(&mut self, name: &str, edits: &Edits, flags: &[String]) {
        if self.found.iter().all(|device| device["name"] != name) {
            let edits = self.container_edits(edits, flags);
            self.found
                .push(json!({"name": name, "containerEdits": edits}));
        }
    }

    fn container_edits(&self, edits: &Edits, flags: &[String]) -> Value {
        let mut members = serde_json::Map::new();
        let mut put = |name: &str, items: Vec<Value>| {
            if !items.is_empty() {
                members.insert(name.to_owned(), Value::Array(items));
            }
        };
        put(
            "deviceNodes",
            edits.devices.iter().map(device_node).collect(),
        );
        put("mounts", edits.mounts.iter().map(mount).collect());
        let needs_hook = !edits.libraries.is_empty() || edits.bare_directories().next().is_some();
        put(
            "hooks",
            if needs_hook {
                vec![self.hook.entry(flags)]
            } else {
                Vec::new()
            },
        );
        Value::Object(members)
    }
}

/// A node by itself, with the files of every feature that it belongs to.
fn around<'a>(node: &Device, features: &[(&'a str, Edits)]) -> (Vec<&'a str>, Edits) {
    let mut names = Vec::new();
    let mut edits = Edits::default();
    for (name, feature) in features {
        if feature.devices.iter().any(|d| d.path == node.path) {
            names.push(*name);
            edits.append(feature.clone());
        }
    }
    edits.devices.retain(|d| d.path == node.path);
    edits.sort();
    (names, edits)
}

/// `/dev/dri/card0` as `dri-card0`; a name begins with a letter or digit.
fn name(device: &Device) -> String {
    let name = device.path.trim_start_matches("/dev/");
    let name = plain(name, "_-.:");
    let name = name.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    if name.is_empty() {
        "node".to_owned()
    } else {
        name.to_owned()
    }
}

fn device_node(device: &Device) -> Value {
    let mut node = json!({
        "path": device.path,
        "type": device.kind.to_string(),
        "major": device.major,
        "minor": device.minor,
        "fileMode": device.mode,
        "permissions": "rwm",
        "uid": device.uid,
        "gid": device.gid,
    });
    if device.source != device.path {
        node["hostPath"] = json!(device.source);
    }
    node
}

fn mount(mount: &Mount) -> Value {
    json!({
        "hostPath": mount.source,
        "containerPath": mount.target,
        "options": ["ro", "nosuid", "nodev", "bind", "rprivate"],
    })
}

/// The hook that makes the library cache, which a spec can't say.
struct Hook<'a> {
    program: String,
    words: &'a [String],
}

impl<'a> Hook<'a> {
    /// Errors: it can't be told where this program lies.
    fn new(words: &'a [String]) -> Result<Self> {
        let program = std::env::current_exe()
            .ok()
            .and_then(|path| path.into_os_string().into_string().ok())
            .ok_or_else(|| Error::failed("can't tell where this program lies"))?;
        Ok(Self { program, words })
    }

    fn entry(&self, flags: &[String]) -> Value {
        let mut words = vec![OWN_VENDOR.to_owned(), "createRuntime".to_owned()];
        words.extend_from_slice(self.words);
        for flag in flags {
            words.extend(["--library-cache".to_owned(), flag.clone()]);
        }
        json!({
            "hookName": "createRuntime",
            "path": self.program,
            "args": words,
            // Without one, a runtime may pass the container's environment on.
            "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
        })
    }
}
