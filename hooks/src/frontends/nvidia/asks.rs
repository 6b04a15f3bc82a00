//! Turns a candidate that counts into an [`Ask`].

use super::devices::AUTOMATIC;
use super::{capabilities, devices, requirements, rights, FrontEndKind, Nvidia};
use crate::config::nvidia::Compat;
use crate::error::{Error, Result};
use crate::log::brief;
use crate::model::policy::Judge;
use crate::model::request::{
    Ask, Candidate, Details, Features, Interface, Request, Source, Units, Way, Words,
};

impl Nvidia<'_> {
    /// What a candidate asks for. The parts that do not count are added to `refused`.
    pub(super) fn ask(
        &self,
        request: &Request,
        candidate: Candidate,
        judge: Judge,
        refused: &mut Vec<String>,
    ) -> Ask {
        let way = candidate.way;
        let mut details = match way {
            Way::Cdi => Ok(Details::default()),
            Way::VendorFile | Way::Csv => self.details(request, way, judge, refused),
        };
        if let Some(name) = devices::malformed(&candidate) {
            details = Err(no_name(&candidate.by, name));
        }
        let mut names = candidate.names().iter();
        if way == Way::Cdi && names.any(|name| devices::is_automatic(name)) {
            details = Err(mixed(&candidate.by));
        }
        let units = self.units(candidate.words, way);
        if let (FrontEndKind::Hook, Units::These(names), Ok(_)) = (self.kind, &units, &details) {
            if let Some(name) = names.iter().find(|name| devices::is_qualified(name)) {
                details = Err(names_of_cdi(&candidate.by, name));
            }
        }
        Ask {
            interface: Interface::Nvidia,
            source: candidate.sources.first().copied().unwrap_or(Source::Environment),
            by: candidate.by,
            units,
            way,
            details,
        }
    }

    /// The names in the form that the chosen way needs.
    fn units(&self, words: Words, way: Way) -> Units {
        let kind = &self.config.cdi_kind;
        match words {
            Words::Nothing | Words::None => Units::None,
            Words::All if way == Way::Cdi => Units::These(vec![devices::qualified("all", kind)]),
            Words::All => Units::All,
            Words::These(names) => {
                let name = |name: &String| match way {
                    Way::Cdi => devices::qualified(name, kind),
                    _ => devices::bare(name, kind).to_owned(),
                };
                let mut names: Vec<String> = names.iter().map(name).collect();
                names.dedup();
                let is_special = |name: &&String| matches!(name.as_str(), "all" | "none");
                let special = names.iter().find(is_special).filter(|_| way != Way::Cdi);
                match special.map(String::as_str) {
                    Some("all") => Units::All,
                    Some(_) => Units::None,
                    None => Units::These(names),
                }
            }
        }
    }

    fn details(
        &self,
        request: &Request,
        way: Way,
        judge: Judge,
        refused: &mut Vec<String>,
    ) -> Result<Details> {
        let environment = &request.environment;
        if let Some(entry) = environment.bare() {
            return Err(bare_entry(entry));
        }
        let features = if self.is_legacy() {
            let is_old = requirements::is_legacy(environment);
            capabilities::capabilities(environment, &self.config.capabilities, is_old)?
        } else {
            Features::All
        };
        let is_checked = self.is_legacy() || way == Way::Csv;
        let requirements = if is_checked && !self.config.disable_require {
            requirements::requirements(environment)?
        } else {
            Vec::new()
        };
        let mut devices = rights::Judged::new(judge, refused);
        let (channels, channels_by) = rights::channels(request, self.config, &mut devices)?;
        // NVIDIA's rule about variables is one for devices.
        let mut beside = rights::Judged::new(judge.with_nvidias_rule(true), refused);
        Ok(Details {
            features,
            requirements,
            channels,
            channels_by,
            mig_rights: rights::mig_rights(request, &mut beside)?,
            related: rights::related(request, &mut beside),
            groups: !self.config.no_groups,
            compat: self.config.compat == Compat::LibraryCache
                && !self.is_disabled("enable-cuda-compat"),
            every_list: requirements::wants_every_list(environment),
        })
    }
}

fn bare_entry(entry: &str) -> Error {
    Error::usage(format!(
        "the container asks for devices, and its environment has {:?}, which is not NAME=VALUE",
        brief(entry)
    ))
    .resolve("write a \"=\" behind the name, or leave the entry out")
}

fn no_name(by: &str, name: &str) -> Error {
    Error::usage(format!(
        "the annotation {by} has {:?}, which is not the name of a CDI device",
        brief(name)
    ))
    .resolve("write names like vendor.com/class=device, with commas between them")
}

fn mixed(by: &str) -> Error {
    Error::usage(format!(
        "{by} asks for devices of {AUTOMATIC}, which no specification has, and for others of CDI"
    ))
    .resolve("name devices of one kind only: NVIDIA_VISIBLE_DEVICES=0,1")
}

fn names_of_cdi(by: &str, name: &str) -> Error {
    Error::usage(format!(
        "{by} asks for the CDI device {:?}, which a hook can't give: its specification may change the container's spec",
        brief(name)
    ))
    .resolve("start the container with `--runtime=nvidia`, or with `--device` of an engine that knows CDI")
}
