//! Generates CDI specifications (Container Device Interface) from the inventories of vendor files.
//! <https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md>

use serde_json::json;

use crate::config::settings::Settings;
use crate::config::vendor::Vendor;
use crate::config::vendor_dir;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::model::decide::VendorFile;
use crate::model::edits::Edits;
use devices::{Devices, Hook};

pub use files::{write, write_each};

mod devices;
mod files;
pub mod gpu;
pub mod transform;
pub mod yaml;

/// The oldest version with everything that we use (`hostPath` of a node), so that engines of 2022
/// can read it too.
const VERSION: &str = "0.5.0";
const OWN_VENDOR: &str = "oci-decorator";

/// What to generate.
#[derive(Debug)]
pub struct Request<'a> {
    pub settings: &'a Settings,
    /// Name of a vendor file, without `.json`. `None`: all of them, in one document.
    pub vendor: Option<&'a str>,
    /// Options with which a hook finds the same host and vendor files.
    pub hook_words: Vec<String>,
}

/// The specification as text. Errors: a vendor file has mistakes, a driver is not installed, or
/// this host has nothing of the inventory.
pub fn generate(request: &Request) -> Result<String> {
    let files = vendor_dir::read(&request.settings.config_dir)?;
    let chosen = choose(&files, request)?;
    let kind = kind(&chosen)?;
    let host = Host::open(&request.settings.root)?;
    let mut devices = Devices::new(&host, Hook::new(&request.hook_words)?);
    let single = chosen.len() == 1;
    let mut all = Edits::default();
    let mut flags = Vec::new();
    for (file, vendor) in &chosen {
        let prefix = if single {
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
        "kind": kind,
        "devices": devices.found()?,
    });
    Ok(format!("{document:#}\n"))
}

fn choose<'a>(
    files: &'a [VendorFile],
    request: &Request,
) -> Result<Vec<(&'a VendorFile, &'a Vendor)>> {
    let folder = request.settings.config_dir.display();
    let mut chosen = Vec::new();
    for file in files {
        if request.vendor.is_none_or(|name| name == file.name) {
            chosen.push((file, file.usable()?));
        }
    }
    match (chosen.is_empty(), request.vendor) {
        (false, _) => Ok(chosen),
        (true, Some(name)) => Err(Error::not_found(format!("{folder} has no {name}.json"))
            .resolve(format!("see which vendor files there are: oci-decorator check --config-dir {folder}"))),
        (true, None) => Err(Error::not_found(format!("{folder} has no vendor files"))
            .resolve(format!("install a driver, which brings one: provision apply; or copy one of ours, for example: cp /usr/share/oci-decorator/vendors/oci-amd.json {folder}"))),
    }
}

/// The vendor's own kind, or a kind made from the name of its file. Several vendors share our kind.
fn kind(chosen: &[(&VendorFile, &Vendor)]) -> Result<String> {
    let [(file, vendor)] = chosen else {
        return Ok(format!("{OWN_VENDOR}/driver"));
    };
    if let Some(kind) = &vendor.cdi_kind {
        return Ok(kind.clone());
    }
    let kind = format!("{OWN_VENDOR}/{}", plain(&file.name, "_-"));
    match crate::config::vendor::check_kind(&kind) {
        None => Ok(kind),
        Some(problem) => Err(Error::usage(format!("{}: {problem}", file.path))
            .resolve("give the file a \"cdi_kind\"")),
    }
}

/// The text with a dash for every character except letters, digits and `others`.
fn plain(text: &str, others: &str) -> String {
    let known = |c: char| c.is_ascii_alphanumeric() || others.contains(c);
    text.chars()
        .map(|c| if known(c) { c } else { '-' })
        .collect()
}

#[cfg(test)]
mod tests;
