//! The try of the container recipe without a builder of containers: its lines are carried out here.

use std::path::Path;
use std::process::Command;

use super::{expect, inside, make_dir, must_run, scratch};
use crate::package::VERSION;
use crate::repo;

/// Makes the image's root directory from the unpacked archive, and runs its entry point.
pub fn try_recipe(unpacked: &Path) -> Result<(), String> {
    let recipe = repo::root().join("packaging/Containerfile");
    let recipe = super::text(&recipe)?;
    let recipe = Recipe::parse(&recipe)?;
    let root = scratch().join("image");
    for (from, to) in &recipe.copies {
        let to = root.join(to.trim_start_matches('/'));
        make_dir(to.parent().ok_or("a recipe copies to a name")?)?;
        let mut copy = Command::new("cp");
        must_run(
            copy.args(["--recursive", "--no-target-directory"]).arg(unpacked.join(from)).arg(to),
        )?;
    }
    make_dir(&root.join("proc"))?;
    make_dir(&root.join(recipe.directory.trim_start_matches('/')))?;
    let run = |words: &[&str]| repo::output_of(inside(&root).arg(&recipe.entry).args(words));
    expect(&run(&["--version"])?, &format!("dio {VERSION}\n"))?;
    run(&["cp", "--verify", &recipe.entry, &format!("{}/copy", recipe.directory)]).map(drop)
}

/// The lines of a recipe that begins with nothing.
#[derive(Debug, Default, PartialEq, Eq)]
struct Recipe {
    copies: Vec<(String, String)>,
    directory: String,
    entry: String,
}

impl Recipe {
    fn parse(text: &str) -> Result<Recipe, String> {
        let mut recipe = Recipe::default();
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
        for line in lines {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["FROM", "scratch"] => {}
                ["COPY", from, to] => recipe.copies.push((from.to_owned(), to.to_owned())),
                ["WORKDIR", directory] => directory.clone_into(&mut recipe.directory),
                ["ENTRYPOINT", entry] => {
                    let entry = entry.strip_prefix("[\"").and_then(|rest| rest.strip_suffix("\"]"));
                    entry.ok_or("an entry point is one word")?.clone_into(&mut recipe.entry);
                }
                _ => return Err(format!("packaging/Containerfile: no test of the line `{line}`")),
            }
        }
        let is_whole = !recipe.copies.is_empty() && !recipe.entry.is_empty();
        is_whole
            .then_some(recipe)
            .ok_or_else(|| "a recipe copies and has an entry point".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recipe_is_one_that_the_try_understands() {
        let text = std::fs::read_to_string(repo::root().join("packaging/Containerfile")).unwrap();
        let recipe = Recipe::parse(&text).unwrap();
        assert_eq!((recipe.entry.as_str(), recipe.directory.as_str()), ("/dio", "/data"));
        assert!(recipe.copies.contains(&("bin/dio".to_owned(), "/dio".to_owned())));
        assert!(
            Recipe::parse("FROM debian\n").is_err() && Recipe::parse("FROM scratch\n").is_err()
        );
    }
}
