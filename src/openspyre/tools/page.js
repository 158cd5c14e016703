"use strict";
const report = JSON.parse(document.getElementById("report").textContent);
const clock = report.card.clock_ghz;
const microseconds = (cycles) => cycles / clock / 1000;
const options = { responsive: true, displaylogo: false };
const palette = ["#2563a8", "#d6631a", "#2f8f5b", "#8e4bb0", "#b0413e", "#6b7a1f", "#1f8a8a", "#a0527d"];

function draw(id, traces, layout) {
  const margin = { l: 64, r: 16, t: 36, b: 40 };
  const font = { size: 12 };
  return Plotly.newPlot(id, traces, { margin, font, hovermode: "closest", ...layout }, options);
}

function drawTimeline() {
  const names = [...new Set(report.spans.map((span) => span.name))];
  const several = report.spans.some((span) => span.device > 0);
  const row = (span) => (several ? `spyre:${span.device} ` : "") + span.engine;
  const traces = names.map((name, n) => {
    const own = report.spans.filter((span) => span.name === name);
    return {
      type: "bar", orientation: "h", name, y: own.map(row), base: own.map((span) => span.start / 1e6),
      x: own.map((span) => (span.end - span.start) / 1e6), marker: { color: palette[n % palette.length] },
      text: own.map((span) => `${name}<br>stream ${span.stream}`), textposition: "none",
      hovertemplate: "%{text}<br>at %{base:.2f} us, %{x:.2f} us<extra></extra>",
    };
  });
  draw("timeline", traces, {
    barmode: "overlay", showlegend: false, xaxis: { title: { text: "us of card time" }, rangemode: "tozero" },
    yaxis: { automargin: true, autorange: "reversed" },
  });
}

function drawRoofline() {
  const card = report.card;
  const peak = 2 * card.mac_per_core_cycle * card.cores * clock / 1000;
  const shown = report.kernels.filter((k) => k.operations_per_byte > 0);
  const xs = shown.map((k) => k.operations_per_byte);
  const low = Math.min(0.1, ...xs) / 2, high = Math.max(2000, ...xs) * 2;
  const roof = (bandwidth) => [low, peak * 1000 / bandwidth, high].map((x) => Math.min(peak, x * bandwidth / 1000));
  const line = (name, bandwidth, dash) => ({
    type: "scatter", mode: "lines", name, x: [low, peak * 1000 / bandwidth, high], y: roof(bandwidth),
    line: { dash, color: "#5b6675" }, hoverinfo: "name",
  });
  draw("roofline", [
    line(`peaks (${card.dram_peak} GB/s)`, card.dram_peak, "solid"),
    line(`sustained (${card.dram_oneway} GB/s)`, card.dram_oneway, "dash"),
    {
      type: "scatter", mode: "markers", name: "kernels", x: xs, y: shown.map((k) => k.teraops),
      text: shown.map((k) => `${k.name}<br>${k.cycles.toLocaleString()} cycles, ${k.limiting}`),
      marker: {
        size: 11, color: shown.map((k) => Math.log10(k.cycles + 1)),
        colorscale: "YlOrRd", reversescale: true, line: { width: 1, color: "#444" },
      },
      hovertemplate: "%{text}<br>%{x:.2f} ops/byte, %{y:.3f} Tops/s<extra></extra>",
    },
  ], {
    xaxis: { type: "log", title: { text: "operations per byte of device memory" } },
    yaxis: { type: "log", title: { text: "Tops/s" } }, legend: { orientation: "h", y: 1.15 },
  });
}

