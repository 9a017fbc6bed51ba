"use strict";
// The report of a benchmark: its first screen, with absolute figures and a sentence, and the heat
// maps of large matrices.

// ---- Absolute figures ----

// Lines of the first table before the rest is behind a button.
const LINES_FIRST = 12;
const SHOWN_PERCENTS = [50, 99, 99.9];
const KIND_TEXTS = { slat: "start to submission", clat: "submission to completion", lat: "start to completion" };

const latencyOf = (cell, direction, kind = data.latency_kind) => (cell.latencies || []).find((one) => one.kind === kind && one.direction === direction);
const timeAt = (latency, percent) => (latency ? show.time(latency.ns[percents.indexOf(percent)]) : "-");
const perSecond = (value) => (isNumber(value) ? `${show.bytes(value)}/s` : "-");

/** Returns the lines of a cell: one, or one for each direction with latencies. */
function absoluteLines({ job, column, cell }) {
  const ways = ["read", "write"].filter((direction) => latencyOf(cell, direction));
  const words = (latency) => SHOWN_PERCENTS.map((percent) => timeAt(latency, percent));
  const name = [jobs[job].label, columns[column].label];
  const state = cell.failure && cell.rounds === 0 ? "failed" : show.rate(cell.iops);
  if (ways.length < 2) return [[...name, state, perSecond(cell.bytes_per_second), ...words(latencyOf(cell, ways[0]))]];
  return ways.map((way, at) => [name[0], `${name[1]}, ${way}s`, at === 0 ? state : "", at === 0 ? perSecond(cell.bytes_per_second) : "", ...words(latencyOf(cell, way))]);
}

function absolute() {
  const measured = every.filter(({ cell }) => cell.rounds > 0 || cell.failure);
  if (measured.length === 0) return null;
  const lines = measured.flatMap(absoluteLines);
  // A column without any figure is left out.
  const kept = ["Job", "Way", "IOPS", "Bandwidth", "p50", "p99", "p99.9"].map((name, at) => ({ name, at }))
    .filter(({ at }) => at < 2 || lines.some((line) => line[at] !== "" && line[at] !== "-"));
  const kind = kept.some(({ at }) => at >= 4) ? `; p50, p99, p99.9${data.latency_rounds ? ` ${data.latency_rounds}` : ""}: latency from ${KIND_TEXTS[data.latency_kind]} (${data.latency_kind})` : "";
  const medians = data.rounds > 1 ? `medians of ${data.rounds} rounds` : "one round";
  const head = kept.map(({ name, at }) => [name, at >= 2]);
  const place = el("div", { id: "absolute" });
  let isWhole = measured.length <= LINES_FIRST;
  const draw = () => {
    const list = isWhole ? measured : measured.slice(0, LINES_FIRST);
    const more = measured.length <= LINES_FIRST ? null : el("button", { type: "button", onclick: () => { isWhole = !isWhole; draw(); } },
      isWhole ? `Show the first ${LINES_FIRST}` : `Show all ${measured.length}`);
    place.replaceChildren(table(`Absolute figures, ${medians}${kind}`, head,
      capped(list.flatMap(absoluteLines).map((line) => kept.map(({ at }) => line[at])), head.length)), more || "");
  };
  window.addEventListener("beforeprint", () => { isWhole = true; draw(); });
  draw();
  return place;
}

// ---- The sentence ----

function figuresText(cell) {
  const latency = latencyOf(cell, "read") || latencyOf(cell, "write");
  const p99 = timeAt(latency, 99);
  return `${show.rate(cell.iops)} IOPS, ${perSecond(cell.bytes_per_second)}${p99 === "-" ? "" : `, p99 ${p99}`}`;
}

