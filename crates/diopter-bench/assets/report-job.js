"use strict";
// The report of a benchmark: latency, throughput over time, depth and processor time.

/** Returns the title of a vertical axis, above it. */
const yTitle = (label) => ({ label, labelAnchor: "top", labelArrow: "none" });

// ---- Figures of one job at a time ----

/** Returns the job that is shown first: the one with the farthest decided ratio. */
function firstJob() {
  const far = d3.greatest(beside.filter(({ cell }) => cell.rounds_detail.length > 0), weight);
  return far ? far.job : 0;
}
const shown = { job: firstJob(), changed: [] };
function jobPick() {
  const label = pick("Job", jobs.map((job, at) => [at, job.label]), shown.job, (job) => {
    shown.job = job;
    for (const change of shown.changed) change();
  });
  shown.changed.push(() => label.choose(shown.job));
  return jobs.length > 1 ? label : el("span", { class: "quiet" }, jobs[0] ? jobs[0].label : "");
}

/** Returns the legend of the columns. */
function columnLegend(which) {
  return el("ul", { class: "legend" }, which.map((column) => el("li", {}, lineSample(column), columns[column].label)));
}
function lineSample(column) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  const set = (node, values) => Object.entries(values).forEach(([key, value]) => value !== null && node.setAttribute(key, value));
  set(svg, { width: 22, height: 10, "aria-hidden": "true" });
  set(line, { x1: 1, x2: 21, y1: 5, y2: 5, "stroke-width": 2.5, "stroke-dasharray": dash(column) });
  line.style.stroke = hue(column);
  svg.append(line);
  return svg;
}

// ---- Latency ----

const nines = (percent) => -Math.log10(1 - percent / 100);
const KINDS = [["slat", "slat"], ["clat", "clat"], ["lat", "lat"]];

function latencyPoints(job, direction, kind) {
  return cells[job].flatMap((cell, column) => (cell.latencies || []).filter((one) => one.direction === direction && one.kind === kind)
    .flatMap((one) => one.ns.map((ns, at) => ({ column, percent: percents[at], ns }))))
    .filter((point) => isNumber(point.ns) && point.percent < 100 && point.ns > 0);
}

function latencyChart(width, job, direction, kind) {
  const points = latencyPoints(job, direction, kind);
  if (points.length === 0) return null;
  const isNarrow = width < NARROW;
  const most = d3.max(points, (point) => point.percent);
  const ticks = [1, 50, 90, 99, 99.9, 99.99, 99.999].filter((percent) => percent <= most && (percent > 1 || !isNarrow));
  const [low, high] = d3.extent(points, (point) => point.ns);
  const domain = [low / 1.15, high * 1.15];
  return Plot.plot({
    width, height: isNarrow ? 260 : 340, marginLeft: 58, marginRight: isNarrow ? 18 : 24, marginBottom: 38, marginTop: 30,
    x: { domain: [0, nines(most) * 1.01], label: null },
    y: { type: "log", domain, label: null },
    marks: [
      Plot.axisX({ ticks: ticks.map(nines), tickFormat: (_, at) => `${ticks[at]}`, label: "percent of requests", labelAnchor: "center", labelArrow: "none", tickSize: 0, color: "var(--soft)" }),
      Plot.axisY({ ticks: logTicks(domain[0], domain[1], 7), tickFormat: show.time, tickSize: 0, ...yTitle(kind), color: "var(--soft)" }),
      Plot.gridX({ ticks: ticks.map(nines), stroke: "var(--grid)", strokeOpacity: 1 }),
      Plot.gridY({ ticks: logTicks(domain[0], domain[1], 7), stroke: "var(--grid)", strokeOpacity: 1 }),
      [...d3.group(points, (point) => point.column)].map(([column, own]) => [
        Plot.line(own, { x: (point) => nines(point.percent), y: "ns", stroke: hue(column), strokeDasharray: dash(column), strokeWidth: 2, curve: "step-before", className: "latency" }),
        Plot.dot(own, { x: (point) => nines(point.percent), y: "ns", fill: hue(column), r: 2.5, className: "percentile", title: (point) => `${columns[column].label}: ${point.percent} % within ${show.time(point.ns)}` }),
      ]),
    ].flat(2),
  });
}

