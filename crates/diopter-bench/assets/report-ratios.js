"use strict";
// The report of a benchmark: the result in words, and the ratios to the base.

// ---- The result ----

function tallied(list) {
  const tally = {};
  for (const { cell } of list) tally[verdictOf(cell)] = (tally[verdictOf(cell)] || 0) + 1;
  return tally;
}

function headline() {
  const sentence = el("p", { class: "result" }, conclusion());
  if (beside.length === 0) return sentence;
  const tally = tallied(beside);
  const among = `of ${show.count(beside.length, "comparison", "comparisons")} with ${base}`;
  if (!isJudged) {
    sentence.append(` ${show.count(beside.length, "ratio", "ratios")} to ${base}, without verdicts.`);
    return sentence;
  }
  const parts = WORDS.filter((word) => tally[word]).flatMap((word, at) => [
    at === 0 ? "" : ", ", el("b", { class: `v-${word}` }, `${tally[word]} ${word}`),
  ]);
  sentence.append(" ", ...parts, ` ${among}.`);
  return sentence;
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
  return el("section", { id: "result" }, headline(), absolute(), notices(),
    compared.length > CARDS_MAX ? overview() : compared.length > 0 ? el("ul", { class: "cards" }, compared.map(card)) : null);
}

// ---- Ratios ----

/** Lays out the lines of a bar chart: headings of groups, and bars below them. */
function layOut(lines) {
  lines.forEach((line, at) => { line.at = at; });
  return { lines, bars: lines.filter((line) => !line.head), heads: lines.filter((line) => line.head), domain: lines.map((line) => line.at) };
}

/** Returns the margin for the names of the lines, of at most `most` pixels. */
function labelMargin({ bars }, most) {
  return Math.min(Math.ceil(d3.max(bars, (line) => line.label.length) * LABEL_PIXELS) + 14, most);
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
  if (!isWhole && total > BARS_MAX + BARS_SPARE) {
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

/** Moves names that are too long for a narrow page above their bars. */
function withNamesAbove(lines) {
  const isLong = lines.some((line) => line.label && line.label.length * LABEL_PIXELS + 14 > NARROW_MARGIN);
  if (!isLong || lines.some((line) => line.head)) return lines;
  return lines.flatMap((line) => [{ head: line.label }, { ...line, label: "" }]);
}

function ratioChart(width, lines) {
  const isNarrow = width < NARROW;
  const layout = layOut(isNarrow ? withNamesAbove(lines) : lines);
  const known = layout.bars.filter(({ cell }) => isNumber(cell.ratio));
  if (layout.bars.length === 0) return null;
  const left = labelMargin(layout, isNarrow ? NARROW_MARGIN : 250);
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
    width, height: 58 + top.length * 23, marginLeft: left, marginRight: right, marginTop: 40, marginBottom: 16,
    x, y: { type: "band", domain: top, axis: null, padding: 0.34 },
    marks: [
      floor > 0 ? Plot.rect([0], { x1: 1 - floor, x2: 1 + floor, fill: "var(--same-wash)", className: "floor" }) : null,
      Plot.axisX({ anchor: "top", ticks: text, tickFormat: tickText, tickSize: 0, label: clipped(`ratio to ${base}`, width - left - right), labelAnchor: "center", labelArrow: "none", color: "var(--soft)" }),
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
  const more = total <= BARS_MAX + BARS_SPARE ? null : el("button", { type: "button", onclick: () => {
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