/** Returns the conclusion: the largest difference, decided if there are verdicts, or the figures of a single way. */
function conclusion() {
  const measured = every.filter(({ cell }) => isNumber(cell.iops));
  if (measured.length === 0) return "Nothing was measured.";
  if (beside.length === 0) {
    const most = d3.greatest(measured, ({ cell }) => cell.iops);
    const lead = measured.length === 1 ? "" : "The most IOPS: ";
    return [lead, el("b", {}, `${columns[most.column].label}, ${jobs[most.job].label}`), `: ${figuresText(most.cell)}.`];
  }
  const decided = beside.filter(({ cell }) => isNumber(cell.ratio) && (!isJudged || ["better", "worse"].includes(cell.verdict)));
  const far = d3.greatest(decided, weight);
  if (!far) {
    if (!isJudged) return null;
    const isOpen = beside.every(({ cell }) => cell.verdict !== "same");
    return isOpen ? "No difference is shown, and none is ruled out: more rounds may decide." : "No difference is shown.";
  }
  const metric = far.cell.metric === "iops" || !far.cell.metric ? "IOPS" : far.cell.metric.replaceAll("-", " ");
  return [el("b", {}, `${columns[far.column].label}, ${jobs[far.job].label}`), `: ${figuresText(far.cell)}; `,
    el("b", { class: isJudged ? `v-${far.cell.verdict}` : null }, `${show.ratio(far.cell.ratio)}\u00d7 the ${metric} of ${columns[columns[far.column].base].label}`),
    decided.length > 1 ? ", the largest difference." : "."];
}

// ---- Heat maps ----

/** Returns the groups of jobs that differ in block size and depth only, with at least two of each. */
function grids() {
  const groups = [...d3.group(jobs.map((job, at) => ({ ...job, at })), (job) => job.grid).values()];
  const count = (group, key) => new Set(group.map((job) => job[key])).size;
  return groups.filter((group) => count(group, "block_bytes") >= 2 && count(group, "iodepth") >= 2);
}

const shortBytes = (bytes) => {
  const [scale, unit] = [[2 ** 30, "G"], [2 ** 20, "M"], [2 ** 10, "k"], [1, ""]].find(([scale]) => bytes % scale === 0);
  return `${bytes / scale}${unit}`;
};

const HEATS = {
  iops: ["IOPS", (cell) => cell.iops, show.rate],
  bandwidth: ["Bandwidth", (cell) => cell.bytes_per_second, perSecond],
  p99: ["p99", (cell) => { const one = latencyOf(cell, "read") || latencyOf(cell, "write"); return one ? one.ns[percents.indexOf(99)] : null; }, show.time],
  ratio: ["Ratio", (cell) => cell.ratio, show.ratio],
};

/** Returns the colours of a variable of the style sheet, light and dark. */
function themed(variable) {
  return ["light", "dark"].map((scheme) => {
    const probe = document.body.appendChild(el("i", { style: `color-scheme: ${scheme}; color: var(${variable})` }));
    const { color } = getComputedStyle(probe);
    probe.remove();
    return color;
  });
}

/** Returns black or white, whichever has the larger contrast with a colour: at least 4.58. */
function legible(color) {
  const linear = (part) => (part <= 10.31 ? part / 3294.6 : ((part / 255 + 0.055) / 1.055) ** 2.4);
  const { r, g, b } = d3.rgb(color);
  const luminance = 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  return (luminance + 0.05) ** 2 > 1.05 * 0.05 ? "#000" : "#fff";
}

