//! Generates CDI specifications (Container Device Interface) from the inventories of vendor files.
//! <https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md>

use std::cell::OnceCell;

use crate::config::settings::Settings;
use crate::config::vendor_dir;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::model::vendor::{Vendor, VendorFile};

pub use document::yaml;
pub use files::{remove_each, write, write_each};

mod document;
mod files;
pub mod gated;
pub mod gpu;
mod own;

const OWN_VENDOR: &str = "oci-decorator";

/// Makes specifications from vendor files, which are read once for all of them.
pub struct Generator<'a> {
    settings: &'a Settings,
    files: Vec<VendorFile>,
    host: OnceCell<Host>,
}

impl<'a> Generator<'a> {
    pub fn read(settings: &'a Settings) -> Result<Self> {
        Ok(Self { settings, files: vendor_dir::read(&settings.config_dir)?, host: OnceCell::new() })
    }

    /// Errors: the root can't be opened, which is said only where the vendor files are well.
    fn host(&self) -> Result<&Host> {
        if let Some(host) = self.host.get() {
            return Ok(host);
        }
        let host = Host::open(&self.settings.root)?;
        Ok(self.host.get_or_init(|| host))
    }

    /// The specification of the vendor file with this name, without `.json`, or one of all files.
    /// Errors: a vendor file has mistakes, a driver is not installed, or this host has nothing of
    /// the inventory: engines refuse a specification without devices.
    pub fn specification(&self, vendor: Option<&str>) -> Result<String> {
        let chosen = self.choose(vendor)?;
        let document = own::document(self.host()?, kind(&chosen)?, &chosen)?;
        if document.devices.is_empty() {
            return Err(Error::not_found("this host has nothing that the vendor files list")
                .resolve(
                    "load the driver: provision load; see what is missing: oci-decorator check",
                ));
        }
        Ok(format!("{:#}\n", document::json(&document)))
    }

    /// The vendor file of this name, or all of them. Errors: there is none, or one has mistakes.
    fn choose(&self, vendor: Option<&str>) -> Result<Vec<(&VendorFile, &Vendor)>> {
        let folder = self.settings.config_dir.display();
        let mut chosen = Vec::new();
        for file in &self.files {
            if vendor.is_none_or(|name| name == file.name) {
                chosen.push((file, file.usable()?));
            }
        }
        match (chosen.is_empty(), vendor) {
            (false, _) => Ok(chosen),
            (true, Some(name)) => Err(Error::not_found(format!("{folder} has no {name}.json"))
                .resolve(format!("see which vendor files there are: oci-decorator check --config-dir {folder}"))),
            (true, None) => Err(Error::not_found(format!("{folder} has no vendor files"))
                .resolve(format!("install a driver, which brings one: provision apply; or copy one of ours, for example: cp /usr/share/oci-decorator/vendors/oci-amd.json {folder}"))),
        }
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
    text.chars().map(|c| if known(c) { c } else { '-' }).collect()
}
