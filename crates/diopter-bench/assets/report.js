"use strict";
// The report of a benchmark: kernels, figures, environments, warnings and method; builds the page.

// ---- Kernels ----

function contextOf(cell) {
  if (!cell.contexts) return "none";
  const most = d3.greatest(CONTEXTS.slice(0, 6), ([name]) => cell.contexts[name] || 0);
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
  // Marks of several contexts in one place are next to each other.
  const contexts = CONTEXTS.map(([name]) => name);
  for (const [, own] of d3.group(points, (point) => point.kernel)) {
    for (const point of own) {
      const near = new Set(own.filter((other) => Math.abs(other.ratio - point.ratio) < span * 0.04).map((other) => other.context));
      const order = contexts.filter((name) => near.has(name));
      point.dx = 14 * (order.indexOf(point.context) - (order.length - 1) / 2);
    }
  }
  const shape = Object.fromEntries(CONTEXTS.map(([name, , symbol]) => [name, symbol]));
  const ends = d3.sort(groups.map((group) => group.at(-1)), (point) => -point.ratio);
  // Names at the ends are at least a line's height apart.
  const height = isNarrow ? 280 : 360;
  const scale = d3.scaleLinear(domain, [height - (isNarrow ? 52 : 40), 32]);
  let before = -Infinity;
  for (const point of ends) before = point.label_at = Math.max(scale(point.ratio), before + 14);
  return Plot.plot({
    width, height, marginLeft: 50, marginRight: right, marginBottom: isNarrow ? 52 : 40, marginTop: 32,
    x: { type: "point", domain: kernels.map((column) => columns[column].label), label: null, padding: 0.3 }, y: { domain, label: null },
    symbol: { type: "identity" },
    marks: [
      Plot.axisX({ tickSize: 0, color: "var(--soft)", label: isNarrow ? null : "kernel", labelAnchor: "center", labelArrow: "none", tickFormat: (label) => clipped(label, (width - right) / kernels.length), tickRotate: isNarrow && kernels.length > 5 ? -45 : 0 }),
      Plot.axisY({ ticks: 6, tickFormat: d3.format(".2f"), tickSize: 0, ...yTitle(`ratio to ${base}`), color: "var(--soft)" }),
      Plot.gridY({ ticks: 6, stroke: "var(--grid)", strokeOpacity: 1 }),
      Plot.ruleY([1], { stroke: "var(--ink)", strokeOpacity: 0.55, className: "baseline" }),
      Plot.line(points, { x: "kernel", y: "ratio", z: "job", stroke: "var(--faint)", strokeWidth: 1.25, className: "kernel-job" }),
      [...d3.group(points, (point) => point.dx)].map(([dx, own]) => Plot.dot(own, { x: "kernel", y: "ratio", dx, fill: (point) => `var(--k-${point.context})`, stroke: "var(--raised)", symbol: (point) => shape[point.context], r: 6, className: "kernel-cell",
        title: (point) => `${jobs[point.job].label}, ${point.kernel}: ${show.ratio(point.ratio)}, ${point.context}` })),
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
  const deferrers = (cell) => (cell.contexts && cell.contexts.deferred_by ? cell.contexts.deferred_by.map(([name, count]) => `${name} ${count.toLocaleString("en")}`).join(", ") : "");
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
  const sections = [result(), heatMaps(), ...pictures, latencies(), overTime(), depth(), processor(), environment(), warnings(), figures(), method()].filter(Boolean);
  const links = sections.filter((one) => one.id !== "result").map((one) => el("li", {}, el("a", { href: `#${one.id}` }, one.querySelector("h2").textContent.replace(/^Relative to .*/, "Ratios"))));
  document.getElementById("report").append(
    el("header", { class: "top" }, el("div", {}, el("h1", {}, span), el("p", { class: "quiet" }, facts.filter(Boolean).join(" \u00b7 "))), themeSwitch()),
    el("nav", { class: "toc", "aria-label": "Sections" }, el("ul", {}, links)),
    ...sections,
    el("footer", {}, "Rendered by dio report from a document of the schema diopter.bench/1. This page has all its data and makes no requests."));
}

page();
