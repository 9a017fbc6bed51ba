//! The manual page has every name of the header, and groff takes it without a warning.

use std::process::Command;

use diopter_skip::{Capability, skip};

use crate::header::names;
use crate::install::{installed, root, text};

#[test]
fn the_manual_has_every_name_of_the_header() {
    let page = std::fs::read_to_string(root().join("man/diopter.3")).expect("the page");
    // As groff writes a minus and an underscore.
    let page = page.replace("\\-", "-");
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let has = |name: &str| page.split(|c| !is_word(c)).any(|word| word == name);
    for name in names("dpt_").into_iter().chain(names("DPT_")) {
        assert!(has(&name), "{name} is not in man/diopter.3");
    }
}

#[test]
fn the_manual_is_formatted_without_a_warning() {
    let Some(installed) = installed() else { return };
    let mut groff = Command::new("groff");
    let output =
        groff.args(["-t", "-man", "-ww", "-Tutf8", "-z"]).arg(installed.man_page()).output();
    let Ok(output) = output else {
        return skip(Capability::Cc, "groff is not here");
    };
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output));
}
