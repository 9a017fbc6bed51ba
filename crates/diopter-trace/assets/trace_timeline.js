// Draws: the overview of all sampled requests, and one request from system call to wake-up.
// Numbers of the data are nanoseconds. Nothing here listens to anything.
"use strict";

const PHASES = ["submit", "queue", "device", "detour", "wake"];
const CONTEXTS = {
  hardirq: "a hard interrupt", softirq: "a soft interrupt", kworker: "a kworker",
  task: "the submitting task", poller: "a poller",
};
const BIO_ROWS = 24;
const OTHER_ROWS = 20;
// Height of the title and the ticks of the axis of one request.
const AXIS = 40;

/** Formats a round time of an axis: without zeros behind the point. */
function tickText(ns) {
  const [value, unit] = show.time(ns).split("\u202f");
  return `${Number(value)}\u202f${unit}`;
}

function sizeText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (bytes >= 1024 && at + 1 < units.length) { bytes /= 1024; at += 1; }
  return `${Number.isInteger(bytes) ? bytes : bytes.toFixed(1)}\u202f${units[at]}`;
}

/** Creates an element of a chart. */
function mark(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** Creates a chart of a size in pixels. */
function chartOf(width, height, label) {
  return mark("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
}

/** Returns the pixels inside of the frame of a chart. */
function roomOf(plot) {
  const style = getComputedStyle(plot);
  return Math.max(Math.floor(plot.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight)), 240);
}

// The width of a letter of a chart, at most.
const LETTER = 7.5;

function totalOf(request) { return request.e === null ? null : request.e - request.b; }

/** Round numbers, about `count` of them, from 0 to `most`. */
function ticks(most, count) {
  const rough = most / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough) || power;
  const marks = [];
  for (let at = 0; at <= most && marks.length <= 2 * count + 2; at += step) marks.push(at);
  return marks;
}

/** Draws all requests by start and latency; returns the places of the marks. */
function drawOverview(place, requests, chosen) {
  const width = roomOf(place);
  const height = width < 500 ? 190 : 220;
  const bottom = 40, top = 26;
  const known = requests.filter((request) => totalOf(request) !== null);
  if (known.length === 0) {
    place.replaceChildren(el("p", { class: "quiet" }, "No request's end was seen."));
    return [];
  }
  const begins = known.map((request) => request.b);
  const first = Math.min(...begins), span = Math.max(Math.max(...begins) - first, 1);
  const log = (ns) => Math.log10(Math.max(ns, 1));
  const logs = known.map((request) => log(totalOf(request)));
  const low = Math.floor(Math.min(...logs)), high = Math.max(Math.ceil(Math.max(...logs)), low + 1);
  const powers = Array.from({ length: high - low + 1 }, (_, at) => low + at);
  const left = 8 + LETTER * Math.max(...powers.map((power) => tickText(10 ** power).length));
  const x = (ns) => left + (ns - first) / span * (width - left - 12);
  const y = (ns) => top + (high - log(ns)) / (high - low) * (height - top - bottom);
  const svg = chartOf(width, height, `${known.length} requests by start and latency; the list below has the same`);
  svg.append(mark("text", { x: 0, y: 10 }, "latency"),
    mark("text", { x: (left + width) / 2, y: height - 4, "text-anchor": "middle" }, "start, since the first request"));
  for (const power of powers) {
    const at = y(10 ** power);
    svg.append(mark("line", { class: "grid", x1: left, x2: width, y1: at, y2: at }),
      mark("text", { x: left - 6, y: at + 4, "text-anchor": "end" }, tickText(10 ** power)));
  }
  for (const at of ticks(span, Math.floor(width / 130))) {
    if (x(first + at) + LETTER * tickText(at).length > width) break;
    svg.append(mark("text", { x: x(first + at), y: height - 22 }, tickText(at)));
  }
  const places = known.map((request) => ({ request, x: x(request.b), y: y(totalOf(request)) }));
  for (const one of places) {
    svg.append(mark("circle", { class: `mark ${one.request.c || "none"}`, cx: one.x, cy: one.y,
      r: known.length > 500 ? 2.5 : 3.5 }));
  }
  const here = places.find((one) => one.request === chosen);
  if (here) svg.append(mark("circle", { class: "chosen", cx: here.x, cy: here.y, r: 8 }));
  const contexts = [...new Set(known.map((request) => request.c))];
  place.replaceChildren(legend(contexts.map((name) => [name || "none", CONTEXTS[name] || "unknown"]),
    "completed in"), svg);
  return places;
}

/** The phases of a request as [name, from, to], from its begin; gaps are unknown phases. */
function spansOf(request) {
  const queued = request.i.map((bio) => bio[0] - request.b);
  let from = request.p[0] === null ? Math.max(0, ...queued) : 0;
  const spans = [];
  request.p.forEach((length, at) => {
    if (length === null) return;
    spans.push([PHASES[at], from, from + length]);
    from += length;
  });
  const total = totalOf(request);
  if (total !== null && total > from) spans.push(["none", from, total]);
  return spans;
}

function endOf(request) {
  const ends = request.i.map((bio) => bio[2] || bio[0]);
  return Math.max(request.e || 0, request.b + 1, ...ends);
}