function drawUse(number, over) {
  const units = Object.keys(over.use);
  const width = microseconds(over.cycles) / over.bins;
  const x = Array.from({ length: over.bins }, (_, n) => (n + 0.5) * width);
  const cores = over.use[units[0]].length;
  const z = units.flatMap((unit) => over.use[unit]);
  const names = units.flatMap((unit) => over.use[unit].map((_, core) => `${unit} ${core}`));
  draw(`use${number}`, [{
    type: "heatmap", z, x, y: names.map((_, n) => n), zmin: 0, zmax: 100, colorscale: "YlGnBu", reversescale: true,
    customdata: names.map((name) => x.map(() => name)), colorbar: { title: { text: "% busy" }, thickness: 12 },
    hovertemplate: "%{customdata}<br>%{x:.2f} us: %{z} %<extra></extra>",
  }], {
    title: { text: "Units of every core", font: { size: 13 }, x: 0.02, y: 0.98 }, xaxis: { title: { text: "us" } },
    yaxis: { autorange: "reversed", tickvals: units.map((_, n) => (n + 0.5) * cores), ticktext: units },
    shapes: units.slice(1).map((_, n) => ({
      type: "line", xref: "paper", x0: 0, x1: 1, y0: (n + 1) * cores - 0.5, y1: (n + 1) * cores - 0.5,
      line: { color: "#fff", width: 2 },
    })),
  });
}

function drawBytes(number, over) {
  const seconds = microseconds(over.cycles) * 1e-6 / over.bins;
  const x = Array.from({ length: over.bins }, (_, n) => (n + 0.5) * seconds * 1e6);
  const names = { read_bytes: "read", write_bytes: "written", ring_bytes: "ring" };
  draw(`bytes${number}`, Object.entries(over.bytes).map(([kind, bytes], n) => ({
    type: "scatter", mode: "lines", line: { shape: "hvh", color: palette[n] }, name: names[kind], x,
    y: bytes.map((count) => count / 1e9 / seconds),
    hovertemplate: "%{y:.1f} GB/s at %{x:.2f} us<extra>%{fullData.name}</extra>",
  })), {
    title: { text: "Device memory and ring", font: { size: 13 }, x: 0.02, y: 0.98 }, xaxis: { title: { text: "us" } },
    yaxis: { title: { text: "GB/s" }, rangemode: "tozero" }, legend: { orientation: "h", y: 1.18, x: 0.3 },
  });
}

function drawLx(number, over) {
  const names = [...new Set(over.lx.map((life) => life.buffer))];
  draw(`lx${number}`, names.map((name, n) => {
    const x = [], y = [];
    for (const life of over.lx.filter((one) => one.buffer === name)) {
      const begin = microseconds(life.begin), end = microseconds(life.end);
      const low = life.offset / 1024, high = (life.offset + life.bytes) / 1024;
      x.push(begin, end, end, begin, begin, null);
      y.push(low, low, high, high, low, null);
    }
    return { type: "scatter", mode: "lines", fill: "toself", name, x, y, line: { width: 1, color: palette[n % palette.length] },
      hoveron: "fills", hoverinfo: "name" };
  }), {
    title: { text: `LX of core ${over.lx_core}`, font: { size: 13 }, x: 0.02, y: 0.98 }, showlegend: false,
    xaxis: { title: { text: "us" }, range: [0, microseconds(over.cycles)] },
    yaxis: { title: { text: "KiB" }, rangemode: "tozero" },
  });
}

function drawKernel(details) {
  const number = Number(details.dataset.number);
  const over = report.kernels[number].over_time;
  if (!over || details.dataset.drawn) return;
  details.dataset.drawn = "yes";
  drawUse(number, over);
  drawBytes(number, over);
  drawLx(number, over);
}

drawTimeline();
drawRoofline();
for (const details of document.querySelectorAll("details.kernel")) {
  details.addEventListener("toggle", () => { if (details.open) drawKernel(details); });
  if (details.open) drawKernel(details);
}
function openTarget() {
  const target = document.getElementById(location.hash.slice(1));
  if (target && target.matches("details.kernel")) target.open = true;
}
addEventListener("hashchange", openTarget);
openTarget();
document.body.dataset.ready = "yes";
