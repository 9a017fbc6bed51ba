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

function timeText(ns) {
  const [scale, unit] = ns < 1e3 ? [1, "ns"] : ns < 1e6 ? [1e3, "us"] : ns < 1e9 ? [1e6, "ms"] : [1e9, "s"];
  const value = ns / scale;
  return `${unit === "ns" || value >= 100 ? Math.round(value) : value.toFixed(1)} ${unit}`;
}

function sizeText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (bytes >= 1024 && at + 1 < units.length) { bytes /= 1024; at += 1; }
  return `${Number.isInteger(bytes) ? bytes : bytes.toFixed(1)} ${units[at]}`;
}

function element(name, attributes, ...children) {
  const isSvg = ["svg", "g", "rect", "circle", "line", "text", "title"].includes(name);
  const made = isSvg ? document.createElementNS("http://www.w3.org/2000/svg", name)
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null));
  return made;
}

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

/** All requests: when each began, and how long it took. Gives the places of the marks. */
function drawOverview(place, requests, chosen) {
  const width = Math.max(place.clientWidth - 18, 240);
  const height = width < 500 ? 150 : 180;
  const left = 52, bottom = 20, top = 8;
  const known = requests.filter((request) => totalOf(request) !== null);
  if (known.length === 0) {
    place.replaceChildren(element("p", { class: "quiet" }, "No request's end was seen."));
    return [];
  }
  const begins = known.map((request) => request.b);
  const first = Math.min(...begins), span = Math.max(Math.max(...begins) - first, 1);
  const log = (ns) => Math.log10(Math.max(ns, 1));
  const logs = known.map((request) => log(totalOf(request)));
  const low = Math.floor(Math.min(...logs)), high = Math.max(Math.ceil(Math.max(...logs)), low + 1);
  const x = (ns) => left + (ns - first) / span * (width - left - 12);
  const y = (ns) => top + (high - log(ns)) / (high - low) * (height - top - bottom);
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `${known.length} requests by begin and duration; the list below has the same` });
  for (let power = low; power <= high; power += 1) {
    const at = y(10 ** power);
    svg.append(element("line", { class: "grid", x1: left, x2: width, y1: at, y2: at }),
      element("text", { x: left - 6, y: at + 4, "text-anchor": "end" }, timeText(10 ** power)));
  }
  for (const at of ticks(span, Math.floor(width / 130)).slice(0, -1)) {
    svg.append(element("text", { x: x(first + at), y: height - 4 }, `+${timeText(at)}`));
  }
  const places = known.map((request) => ({ request, x: x(request.b), y: y(totalOf(request)) }));
  for (const mark of places) {
    svg.append(element("circle", { class: `mark ${mark.request.c || "none"}`, cx: mark.x, cy: mark.y,
      r: known.length > 500 ? 2.5 : 3.5 }));
  }
  const here = places.find((mark) => mark.request === chosen);
  if (here) svg.append(element("circle", { class: "chosen", cx: here.x, cy: here.y, r: 8 }));
  const contexts = [...new Set(known.map((request) => request.c))];
  place.replaceChildren(legend(contexts.map((name) => [name || "none", CONTEXTS[name] || "nobody saw"]),
    "completed in"), svg);
  return places;
}

/** The phases of a request as [name, from, to], from its begin; gaps are phases nobody saw. */
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

