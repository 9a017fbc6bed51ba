//! Where kernels come from, as the command line says it, and how far fetching them is.

use std::fs;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use diopter_bench::untrusted;
use diopter_lab::{LabError, Progress, Store, StoreOptions, Watch};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::stop::Stop;
use crate::log;

/// Often enough to look alive.
const TICK: Duration = Duration::from_millis(250);
const TEMPLATE: &str = "{spinner} {msg}";

/// The words about packages and cache.
pub struct StoreWords {
    /// The cache's directory; `None` for the default.
    pub cache: Option<PathBuf>,
    /// Bytes that it may take.
    pub limit_bytes: u64,
    /// A file with lines of a sources.list.
    pub sources: Option<PathBuf>,
    /// Fetch the lists even if they are young.
    pub must_update: bool,
    /// Progress on a terminal.
    pub has_progress: bool,
}

impl StoreWords {
    /// Opens the cache.
    pub fn open(&self, stop: &Stop) -> Result<Store, LabError> {
        let read = |path: &PathBuf| {
            fs::read_to_string(path).map_err(|error| {
                let path = path.display();
                LabError::Choice(format!("read {path}: {error}; name a file with deb lines"))
            })
        };
        let options = StoreOptions {
            cache: self.cache.clone(),
            limit_bytes: self.limit_bytes,
            sources: self.sources.as_ref().map(read).transpose()?,
            must_update: self.must_update,
        };
        Store::open(options, self.watch(stop))
    }

    /// Tells how far fetching is, where somebody looks, and what is worth knowing in any case.
    fn watch(&self, stop: &Stop) -> Watch {
        let is_shown = self.has_progress && std::io::stderr().is_terminal();
        let bar = is_shown.then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            let style =
                ProgressStyle::with_template(TEMPLATE).expect("the template is well formed");
            bar.set_style(style);
            bar.enable_steady_tick(TICK);
            bar
        });
        let tell = move |progress: Progress| match (&bar, progress) {
            (bar, Progress::Note(note)) => {
                let say = || log::say(&note);
                bar.as_ref().map_or_else(say, |bar| bar.suspend(say));
            }
            (Some(bar), progress) => {
                bar.set_message(untrusted::text(&told(&progress)).into_owned())
            }
            (None, _) => {}
        };
        Watch::new(tell, stop.flag())
    }
}

fn told(progress: &Progress) -> String {
    match progress {
        Progress::Waiting => "waiting for another dio lab".to_owned(),
        Progress::Updating(percent) => format!("lists of packages: {percent:.0} %"),
        Progress::Downloading(what, percent) => format!("{what}: {percent:.0} %"),
        Progress::Unpacking(what) => format!("unpacking {what}"),
        Progress::Booting(what) => format!("{what} is measured"),
        Progress::Note(note) => note.clone(),
    }
}
