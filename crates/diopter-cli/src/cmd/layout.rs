//! The layout of a file over several objects, by a distributed file system or as a striped file,
//! for `dio probe` and `dio explain`.

use diopter::internals::Striping;
use diopter_layouts::foreign::{ForeignError, ForeignLayout};
use schemars::JsonSchema;
use serde::Serialize;

use crate::cmd::finding::number;
use crate::output::Look;
use crate::size::size_text;

/// The layout of a distributed file system, or of a striped file. Numbers describe the component
/// that has most of the file, and are null where the layout has none.
#[derive(Serialize, JsonSchema)]
pub struct Layout {
    /// The kind: `lustre`, `ceph`, `diopter`; null if it is unknown.
    pub kind: Option<&'static str>,
    /// Bytes of a stripe.
    pub stripe_size: Option<u64>,
    /// Objects that the stripes go over.
    pub stripe_count: Option<u64>,
    /// Bytes of a request that fills all of them; it should begin at a multiple.
    pub request_bytes: Option<u64>,
    /// Why the objects alone do not have the content; null where they have. The file system serves
    /// it in any case.
    pub obstacle: Option<&'static str>,
    /// The complete layout in words.
    pub lines: Vec<String>,
    /// Why it is unknown; null where it is known.
    pub trouble: Option<String>,
}

/// Returns the layout of a file of `size` bytes, as far as it is known.
pub fn of(read: &Result<ForeignLayout, ForeignError>, size: Option<u64>) -> Layout {
    let layout = match read {
        Ok(layout) => layout,
        Err(error) => {
            return Layout {
                kind: None,
                stripe_size: None,
                stripe_count: None,
                request_bytes: None,
                obstacle: None,
                lines: Vec::new(),
                trouble: Some(error.to_string()),
            };
        }
    };
    let shape = layout.request_shape(size.unwrap_or(u64::MAX));
    Layout {
        kind: Some(layout.name()),
        stripe_size: shape.map(|shape| shape.stripe_size),
        stripe_count: shape.map(|shape| shape.stripe_count),
        request_bytes: shape.map(|shape| shape.width),
        obstacle: layout.obstacle(),
        lines: layout.lines(),
        trouble: None,
    }
}

pub fn of_striping(striping: Striping) -> Layout {
    let count = u64::try_from(striping.object_count()).unwrap_or(u64::MAX);
    let stripe_size = striping.stripe_size();
    let over = number(count, "object");
    Layout {
        kind: Some("diopter"),
        stripe_size: Some(stripe_size),
        stripe_count: Some(count),
        request_bytes: Some(striping.width()),
        obstacle: None,
        lines: vec![format!("stripes of {} over {over}", size_text(stripe_size))],
        trouble: None,
    }
}

impl Layout {
    /// Returns true for a striped file of diopter.
    pub fn is_striped_file(&self) -> bool {
        self.kind == Some("diopter")
    }

    /// Returns its lines in the text of a command, in a column of `indent`.
    pub fn text(&self, indent: usize, look: &Look) -> String {
        let mut rows = self.lines.clone();
        if let (Some(first), Some(kind)) = (rows.first_mut(), self.kind) {
            *first = format!("{kind}: {first}");
        }
        rows.extend(
            self.request_bytes.map(|bytes| format!("best in requests of {}", size_text(bytes))),
        );
        rows.extend(
            self.obstacle.map(|why| format!("{why}: only the file system reads all of it")),
        );
        rows.extend(self.trouble.clone());
        let labels = std::iter::once("layout").chain(std::iter::repeat(""));
        labels.zip(rows).map(|(label, row)| look.entry(indent, label, &row)).collect()
    }
}

#[cfg(test)]
mod tests {
    use diopter_layouts::foreign::of_attributes;

    use super::*;

    const LOOK: Look = Look { is_coloured: false, width: 80, table_width: None };

    fn layout(name: &str, value: &[u8]) -> Layout {
        let read = of_attributes(|asked| Ok((asked == name).then(|| value.to_vec())));
        of(&read.transpose().unwrap(), Some(1 << 30))
    }

    #[test]
    fn a_layout_is_reported_with_the_request_that_fits_it() {
        let text = b"stripe_unit=1048576 stripe_count=8 object_size=4194304 pool=fast";
        let layout = layout("ceph.file.layout", text);
        assert_eq!((layout.kind, layout.stripe_count), (Some("ceph"), Some(8)));
        assert_eq!(layout.request_bytes, Some(8 << 20));
        let reported = layout.text(10, &LOOK);
        assert!(
            reported.starts_with("layout    ceph: stripes of 1 MiB (1048576 B) over 8"),
            "{reported}"
        );
        assert!(
            reported.ends_with("          best in requests of 8 MiB (8388608 B)\n"),
            "{reported}"
        );
    }

    #[test]
    fn a_layout_that_is_not_understood_is_reported_with_its_trouble() {
        let layout = layout("lustre.lov", b"nonsense");
        assert_eq!((layout.kind, layout.request_bytes), (None, None));
        let reported = layout.text(10, &LOOK);
        assert!(
            reported.starts_with("layout    layout lustre.lov: its magic number"),
            "{reported}"
        );
    }
}
