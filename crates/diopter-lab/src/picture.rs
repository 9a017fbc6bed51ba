//! The picture of a document of several kernels: kernels along x, each job's ratio to the first
//! kernel along y, and where its completions ran as colour and shape. SVG and HTML that need
//! nothing else; what is shown comes from glances.

use std::fmt::Write;

use crate::matrix::{FileSystem, shown};
use crate::relative::{Glance, Place, glances};
use crate::table;
use diopter_bench::document::{Bench, Job};
use diopter_bench::number::count;
use diopter_text::untrusted;

/// Width of a file system's panel without its labels, and of these.
const PLOT_WIDTH: f64 = 300.0;
const LABEL_WIDTH: f64 = 150.0;
const PLOT_HEIGHT: f64 = 170.0;
/// Around the plots.
const LEFT: f64 = 44.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 30.0;
const PANELS_IN_A_ROW: usize = 2;
/// Labels do not come closer than this.
const LABEL_GAP: f64 = 13.0;
/// The colours, each with a shape, so that contexts are distinct without colours.
const STYLE: &str = "
.lab { --ink: #1b1b1b; --faint: #6b6b6b; --rule: #d9d9d9; --paper: #ffffff;
  --hardirq: #0072b2; --softirq: #007a5a; --kworker: #d55e00; --task: #a3497a; }
@media (prefers-color-scheme: dark) {
  .lab { --ink: #ececec; --faint: #a8a8a8; --rule: #3c3c3c; --paper: #16181c;
    --hardirq: #56b4e9; --softirq: #3fcf9f; --kworker: #ff9a4d; --task: #e79ac4; } }
.lab text { font: 11px system-ui, sans-serif; fill: var(--ink); }
.lab .head { font-weight: 600; font-size: 13px; }
.lab .tick { fill: var(--faint); }
.lab .rule { stroke: var(--rule); }
.lab .one { stroke: var(--faint); stroke-dasharray: 3 3; }
.lab .line { fill: none; stroke: var(--faint); stroke-width: 1.2; }
.lab .hardirq { fill: var(--hardirq); } .lab .softirq { fill: var(--softirq); }
.lab .kworker { fill: var(--kworker); } .lab .task { fill: var(--task); }
.lab .unknown { fill: var(--paper); stroke: var(--ink); }
";
const PAGE_STYLE: &str = "
body { margin: 2rem auto; max-width: 68rem; padding: 0 1rem; font: 15px/1.5 system-ui, sans-serif;
  color: #1b1b1b; background: #ffffff; }
pre { overflow-x: auto; font: 13px/1.4 ui-monospace, monospace; }
svg { max-width: 100%; height: auto; }
@media (prefers-color-scheme: dark) { body { color: #ececec; background: #16181c; } }
";

/// A job by one engine, over the kernels.
struct Series<'a> {
    label: String,
    /// By kernel; `None` where there is no figure.
    points: Vec<Option<(f64, &'a Glance)>>,
}

/// One file system.
struct Panel<'a> {
    title: String,
    series: Vec<Series<'a>>,
}

/// A page with the picture and the tables.
#[must_use]
pub fn page(bench: &Bench) -> String {
    let title = escaped(&bench.title);
    let mut facts = String::new();
    for environment in &bench.environments {
        let system = environment.file_system.as_ref().map_or("raw", |system| &system.kind);
        let (release, version) = (&environment.kernel_release, &environment.kernel_version);
        let label = escaped(&format!("{release} ({version}), {system}"));
        writeln!(facts, "<li>{label}</li>").expect("a String takes all");
    }
    let more = bench.environments.first().map(|environment| &environment.more);
    for (name, value) in more.into_iter().flatten() {
        let label = escaped(&format!("{name}: {value}"));
        writeln!(facts, "<li>{label}</li>").expect("a String takes all");
    }
    let page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n\
         <style>{PAGE_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n\
         <p>A virtual processor's clock counts instructions: figures are costs, the same on every \
         machine. They show nothing of caches, of a device's own latency, or of several \
         processors.</p>\n{}\n<h2>Figures</h2>\n<pre>{}</pre>\n\
         <h2>What ran</h2>\n<ul>\n{facts}</ul>\n</body>\n</html>\n",
        svg(bench),
        escaped(&table::text(bench)),
    );
    untrusted::page(&page).into_owned()
}

/// The picture alone.
#[must_use]
pub fn svg(bench: &Bench) -> String {
    let rows = glances(bench);
    let kernels = kernels(bench);
    let panels = panels(bench, &rows, &kernels);
    let ratios = panels.iter().flat_map(|panel| &panel.series).flat_map(|series| &series.points);
    let highest = ratios.flatten().map(|(ratio, _)| *ratio).fold(1.0, f64::max);
    let across = panels.len().clamp(1, PANELS_IN_A_ROW);
    let down = panels.len().div_ceil(PANELS_IN_A_ROW);
    let width = count(across) * panel_width();
    let height = count(down) * panel_height() + LABEL_GAP * 2.0;
    let mut svg = format!(
        "<svg class=\"lab\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} \
         {height:.0}\" width=\"{width:.0}\" height=\"{height:.0}\" role=\"img\" \
         aria-labelledby=\"lab-title lab-desc\">\n<title id=\"lab-title\">Virtual IOPS by kernel\
         </title>\n<desc id=\"lab-desc\">{}</desc>\n<style>{STYLE}</style>\n",
        escaped(&description(&panels, &kernels)),
    );
    legend(&mut svg, height - 8.0);
    for (at, panel) in panels.iter().enumerate() {
        let left = count(at % PANELS_IN_A_ROW) * panel_width() + LEFT;
        let top = count(at / PANELS_IN_A_ROW) * panel_height() + TOP;
        draw(&mut svg, panel, &kernels, &Frame { left, top, highest });
    }
    svg.push_str("</svg>\n");
    svg
}

fn panel_width() -> f64 {
    LEFT + PLOT_WIDTH + LABEL_WIDTH
}

fn panel_height() -> f64 {
    TOP + PLOT_HEIGHT + BOTTOM
}

/// The place of a panel, and the value of its upper edge.
struct Frame {
    left: f64,
    top: f64,
    highest: f64,
}

impl Frame {
    fn x(&self, kernel: usize, of: usize) -> f64 {
        self.left + (count(kernel) + 0.5) / count(of.max(1)) * PLOT_WIDTH
    }

    fn y(&self, ratio: f64) -> f64 {
        self.top + PLOT_HEIGHT * (1.0 - ratio / (self.highest * 1.08))
    }
}

/// The kernels of the columns, each once.
fn kernels(bench: &Bench) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for column in &bench.columns {
        let label = kernel_of(&column.label).to_owned();
        if !all.contains(&label) {
            all.push(label);
        }
    }
    all
}

/// A column's label without its engine.
fn kernel_of(label: &str) -> &str {
    label.split_once(' ').map_or(label, |(kernel, _)| kernel)
}

fn panels<'a>(bench: &Bench, rows: &'a [Vec<Glance>], kernels: &[String]) -> Vec<Panel<'a>> {
    let mut engines: Vec<&str> = Vec::new();
    for column in &bench.columns {
        if !engines.contains(&column.engine.as_str()) {
            engines.push(&column.engine);
        }
    }
    let mut panels: Vec<Panel<'a>> = Vec::new();
    for (row, glances) in bench.rows.iter().zip(rows) {
        let title = row.job.file_system.clone().unwrap_or_else(|| FileSystem::Raw.name().into());
        if !panels.iter().any(|panel| panel.title == title) {
            panels.push(Panel { title: title.clone(), series: Vec::new() });
        }
        let panel = panels.iter_mut().find(|panel| panel.title == title);
        let panel = panel.expect("it is there or was made");
        for engine in &engines {
            let point = |kernel: &String| {
                let mut columns = bench.columns.iter().zip(glances);
                let is_it = |(column, _): &(&diopter_bench::document::Column, &Glance)| {
                    column.engine == *engine && kernel_of(&column.label) == kernel
                };
                let glance = columns.find(is_it)?.1;
                Some((glance.ratio?, glance))
            };
            let label = label(&row.job, (engines.len() > 1).then_some(engine));
            panel.series.push(Series { label, points: kernels.iter().map(point).collect() });
        }
    }
    panels.retain(|panel| panel.series.iter().any(|one| one.points.iter().any(Option::is_some)));
    panels
}

fn label(job: &Job, engine: Option<&&str>) -> String {
    let mut label = format!("{} {} d{}", job.rw.name(), shown(job.block_bytes), job.iodepth);
    if let Some(engine) = engine {
        label.push(' ');
        label.push_str(engine);
    }
    label
}

/// Returns the description for a reader who does not see the picture.
fn description(panels: &[Panel<'_>], kernels: &[String]) -> String {
    let mut text = format!("Ratios to {}.", kernels.first().map_or("", String::as_str));
    for panel in panels {
        for series in &panel.series {
            let label = series.points.iter().zip(kernels).filter_map(|(point, kernel)| {
                let (ratio, glance) = (*point)?;
                let place = glance.place.map_or("not traced", |(place, _)| place.name());
                Some(format!("{kernel} {ratio:.2} {place}"))
            });
            let label = label.collect::<Vec<_>>().join(", ");
            write!(text, " {} {}: {label}.", panel.title, series.label)
                .expect("a String takes all");
        }
    }
    text
}

fn draw(svg: &mut String, panel: &Panel<'_>, kernels: &[String], frame: &Frame) {
    let Frame { left, top, .. } = *frame;
    let (right, bottom) = (left + PLOT_WIDTH, top + PLOT_HEIGHT);
    let title = escaped(&panel.title);
    let mut put = |line: String| writeln!(svg, "{line}").expect("a String takes all");
    put(format!("<text class=\"head\" x=\"{left:.1}\" y=\"{:.1}\">{title}</text>", top - 12.0));
    // A tick each half, at most eight of them.
    for half in (0..=8).map(count).map(|at| at * 0.5).filter(|at| frame.y(*at) >= top) {
        let y = frame.y(half);
        let class = if (half - 1.0).abs() < 0.01 { "one" } else { "rule" };
        put(format!("<path class=\"{class}\" d=\"M{left:.1} {y:.1}H{right:.1}\"/>"));
        let x = left - 6.0;
        put(format!(
            "<text class=\"tick\" text-anchor=\"end\" x=\"{x:.1}\" y=\"{:.1}\">{half}x</text>",
            y + 4.0
        ));
    }
    for (at, kernel) in kernels.iter().enumerate() {
        let (x, y) = (frame.x(at, kernels.len()), bottom + 16.0);
        let kernel = escaped(kernel);
        put(format!("<text text-anchor=\"middle\" x=\"{x:.1}\" y=\"{y:.1}\">{kernel}</text>"));
    }
    for series in &panel.series {
        line(svg, series, kernels, frame);
    }
    labels(svg, panel, frame);
}

fn line(svg: &mut String, series: &Series<'_>, kernels: &[String], frame: &Frame) {
    let mut path = String::new();
    let mut marks = String::new();
    let mut is_begun = false;
    for (at, point) in series.points.iter().enumerate() {
        let Some((ratio, glance)) = point else {
            is_begun = false;
            continue;
        };
        let (x, y) = (frame.x(at, kernels.len()), frame.y(*ratio));
        let step = if is_begun { 'L' } else { 'M' };
        write!(path, "{step}{x:.1} {y:.1}").expect("a String takes all");
        is_begun = true;
        let place = glance.place.map(|(place, _)| place);
        let label = place.map_or("not traced", Place::name);
        let label = format!("{}, {}: {ratio:.2}x, {label}", series.label, kernels[at]);
        writeln!(marks, "{}", mark(place, x, y, &label)).expect("a String takes all");
    }
    write!(svg, "<path class=\"line\" d=\"{path}\"/>\n{marks}").expect("a String takes all");
}

/// A shape for each context: a circle is inline, everything with corners is not.
fn mark(place: Option<Place>, x: f64, y: f64, label: &str) -> String {
    let (class, shape) = match place {
        Some(Place::HardIrq) => ("hardirq", format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"")),
        Some(Place::Kworker) => ("kworker", polygon(x, y, &[(-4, -4), (4, -4), (4, 4), (-4, 4)])),
        Some(Place::SoftIrq) => ("softirq", polygon(x, y, &[(0, -5), (5, 4), (-5, 4)])),
        Some(Place::Task) => ("task", polygon(x, y, &[(0, -5), (5, 0), (0, 5), (-5, 0)])),
        None => ("unknown", format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"")),
    };
    let name = shape.split(['<', ' ']).nth(1).unwrap_or("circle").to_owned();
    let label = escaped(label);
    format!("{shape} class=\"{class}\"><title>{label}</title></{name}>")
}

fn polygon(x: f64, y: f64, corners: &[(i32, i32)]) -> String {
    let corner = |(right, down): &(i32, i32)| {
        format!("{:.1},{:.1}", x + f64::from(*right), y + f64::from(*down))
    };
    let corners: Vec<String> = corners.iter().map(corner).collect();
    format!("<polygon points=\"{}\"", corners.join(" "))
}

/// Names at the right end, moved apart where they would lie on each other.
fn labels(svg: &mut String, panel: &Panel<'_>, frame: &Frame) {
    let last = |series: &Series<'_>| {
        let ratio = series.points.iter().rev().flatten().next()?.0;
        Some((frame.y(ratio), series.label.clone()))
    };
    let mut places: Vec<(f64, String)> = panel.series.iter().filter_map(last).collect();
    places.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut above = f64::MIN;
    let x = frame.left + PLOT_WIDTH + 2.0;
    for (y, label) in places {
        let y = y.max(above + LABEL_GAP);
        above = y;
        let label = escaped(&label);
        writeln!(svg, "<text x=\"{x:.1}\" y=\"{:.1}\">{label}</text>", y + 4.0)
            .expect("a String takes all");
    }
}

