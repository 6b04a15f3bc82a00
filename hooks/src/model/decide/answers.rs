//! Decides which vendor file answers a request through another program's interface, and with which
//! features. Pure.

use super::{none_allowed, other_ways, refuse_broken, Choice, Refusals};
use crate::error::{Error, Result};
use crate::log::level::Level;
use crate::log::{brief, Note};
use crate::model::policy::Policy;
use crate::model::request::{Ask, Details, Features, Request, Way};
use crate::model::vendor::{Vendor, VendorFile};

/// A vendor file and what it gives for one request.
#[derive(Debug)]
pub struct Answer<'a> {
    pub choice: Choice<'a>,
    pub ask: &'a Ask,
    pub details: &'a Details,
}

/// The requests that count.
#[derive(Debug, Default)]
pub struct Answers<'a> {
    pub by_files: Vec<Answer<'a>>,
    /// Requests that are answered in other ways than by a vendor file.
    pub otherwise: Vec<Ask>,
    pub notes: Vec<Note>,
}

/// Finds the answers. Errors: why the start is refused, on one line.
/// Notes: what the policy leaves out, and features that the vendor file lacks.
pub fn answers<'a>(
    files: &'a [VendorFile],
    request: &'a Request,
    policy: &Policy,
    folder: &str,
) -> Result<Answers<'a>> {
    let mut finder = Finder {
        files,
        request,
        folder,
        refusals: Refusals::new(policy),
        found: Answers::default(),
    };
    for reason in &request.refused {
        finder.refusals.add_for(None, reason.clone())?;
    }
    for ask in &request.asks {
        if ask.way == Way::VendorFile {
            finder.add_file(ask)?;
        } else {
            finder.add_other_way(ask)?;
        }
    }
    let mut found = finder.found;
    found.notes.extend(finder.refusals.notes);
    Ok(found)
}

/// Answers as they are found.
struct Finder<'a, 'p> {
    files: &'a [VendorFile],
    request: &'a Request<'a>,
    /// The folder of vendor files, for messages.
    folder: &'p str,
    refusals: Refusals<'p>,
    found: Answers<'a>,
}

impl<'a> Finder<'a, '_> {
    fn add_other_way(&mut self, ask: &'a Ask) -> Result<()> {
        let counting = other_ways::counting(self.files, self.request, ask, &mut self.refusals)?;
        if let Some(ask) = counting {
            ask.details.as_ref().map_err(Clone::clone)?;
            self.found.otherwise.push(ask);
        }
        Ok(())
    }

    fn add_file(&mut self, ask: &'a Ask) -> Result<()> {
        let (file, vendor) = usable(self.files, ask, self.folder)?;
        if let Err(reason) = self.refusals.policy.judge_vendor(&file.name, &ask.by) {
            return self.refusals.add(file, reason);
        }
        let details = ask.details.as_ref().map_err(Clone::clone)?;
        let (asked, by_name) = self.features_of(file, vendor, ask, &details.features);
        let features = self.refusals.allowed(file, &ask.by, &asked, by_name)?;
        if !asked.is_empty() && !by_name && features.is_empty() {
            self.refusals.add(file, none_allowed(file, vendor, &ask.by))?;
        }
        let choice = Choice { file, vendor, features };
        self.found.by_files.push(Answer { choice, ask, details });
        Ok(())
    }

    /// The features that are asked for, with duplicates, and whether they were named one by one. One
    /// that the file lacks is left out.
    fn features_of(
        &mut self,
        file: &VendorFile,
        vendor: &'a Vendor,
        ask: &Ask,
        wanted: &Features,
    ) -> (Vec<&'a str>, bool) {
        let (words, by_name) = match wanted {
            Features::Usual => {
                return (vendor.driver_feature.iter().map(String::as_str).collect(), false)
            }
            Features::All => return (vendor.feature_names().collect(), false),
            Features::These { words, by_name } => (words, *by_name),
        };
        let mut asked: Vec<&'a str> = Vec::new();
        for capability in words {
            let features = vendor.features_for(capability);
            if features.is_empty() {
                let message = format!(
                    "{} asks for {:?}, which {} does not have: left out",
                    ask.by,
                    brief(capability),
                    file.path
                );
                let level = if by_name { Level::Notice } else { Level::Debug };
                let note = Note::new(level, message).vendor(&file.name);
                self.found.notes.push(note);
            }
            asked.extend(features);
        }
        (asked, by_name)
    }
}

/// The one file that answers. Errors: no file answers, several do, or the file has mistakes.
fn usable<'a>(
    files: &'a [VendorFile],
    ask: &Ask,
    folder: &str,
) -> Result<(&'a VendorFile, &'a Vendor)> {
    let word = ask.interface.word();
    let answers = |file: &&VendorFile| file.interfaces().contains(&ask.interface);
    let mut found = files.iter().filter(answers);
    match (found.next(), found.next()) {
        (Some(one), None) => match &one.content {
            Ok(vendor) => Ok((one, vendor)),
            Err(broken) => Err(refuse_broken(one, broken, &ask.by)),
        },
        (Some(one), Some(other)) => Err(Error::usage(format!(
            "{} asks for a device, and both {} and {} answer {word:?}",
            ask.by, one.path, other.path
        ))
        .resolve("remove one of the files, or remove the word from its \"interfaces\"")),
        (None, _) => Err(Error::not_found(format!(
            "{} asks for a device, and no vendor file in {folder} answers {word:?}",
            ask.by
        ))
        .resolve(format!(
            "install the driver (`provision apply`), or add \"interfaces\": [\"{word}\"] to its vendor file"
        ))),
    }
}
