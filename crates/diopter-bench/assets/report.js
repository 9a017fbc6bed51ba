"use strict";
// The report of a benchmark: builds its sections from the data in this page.
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const { columns, jobs, cells, percents } = data;
const bases = [...new Set(columns.map((column) => column.base).filter((at) => at !== null))];
// The base of the ratios, for a sentence.
const base = bases.length === 1 ? columns[bases[0]].label : "the base";

const MARKS = { better: "\u25b2", worse: "\u25bc", same: "=", inconclusive: "?", failed: "\u00d7", none: "" };
const TINTS = { better: "var(--better)", worse: "var(--worse)", same: "var(--same)", inconclusive: "var(--unsure)", failed: "var(--worse)", none: "var(--faint)" };
const WORDS = ["worse", "better", "same", "inconclusive", "failed"];
const CONTEXTS = [
  ["hardirq", "hard interrupt", "circle"], ["softirq", "soft interrupt", "square"], ["kworker", "kernel worker", "triangle"],
  ["task", "submitting task", "diamond"], ["inline", "engine, reaping thread", "star"], ["deferred", "engine, worker", "wye"],
  ["none", "not traced", "times"],
];
const HUES = 8;
const DASHES = [null, "6 3", "2 3"];
// A chart with more lines than this is unreadable; the table has all of them.
const BARS_MAX = 80;
const TABLE_ROWS_MAX = 2000;
// With more columns than this, a table replaces the cards.
const CARDS_MAX = 4;

const hue = (column) => `var(--c${column % HUES})`;
const dash = (column) => DASHES[Math.floor(column / HUES) % DASHES.length];
const every = cells.flatMap((row, job) => row.map((cell, column) => ({ job, column, cell })));
const verdictOf = (cell) => (cell.failure && cell.rounds === 0 ? "failed" : cell.verdict || "none");
const beside = every.filter(({ column }) => columns[column].base !== null);
const compared = d3.range(columns.length).filter((column) => columns[column].base !== null);
const baseCell = ({ job, column }) => cells[job][columns[column].base];
const MISSING = data.is_cut ? "Omitted from this page; see the notes at the top." : "Not measured.";
const isJudged = beside.some(({ cell }) => cell.verdict);

function verdictTag(verdict) {
  return el("span", { class: `v v-${verdict}` }, verdict === "none" ? "not judged" : `${MARKS[verdict]} ${verdict}`);
}

const effectFloor = data.rule ? data.rule.effect_floor : data.effect_floor;
const rangeText = (cell) => (isNumber(cell.low) ? `${show.ratio(cell.low)} \u2013 ${show.ratio(cell.high)}` : "-");
const ratioText = (cell) => (isNumber(cell.ratio) ? show.ratio(cell.ratio) : "-");

function section(id, title, lead, ...content) {
  return el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title),
    lead ? el("p", { class: "lead" }, lead) : null, content);
}

/** Returns as many rows of a table as a browser lays out at once, and a line with the number of others. */
function capped(rows, count) {
  if (rows.length <= TABLE_ROWS_MAX) return rows;
  const rest = Array(count - 1).fill("");
  return rows.slice(0, TABLE_ROWS_MAX).concat([[`\u2026 and ${rows.length - TABLE_ROWS_MAX} more: dio report --csv has all`, ...rest]]);
}

// ---- The result ----

function tallied(list) {
  const tally = {};
  for (const { cell } of list) tally[verdictOf(cell)] = (tally[verdictOf(cell)] || 0) + 1;
  return tally;
}

function headline() {
  if (compared.length === 0) {
    return el("p", { class: "result" }, columns.length === 1 ? "One way to run " : "Several ways to run ", el("b", {}, show.count(jobs.length, "job", "jobs")), ": nothing to compare.");
  }
  const tally = tallied(beside);
  const among = `of ${show.count(beside.length, "comparison", "comparisons")} with ${base}`;
  if (!isJudged) return el("p", { class: "result" }, `${show.count(beside.length, "ratio", "ratios")} to ${base}; none has a verdict.`);
  const parts = WORDS.filter((word) => tally[word]).flatMap((word, at) => [
    at === 0 ? "" : ", ", el("b", { class: `v-${word}` }, `${tally[word]} ${word}`),
  ]);
  return el("p", { class: "result" }, parts, ` ${among}.`);
}

/** Summarises a column: the number of each verdict, the median ratio, the farthest one. */
function summed(column) {
  const own = beside.filter((one) => one.column === column);
  const tally = tallied(own);
  const known = own.filter(({ cell }) => isNumber(cell.ratio));
  return { tally, words: [...WORDS, "none"].filter((word) => tally[word]), middle: d3.median(known, ({ cell }) => cell.ratio), far: d3.greatest(known, weight) };
}

/** Ranks decided cells above others, and among them those farther from 1 higher. */
function weight({ cell }) {
  if (!isNumber(cell.ratio)) return -1;
  return Math.abs(Math.log(cell.ratio)) + (["better", "worse"].includes(cell.verdict) ? 100 : 0);
}

