// Chooses the request that is shown: by the chart, the lists, the buttons, the keys, the address
// (#request-17). trace_timeline.js draws it.
"use strict";

{
  const { files, requests } = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const kinds = [
    ["all that are here", () => true],
    ["the slowest", (request) => request.w.includes("slowest")],
    ["deferred to a worker", (request) => request.c === "kworker"],
    ["split into several", (request) => request.m > 1 || request.i.some((bio) => bio[5] > 1)],
    ["shown by a finding", (request) => request.w.includes("finding")],
  ];
  let chosen = null;
  let shown = requests;
  let places = [];

  const optionOf = (request) => {
    const total = totalOf(request);
    const took = total === null ? "no end seen" : show.time(total);
    const where = request.c ? `, ${request.c}` : "";
    return el("option", { value: request.n },
      `${request.n}: ${request.op} ${sizeText(request.l)} at ${request.o}, ${took}${where}`);
  };

  const choose = (request) => {
    if (!request) return;
    chosen = request;
    if (!shown.includes(request)) list(0);
    byId("request").value = String(request.n);
    places = drawOverview(byId("overview"), requests, chosen);
    drawRequest(byId("request-view"), request, requests, files, choose);
  };

  // Of many the slowest come first in the list; of all, they stay in the order of time.
  const list = (kind) => {
    shown = requests.filter(kinds[kind][1]);
    if (kind !== 0) shown.sort((one, other) => (totalOf(other) || 0) - (totalOf(one) || 0));
    byId("kind").value = String(kind);
    byId("request").replaceChildren(...shown.map(optionOf));
  };

  const step = (by) => {
    const at = shown.indexOf(chosen) + by;
    if (at >= 0 && at < shown.length) choose(shown[at]);
  };

  const numbered = (number) => requests.find((request) => request.n === Number(number));

  const nearest = (event) => {
    const box = byId("overview").querySelector("svg").getBoundingClientRect();
    const scale = byId("overview").querySelector("svg").viewBox.baseVal.width / box.width;
    const [x, y] = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
    const distance = (mark) => (mark.x - x) ** 2 + (mark.y - y) ** 2;
    return places.reduce((best, mark) => (best && distance(best) <= distance(mark) ? best : mark), null);
  };

  const start = () => {
    document.querySelector("header.top").append(themeSwitch());
    if (requests.length === 0) {
      byId("timeline").hidden = true;
      return;
    }
    kinds.forEach(([label, holds], at) => {
      const count = requests.filter(holds).length;
      if (count > 0) byId("kind").append(el("option", { value: at }, `${label} (${count})`));
    });
    byId("kind").addEventListener("change", (event) => {
      list(Number(event.target.value));
      choose(shown[0]);
    });
    byId("request").addEventListener("change", (event) => choose(numbered(event.target.value)));
    byId("previous").addEventListener("click", () => step(-1));
    byId("next").addEventListener("click", () => step(1));
    byId("overview").addEventListener("click", (event) => {
      const mark = places.length > 0 ? nearest(event) : null;
      if (mark) choose(mark.request);
    });
    document.addEventListener("keydown", (event) => {
      const isTyping = ["SELECT", "INPUT"].includes(event.target.tagName);
      if (isTyping || event.altKey || event.ctrlKey || event.metaKey) return;
      if (event.key === "ArrowLeft") step(-1);
      if (event.key === "ArrowRight") step(1);
    });
    document.querySelectorAll("[data-request]").forEach((button) => {
      button.addEventListener("click", () => {
        choose(numbered(button.dataset.request));
        byId("timeline").scrollIntoView({ block: "start" });
      });
    });
    let width = window.innerWidth;
    window.addEventListener("resize", () => {
      if (window.innerWidth !== width) choose(chosen);
      width = window.innerWidth;
    });
    list(0);
    const asked = /^#request-(\d+)$/.exec(window.location.hash);
    const slowest = requests.reduce((best, one) => ((totalOf(one) || 0) > (totalOf(best) || 0) ? one : best));
    choose((asked && numbered(asked[1])) || slowest);
  };
  start();
}