function latencies() {
  // Only what has percentiles can be drawn: by default fio records no more than the mean of lat.
  const isDrawn = (one) => one.ns.some((ns, at) => isNumber(ns) && percents[at] < 100);
  const drawnOf = (list) => list.flatMap((cell) => cell.latencies || []).filter(isDrawn);
  const all = drawnOf(cells.flat());
  if (all.length === 0) return null;
  const kinds = KINDS.filter(([kind]) => all.some((one) => one.kind === kind));
  const isKind = (kind) => kinds.some(([known]) => known === kind);
  const state = { kind: isKind(data.latency_kind) ? data.latency_kind : kinds.at(-1)[0], direction: "read" };
  const directionsOf = (job) => ["read", "write"].filter((direction) => drawnOf(cells[job]).some((one) => one.direction === direction));
  const settle = () => { if (!directionsOf(shown.job).includes(state.direction)) state.direction = directionsOf(shown.job)[0] || "read"; };
  settle();
  const place = el("span", {});
  const directions = () => {
    const own = directionsOf(shown.job);
    place.replaceChildren(own.length < 2 ? "" : choice("Direction", "direction", own.map((one) => [one, one === "read" ? "Reads" : "Writes"]), state.direction, (direction) => { state.direction = direction; figure.redraw(); }));
  };
  const figure = figureOf({
    id: "chart-latency", label: () => `Percentiles of ${state.kind}, ${jobs[shown.job].label}`, empty: MISSING,
    chart: (width) => latencyChart(width, shown.job, state.direction, state.kind), summary: "Percentiles as a table",
    rows: () => {
      const kept = percents.map((percent, at) => [percent, at]).filter(([percent]) => [1, 50, 90, 95, 99, 99.9, 99.99, 99.999, 100].includes(percent));
      const rows = cells[shown.job].flatMap((cell, column) => (cell.latencies || []).map((one) => [columns[column].label, one.direction, one.kind,
        one.count.toLocaleString("en"), show.time(one.mean_ns), ...kept.map(([, at]) => (isNumber(one.ns[at]) ? show.time(one.ns[at]) : "-"))]));
      return table(`Latencies, ${jobs[shown.job].label}`, [["Way", false], ["", false], ["", false], ["Requests", true], ["Mean", true], ...kept.map(([percent]) => [percent === 100 ? "Longest" : `${percent}`, true])], rows);
    },
  });
  shown.changed.push(() => { settle(); directions(); figure.redraw(); });
  directions();
  return section("latency", "Latency", `${kinds.map(([kind]) => `${kind}: ${KIND_TEXTS[kind]}`).join("; ")}. All rounds together. At each percentage so many requests took at most this long; both axes are logarithmic.`,
    el("div", { class: "controls" }, jobPick(), choice("Latency", "kind", kinds, state.kind, (kind) => { state.kind = kind; figure.redraw(); }), place),
    columnLegend(d3.range(columns.length).filter((column) => every.some((one) => one.column === column && (one.cell.latencies || []).length > 0))), figure);
}

// ---- Throughput over time ----

function roundsOf(job) {
  return cells[job].flatMap((cell, column) => (cell.rounds_detail || []).map((round) => ({ ...round, column })));
}

function timeChart(width, job) {
  const rounds = roundsOf(job);
  if (rounds.length === 0) return null;
  const isNarrow = width < NARROW;
  const end = d3.max(rounds, (round) => round.from_s + round.seconds);
  const isTimed = end > 0 && new Set(rounds.map((round) => round.from_s)).size > 1;
  const turns = [...new Set(rounds.map((round) => round.turn))].sort(d3.ascending);
  const from = (round) => (isTimed ? round.from_s : round.turn - 0.4);
  const to = (round) => (isTimed ? round.from_s + round.seconds : round.turn + 0.4);
  const points = !isTimed ? [] : rounds.flatMap((round, at) => round.series.map(([second, iops]) => ({ column: round.column, at, x: round.from_s + second, iops })));
  const high = d3.max([...rounds.map((round) => round.iops), ...points.map((point) => point.iops)]) * 1.06;
  return Plot.plot({
    width, height: isNarrow ? 230 : 300, marginLeft: 52, marginRight: 14, marginBottom: 38, marginTop: 28,
    x: { domain: isTimed ? [0, end] : [d3.min(rounds, from), d3.max(rounds, to)], label: null }, y: { domain: [0, high], label: null },
    marks: [
      Plot.axisX({ ticks: isTimed ? (isNarrow ? 4 : 8) : turns.filter((_, at) => at % Math.ceil(turns.length / (isNarrow ? 6 : 12)) === 0), tickFormat: isTimed ? undefined : String, label: isTimed ? "seconds since the first round" : "turn", labelAnchor: "center", labelArrow: "none", tickSize: 0, color: "var(--soft)" }),
      Plot.axisY({ ticks: 5, tickFormat: show.rate, tickSize: 0, ...yTitle("IOPS"), color: "var(--soft)" }),
      Plot.gridY({ ticks: 5, stroke: "var(--grid)", strokeOpacity: 1 }),
      Plot.line(points, { x: "x", y: "iops", z: "at", stroke: (point) => hue(point.column), strokeOpacity: 0.55, strokeWidth: 1, className: "series" }),
      Plot.ruleY(rounds, { x1: from, x2: to, y: "iops", stroke: (round) => hue(round.column), strokeWidth: 4, strokeLinecap: "round", className: "round",
        title: (round) => `${columns[round.column].label}, round ${round.round}: ${show.rate(round.iops)} IOPS` }),
    ],
  });
}