const strip = ({ words, tally }) => el("div", { class: "strip", "aria-hidden": "true" }, words.map((word) => el("i", { class: `b-${word}`, style: `flex: ${tally[word]}` })));
const tallyList = ({ words, tally }) => el("ul", { class: "tally" }, words.map((word) => el("li", {}, el("span", { class: `v v-${word}` }, MARKS[word]), ` ${tally[word]} ${word === "none" ? "not judged" : word}`)));
const farText = (far) => (far ? [el("b", {}, show.ratio(far.cell.ratio)), " ", far.cell.verdict ? verdictTag(far.cell.verdict) : "", ` in ${jobs[far.job].label}`] : ["-"]);

function card(column) {
  const sum = summed(column);
  return el("li", { class: "card" },
    el("h3", {}, columns[column].label),
    columns[column].detail ? el("p", { class: "quiet" }, columns[column].detail) : null,
    strip(sum), tallyList(sum),
    sum.far ? el("p", { class: "small" }, "Median ratio ", el("b", {}, show.ratio(sum.middle)), "; farthest ", farText(sum.far)) : null);
}

function overview() {
  return table(`Each relative to ${base}`, [["Way", false], ["Verdicts", false], ["Median ratio", true], ["Farthest", false]], compared.map((column) => {
    const sum = summed(column);
    return [columns[column].label, el("div", { class: "verdicts" }, strip(sum), tallyList(sum)), show.ratio(sum.middle), el("span", { class: "line" }, farText(sum.far))];
  }));
}

function notices() {
  const failed = every.filter(({ cell }) => cell.failure);
  const list = [];
  if (data.is_interrupted) {
    list.push(el("p", { class: "notice bad" }, el("b", {}, "Interrupted. "), "The run ended before its last round: some figures are missing. dio bench --resume continues it."));
  }
  if (data.is_virtual) {
    list.push(el("p", { class: "notice" }, el("b", {}, "Virtual time. "), "These figures repeat exactly. They are costs in instructions, not speeds of a device."));
  }
  if (failed.length > 0) {
    list.push(el("div", { class: "notice bad" }, el("b", {}, `${show.count(failed.length, "cell", "cells")} failed or ended early. `),
      failed.slice(0, 5).map(({ job, column, cell }) => el("div", { class: "small" }, `${jobs[job].label}, ${columns[column].label}: ${cell.failure}`)),
      failed.length > 5 ? el("div", { class: "small quiet" }, `and ${failed.length - 5} more, in the table of all figures`) : null));
  }
  const count = data.warnings.reduce((sum, warning) => sum + warning.count, 0);
  if (count > 0) {
    list.push(el("p", { class: "notice" }, el("b", {}, `${show.count(count, "warning", "warnings")}: `),
      data.warnings.map((warning) => warning.doubt.replaceAll("-", " ")).join(", "), ". ", el("a", { href: "#warnings" }, "see the evidence and the remedies")));
  }
  for (const note of data.notes) list.push(el("p", { class: "notice" }, note));
  return list;
}

function result() {
  return el("section", { id: "result" }, headline(), notices(),
    compared.length > CARDS_MAX ? overview() : compared.length > 0 ? el("ul", { class: "cards" }, compared.map(card)) : null);
}

// ---- Ratios ----

/** Lays out the lines of a bar chart: headings of groups, and bars below them. */
function layOut(lines) {
  lines.forEach((line, at) => { line.at = at; });
  return { lines, bars: lines.filter((line) => !line.head), heads: lines.filter((line) => line.head), domain: lines.map((line) => line.at) };
}

/** Returns the names of the lines, and the headings of their groups; shared by all bar charts. */
function lineLabels({ bars, heads }, left) {
  return [
    Plot.text(bars, { y: "at", text: (line) => clipped(line.label, left - 14), title: "label", frameAnchor: "left", textAnchor: "end", dx: -8, className: "line-labels", fill: "var(--soft)" }),
    Plot.text(heads, { y: "at", text: "head", frameAnchor: "left", textAnchor: "start", dx: -left + 6, fontWeight: 600, stroke: "var(--raised)", strokeWidth: 4, className: "heads", fill: "var(--ink)" }),
  ];
}

function ratioLines(order, isWhole) {
  let list = beside.filter(({ cell }) => isNumber(cell.ratio) || cell.failure);
  const reach = ({ cell }) => (isNumber(cell.ratio) ? Math.abs(Math.log(cell.ratio)) : Infinity);
  const total = list.length;
  if (!isWhole && total > BARS_MAX) {
    const kept = new Set(d3.sort(list, (one) => -reach(one)).slice(0, BARS_MAX));
    list = list.filter((one) => kept.has(one));
  }
  const isAlone = compared.length === 1;
  if (order === "ratio") {
    list = d3.sort(list, ({ cell }) => (isNumber(cell.ratio) ? cell.ratio : Infinity));
    const label = ({ job, column }) => (isAlone ? jobs[job].label : `${columns[column].label} \u00b7 ${jobs[job].label}`);
    return { total, lines: list.map((one) => ({ ...one, label: label(one) })) };
  }
  if (isAlone) return { total, lines: list.map((one) => ({ ...one, label: jobs[one.job].label })) };
  const lines = [];
  for (const [job, group] of d3.group(list, (one) => one.job)) {
    lines.push({ head: jobs[job].label });
    for (const one of group) lines.push({ ...one, label: columns[one.column].label });
  }
  return { total, lines };
}