fn legend(svg: &mut String, y: f64) {
    for (at, place) in Place::ALL.into_iter().enumerate() {
        let x = LEFT + count(at) * 135.0;
        let label = match place {
            Place::HardIrq => "hard irq (inline)",
            other => other.name(),
        };
        writeln!(
            svg,
            "{}\n<text x=\"{:.1}\" y=\"{y:.1}\">{label}</text>",
            mark(Some(place), x, y - 4.0, label),
            x + 10.0
        )
        .expect("a String takes all");
    }
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use diopter_bench::document::{Cell, Column, Contexts, DirectionSample, Row, Sample};

    fn cell(iops: f64, contexts: Contexts) -> Cell {
        let write = Some(DirectionSample { iops, ..DirectionSample::default() });
        let sample = Sample { write, contexts: Some(contexts), ..Sample::default() };
        Cell { samples: vec![sample], ..Cell::default() }
    }

    fn bench(labels: &[&str]) -> Bench {
        let column = |label: &&str| Column {
            label: (*label).to_owned(),
            engine: label.split_once(' ').map_or("libaio", |(_, engine)| engine).to_owned(),
            ..Column::default()
        };
        let deferred = Contexts { kworker: 9, ..Contexts::default() };
        let inline = Contexts { hardirq: 9, ..Contexts::default() };
        let row = |system: &str| {
            let job = Job { file_system: Some(system.to_owned()), ..Job::default() };
            let cells = labels.iter().enumerate().map(|(at, _)| {
                let contexts = if at == 0 { deferred.clone() } else { inline.clone() };
                cell(50.0 + 25.0 * count(at), contexts)
            });
            Row { job, cells: cells.collect() }
        };
        Bench {
            title: "a < b".to_owned(),
            columns: labels.iter().map(column).collect(),
            rows: vec![row("ext4"), row("xfs"), row("raw")],
            ..Bench::default()
        }
    }

    #[test]
    fn every_point_is_a_mark_of_its_context_with_its_figure() {
        let svg = svg(&bench(&["6.1", "7.2"]));
        assert_eq!(svg.matches("class=\"line\"").count(), 3);
        // Three of each, and the legend's.
        assert_eq!(svg.matches("class=\"kworker\"").count(), 4);
        assert_eq!(svg.matches("class=\"hardirq\"").count(), 4);
        assert_eq!(svg.matches("7.2: 1.50x, hard irq</title>").count(), 3);
    }

    #[test]
    fn engines_are_lines_of_their_own_over_the_same_kernels() {
        let bench = bench(&["6.1 libaio", "6.1 io_uring", "7.2 libaio", "7.2 io_uring"]);
        assert_eq!(kernels(&bench), ["6.1", "7.2"]);
        assert_eq!(svg(&bench).matches("class=\"line\"").count(), 6);
    }

    #[test]
    fn the_picture_has_a_text_for_those_who_do_not_see_it() {
        let svg = svg(&bench(&["6.1", "7.2"]));
        let label = "ext4 read 0 d0: 6.1 1.00 kworker, 7.2 1.50 hard irq.";
        assert!(svg.contains(label), "{svg}");
    }

    #[test]
    fn the_page_needs_no_network_and_escapes_what_it_is_given() {
        let page = page(&bench(&["6.1", "7.2"]));
        assert!(page.contains("<h1>a &lt; b</h1>"));
        let links = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!links.contains("http") && !links.contains("<script"), "{page}");
    }

    #[test]
    fn a_document_without_figures_makes_an_empty_picture() {
        let svg = svg(&Bench::default());
        assert!(svg.starts_with("<svg") && !svg.contains("class=\"line\""));
    }
}
