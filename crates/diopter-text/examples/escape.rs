//! Prints its arguments as a message names a file: quoted where a terminal would act on them.
//!
//! `cargo run -p diopter-text --example escape -- NAME...`

use diopter_text::untrusted;

fn main() {
    let mut names: Vec<_> = std::env::args_os().skip(1).collect();
    if names.is_empty() {
        names = ["plain", "clears\u{1b}[2Jthe screen"].map(Into::into).into();
    }
    for name in names {
        println!("{}", untrusted::name(name));
    }
}