/** Returns round ratios for an axis; close ones only where there is room. */
function ratioTicks(low, high, most) {
  const within = [0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8].filter((tick) => tick >= low && tick <= high);
  return high / low < 12 && within.length <= most ? within : logTicks(low, high, most);
}

function ratioChart(width, lines) {
  const layout = layOut(lines);
  const known = layout.bars.filter(({ cell }) => isNumber(cell.ratio));
  if (layout.bars.length === 0) return null;
  const isNarrow = width < NARROW;
  const longest = d3.max(layout.bars, (line) => line.label.length) * 6.4 + 14;
  const left = Math.min(longest, isNarrow ? 116 : 250);
  const hasIntervals = known.some(({ cell }) => isNumber(cell.low));
  const right = isNarrow ? 62 : (isJudged ? 156 : 60) + (hasIntervals ? 94 : 0);
  const ends = known.flatMap(({ cell }) => [cell.ratio, isNumber(cell.low) ? cell.low : cell.ratio, isNumber(cell.high) ? cell.high : cell.ratio]).filter((end) => end > 0);
  const floor = effectFloor;
  const low = Math.min(d3.min(ends) ?? 1, 1 - floor, 0.98);
  const high = Math.max(d3.max(ends) ?? 1, 1 + floor, 1.02);
  const isLog = high / low > 2.5;
  const pad = isLog ? 1.03 : 1 + (high - low) * 0.03;
  const x = { type: isLog ? "log" : "linear", domain: [low / pad, high * pad], label: null };
  const text = isLog ? ratioTicks(low / pad, high * pad, isNarrow ? 4 : 9) : d3.ticks(low / pad, high * pad, isNarrow ? 3 : 7);
  const tickText = (tick) => (isLog ? `${Number(tick.toPrecision(3))}` : d3.format(high - low < 0.06 ? ".3f" : ".2f")(tick));
  const tint = (line) => TINTS[verdictOf(line.cell)];
  const top = layout.domain;
  const figureText = ({ cell }) => (isNarrow ? `${ratioText(cell)} ${MARKS[verdictOf(cell)]}` : ratioText(cell));
  return Plot.plot({
    width, height: 42 + top.length * 23, marginLeft: left, marginRight: right, marginTop: 24, marginBottom: 16,
    x, y: { type: "band", domain: top, axis: null, padding: 0.34 },
    marks: [
      floor > 0 ? Plot.rect([0], { x1: 1 - floor, x2: 1 + floor, fill: "var(--same-wash)", className: "floor" }) : null,
      Plot.axisX({ anchor: "top", ticks: text, tickFormat: tickText, tickSize: 0, color: "var(--soft)" }),
      Plot.gridX({ ticks: text, stroke: "var(--grid)", strokeOpacity: 1 }),
      Plot.ruleX([1], { stroke: "var(--ink)", strokeOpacity: 0.55, className: "baseline" }),
      Plot.barX(known, { y: "at", x1: 1, x2: (line) => line.cell.ratio, fill: tint, fillOpacity: (line) => (["better", "worse"].includes(line.cell.verdict) ? 0.85 : 0.35), rx: 1.5, insetTop: 1, insetBottom: 1, className: "ratio" }),
      Plot.ruleY(known.filter(({ cell }) => isNumber(cell.low)), { y: "at", x1: (line) => line.cell.low, x2: (line) => line.cell.high, stroke: "var(--ink)", strokeWidth: 1.5, marker: "tick", className: "interval" }),
      Plot.ruleY(known.filter(({ cell }) => isNumber(cell.same_low)), { y: "at", x1: (line) => line.cell.same_low, x2: (line) => line.cell.same_high, stroke: "var(--ink)", strokeWidth: 4, className: "same-interval" }),
      lineLabels(layout, left),
      Plot.text(known, { y: "at", text: figureText, frameAnchor: "right", textAnchor: "start", dx: 8, fontWeight: 600, fill: tint, className: "ratio-labels" }),
      isNarrow || !hasIntervals ? null : Plot.text(known, { y: "at", text: ({ cell }) => (isNumber(cell.low) ? rangeText(cell) : ""), frameAnchor: "right", textAnchor: "start", dx: 52, fill: "var(--soft)", className: "interval-labels" }),
      isNarrow || !isJudged ? null : Plot.text(known, { y: "at", text: ({ cell }) => (verdictOf(cell) === "none" ? "" : `${MARKS[verdictOf(cell)]} ${verdictOf(cell)}`), frameAnchor: "right", textAnchor: "start", dx: hasIntervals ? 146 : 52, fontWeight: 600, fill: tint, className: "verdict-labels" }),
      Plot.text(layout.bars.filter(({ cell }) => !isNumber(cell.ratio)), { y: "at", x: 1, text: () => "\u00d7 failed", textAnchor: "start", dx: 6, fill: "var(--worse)", className: "failed" }),
    ],
  });
}

