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
        let style = diopter_lab::report::TextStyle { columns: 100, is_coloured: false };
        let text = diopter_lab::report::text(&bench, Some(&comparison), style);
        std::fs::write(format!("/tmp/rep-pages/{name}.txt"), text).unwrap();
        let text = diopter_lab::report::markdown(&bench, Some(&comparison));
        std::fs::write(format!("/tmp/rep-pages/{name}.md"), text).unwrap();
        std::fs::write(format!("/tmp/rep-pages/{name}.csv"), diopter_lab::report::csv(&bench))
            .unwrap();
        std::fs::write(format!("/tmp/rep-pages/{name}.json"), diopter_lab::report::json(&bench))
            .unwrap();
    }
}