function heatChart(width, column, group, name) {
  const [title, value, format] = HEATS[name];
  const all = (only) => group.flatMap((job) => cells[job.at].map((cell, at) => ({ at, value: value(cell), job })).filter((one) => isNumber(one.value) && one.value > 0 && (only === null || one.at === only)));
  const own = all(column);
  if (own.length === 0) return null;
  // One scale for all maps, so that they can be compared.
  const [low, high] = d3.extent(all(null), (one) => Math.log(one.value));
  const far = Math.max(Math.abs(low), Math.abs(high), 0.02);
  const share = (one) => (name === "ratio" ? Math.log(one.value) / far : high > low ? (Math.log(one.value) - low) / (high - low) : 0.5);
  // The fill of a cell, light and dark; a chart is not drawn again when the theme changes.
  const tints = (one) => {
    const part = share(one);
    const hue = themed(name !== "ratio" ? "--heat" : part < 0 ? "--worse" : "--better");
    return themed("--raised").map((raised, at) => d3.interpolateLab(raised, hue[at])(0.08 + 0.8 * Math.abs(part)));
  };
  const tint = (one) => `light-dark(${tints(one).join()})`;
  const sizes = [...new Set(group.map((job) => job.block_bytes))].sort(d3.ascending);
  const depths = [...new Set(group.map((job) => job.iodepth))].sort(d3.ascending);
  const left = 52;
  const isRoomy = (width - left - 10) / depths.length > 6.6 * d3.max(own, (one) => format(one.value).length) + 4;
  return Plot.plot({
    width, height: 64 + 30 * sizes.length, marginLeft: left, marginRight: 10, marginTop: 20, marginBottom: 42, color: { type: "identity" },
    x: { type: "band", domain: depths, padding: 0.04 }, y: { type: "band", domain: [...sizes].reverse(), padding: 0.06 },
    marks: [
      Plot.axisX({ tickSize: 0, label: "iodepth", labelAnchor: "center", labelArrow: "none", color: "var(--soft)" }),
      Plot.axisY({ tickSize: 0, tickFormat: shortBytes, label: "block size", labelAnchor: "top", labelArrow: "none", color: "var(--soft)" }),
      Plot.cell(own, { x: (one) => one.job.iodepth, y: (one) => one.job.block_bytes, fill: tint, rx: 2, className: "heat",
        title: (one) => `${shortBytes(one.job.block_bytes)}, depth ${one.job.iodepth}: ${format(one.value)}` }),
      !isRoomy ? null : Plot.text(own, { x: (one) => one.job.iodepth, y: (one) => one.job.block_bytes, text: (one) => format(one.value), fontSize: 11,
        fill: (one) => `light-dark(${tints(one).map(legible).join()})`, className: "heat-labels" }),
    ],
  });
}

function heatMaps() {
  const all = grids();
  if (all.length === 0) return null;
  const hasRatios = beside.some(({ cell }) => isNumber(cell.ratio));
  const names = Object.keys(HEATS).filter((name) => (name !== "p99" || data.latency_kind) && (name !== "ratio" || hasRatios));
  const state = { at: 0, name: "iops" };
  const name = (group) => group[0].label.replace(/ depth \d+/, "").replace(` ${shortBytes(group[0].block_bytes)}`, "");
  const figure = (column) => figureOf({
    id: `chart-heat-${column}`, label: () => `${HEATS[state.name][0]} by block size and depth, ${columns[column].label}`, empty: MISSING, summary: "Figures as a table",
    chart: (width) => heatChart(width, column, all[state.at], state.name),
    rows: () => table(`${HEATS[state.name][0]}, ${columns[column].label}`, [["Block size", true], ["Depth", true], [HEATS[state.name][0], true]],
      all[state.at].map((job) => [shortBytes(job.block_bytes), job.iodepth, HEATS[state.name][2](HEATS[state.name][1](cells[job.at][column]))])),
  });
  const maps = el("div", { class: "pair" });
  const figures = d3.range(columns.length).map((column) => [column, figure(column)]);
  const draw = () => {
    // A base has no ratio.
    const kept = figures.filter(([column]) => state.name !== "ratio" || columns[column].base !== null);
    maps.replaceChildren(...kept.map(([column, one]) => el("div", {}, el("h3", {}, columns[column].label), one)));
    for (const [, one] of kept) one.redraw();
  };
  draw();
  return section("heat", "Block size and depth", `Each map is one way; a stronger colour is more, on one scale for all maps. For the ratio to ${base}, the colour shows the side of 1.`,
    el("div", { class: "controls" },
      all.length > 1 ? pick("Job", all.map((group, at) => [at, name(group)]), 0, (at) => { state.at = at; draw(); }) : el("span", { class: "quiet" }, name(all[0])),
      choice("Figure", "heat", names.map((one) => [one, HEATS[one][0]]), state.name, (one) => { state.name = one; draw(); })), maps);
}