/** Describes the metric of the ratios, and which side of 1 is better. */
function metricText() {
  const names = data.metrics.map((metric) => (metric.name === "iops" ? "IOPS" : metric.name.replaceAll("-", " ")));
  const sides = new Set(data.metrics.map((metric) => metric.is_lower_better));
  const side = sides.size > 1 ? "The verdicts show which side is better." : sides.has(true) ? "Left of 1 is less, and better." : "Right of 1 is more, and better.";
  return `${names.join(" or ") || "IOPS"} of each job over ${base}. ${side}`.replace(/^./, (first) => first.toUpperCase());
}

function ratioTable() {
  const rows = beside.map(({ job, column, cell }) => [jobs[job].label, columns[column].label, ratioText(cell), rangeText(cell),
    verdictTag(verdictOf(cell)), cell.metric || "-", show.rate(cell.iops), show.rate(baseCell({ job, column }).iops), cell.reason || ""]);
  return table(`Ratios to ${base}`, [["Job", false], ["Compared", false], ["Ratio", true], ["Interval", true], ["Verdict", false], ["Of", false], ["IOPS", true], ["IOPS of the base", true], ["Why", false]], capped(rows, 9));
}

function ratios() {
  if (beside.length === 0) return null;
  const state = { order: "measured", isWhole: false };
  const total = ratioLines(state.order, true).total;
  const figure = figureOf({
    id: "chart-ratios", label: `Ratios to ${base}, with intervals`, summary: "Ratios as a table", rows: ratioTable,
    chart: (width) => ratioChart(width, ratioLines(state.order, state.isWhole).lines),
  });
  const more = total <= BARS_MAX ? null : el("button", { type: "button", onclick: () => {
    state.isWhole = !state.isWhole;
    update();
    figure.redraw();
  } });
  const update = () => { if (more) more.textContent = state.isWhole ? `Show the ${BARS_MAX} farthest from 1` : `Show all ${total} (now the ${BARS_MAX} farthest from 1)`; };
  update();
  const floor = effectFloor > 0 ? ` The grey band is the effect floor, \u00b1${show.percent(effectFloor)}.` : "";
  const isThick = beside.some(({ cell }) => isNumber(cell.same_low));
  const thick = isThick ? `, the thick part of ${show.percent(1 - 2 * data.rule.same_level)}` : "";
  const whiskers = beside.some(({ cell }) => isNumber(cell.low)) ? ` Whiskers are intervals of ${show.percent(1 - data.rule.alarm_level)}${thick}.` : "";
  return section("ratios", `Relative to ${base}`, `${metricText()}${whiskers}${floor}`,
    el("div", { class: "controls" },
      choice("Order", "order", [["measured", "As measured"], ["ratio", "By ratio"]], state.order, (order) => { state.order = order; figure.redraw(); }), more),
    figure);
}

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
const KINDS = [["slat", "slat: to submit"], ["clat", "clat: in the device"], ["lat", "lat: both"]];

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
    width, height: isNarrow ? 260 : 340, marginLeft: 58, marginRight: isNarrow ? 14 : 24, marginBottom: 38, marginTop: 16,
    x: { domain: [0, nines(most) * 1.01], label: null },
    y: { type: "log", domain, label: null },
    marks: [
      Plot.axisX({ ticks: ticks.map(nines), tickFormat: (_, at) => `${ticks[at]}`, label: "percent of requests", labelAnchor: "center", labelArrow: "none", tickSize: 0, color: "var(--soft)" }),
      Plot.axisY({ ticks: logTicks(domain[0], domain[1], 7), tickFormat: show.time, tickSize: 0, color: "var(--soft)" }),
      Plot.gridX({ ticks: ticks.map(nines), stroke: "var(--grid)", strokeOpacity: 1 }),
      Plot.gridY({ ticks: logTicks(domain[0], domain[1], 7), stroke: "var(--grid)", strokeOpacity: 1 }),
      [...d3.group(points, (point) => point.column)].map(([column, own]) => [
        Plot.line(own, { x: (point) => nines(point.percent), y: "ns", stroke: hue(column), strokeDasharray: dash(column), strokeWidth: 2, curve: "monotone-x", className: "latency" }),
        Plot.dot(own, { x: (point) => nines(point.percent), y: "ns", fill: hue(column), r: 2.5, className: "percentile", title: (point) => `${columns[column].label}: ${point.percent} % within ${show.time(point.ns)}` }),
      ]),
    ].flat(2),
  });
}

