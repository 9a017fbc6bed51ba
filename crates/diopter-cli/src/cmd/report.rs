//! `dio report`: renders recorded runs, read, judged and rendered by diopter-bench.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use diopter_bench::compare::{self, Comparison, Named, Settings};
use diopter_bench::document::Bench;
use diopter_bench::fio;
use diopter_bench::load;
use diopter_bench::report::{self, TextStyle};
use diopter_bench::whole::{self, Directory};
use diopter_text::untrusted;

use crate::args::ReportArgs;
use crate::log;
use crate::output::{self, DONE, Look, TROUBLE};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Tables for a terminal.
    Text,
    /// Tables in Markdown.
    Markdown,
    /// A line for each round.
    Csv,
    /// The document.
    Json,
}

/// Runs the command, and returns the exit status.
pub fn run(args: &ReportArgs, look: &Look) -> u8 {
    let form = form_of(args);
    match render(args, form, look) {
        Ok(text) if form == Some(Form::Json) => output::print_json(&text, DONE),
        Ok(text) => look.print(&text, DONE),
        Err(message) => {
            log::fail("report", &message);
            TROUBLE
        }
    }
}

/// Returns the form that is printed; `None` for nothing.
fn form_of(args: &ReportArgs) -> Option<Form> {
    match (args.markdown, args.csv, args.json) {
        (true, _, _) => Some(Form::Markdown),
        (_, true, _) => Some(Form::Csv),
        (_, _, true) => Some(Form::Json),
        _ if args.html.is_some() || args.fio_json.is_some() => None,
        _ => Some(Form::Text),
    }
}

fn render(args: &ReportArgs, form: Option<Form>, look: &Look) -> Result<String, String> {
    let (bench, comparison) = read(args)?;
    if let Some(path) = &args.html {
        write(path, &report::html(&bench, Some(&comparison)))?;
    }
    if let Some(dir) = &args.fio_json {
        let failed = |error: io::Error| {
            format!("write to {}: {error}; name a directory, or a new one", untrusted::name(dir))
        };
        fs::create_dir_all(dir).map_err(failed)?;
        let directory = Directory::named(dir).map_err(failed)?;
        for export in fio::export(&bench) {
            let mut text = serde_json::to_string_pretty(&export.document)
                .expect("strings and numbers are JSON");
            text.push('\n');
            let place = directory.make(&export.dir_name);
            place.and_then(|place| place.write(&export.file_name, text.as_bytes())).map_err(
                |error| {
                    let path = dir.join(export.dir_name).join(export.file_name);
                    format!("write {}: {error}; name another directory", untrusted::name(path))
                },
            )?;
        }
    }
    let look = look.of_figures(crate::terminal::columns());
    let style = TextStyle { columns: look.width, is_coloured: look.is_coloured };
    Ok(match form {
        None => String::new(),
        Some(Form::Text) => report::text(&bench, Some(&comparison), style),
        Some(Form::Markdown) => report::markdown(&bench, Some(&comparison)),
        Some(Form::Csv) => report::csv(&bench),
        Some(Form::Json) => report::json(&bench),
    })
}

/// Returns the runs as one document, and its comparison.
fn read(args: &ReportArgs) -> Result<(Bench, Comparison), String> {
    let mut all = Vec::new();
    let mut notes = Vec::new();
    for path in &args.names {
        let loaded = load::rounds(path).map_err(|error| error.to_string())?;
        notes.extend(loaded.notes);
        all.push(Named { name: short_name(path, &args.names), bench: loaded.bench });
    }
    let settings =
        &Settings { effect_floor: args.floor, is_partial: args.partial, ..Settings::default() };
    let (bench, mut comparison) = match all.as_slice() {
        [only] => (only.bench.clone(), compare::columns(&only.bench, settings)),
        several => {
            let compared = compare::documents(several, settings).map_err(|it| it.to_string())?;
            (report::joined(several, &compared), compared)
        }
    };
    notes.append(&mut comparison.notes);
    comparison.notes = notes;
    Ok((bench, comparison))
}

/// Returns the file's name without its directory if it is unique: heads of columns are narrow.
fn short_name(path: &Path, all: &[PathBuf]) -> String {
    let own = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    match own(path) {
        Some(name)
            if all.iter().filter(|other| own(other).as_ref() == Some(&name)).count() == 1 =>
        {
            name
        }
        _ => path.display().to_string(),
    }
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    whole::write_named(path, text.as_bytes()).map_err(|error| {
        let name = untrusted::name(path);
        format!("write {name}: {error}; name a file in a directory with free space")
    })
}
