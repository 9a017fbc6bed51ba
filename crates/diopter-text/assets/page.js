"use strict";
// What the scripts of all pages use: elements, numbers with their units, choices, and the theme.
// Text is always set as text, never parsed as HTML.

/** Creates an element with properties and children; children that are null are omitted. */
function el(name, props, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "class") node.className = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

const show = {
  /** Formats three significant digits, as the other forms of a report do. */
  digits(value) {
    if (value === 0) return "0";
    const size = Math.abs(value);
    const places = size >= 99.95 ? 0 : size >= 9.995 ? 1 : size >= 0.9995 ? 2 : size >= 0.09995 ? 3 : 4;
    return value.toFixed(places);
  },
  scaled(value, step, units) {
    if (!isNumber(value)) return "-";
    let unit = 0;
    while (Math.abs(value) >= step - 0.5 && unit + 1 < units.length) {
      value /= step;
      unit += 1;
    }
    return (unit === 0 && Number.isInteger(value) ? String(value) : show.digits(value)) + units[unit];
  },
  rate: (value) => show.scaled(value, 1000, ["", "\u202fk", "\u202fM", "\u202fG"]),
  bytes: (value) => show.scaled(value, 1024, ["\u202fB", "\u202fKiB", "\u202fMiB", "\u202fGiB", "\u202fTiB"]),
  time: (value) => show.scaled(value, 1000, ["\u202fns", "\u202f\u00b5s", "\u202fms", "\u202fs"]),
  ratio: (value) => (!isNumber(value) ? "-" : value >= 9.9995 ? show.digits(value) : value.toFixed(3)),
  plain: (value) => (isNumber(value) ? show.digits(value) : "-"),
  percent: (value) => show.digits(value * 100).replace(/\.?0+$/, "") + "\u202f%",
  count: (value, one, many) => `${value.toLocaleString("en")} ${value === 1 ? one : many}`,
};

/** Creates a choice of several, as a row of radio buttons: the arrow keys move between them. */
function choice(legend, name, options, chosen, changed) {
  return el("fieldset", { class: "choice" }, el("legend", {}, legend),
    options.map(([value, text]) => el("label", {},
      el("input", { type: "radio", name, value, checked: value === chosen, onchange: () => changed(value) }),
      el("span", {}, text))));
}

/** Creates the choice of light, dark, or the system's theme; it applies to this page only. */
function themeSwitch() {
  const root = document.documentElement;
  const fieldset = choice("Theme", "theme", [["auto", "Auto"], ["light", "Light"], ["dark", "Dark"]], "auto", (value) => {
    if (value === "auto") delete root.dataset.theme;
    else root.dataset.theme = value;
  });
  fieldset.className = "theme";
  return fieldset;
}