function latencies() {
  const all = every.flatMap(({ cell }) => cell.latencies || []);
  if (all.length === 0) return null;
  const has = (kind) => all.some((one) => one.kind === kind);
  const kinds = KINDS.filter(([kind]) => has(kind));
  const state = { kind: has("clat") ? "clat" : kinds[0][0], direction: "read" };
  const directionsOf = (job) => ["read", "write"].filter((direction) => cells[job].some((cell) => (cell.latencies || []).some((one) => one.direction === direction)));
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
  return section("latency", "Latency", "Durations of requests, all rounds together. Each step to the right excludes ten times fewer requests; both axes are logarithmic.",
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
  const from = (round) => (isTimed ? round.from_s : round.turn - 0.4);
  const to = (round) => (isTimed ? round.from_s + round.seconds : round.turn + 0.4);
  const points = !isTimed ? [] : rounds.flatMap((round, at) => round.series.map(([second, iops]) => ({ column: round.column, at, x: round.from_s + second, iops })));
  const high = d3.max([...rounds.map((round) => round.iops), ...points.map((point) => point.iops)]) * 1.06;
  return Plot.plot({
    width, height: isNarrow ? 230 : 300, marginLeft: 52, marginRight: 14, marginBottom: 38, marginTop: 14,
    x: { domain: isTimed ? [0, end] : [d3.min(rounds, from), d3.max(rounds, to)], label: null }, y: { domain: [0, high], label: null },
    marks: [
      Plot.axisX({ ticks: isNarrow ? 4 : 8, label: isTimed ? "seconds since the first round" : "turn", labelAnchor: "center", labelArrow: "none", tickSize: 0, color: "var(--soft)" }),
      Plot.axisY({ ticks: 5, tickFormat: show.rate, tickSize: 0, color: "var(--soft)" }),
      Plot.gridY({ ticks: 5, stroke: "var(--grid)", strokeOpacity: 1 }),
      Plot.line(points, { x: "x", y: "iops", z: "at", stroke: (point) => hue(point.column), strokeOpacity: 0.55, strokeWidth: 1, className: "series" }),
      Plot.ruleY(rounds, { x1: from, x2: to, y: "iops", stroke: (round) => hue(round.column), strokeWidth: 4, strokeLinecap: "round", className: "round",
        title: (round) => `${columns[round.column].label}, round ${round.round}: ${show.rate(round.iops)} IOPS` }),
    ],
  });
}

function overTime() {
  if (!every.some(({ cell }) => (cell.rounds_detail || []).length > 0)) return null;
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
  const one = (cell.latencies || []).find((latency) => latency.kind === "clat") || (cell.latencies || []).find((latency) => latency.kind === "lat");
  return one ? one.ns[percents.indexOf(50)] : null;
};

function sweepPoints(group) {
  return group.flatMap((job) => cells[job.at].map((cell, column) => ({ column, depth: job.iodepth, iops: cell.iops, p50: medianLatency(cell) }))).filter((point) => isNumber(point.iops) && point.iops > 0);
}

function kneesOf(points) {
  return [...d3.group(points, (point) => point.column).values()].filter((own) => own.length >= 3).map((own) => {
    const most = d3.max(own, (point) => point.iops);
    return d3.sort(own, (point) => point.depth).find((point) => point.iops >= KNEE * most);
  });
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
  return Plot.plot({
    width, height: 260, marginLeft: 56, marginRight: 20, marginBottom: 38, marginTop: 20,
    x: { type: "log", base: 2, domain: [depths[0] / 1.15, depths.at(-1) * 1.15], label: null }, y: { type: isLog ? "log" : "linear", domain, label: null },
    marks: [
      Plot.axisX({ ticks: depths, tickFormat: (depth) => `${depth}`, label: "depth", labelAnchor: "center", labelArrow: "none", tickSize: 0, color: "var(--soft)" }),
      Plot.axisY({ ticks, tickFormat: format, tickSize: 0, color: "var(--soft)" }),
      Plot.gridY({ ticks, stroke: "var(--grid)", strokeOpacity: 1 }),
      [...d3.group(points, (point) => point.column)].map(([column, own]) => Plot.line(d3.sort(own, (point) => point.depth), { x: "depth", y: value, stroke: hue(column), strokeDasharray: dash(column), strokeWidth: 2, className: "sweep" })),
      Plot.dot(points, { x: "depth", y: value, fill: (point) => hue(point.column), r: 3, className: "depth", title: (point) => `${columns[point.column].label}, depth ${point.depth}: ${format(point[value])}` }),
      Plot.dot(knees, { x: "depth", y: value, stroke: (point) => hue(point.column), r: 8, strokeWidth: 2, className: "knee" }),
      Plot.text(knees, { x: "depth", y: value, text: (point) => `knee ${point.depth}`, dy: -15, fill: (point) => hue(point.column), fontWeight: 600, stroke: "var(--raised)", strokeWidth: 4, className: "knee-labels" }),
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
  return section("depth", "Depth", `The knee is the least depth with ${show.percent(KNEE)} of the maximum: beyond it latency rises, and throughput hardly does.`,
    el("div", { class: "controls" }, groups.length > 1 ? pick("Job", groups.map((one, at) => [at, name(one)]), 0, (at) => { state.at = at; rate.redraw(); wait.redraw(); }) : el("span", { class: "quiet" }, name(group()))),
    columnLegend(d3.range(columns.length)),
    el("div", { class: "pair" }, el("div", {}, el("h3", {}, "Requests per second"), rate), el("div", {}, el("h3", {}, "Median latency"), wait)));
}

// ---- Processor time ----

function processorChart(width, list) {
  const lines = [];
  for (const [job, group] of d3.group(list, (one) => one.job)) {
    if (columns.length > 1) lines.push({ head: jobs[job].label });
    for (const one of group) lines.push({ ...one, label: columns.length > 1 ? columns[one.column].label : jobs[job].label });
  }
  const layout = layOut(lines);
  if (layout.bars.length === 0) return null;
  const isNarrow = width < NARROW;
  const left = Math.min(d3.max(layout.bars, (line) => line.label.length) * 6.4 + 14, isNarrow ? 116 : 250);
  const total = (line) => line.cell.user_ns + line.cell.system_ns;
  const ticks = isNarrow ? 3 : 6;
  const part = (from, to, fill, name) => Plot.barX(layout.bars, { y: "at", x1: from, x2: to, fill, insetTop: 1, insetBottom: 1, className: name });
  return Plot.plot({
    width, height: 42 + lines.length * 23, marginLeft: left, marginRight: 70, marginTop: 24, marginBottom: 12,
    x: { domain: [0, d3.max(layout.bars, total)], label: null }, y: { type: "band", domain: layout.domain, axis: null, padding: 0.34 },
    marks: [
      Plot.axisX({ anchor: "top", ticks, tickFormat: show.time, tickSize: 0, color: "var(--soft)" }),
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
  const list = known.slice(0, BARS_MAX);
  const key = (tint, text) => el("li", {}, el("i", { style: `width:.75rem;height:.75rem;border-radius:2px;background:${tint}` }), text);
  return section("processor", "Processor time per request", "Processor time of the process divided by its requests.",
    el("ul", { class: "legend" }, key("var(--c1)", "program"), key("var(--c5)", "kernel")),
    known.length > list.length ? el("p", { class: "notice" }, `The chart shows the first ${list.length} of ${known.length} cells; the table has all.`) : null,
    figureOf({
      id: "chart-processor", label: "Processor time per request", chart: (width) => processorChart(width, list), summary: "Costs as a table",
      rows: () => table("Costs per request", [["Job", false], ["Way", false], ["Program", true], ["Kernel", true], ["Context switches", true], ["Bios", true]],
        capped(known.map(({ job, column, cell }) => [jobs[job].label, columns[column].label, show.time(cell.user_ns), show.time(cell.system_ns), show.plain(cell.switches), show.plain(cell.bios)]), 6)),
    }));
}

// ---- Kernels ----

function contextOf(cell) {
  if (!cell.contexts) return "none";
  const most = d3.greatest(CONTEXTS.slice(0, 6), ([name]) => cell.contexts[name]);
  return cell.contexts[most[0]] > 0 ? most[0] : "none";
}

// With more names than this, those at the last kernel overlap.
const KERNEL_NAMES_MAX = 14;

function kernelChart(width, kernels) {
  const points = every.filter(({ column, cell }) => kernels.includes(column) && (isNumber(cell.ratio) || (columns[column].base === null && isNumber(cell.iops))))
    .map(({ job, column, cell }) => ({ job, kernel: columns[column].label, ratio: columns[column].base === null ? 1 : cell.ratio, context: contextOf(cell) }));
  if (points.length === 0) return null;
  const isNarrow = width < NARROW;
  const isNamed = !isNarrow && new Set(points.map((point) => point.job)).size <= KERNEL_NAMES_MAX;
  const right = isNamed ? Math.min(170, d3.max(points, (point) => jobs[point.job].label.length) * 6.4 + 24) : 14;
  const groups = [...d3.group(points, (point) => point.job).values()];
  const [low, high] = d3.extent(points, (point) => point.ratio);
  const span = Math.max(high - low, 0.04);
  const domain = [low - span * 0.12, high + span * 0.12];
  const shape = Object.fromEntries(CONTEXTS.map(([name, , symbol]) => [name, symbol]));
  const ends = d3.sort(groups.map((group) => group.at(-1)), (point) => -point.ratio);
  // Names at the ends are at least a line's height apart.
  const height = isNarrow ? 280 : 360;
  const scale = d3.scaleLinear(domain, [height - 40, 20]);
  let before = -Infinity;
  for (const point of ends) before = point.label_at = Math.max(scale(point.ratio), before + 14);
  return Plot.plot({
    width, height, marginLeft: 50, marginRight: right, marginBottom: 40, marginTop: 20,
    x: { type: "point", domain: kernels.map((column) => columns[column].label), label: null, padding: 0.3 }, y: { domain, label: null },
    symbol: { type: "identity" },
    marks: [
      Plot.axisX({ tickSize: 0, color: "var(--soft)", tickFormat: (label) => clipped(label, (width - right) / kernels.length), tickRotate: isNarrow && kernels.length > 5 ? -45 : 0 }),
      Plot.axisY({ ticks: 6, tickFormat: d3.format(".2f"), tickSize: 0, color: "var(--soft)" }),
      Plot.gridY({ ticks: 6, stroke: "var(--grid)", strokeOpacity: 1 }),
      Plot.ruleY([1], { stroke: "var(--ink)", strokeOpacity: 0.55, className: "baseline" }),
      Plot.line(points, { x: "kernel", y: "ratio", z: "job", stroke: "var(--faint)", strokeWidth: 1.25, className: "kernel-job" }),
      Plot.dot(points, { x: "kernel", y: "ratio", fill: (point) => `var(--k-${point.context})`, stroke: "var(--raised)", symbol: (point) => shape[point.context], r: 6, className: "kernel-cell",
        title: (point) => `${jobs[point.job].label}, ${point.kernel}: ${show.ratio(point.ratio)}, ${point.context}` }),
      !isNamed ? null : Plot.text(ends, { x: "kernel", y: (point) => scale.invert(point.label_at), text: (point) => clipped(jobs[point.job].label, right - 20), textAnchor: "start", dx: 12, fill: "var(--soft)", className: "kernel-labels" }),
    ],
  });
}

function symbolSample(name, symbol) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("width", 14);
  svg.setAttribute("height", 14);
  svg.setAttribute("viewBox", "-7 -7 14 14");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  const types = { circle: d3.symbolCircle, square: d3.symbolSquare, triangle: d3.symbolTriangle, diamond: d3.symbolDiamond, star: d3.symbolStar, wye: d3.symbolWye, times: d3.symbolTimes };
  path.setAttribute("d", d3.symbol(types[symbol], 70)());
  path.style.fill = symbol === "times" ? "none" : `var(--k-${name})`;
  path.style.stroke = `var(--k-${name})`;
  svg.append(path);
  return svg;
}

function kernels() {
  const own = d3.range(columns.length).filter((column) => columns[column].kernel);
  if (own.length < 2) return null;
  const seen = new Set(every.filter(({ column }) => own.includes(column)).map(({ cell }) => contextOf(cell)));
  const deferrers = (cell) => (cell.contexts ? cell.contexts.deferred_by.map(([name, count]) => `${name} ${count.toLocaleString("en")}`).join(", ") : "");
  return section("kernels", "Kernels", `The same jobs on each kernel, relative to ${base}. Colour and shape show where the kernel ran completions.`,
    el("ul", { class: "legend" }, CONTEXTS.filter(([name]) => seen.has(name)).map(([name, text, symbol]) => el("li", {}, symbolSample(name, symbol), text))),
    figureOf({
      id: "chart-kernels", label: "Ratio by kernel, completion context as colour", chart: (width) => kernelChart(width, own), summary: "Kernels as a table",
      rows: () => table("Kernels", [["Job", false], ["Kernel", false], ["Ratio", true], ["Completions in", false], ["Deferred by", false], ["Instructions per request", true], ["Switches per request", true], ["Bios per request", true]],
        capped(every.filter(({ column }) => own.includes(column)).map(({ job, column, cell }) => [jobs[job].label, columns[column].label, columns[column].base === null ? "1.000" : ratioText(cell), contextOf(cell), deferrers(cell), isNumber(cell.instructions) ? Math.round(cell.instructions).toLocaleString("en") : "-", show.plain(cell.guest_switches), show.plain(cell.bios)]), 8)),
    }));
}

// ---- Figures, environments, warnings, method ----

function routeText(cell) {
  if (!cell.route) return "-";
  const total = d3.sum(Object.values(cell.route)) || 1;
  return ["direct", "bounced", "buffered"].map((way) => [way, cell.route[way] / total]).filter(([, share]) => share > 0)
    .map(([way, share]) => (share === 1 ? way : `${way} ${show.percent(share)}`)).join(", ") || "-";
}

function figures() {
  const head = [["Job", false], ["Way", false], ["Ratio", true], ["Verdict", false], ["IOPS", true], ["Bytes per second", true], ["Total I/O", true], ["Processor", true], ["Depth", true], ["Memory", true], ["Route", false], ["Completions in", false], ["Rounds", true], ["", false]];
  const rows = () => every.map(({ job, column, cell }) => [jobs[job].label, columns[column].label, columns[column].base === null ? "1" : ratioText(cell), columns[column].base === null ? "base" : verdictTag(verdictOf(cell)),
    show.rate(cell.iops), show.bytes(cell.bytes_per_second), show.bytes(cell.total_bytes), isNumber(cell.user_ns) ? show.time(cell.user_ns + cell.system_ns) : "-",
    show.plain(cell.depth), show.bytes(cell.memory_bytes), routeText(cell), contextOf(cell) === "none" ? "-" : contextOf(cell), cell.rounds,
    [cell.failure, cell.short_ios > 0 ? show.count(cell.short_ios, "short request", "short requests") : null].filter(Boolean).join("; ")]);
  return section("figures", "All figures", `Medians of the rounds; total I/O is of one round. ${show.count(every.length, "cell", "cells")}.`,
    tableOf("Show the table", () => table("All figures", head, capped(rows(), head.length))));
}

function environment() {
  if (data.facts.length === 0) return null;
  const facts = data.facts.filter((fact) => fact.differs);
  const same = data.facts.filter((fact) => !fact.differs);
  const count = data.environments;
  const users = d3.range(count).map((at) => [...new Set(every.filter(({ cell }) => cell.environment === at).map(({ column }) => columns[column].label))]);
  const head = [["", false], ...users.map((labels, at) => [count === 1 ? "Value" : `${at + 1}: ${labels.slice(0, 3).join(", ")}${labels.length > 3 ? "\u2026" : ""}`, false])];
  const row = (fact) => ({ class: fact.differs ? "differs" : null, cells: [fact.name, ...fact.values] });
  const sameHead = [["", false], [count === 1 ? "Value" : "Value in all environments", false]];
  const sameRow = (fact) => [fact.name, fact.values[0]];
  const lead = count === 1 ? "The machine of the run." : facts.length === 0 ? `${count} environments without known differences.` : `${count} environments. A difference between them may explain a ratio as well as the code does.`;
  const first = ["kernel", "processor", "memory", "device", "device model", "file system", "mount options"];
  const brief = same.filter((fact) => first.includes(fact.name));
  return section("environment", "Environment", lead,
    facts.length > 0 ? table(`${show.count(facts.length, "difference", "differences")}`, head, facts.map(row), { long: true }) : null,
    brief.length > 0 ? table(count === 1 ? "The machine" : "The same in all environments", sameHead, brief.map(sameRow), { long: true }) : null,
    same.length > brief.length ? tableOf(`${same.length - brief.length} more`, () => table("Other known facts", sameHead, same.filter((fact) => !first.includes(fact.name)).map(sameRow), { long: true })) : null);
}

function warnings() {
  if (data.warnings.length === 0) return null;
  return section("warnings", "Warnings", "Reasons to distrust figures, with remedies.",
    el("ul", { class: "warnings" }, data.warnings.map((warning) => el("li", { class: "notice" },
      el("h3", {}, warning.doubt.replaceAll("-", " "), el("span", { class: "quiet small" }, ` \u00b7 ${show.count(warning.count, "cell", "cells")}`)),
      el("p", {}, `Remedy: ${warning.remedy}.`),
      el("details", { open: warning.count <= 3 }, el("summary", {}, "Where"),
        el("ul", {}, warning.places.map(([job, column, evidence]) => el("li", {}, `${jobs[job].label}, ${columns[column].label}: ${evidence}`)),
          warning.count > warning.places.length ? el("li", {}, `and ${warning.count - warning.places.length} more`) : null))))));
}

function method() {
  const order = { abba: "in an order that alternates (ABBA), so that a drift of the machine affects all alike", "in-order": "always in the same order" }[data.order];
  const warmup = data.warmup_ns > 0 ? `, after ${show.time(data.warmup_ns)} of warm-up that is not counted` : "";
  const words = [
    columns.length > 1 && data.rounds > 0 ? `Each job ran ${data.rounds ? show.count(data.rounds, "round", "rounds") : "some rounds"} in each way${warmup}${order ? `, ${order}` : ""}.` : `Each job ran ${show.count(data.rounds, "round", "rounds")}${warmup}.`,
    columns.length > 1 ? `Round n of one way is paired with round n of ${base}; a ratio is that of the pairs, and its error is the variation between rounds, not within them.` : "",
    isJudged ? `A ratio is better or worse only if its interval of ${show.percent(1 - data.rule.alarm_level)} is beyond the effect floor of \u00b1${show.percent(effectFloor)}, the same only if ${data.rule.same_level > 0 ? `that of ${show.percent(1 - 2 * data.rule.same_level)}` : "it"} is within the floor, and else inconclusive: then run more rounds, or on a quieter machine.` : "",
    isJudged && data.rule.judged > 1 && data.rule.family_level > 0 ? `${data.rule.judged} ratios were judged together, so that at most ${show.percent(data.rule.family_level)} of such runs have a false alarm.` : "",
    data.is_virtual ? "Time was virtual: the comparison is of instructions, not seconds." : "",
    `Seed ${data.seed}.`,
  ];
  return section("method", "Method", null, el("p", {}, words.filter(Boolean).join(" ")));
}

function page() {
  const span = data.title || "Benchmark";
  const facts = [show.count(jobs.length, "job", "jobs"), show.count(columns.length, "way", "ways") + " to run them", data.rounds > 0 ? show.count(data.rounds, "round", "rounds") : null, data.started || null, data.made_by ? `by ${data.made_by}` : null];
  const isOfKernels = columns.filter((column) => column.kernel).length >= 2;
  const pictures = isOfKernels ? [kernels(), ratios()] : [ratios()];
  const sections = [result(), ...pictures, latencies(), overTime(), depth(), processor(), environment(), warnings(), figures(), method()].filter(Boolean);
  const links = sections.filter((one) => one.id !== "result").map((one) => el("li", {}, el("a", { href: `#${one.id}` }, one.querySelector("h2").textContent.replace(/^Relative to .*/, "Ratios"))));
  document.getElementById("report").append(
    el("header", { class: "top" }, el("div", {}, el("h1", {}, span), el("p", { class: "quiet" }, facts.filter(Boolean).join(" \u00b7 "))), themeSwitch()),
    el("nav", { class: "toc", "aria-label": "Sections" }, el("ul", {}, links)),
    ...sections,
    el("footer", {}, "Rendered by dio report from a document of the schema diopter.bench/1. This page has all its data and makes no requests."));
}

page();
})();
