"use strict";
// The report of a benchmark: the data in the page, and what all sections use.
const data = JSON.parse(document.getElementById("data").textContent);
const { columns, jobs, cells, percents } = data;
// Rounds and latencies are lists without names: a page has thousands of them.
for (const cell of cells.flat()) {
  cell.rounds_detail = (cell.rounds_detail || []).map(([round, turn, from_s, seconds, iops, series]) => ({ round, turn, from_s, seconds, iops, series }));
  cell.latencies = (cell.latencies || []).map(([direction, kind, count, mean_ns, ns]) => ({ direction, kind, count, mean_ns, ns }));
}
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
// A chart with more lines than this is unreadable; the table has all of them. A few more are not
// worth a button.
const BARS_MAX = 30;
const BARS_SPARE = 10;
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
