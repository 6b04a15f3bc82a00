//! What a container asks for, what the policy lets it have, and the edits that follow. Pure: it
//! looks at no host and changes no container.

pub mod decide;
pub mod edits;
pub mod glob;
pub mod policy;
pub mod request;
pub mod vendor;
