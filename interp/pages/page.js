"use strict";

const DARK = JSON.parse(document.getElementById("dark").textContent);
const PRINTED_WIDTH = 660, NARROW = 520, PANEL_HEIGHT = 280;
const darkness = matchMedia("(prefers-color-scheme: dark)");
const plots = [...document.querySelectorAll(".plot")];
let printing = false;

// A figure is parsed anew each time it is drawn, so that colours and layout always start from what was written.
function figureOf(id, dark) {
  const recolour = (key, value) => (dark && /color/.test(key) ? darkened(value) : value);
  return JSON.parse(document.getElementById(`${id}-data`).textContent, recolour);
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
  return stacked ? axes.length * PANEL_HEIGHT : layout.height - (printing ? 180 : 80);
}

function draw(plot) {
  const {data, layout} = figureOf(plot.dataset.figure, darkness.matches && !printing);
  const width = printing ? PRINTED_WIDTH : Math.max(plot.parentElement.clientWidth, layout.meta?.least_width ?? 0);
  const height = fitted(layout, width);
  Plotly.react(plot, data, {...layout, height: height + 56}, {displayModeBar: false});
  const legend = plot.querySelector(".legend")?.getBoundingClientRect().height ?? 0;
  const top = legend + (layout.annotations?.some(note => note.yref?.endsWith("domain")) ? 30 : 14);
  Plotly.relayout(plot, {"margin.t": top, height: height + top + layout.margin.b});
  plot.parentElement.tabIndex = width > plot.parentElement.clientWidth ? 0 : -1;  // what scrolls is reached by key
}

// What is hidden, in a closed part or another tab, has no width: it is drawn when it is shown.
const isShown = plot => plot.checkVisibility();
let latest = 0;
async function drawAll() {
  const mine = ++latest;
  for (const plot of plots) {
    if (mine !== latest) return;
    if (isShown(plot)) draw(plot);
    else Plotly.purge(plot);
    await new Promise(done => setTimeout(done));
  }
  document.documentElement.dataset.drawn = mine;
}

function drawNew(part) {
  for (const plot of part.querySelectorAll(".plot:not(.js-plotly-plot)")) if (isShown(plot)) draw(plot);
}

document.addEventListener("toggle", event => event.target.open && drawNew(event.target), true);

// One model at a time; a choice holds for every question that has that model.
const tablists = [...document.querySelectorAll("[role=tablist]")].map(list => [...list.children]);

function choose(tab) {
  for (const tabs of tablists) {
    const chosen = tabs.includes(tab) ? tab : tabs.find(other => other.dataset.model === tab.dataset.model);
    if (chosen) drawNew(show(tabs, chosen));
  }
}

function show(tabs, chosen) {
  for (const tab of tabs) {
    const panel = document.getElementById(tab.getAttribute("aria-controls"));
    tab.ariaSelected = String(tab === chosen);
    tab.tabIndex = tab === chosen ? 0 : -1;
    panel.hidden = tab !== chosen;
  }
  return document.getElementById(chosen.getAttribute("aria-controls"));
}

function step(event) {
  const tabs = [...event.currentTarget.parentElement.children], place = tabs.indexOf(event.currentTarget);
  const next = {ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: -1}[event.key];
  if (next === undefined) return;
  event.preventDefault();
  const tab = tabs.at(next % tabs.length);
  choose(tab);
  tab.focus();
}

for (const tabs of tablists) {
  for (const tab of tabs) {
    tab.addEventListener("click", () => choose(tab));
    tab.addEventListener("keydown", step);
  }
  show(tabs, tabs[0]);
}

// What an address points at is opened, in its tab.
function reveal() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  for (let part = target; part; part = part.parentElement) {
    if (part.tagName === "DETAILS") part.open = true;
    if (part.hidden) choose(document.getElementById(part.getAttribute("aria-labelledby")));
  }
  target.scrollIntoView();
}

addEventListener("hashchange", reveal);

const links = new Map([...document.querySelectorAll("nav ol > li > a")].map(link => [link.hash.slice(1), link]));
const reading = new IntersectionObserver(entries => {
  for (const {target, isIntersecting} of entries)
    links.get(target.getAttribute("aria-labelledby")).ariaCurrent = isIntersecting ? "true" : null;
}, {rootMargin: "-30% 0px -65% 0px"});
for (const section of document.querySelectorAll("section")) reading.observe(section);

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

// On paper stands what is open on the screen, of every model, and all terms and rules.
const glossaries = document.querySelectorAll("details.glossary:not([open])");
let shown = [];
addEventListener("beforeprint", () => {
  printing = true;
  latest += 1;
  shown = [...document.querySelectorAll(".part[hidden]")];
  for (const panel of shown) panel.hidden = false;
  for (const glossary of glossaries) glossary.open = true;
  plots.filter(isShown).forEach(draw);
});
addEventListener("afterprint", () => {
  printing = false;
  for (const panel of shown) panel.hidden = true;
  for (const glossary of glossaries) glossary.open = false;
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
reveal();
drawAll();
