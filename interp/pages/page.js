"use strict";

const DARK = JSON.parse(document.getElementById("dark").textContent);
const PRINTED_WIDTH = 660, NARROW = 520, PANEL_HEIGHT = 280;
const darkness = matchMedia("(prefers-color-scheme: dark)");
const plots = [...document.querySelectorAll(".plot")];
let printing = false;

// A figure is parsed anew each time it is drawn, so that colours and layout always start from what was written.
function figureOf(id, dark) {
  const recolour = (key, value) => (dark && /color/.test(key) ? darkened(value) : value);
  return JSON.parse(document.getElementById(id).textContent, recolour);
}

function darkened(value) {
  if (Array.isArray(value)) return value.map(darkened);
  if (typeof value !== "string") return value;
  const [red, green, blue, alpha] = value.startsWith("rgba") ? value.match(/[\d.]+/g) : [];
  if (alpha === undefined) return DARK[value] ?? value;
  const opaque = "#" + [red, green, blue].map(channel => (+channel).toString(16).padStart(2, "0")).join("");
  if (!(opaque in DARK)) return value;
  return DARK[opaque] + Math.round(alpha * 255).toString(16).padStart(2, "0");
}

// The caption stands above the figure; the legend between them; panels below each other where there is little room.
const LEGEND = {
  orientation: "h", x: 0, xref: "container", xanchor: "left", y: 1, yref: "container", yanchor: "top",
  maxheight: 1, tracegroupgap: 4, font: {size: 12},
};

function fitted(layout, width) {
  const axes = Object.keys(layout).filter(key => /^xaxis\d*$/.test(key)).sort();
  const narrow = width < NARROW, stacked = narrow && axes.length > 1;
  const margin = {l: 56, r: 12, b: stacked ? 4 : 48, t: 8};
  Object.assign(layout, {title: undefined, width, margin, dragmode: narrow ? false : "zoom"});
  layout.legend = {...layout.legend, ...LEGEND};
  axes.forEach((name, i) => {
    if (narrow && layout[name].dtick === 1 && layout[name].type === "log") layout[name].dtick = 2;
    if (!stacked) return;
    layout[name].domain = [0, 1];
    const domain = [1 - (i + 0.76) / axes.length, 1 - (i + 0.06) / axes.length];
    Object.assign(layout[name.replace("x", "y")], {domain, showticklabels: true});
  });
  return stacked ? axes.length * PANEL_HEIGHT : layout.height - (printing ? 140 : 80);
}

function draw(plot) {
  const {data, layout} = figureOf(plot.dataset.figure, darkness.matches && !printing);
  const width = printing ? PRINTED_WIDTH : Math.max(plot.parentElement.clientWidth, layout.meta?.least_width ?? 0);
  const height = fitted(layout, width);
  Plotly.react(plot, data, {...layout, height: height + 56}, {displayModeBar: false});
  const legend = plot.querySelector(".legend")?.getBoundingClientRect().height ?? 0;
  const top = legend + (layout.annotations?.some(note => note.yref?.endsWith("domain")) ? 30 : 14);
  Plotly.relayout(plot, {"margin.t": top, height: height + top + layout.margin.b});
}

let latest = 0;
async function drawAll() {
  const mine = ++latest;
  for (const plot of plots) {
    if (mine !== latest) return;
    draw(plot);
    await new Promise(done => setTimeout(done));
  }
  document.documentElement.dataset.drawn = mine;
}

function sort(table, column) {
  const heading = table.tHead.rows[0].cells[column];
  const sign = heading.ariaSort === "ascending" ? -1 : 1;
  const number = heading.classList.contains("number");
  const key = row => number ? row.cells[column].dataset.value : row.cells[column].textContent;
  const order = new Intl.Collator(undefined, {numeric: true}).compare;
  const rows = [...table.tBodies[0].rows].map(row => [key(row), row]);
  rows.sort(([a], [b]) => (a === "") - (b === "") || sign * (number ? a - b : order(a, b)));
  table.tBodies[0].append(...rows.map(([, row]) => row));
  for (const cell of table.tHead.rows[0].cells) cell.ariaSort = "none";
  heading.ariaSort = sign > 0 ? "ascending" : "descending";
}

function download(id) {
  const url = URL.createObjectURL(new Blob([JSON.parse(document.getElementById(id).textContent)], {type: "text/csv"}));
  Object.assign(document.createElement("a"), {href: url, download: `${id}.csv`}).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

for (const table of document.querySelectorAll("table"))
  table.querySelectorAll("thead button").forEach((button, i) => button.addEventListener("click", () => sort(table, i)));
for (const button of document.querySelectorAll("[data-csv]"))
  button.addEventListener("click", () => download(button.dataset.csv));
for (const button of document.querySelectorAll("[data-svg]")) {
  const save = id => Plotly.downloadImage(figureOf(id, false), {format: "svg", width: 760, height: 460, filename: id});
  button.addEventListener("click", () => save(button.dataset.svg));
}
for (const view of document.querySelectorAll("[data-view]"))
  CircuitsVis.render(view.id, CircuitsVis[view.dataset.view], JSON.parse(view.nextElementSibling.textContent));

const closed = () => [...document.querySelectorAll("details:not([open])")];
let opened = [];
addEventListener("beforeprint", () => {
  printing = true;
  latest += 1;
  opened = closed();
  for (const details of opened) details.open = true;
  plots.forEach(draw);
});
addEventListener("afterprint", () => {
  printing = false;
  for (const details of opened) details.open = false;
  drawAll();
});
darkness.addEventListener("change", drawAll);
let width = innerWidth, settling;
addEventListener("resize", () => {
  if (printing || innerWidth === width) return;
  width = innerWidth;
  latest += 1;
  clearTimeout(settling);
  settling = setTimeout(drawAll, 150);
});
drawAll();