/** Draws one request: its phases, its bios, then what else was in flight on its thread. */
function drawRequest(place, request, all, files, choose) {
  const plot = el("div", { class: "plot" });
  const others = all.filter((other) => other !== request && other.t === request.t
    && other.e !== null && other.b < endOf(request) && other.e > request.b);
  place.replaceChildren(titleOf(request, files), legend(PHASES.map((name) => [name, name])),
    el("figure", { id: "chart-request" }, plot), notesOf(request, others), tableOf(request));
  plot.append(requestChart(roomOf(plot), request, others, choose));
}

function requestChart(width, request, others, choose) {
  const left = width < 500 ? 62 : 110;
  const begin = request.b, span = endOf(request) - begin;
  const x = (ns) => left + ns / span * (width - left - 4);
  const rows = [];
  const row = (label, height) => {
    const at = rows.reduce((sum, [, tall]) => sum + tall, AXIS);
    rows.push([label, height]);
    return at;
  };
  const marks = [];
  const box = (name, from, to, at, tall, words) => marks.push(mark("rect", {
    class: name, x: x(from), y: at, width: Math.max(x(to) - x(from), 1), height: tall - 3, rx: 2,
  }, mark("title", {}, words)));
  const main = row("request", 28);
  for (const [name, from, to] of spansOf(request)) {
    box(name, from, to, main, 28, `${name === "none" ? "unknown" : name}: ${show.time(to - from)}`);
  }
  request.i.slice(0, BIO_ROWS).forEach((bio, number) => {
    const [queued, issued, done, sector, bytes, pieces] = bio;
    const at = row(`bio ${number + 1}`, 16);
    const split = pieces > 1 ? `, split into ${pieces}` : "";
    const words = `${sizeText(bytes)} at sector ${sector}${split}`;
    const start = queued - begin, end = (done || queued) - begin;
    const middle = issued === null ? start : Math.min(Math.max(issued - begin, start), end);
    if (issued !== null) box("queue", start, middle, at, 16, `${words}: ${show.time(middle - start)} queued`);
    box("device", middle, end, at, 16, `${words}: ${show.time(end - middle)} at the device`);
  });
  if (others.length > 0) row("", 8);
  others.slice(0, OTHER_ROWS).forEach((other, number) => {
    const at = row(number === 0 ? "in flight" : "", 11);
    const words = `request ${other.n}: ${show.time(totalOf(other))}`;
    const group = mark("g", { class: "other" }, mark("title", {}, words));
    for (const [name, start, end] of spansOf(other)) {
      const from = Math.max(other.b + start - begin, 0), to = Math.min(other.b + end - begin, span);
      if (to <= from) continue;
      group.append(mark("rect", { class: name, x: x(from), y: at, width: Math.max(x(to) - x(from), 1),
        height: 8 }));
    }
    group.addEventListener("click", () => choose(other));
    marks.push(group);
  });
  const height = rows.reduce((sum, [, tall]) => sum + tall, AXIS + 6);
  const svg = chartOf(width, height, `phases and bios of request ${request.n}; the table below has the figures`);
  svg.append(mark("text", { x: (left + width) / 2, y: 10, "text-anchor": "middle" }, "time since the system call"));
  const anchor = (at) => (at === 0 ? "start" : x(at) > width - 30 ? "end" : "middle");
  for (const at of ticks(span, Math.floor((width - left) / 90))) {
    svg.append(mark("line", { class: "grid", x1: x(at), x2: x(at), y1: AXIS - 4, y2: height }),
      mark("text", { x: x(at), y: AXIS - 10, "text-anchor": anchor(at) }, tickText(at)));
  }
  let at = AXIS;
  for (const [label, tall] of rows) {
    if (label) svg.append(mark("text", { x: 0, y: at + (tall > 20 ? 17 : 11) }, label));
    at += tall;
  }
  svg.append(...marks);
  return svg;
}

function titleOf(request, files) {
  const at = `${request.op} of ${sizeText(request.l)} at ${request.o}`;
  return el("h3", {}, `Request ${request.n}: ${at} in ${files[request.f] || "?"}`);
}

function legend(entries, lead) {
  return el("ul", { class: "legend" }, lead ? el("li", {}, lead) : null,
    entries.map(([name, label]) => el("li", {}, el("span", { class: `swatch ${name}` }), label)));
}

function notesOf(request, others) {
  const notes = [`by ${request.t}`];
  notes.push(request.c ? `completed in ${CONTEXTS[request.c]}` : "completed in an unknown context");
  if (request.d) notes.push(`deferred by ${request.d}`);
  if (request.r !== null && request.r !== request.l) notes.push(`result ${request.r}`);
  notes.push(...request.k);
  notes.push(request.m === 1 ? "1 bio" : `${request.m} bios`);
  if (request.m > BIO_ROWS) notes.push(`the first ${Math.min(BIO_ROWS, request.i.length)} are drawn`);
  if (others.length > OTHER_ROWS) notes.push(`${others.length} others in flight, ${OTHER_ROWS} drawn`);
  return el("p", { class: "quiet" }, `${notes.join("; ")}.`);
}

function tableOf(request) {
  const row = ([name, from, to]) => el("tr", {},
    el("th", { scope: "row" }, el("span", { class: `swatch ${name}` }), name === "none" ? "unknown" : name),
    el("td", { class: "num" }, `+${show.time(from)}`), el("td", { class: "num" }, show.time(to - from)));
  const head = el("thead", {}, el("tr", {}, el("th", {}, "phase"),
    el("th", { class: "num" }, "begins"), el("th", { class: "num" }, "takes")));
  return el("div", { class: "scroll" }, el("table", {}, head, el("tbody", {}, spansOf(request).map(row))));
}