function overTime() {
  // A single round of each has no course.
  if (!every.some(({ cell }) => (cell.rounds_detail || []).some((round, at) => at > 0 || round.series.length > 0))) return null;
  const figure = figureOf({
    id: "chart-time", label: () => `Throughput over time, ${jobs[shown.job].label}`, chart: (width) => timeChart(width, shown.job), empty: MISSING, summary: "Rounds as a table",
    rows: () => table(`Rounds, ${jobs[shown.job].label}`, [["Way", false], ["Turn", true], ["Round", true], ["From, s", true], ["Seconds", true], ["IOPS", true]],
      capped(d3.sort(roundsOf(shown.job), (round) => round.turn).map((round) => [columns[round.column].label, round.turn, round.round, show.plain(round.from_s), show.plain(round.seconds), show.rate(round.iops)]), 6)),
  });
  shown.changed.push(() => figure.redraw());
  return section("time", "Over time", "Requests per second. A bar is one round with its mean; a thin line is the throughput within it. A drift of all columns together comes from the machine, not from a difference between them.",
    el("div", { class: "controls" }, jobPick()), columnLegend(d3.range(columns.length)), figure);
}

// ---- Depth ----

// The knee is the least depth with this share of the maximum: beyond it requests only wait.
const KNEE = 0.95;

function sweeps() {
  const groups = [...d3.group(jobs.map((job, at) => ({ ...job, at })), (job) => job.sweep).values()];
  return groups.filter((group) => new Set(group.map((job) => job.iodepth)).size >= 3).map((group) => d3.sort(group, (job) => job.iodepth));
}

const medianLatency = (cell) => {
  const one = latencyOf(cell, "read") || latencyOf(cell, "write");
  return one ? one.ns[percents.indexOf(50)] : null;
};

function sweepPoints(group) {
  return group.flatMap((job) => cells[job.at].map((cell, column) => ({ column, depth: job.iodepth, iops: cell.iops, p50: medianLatency(cell) }))).filter((point) => isNumber(point.iops) && point.iops > 0);
}

/** Returns the knees: none where the throughput still grows at the last depth, or never grew. */
function kneesOf(points) {
  return [...d3.group(points, (point) => point.column).values()].filter((own) => own.length >= 3).flatMap((own) => {
    const sorted = d3.sort(own, (point) => point.depth);
    const most = d3.max(own, (point) => point.iops);
    const at = sorted.findIndex((point) => point.iops >= KNEE * most);
    return at > 0 && at < sorted.length - 1 ? [sorted[at]] : [];
  });
}

/** Returns one label for each depth with knees, at its highest one, moved up where it would cover another. */
function kneeLabels(knees, x, y) {
  const labels = [...d3.group(knees, (knee) => knee.depth)].map(([depth, own]) => {
    const top = d3.greatest(own, (knee) => knee.iops);
    return { depth, column: own.length === 1 ? top.column : null, x: x(depth), y: y(top.iops) - 15 };
  });
  const placed = [];
  for (const label of d3.sort(labels, (one) => -one.y)) {
    for (const other of placed) if (Math.abs(label.x - other.x) < 58 && Math.abs(label.y - other.y) < 15) label.y = other.y - 15;
    placed.push(label);
  }
  return placed;
}

