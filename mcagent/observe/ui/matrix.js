// The matrix of many clusters: a row and a column for each, and in each field the state of their link. Of page.js it
// uses the functions that make elements, and the words of states.
"use strict";

function matrix(set, ways, states) {
  const shown = set.clusters.length > FEW;
  byId("matrix").hidden = !shown;
  byId("picture").classList.toggle("wide", shown);
  const drawn = JSON.stringify([set.name, location.hash, [...states], ways.map((pair) => [pair.key, pair.state])]);
  if (!shown || drawn === byId("matrix").dataset.drawn) return; // up to ten thousand fields
  byId("matrix").dataset.drawn = drawn;
  const ids = set.clusters.map((cluster) => cluster.id).sort(), choice = chosen();
  ids.sort((a, b) => RANK[states.get(a)] - RANK[states.get(b)]); // what is broken is in sight without scrolling
  const byKey = new Map(ways.map((pair) => [pair.key, pair]));
  const name = (id) => element("a", { href: address("cluster", id), class: `state ${states.get(id)}` }, id);
  const head = element("tr", {}, element("td", {}), ...ids.map((id) => element("th", { scope: "col" }, element("span", {}, name(id)))));
  const rows = ids.map((row) => element("tr", {}, element("th", { scope: "row" }, name(row)), ...ids.map((column) => {
    const pair = byKey.get([row, column].sort().join("~"));
    if (row === column || !pair) return element("td", { class: row === column ? "self" : "none" });
    const isChosen = (choice.kind === "link" && choice.name === pair.key) || (choice.kind === "cluster" && pair.ends.includes(choice.name));
    const title = `${row} and ${column}: ${WORDS[pair.state]}`;
    const of = [pair.state, isChosen && "chosen"].filter(Boolean).join(" ");
    if (pair.state === "up") return element("td", { class: of, title, "data-link": pair.key });
    const link = element("a", { href: address("link", pair.key), title, "aria-label": title, tabindex: "0" }, SIGNS[pair.state]);
    return element("td", { class: of }, link);
  })));
  byId("matrix-table").replaceChildren(element("thead", {}, head), element("tbody", {}, ...rows));
}

// Fields of links that are up are no links of the document: there may be ten thousand. The table below has them all.
document.addEventListener("click", ({ target }) => { if (target.dataset?.link) location.hash = address("link", target.dataset.link); });

const RANK = { down: 0, degraded: 1, unknown: 2, up: 3 };
const SIGNS = { degraded: "–", down: "×", unknown: "?" }; // beside the colour, for those who cannot tell colours apart