/** One request: its phases, its bios below, then what else was in flight on its thread. */
function drawRequest(place, request, all, files, choose) {
  const width = Math.max(place.clientWidth - 28, 240);
  const left = width < 500 ? 56 : 110;
  const begin = request.b, span = endOf(request) - begin;
  const x = (ns) => left + ns / span * (width - left - 4);
  const rows = [];
  const row = (label, height) => {
    const at = rows.reduce((sum, [, tall]) => sum + tall, 22);
    rows.push([label, height]);
    return at;
  };
  const marks = [];
  const box = (name, from, to, at, tall, told) => marks.push(element("rect", {
    class: name, x: x(from), y: at, width: Math.max(x(to) - x(from), 1), height: tall - 3, rx: 2,
  }, element("title", {}, told)));
  const main = row("request", 28);
  for (const [name, from, to] of spansOf(request)) {
    box(name, from, to, main, 28, `${name === "none" ? "not seen" : name}: ${timeText(to - from)}`);
  }
  request.i.slice(0, BIO_ROWS).forEach((bio, number) => {
    const [queued, issued, done, sector, bytes, pieces] = bio;
    const at = row(`bio ${number + 1}`, 16);
    const cut = pieces > 1 ? `, cut into ${pieces}` : "";
    const told = `${sizeText(bytes)} at sector ${sector}${cut}`;
    const start = queued - begin, end = (done || queued) - begin;
    const middle = issued === null ? start : Math.min(Math.max(issued - begin, start), end);
    if (issued !== null) box("queue", start, middle, at, 16, `${told}: ${timeText(middle - start)} queued`);
    box("device", middle, end, at, 16, `${told}: ${timeText(end - middle)} at the device`);
  });
  const others = all.filter((other) => other !== request && other.t === request.t
    && other.e !== null && other.b < begin + span && other.e > begin);
  if (others.length > 0) row("", 8);
  others.slice(0, OTHER_ROWS).forEach((other, number) => {
    const at = row(number === 0 ? "at once" : "", 11);
    const told = `request ${other.n}: ${timeText(totalOf(other))}`;
    const group = element("g", { class: "other" }, element("title", {}, told));
    for (const [name, start, end] of spansOf(other)) {
      const from = Math.max(other.b + start - begin, 0), to = Math.min(other.b + end - begin, span);
      if (to <= from) continue;
      group.append(element("rect", { class: name, x: x(from), y: at, width: Math.max(x(to) - x(from), 1),
        height: 8 }));
    }
    group.addEventListener("click", () => choose(other));
    marks.push(group);
  });
  const height = rows.reduce((sum, [, tall]) => sum + tall, 28);
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `phases and bios of request ${request.n}; the table below has the figures` });
  const anchor = (at) => (at === 0 ? "start" : x(at) > width - 30 ? "end" : "middle");
  for (const at of ticks(span, Math.floor((width - left) / 90))) {
    svg.append(element("line", { class: "grid", x1: x(at), x2: x(at), y1: 18, y2: height }),
      element("text", { x: x(at), y: 12, "text-anchor": anchor(at) }, timeText(at)));
  }
  let at = 22;
  for (const [label, tall] of rows) {
    if (label) svg.append(element("text", { x: 0, y: at + (tall > 20 ? 17 : 11) }, label));
    at += tall;
  }
  svg.append(...marks);
  place.replaceChildren(titleOf(request, files), legend(PHASES.map((name) => [name, name])), svg, notesOf(request, others),
    tableOf(request));
}

function titleOf(request, files) {
  const at = `${request.op} of ${sizeText(request.l)} at ${request.o}`;
  return element("h3", {}, `Request ${request.n}: ${at} in ${files[request.f] || "?"}`);
}

function legend(entries, lead) {
  const entry = ([name, label]) =>
    element("span", {}, element("span", { class: `swatch ${name}` }), label);
  return element("p", { class: "legend" }, lead || null, ...entries.map(entry));
}

function notesOf(request, others) {
  const told = [`by ${request.t}`];
  told.push(request.c ? `completed in ${CONTEXTS[request.c]}` : "nobody saw where it completed");
  if (request.d) told.push(`put off by ${request.d}`);
  if (request.r !== null && request.r !== request.l) told.push(`result ${request.r}`);
  told.push(...request.k);
  told.push(request.m === 1 ? "1 bio" : `${request.m} bios`);
  if (request.m > BIO_ROWS) told.push(`the first ${Math.min(BIO_ROWS, request.i.length)} are drawn`);
  if (others.length > OTHER_ROWS) told.push(`${others.length} others at once, ${OTHER_ROWS} drawn`);
  return element("p", { class: "quiet" }, `${told.join("; ")}.`);
}

function tableOf(request) {
  const body = element("tbody", {});
  for (const [name, from, to] of spansOf(request)) {
    const label = element("th", { scope: "row" }, element("span", { class: `swatch ${name}` }),
      name === "none" ? "not seen" : name);
    body.append(element("tr", {}, label, element("td", { class: "n" }, `+${timeText(from)}`),
      element("td", { class: "n" }, timeText(to - from))));
  }
  const head = element("thead", {}, element("tr", {}, element("th", {}, "phase"),
    element("th", { class: "n" }, "begins"), element("th", { class: "n" }, "takes")));
  return element("table", {}, head, body);
}
