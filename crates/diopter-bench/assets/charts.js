"use strict";
// Common parts of pages with charts: tables, and figures that redraw when their width changes.
// Nothing here knows benchmarks.

const NARROW = 560;
/** The margin for names on a narrow page, in pixels. */
const NARROW_MARGIN = 116;
/** The average width of a letter in the charts' font. */
const LABEL_PIXELS = 6.4;

/** Shortens a text to a width in pixels, by the average width of the charts' font. */
function clipped(text, pixels) {
  const most = Math.max(4, Math.floor(pixels / LABEL_PIXELS));
  if (text.length <= most) return text;
  // Cut the middle: names differ at their ends.
  const tail = Math.floor((most - 1) / 3);
  return `${text.slice(0, most - 1 - tail).trimEnd()}\u2026${text.slice(-tail).trimStart()}`;
}

/** Creates a table; numbers are right-aligned. `head` is [text, isNumber]; cells are texts or elements. */
function table(caption, head, rows, options = {}) {
  const cell = (value, at) => {
    const name = at === 0 ? "th" : "td";
    const props = { class: head[at][1] ? "num" : options.long ? "long" : null, scope: at === 0 ? "row" : null };
    return el(name, props, value === null || value === undefined || value === "" ? "-" : value);
  };
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {},
      el("caption", {}, caption),
      el("thead", {}, el("tr", {}, head.map(([text, isRight]) => el("th", { scope: "col", class: isRight ? "num" : null }, text)))),
      el("tbody", {}, rows.map((row) => el("tr", { class: row.class }, (row.cells || row).map(cell))))));
}

/** Creates a table behind a summary, with its rows made when it is first opened or printed. */
function tableOf(summary, make) {
  const details = el("details", { class: "table" }, el("summary", {}, summary));
  const fill = () => {
    if (details.childElementCount === 1) details.append(make());
  };
  details.addEventListener("toggle", () => details.open && fill());
  details.refill = () => {
    while (details.childElementCount > 1) details.lastElementChild.remove();
    if (details.open) fill();
  };
  return details;
}

/** Containers of charts; each is redrawn when its width has changed. */
const drawn = new Map();
const watcher = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) {
    const one = drawn.get(target);
    const width = Math.floor(contentRect.width);
    if (one && width > 0 && width !== one.width) {
      one.width = width;
      one.draw(width);
    }
  }
});

/**
 * Creates a figure: `chart(width)` returns an SVG made by Plot, or null; `rows()` returns its table.
 * Call `figure.redraw()` when its data has changed.
 */
function figureOf({ id, label, chart, summary, rows, empty }) {
  const place = el("div", { class: "plot" });
  const draw = (width) => {
    const svg = chart(width);
    if (svg) {
      svg.setAttribute("role", "img");
      svg.setAttribute("aria-label", typeof label === "function" ? label() : label);
    }
    place.replaceChildren(svg || el("p", { class: "empty" }, empty || "Not measured."));
  };
  const behind = rows ? tableOf(summary || "Figures as a table", rows) : null;
  const figure = el("figure", { id }, place, behind);
  drawn.set(place, { width: 0, draw });
  watcher.observe(place);
  figure.redraw = () => {
    const one = drawn.get(place);
    if (one.width > 0) draw(one.width);
    if (behind) behind.refill();
  };
  return figure;
}

/** Creates a choice of many, as a list. */
function pick(text, options, chosen, changed) {
  const select = el("select", { onchange: () => changed(Number(select.value)) },
    options.map(([value, label]) => el("option", { value, selected: value === chosen }, label)));
  const label = el("label", { class: "pick" }, text, select);
  label.choose = (value) => { select.value = value; };
  return label;
}

/** Returns at most `most` round ticks of a logarithmic axis. */
function logTicks(low, high, most) {
  const all = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const digit of [1, 2, 5]) all.push(Number((digit * 10 ** power).toPrecision(1)));
  }
  const within = all.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
  if (within.length <= most) return within;
  const tens = within.filter((tick) => /^10*$|^0\.0*1$/.test(String(tick)));
  const step = Math.ceil(tens.length / most);
  return tens.length >= 2 ? tens.filter((_, at) => at % step === 0) : within.filter((_, at) => at % 2 === 0);
}

/** Opens folded tables before printing, so that charts are printed with their tables. */
window.addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details.table")) details.open = true;
});
