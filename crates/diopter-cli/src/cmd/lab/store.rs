//! The cache of kernels, and progress while they are fetched.

use std::fs;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use diopter_lab::{LabError, Progress, Store, StoreOptions, Watch};
use diopter_text::untrusted;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::stop::Stop;
use crate::args::{ProgressWhen, StoreArgs};
use crate::log;

/// Short enough to show progress.
const TICK: Duration = Duration::from_millis(250);
/// The message is cut at the width of the terminal.
const TEMPLATE: &str = "{spinner} {wide_msg}";

/// Opens the cache.
pub fn open(args: &StoreArgs, stop: &Stop) -> Result<Store, LabError> {
    let read = |path: &PathBuf| {
        fs::read_to_string(path).map_err(|error| {
            let path = path.display();
            LabError::Choice(format!("cannot open {path}: {error}; name a file with deb lines"))
        })
    };
    let options = StoreOptions {
        cache: args.cache.clone(),
        limit_bytes: args.cache_limit,
        sources: args.sources.as_ref().map(read).transpose()?,
        must_update: args.update,
    };
    Store::open(options, watch(args.progress, stop))
}

/// Shows on a terminal how far fetching is, and prints notes in any case.
fn watch(progress: ProgressWhen, stop: &Stop) -> Watch {
    let is_shown = progress == ProgressWhen::Auto && std::io::stderr().is_terminal();
    let bar = is_shown.then(|| {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template(TEMPLATE).expect("the template is well formed");
        bar.set_style(style);
        bar.enable_steady_tick(TICK);
        bar
    });
    let report = move |progress: Progress| match (&bar, progress) {
        (bar, Progress::Note(note)) => {
            let say = || log::say(&note);
            bar.as_ref().map_or_else(say, |bar| bar.suspend(say));
        }
        (Some(bar), progress) => {
            bar.set_message(untrusted::text(&message(&progress)).into_owned());
        }
        (None, _) => {}
    };
    Watch::new(report, stop.flag())
}

fn message(progress: &Progress) -> String {
    match progress {
        Progress::Waiting => "waiting for another dio lab".to_owned(),
        Progress::Updating(percent) => format!("lists of packages: {percent:.0} %"),
        Progress::Downloading(what, percent) => format!("{what}: {percent:.0} %"),
        Progress::Unpacking(what) => format!("unpacking {what}"),
        Progress::Booting(what) => format!("measuring {what}"),
        Progress::Note(note) => note.clone(),
    }
}