function sweepChart(width, group, value, format) {
  const points = sweepPoints(group).filter((point) => isNumber(point[value]) && point[value] > 0);
  if (points.length === 0) return null;
  const depths = [...new Set(points.map((point) => point.depth))].sort(d3.ascending);
  const knees = value === "iops" ? kneesOf(points) : [];
  const high = d3.max(points, (point) => point[value]);
  const isLog = value === "p50";
  const low = d3.min(points, (point) => point[value]);
  const domain = isLog ? [low / 1.2, high * 1.2] : [0, high * 1.1];
  const ticks = isLog ? logTicks(domain[0], domain[1], 6) : d3.ticks(0, high * 1.1, 5);
  const height = 280;
  const margins = { marginLeft: 56, marginRight: 20, marginBottom: 38, marginTop: 34 };
  const xDomain = [depths[0] / 1.15, depths.at(-1) * 1.15];
  const x = d3.scaleLog(xDomain, [margins.marginLeft, width - margins.marginRight]);
  const y = (isLog ? d3.scaleLog : d3.scaleLinear)(domain, [height - margins.marginBottom, margins.marginTop]);
  const labels = kneeLabels(knees, x, y);
  // Only as many depths are named as fit next to each other.
  const named = depths.filter((depth, at) => at === 0 || x(depth) - x(depths[at - 1]) > 20 || at % 2 === 0);
  return Plot.plot({
    width, height, ...margins,
    x: { type: "log", base: 2, domain: xDomain, label: null }, y: { type: isLog ? "log" : "linear", domain, label: null },
    marks: [
      Plot.axisX({ ticks: named, tickFormat: (depth) => `${depth}`, label: "iodepth", labelAnchor: "center", labelArrow: "none", tickSize: 0, color: "var(--soft)" }),
      Plot.axisY({ ticks, tickFormat: format, tickSize: 0, ...yTitle(isLog ? "median latency" : "IOPS"), color: "var(--soft)" }),
      Plot.gridY({ ticks, stroke: "var(--grid)", strokeOpacity: 1 }),
      [...d3.group(points, (point) => point.column)].map(([column, own]) => Plot.line(d3.sort(own, (point) => point.depth), { x: "depth", y: value, stroke: hue(column), strokeDasharray: dash(column), strokeWidth: 2, className: "sweep" })),
      Plot.dot(points, { x: "depth", y: value, fill: (point) => hue(point.column), r: 3, className: "depth", title: (point) => `${columns[point.column].label}, depth ${point.depth}: ${format(point[value])}` }),
      Plot.dot(knees, { x: "depth", y: value, stroke: (point) => hue(point.column), r: 8, strokeWidth: 2, className: "knee" }),
      Plot.text(labels, { x: "depth", y: (label) => y.invert(label.y), text: (label) => `knee ${label.depth}`, fill: (label) => (label.column === null ? "var(--ink)" : hue(label.column)), fontWeight: 600, stroke: "var(--raised)", strokeWidth: 4, className: "knee-labels" }),
    ].flat(),
  });
}

function depth() {
  const groups = sweeps();
  if (groups.length === 0) return null;
  const state = { at: 0 };
  const name = (group) => group[0].label.replace(/ depth \d+/, "");
  const group = () => groups[state.at];
  const rows = () => {
    const knees = kneesOf(sweepPoints(group()));
    return table(`Depth sweep, ${name(group())}`, [["Depth", true], ["Way", false], ["IOPS", true], ["Median latency", true], ["Knee", false]],
      sweepPoints(group()).map((point) => [point.depth, columns[point.column].label, show.rate(point.iops), show.time(point.p50), knees.some((knee) => knee.column === point.column && knee.depth === point.depth) ? "knee" : "-"]));
  };
  const rate = figureOf({ id: "chart-depth", label: "IOPS by depth, knees marked", chart: (width) => sweepChart(width, group(), "iops", show.rate), rows, summary: "Depths as a table" });
  const wait = figureOf({ id: "chart-depth-latency", label: "Median latency by depth", rows, summary: "Depths as a table", chart: (width) => sweepChart(width, group(), "p50", show.time), empty: "Latencies were not measured." });
  return section("depth", "Depth", `The knee is the least depth with ${show.percent(KNEE)} of the maximum: beyond it latency rises, and throughput hardly does. A way whose throughput still grows at the last depth has none.`,
    el("div", { class: "controls" }, groups.length > 1 ? pick("Job", groups.map((one, at) => [at, name(one)]), 0, (at) => { state.at = at; rate.redraw(); wait.redraw(); }) : el("span", { class: "quiet" }, name(group()))),
    columnLegend(d3.range(columns.length)),
    el("div", { class: "pair" }, el("div", {}, el("h3", {}, "Requests per second"), rate), el("div", {}, el("h3", {}, "Median latency"), wait)));
}

