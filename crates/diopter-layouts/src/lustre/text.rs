//! The text form of a Lustre layout.

use super::{Component, Content, LustreLayout, flags, pattern};
use diopter_core::units::size_text;

/// Limit of the components that are printed.
const LINES_MAX: usize = 16;

impl LustreLayout {
    /// Returns a line for a composite as a whole, and one for each component.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let Some(generation) = self.generation else {
            return self.components.iter().map(Component::words).collect();
        };
        let count = self.components.len();
        let components = if count == 1 { "component" } else { "components" };
        let mirrors = mirror_words(self.mirror_state);
        let mut lines = vec![format!("{count} {components}{mirrors}, generation {generation}")];
        lines.extend(self.components.iter().take(LINES_MAX).map(Component::line));
        if count > LINES_MAX {
            lines.push(format!("and {} more", count - LINES_MAX));
        }
        lines
    }
}

fn mirror_words(state: u16) -> &'static str {
    match state {
        0 => "",
        1 => ", mirrors in step",
        2 => ", mirrors with a write pending",
        3 => ", mirrors being brought into step",
        _ => ", read-only in a cache",
    }
}

impl Component {
    fn line(&self) -> String {
        let start = size_text(self.range.start());
        let end = match self.range.end() {
            u64::MAX => "the end".to_owned(),
            end => size_text(end),
        };
        format!("{:#x} from {start} to {end}: {}", self.id, self.words())
    }

    fn words(&self) -> String {
        let mut words = match &self.content {
            Content::Foreign { kind, .. } => format!("kept outside of Lustre, kind {kind:#x}"),
            Content::Striped(stripes) => {
                let size = size_text(stripes.stripe_size);
                let pool = stripes.pool.as_deref();
                let pool =
                    pool.map_or(String::new(), |name| format!(", pool {}", name.escape_debug()));
                if stripes.pattern & pattern::METADATA != 0 {
                    format!("{size} on a metadata target{pool}")
                } else if self.flags & flags::EXTENSION != 0 {
                    format!("room to grow into, {size} at a time{pool}")
                } else {
                    let over = match stripes.stripe_count {
                        None => "objects, as many as the file system will choose".to_owned(),
                        Some(1) => "1 object".to_owned(),
                        Some(count) => format!("{count} objects"),
                    };
                    format!("stripes of {size} over {over}{pool}")
                }
            }
        };
        let is_stale = self.flags & (flags::STALE | flags::OFFLINE) != 0;
        let has_extension = self.flags & flags::EXTENSION != 0;
        for (is_so, reported) in
            [(!self.is_instantiated() && !has_extension, ", no objects yet"), (is_stale, ", stale")]
        {
            words.push_str(if is_so { reported } else { "" });
        }
        words
    }
}
