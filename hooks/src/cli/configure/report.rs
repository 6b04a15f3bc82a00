//! Reports what was done to an engine's files.

use super::Order;
use crate::engines::plan::Done;
use crate::spec::json::quote;

fn is_change(done: &[Done]) -> bool {
    done.iter().any(Done::is_change)
}

/// The report as text.
pub fn text(order: &Order, done: &[Done]) -> String {
    let mut lines = Vec::new();
    for done in done {
        let what = match (done.is_change(), order.is_dry, &done.after) {
            (false, ..) => "needs no change",
            (true, true, Some(_)) => "would be written",
            (true, true, None) => "would be removed",
            (true, false, Some(_)) => "was written",
            (true, false, None) => "was removed",
        };
        lines.push(format!("{} {what}", done.file.display()));
    }
    if let Some(command) = restart(order, done) {
        lines.push(format!("next: {command}"));
    }
    lines.join("\n") + "\n"
}

/// The command after which the engine uses its new file.
fn restart(order: &Order, done: &[Done]) -> Option<&'static str> {
    let changed = done.iter().find(|done| done.is_change());
    let changed = changed.filter(|_| order.hooks.is_none())?;
    let (before, after) = (changed.before.as_deref(), changed.after.as_deref());
    order.engine.reread(before, after)
}

/// The report as JSON.
pub fn json(order: &Order, done: &[Done], notes: &[String]) -> String {
    let or_null = |text: Option<&str>| text.map_or("null".to_owned(), quote);
    let file = |done: &Done| {
        format!(
            "{{\"path\": {}, \"changed\": {}, \"before\": {}, \"after\": {}}}",
            quote(&done.file.display().to_string()),
            done.is_change(),
            or_null(done.before.as_deref()),
            or_null(done.after.as_deref())
        )
    };
    let files: Vec<_> = done.iter().map(file).collect();
    let notes: Vec<_> = notes.iter().map(|note| quote(note)).collect();
    format!(
        "{{\"engine\": {}, \"changed\": {}, \"files\": [{}], \"next\": {}, \"notes\": [{}]}}\n",
        quote(order.engine.word()),
        is_change(done),
        files.join(", "),
        or_null(restart(order, done)),
        notes.join(", ")
    )
}
