//! Reports, from documents made by hand to what a person sees.

#[path = "report/documents.rs"]
mod documents;

#[test]
fn dump() {
    for (name, bench) in [
        ("regression", documents::regression()),
        ("one_cell", documents::one_cell()),
        ("sweep", documents::sweep()),
        ("twelve", documents::twelve_columns()),
        ("kernels", documents::kernels()),
        ("awkward", documents::awkward()),
        ("huge", documents::huge()),
    ] {
        let comparison = documents::compared(&bench);
        let page = diopter_lab::report::html(&bench, Some(&comparison));
        std::fs::write(format!("/tmp/rep-pages/{name}.html"), page).unwrap();
    }
}
