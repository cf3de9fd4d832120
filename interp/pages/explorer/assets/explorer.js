"use strict";

// One panel at a time, chosen by click or with the arrow keys.
function showPanel(tab) {
  for (const other of document.querySelectorAll(".explorer [role=tab]")) {
    other.setAttribute("aria-selected", String(other === tab));
    other.tabIndex = other === tab ? 0 : -1;
    document.getElementById(other.getAttribute("aria-controls")).hidden = other !== tab;
  }
  dispatchEvent(new Event("resize"));
}

document.addEventListener("click", event => {
  const tab = event.target.closest?.(".explorer [role=tab]");
  if (tab) showPanel(tab);
});

document.addEventListener("keydown", event => {
  if (event.target.role !== "tab") return;
  const tabs = [...event.target.parentElement.children], place = tabs.indexOf(event.target);
  const next = {ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: -1}[event.key];
  if (next === undefined) return;
  event.preventDefault();
  const tab = tabs.at(next % tabs.length);
  showPanel(tab);
  tab.focus();
});

document.addEventListener("submit", event => event.preventDefault());

window.dash_clientside = Object.assign({}, window.dash_clientside, {
  explorer: {
    darkness: () => {
      const scheme = matchMedia("(prefers-color-scheme: dark)");
      scheme.addEventListener("change", () => dash_clientside.set_props("dark", {data: scheme.matches}));
      showPanel(document.querySelector(".explorer [role=tab]"));
      return scheme.matches;
    },
  },
});