// ---- Processor time ----

// Jobs whose costs differ by more than this have separate axes.
const FACET_FACTOR = 8;

/** Returns lists of cells with one axis each: costs that are far apart are not on one scale. */
function costFacets(list) {
  const total = ({ cell }) => cell.user_ns + cell.system_ns;
  const facets = [];
  const groups = [...d3.group(list, (one) => one.job).values()];
  for (const group of d3.sort(groups, (group) => -d3.max(group, total))) {
    const facet = facets.at(-1);
    if (facet && d3.max(group, total) * FACET_FACTOR >= facet.most) facet.list.push(...group);
    else facets.push({ most: d3.max(group, total), list: [...group] });
  }
  for (const facet of facets) facet.list = d3.sort(facet.list, (one) => one.job);
  return facets.map((facet) => facet.list);
}

/** Returns the cells of so many jobs as a chart holds, at even distances. */
function evenly(list) {
  const groups = [...d3.group(list, (one) => one.job).values()];
  const count = Math.max(2, Math.floor(BARS_MAX / columns.length));
  const kept = new Set(d3.range(count).map((at) => Math.round(at * (groups.length - 1) / (count - 1))));
  return groups.filter((_, at) => kept.has(at)).flat();
}

function processorChart(width, list) {
  const lines = [];
  for (const [job, group] of d3.group(list, (one) => one.job)) {
    if (columns.length > 1) lines.push({ head: jobs[job].label });
    for (const one of group) lines.push({ ...one, label: columns.length > 1 ? columns[one.column].label : jobs[job].label });
  }
  const layout = layOut(lines);
  if (layout.bars.length === 0) return null;
  const isNarrow = width < NARROW;
  const left = labelMargin(layout, isNarrow ? NARROW_MARGIN : 250);
  const total = (line) => line.cell.user_ns + line.cell.system_ns;
  const ticks = isNarrow ? 3 : 6;
  const part = (from, to, fill, name) => Plot.barX(layout.bars, { y: "at", x1: from, x2: to, fill, insetTop: 1, insetBottom: 1, className: name });
  return Plot.plot({
    width, height: 58 + lines.length * 23, marginLeft: left, marginRight: 70, marginTop: 40, marginBottom: 12,
    x: { domain: [0, d3.max(layout.bars, total)], label: null }, y: { type: "band", domain: layout.domain, axis: null, padding: 0.34 },
    marks: [
      Plot.axisX({ anchor: "top", ticks, tickFormat: show.time, tickSize: 0, label: "processor time per request", labelAnchor: "center", labelArrow: "none", color: "var(--soft)" }),
      Plot.gridX({ ticks, stroke: "var(--grid)", strokeOpacity: 1 }),
      part(0, (line) => line.cell.user_ns, "var(--c1)", "user"),
      part((line) => line.cell.user_ns, total, "var(--c5)", "system"),
      lineLabels(layout, left),
      Plot.text(layout.bars, { y: "at", x: total, text: (line) => show.time(total(line)), textAnchor: "start", dx: 6, fill: "var(--ink)", className: "processor-labels" }),
    ],
  });
}

function processor() {
  const known = every.filter(({ cell }) => isNumber(cell.user_ns) && isNumber(cell.system_ns));
  if (known.length === 0) return null;
  const list = known.length <= BARS_MAX + BARS_SPARE ? known : evenly(known);
  const key = (tint, text) => el("li", {}, el("i", { style: `width:.75rem;height:.75rem;border-radius:2px;background:${tint}` }), text);
  return section("processor", "Processor time per request", "Processor time of the process divided by its requests.",
    el("ul", { class: "legend" }, key("var(--c1)", "program"), key("var(--c5)", "kernel")),
    known.length > list.length ? el("p", { class: "notice" }, `The chart shows ${list.length} of ${known.length} cells, of jobs from the first to the last; the table has all.`) : null,
    figureOf({
      id: "chart-processor", label: "Processor time per request", summary: "Costs as a table",
      chart: (width) => el("div", { class: "facets" }, costFacets(list).map((facet) => processorChart(width, facet))),
      rows: () => table("Costs per request", [["Job", false], ["Way", false], ["Program", true], ["Kernel", true], ["Context switches", true], ["Bios", true]],
        capped(known.map(({ job, column, cell }) => [jobs[job].label, columns[column].label, show.time(cell.user_ns), show.time(cell.system_ns), show.plain(cell.switches), show.plain(cell.bios)]), 6)),
    }));
}
