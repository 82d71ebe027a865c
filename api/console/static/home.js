// The first page, live: its parts come anew from the bridge, rates are drawn. Nothing is asked for while it is hidden.
"use strict";
(() => {
  const NAMES = ["prepared", "committed", "rolled_back", "parked"];
  const KEPT = 150;
  const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300]; // seconds between the times that are written
  const QUIET_MS = 15_000; // without news: numbers come every two seconds
  const parts = document.getElementById("live");
  const old = document.getElementById("old");
  const now = document.getElementById("rates-now");
  const figure = document.getElementById("chart");
  const { prepared, committed, rolledBack, parked } = figure.dataset;
  const LABELS = [prepared, committed, rolledBack, parked];
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const data = [[], [], [], [], []];
  let before = null;
  let plot = null;
  let source = null;
  let heardAt = performance.now();

  const hear = () => {
    heardAt = performance.now();
    old.hidden = true;
  };
  const tell = (moment) => {
    // in UTC or in the reader's own time, as the button of the page says
    const date = new Date(moment * 1000);
    return localStorage.getItem("outbox-bridge-clock") === "local" ? date.toTimeString().slice(0, 8) : date.toISOString().slice(11, 19);
  };
  const draw = () => {
    if (!data[0].length) return;
    if (plot) return plot.setData(data);
    const axis = { stroke: colour("--ink"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
    const times = { ...axis, space: 80, incrs: STEPS, values: (_, moments) => moments.map(tell) };
    const inks = [colour("--link"), colour("--good"), colour("--soft"), colour("--bad")];
    const series = LABELS.map((label, n) => ({ label, stroke: inks[n], width: 2, dash: [[], [6, 3], [2, 3], [10, 4]][n] }));
    const size = { width: figure.clientWidth, height: 220 };
    plot = new uPlot({ ...size, legend: { live: false }, cursor: { show: false }, series: [{}, ...series], axes: [times, { ...axis, size: 60 }], scales: { y: { range: (_, low, high) => [0, Math.max(1, high)] } } }, data, figure);
  };
  const note = (totals) => {
    hear();
    if (before && totals.at_ms > before.at_ms) {
      const seconds = (totals.at_ms - before.at_ms) / 1000;
      const rates = NAMES.map((name) => Math.max(0, (totals[name] - before[name]) / seconds));
      [totals.at_ms / 1000, ...rates].forEach((value, n) => data[n].push(value));
      if (data[0].length > KEPT) data.forEach((column) => column.shift());
      now.textContent = LABELS.map((label, n) => `${rates[n].toFixed(1)} ${label}`).join(", ") + ` ${now.dataset.unit}`;
      draw();
    }
    before = totals;
  };
  const show = (html) => {
    // what is focused or marked stays where it is
    if (parts.contains(document.activeElement) || !document.getSelection().isCollapsed) return;
    parts.innerHTML = html;
  };
  const follow = () => {
    if (document.hidden) {
      source?.close();
      source = before = null;
      return;
    }
    if (source) return;
    heardAt = performance.now();
    source = new EventSource(parts.dataset.live);
    source.addEventListener("totals", (event) => note(JSON.parse(event.data)));
    source.addEventListener("page", (event) => show(event.data));
  };
  document.addEventListener("visibilitychange", follow);
  document.addEventListener("clock", () => plot?.redraw(false, true));
  addEventListener("pagehide", () => source?.close());
  addEventListener("resize", () => plot?.setSize({ width: figure.clientWidth, height: 220 }));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    plot?.destroy();
    plot = null;
    draw();
  });
  setInterval(() => {
    if (!document.hidden && performance.now() - heardAt > QUIET_MS) old.hidden = false;
  }, 1_000);
  now.textContent = now.dataset.waiting;
  follow();
})();
