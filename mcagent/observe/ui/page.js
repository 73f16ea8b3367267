// The page of a ClusterSet, or of a Node: asks /topology again and again, and draws it. What is chosen stands in
// the address (#cluster=west, #link=east~west), so a choice can be linked to. Texts come from other clusters:
// they are only ever set as text.
"use strict";

const EVERY = 3000; // milliseconds between two questions
const FEW = 9; // clusters up to which every link is drawn; more are a matrix
const WIDTHS = { down: 8, degraded: 6, unknown: 3 }; // of lines: what is broken is the thickest
const FRESH = 10000; // milliseconds for which a change is shown as new
const TOKEN = "mcagent-token";
const byId = (id) => document.getElementById(id);

let last = null; // the last answer
let before = null; // the one before it: traffic is the difference
let failedAt = null;

function element(name, attributes = {}, ...children) {
  const svg = ["svg", "g", "a:svg", "path", "circle", "text", "title"].includes(name);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name.split(":")[0])
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// --- asking ---------------------------------------------------------------------------------------------

async function ask() {
  const token = sessionStorage.getItem(TOKEN);
  let answer;
  try {
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    answer = await fetch("topology", { headers, cache: "no-store", signal: AbortSignal.timeout(10000) });
    if (answer.ok) took(await answer.json());
    else if (answer.status === 401 || answer.status === 403) signIn(answer.status, token);
    else failed(`the server answers ${answer.status}`);
  } catch (error) {
    failed(error.name === "TimeoutError" ? "no answer within 10 s" : "it cannot be reached");
  }
  setTimeout(ask, EVERY);
}

function failed(why) {
  failedAt ??= new Date();
  const seen = last ? ` What is shown is of ${clock(last.at)}.` : "";
  byId("trouble").textContent = `No news since ${clock(failedAt)}: ${why}.${seen}`;
  byId("trouble").hidden = false;
}

function signIn(status, token) {
  byId("sign-in").hidden = false;
  byId("trouble").hidden = !token;
  if (token) byId("trouble").textContent = status === 401 ? "The server rejects this token: it is invalid, or has expired."
    : "The owner of this token may not get this page (get of the non-resource URL /topology).";
}

function took(answer) {
  failedAt = null;
  byId("trouble").hidden = byId("sign-in").hidden = true;
  document.querySelector("main").hidden = false;
  if (!last || last.name === answer.name) [before, last] = [last, answer];
  else [before, last] = [null, answer]; // another replica answers now: its counters are its own
  draw();
}

// --- what is shown --------------------------------------------------------------------------------------

const clock = (time) => new Date(time).toLocaleTimeString();
const moment = (time) => (time ? new Date(time).toLocaleString() : "not known");

const fraction = (value, times, unit) => (typeof value === "number" ? `${+(value * times).toFixed(1)} ${unit}` : "");

const counted = (count, one, several = `${one}s`) => `${count} ${count === 1 ? one : several}`;

function rate(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  const units = ["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"];
  let bits = bytes * 8, unit = 0;
  while (bits >= 1000 && unit < units.length - 1) [bits, unit] = [bits / 1000, unit + 1];
  return `${bits >= 100 || unit === 0 ? Math.round(bits) : bits.toPrecision(2)} ${units[unit]}`;
}

function chosenSet(answer) {
  return answer && (answer.sets.find((set) => set.name === byId("sets").value) ?? answer.sets[0]);
}

// A pair of clusters is one line: what both ends say of it, the worse counts.
function pairs(set, earlier) {
  const seconds = before && last ? (new Date(last.at) - new Date(before.at)) / 1000 : 0;
  const found = new Map();
  for (const link of set.links) {
    const key = [link.source, link.target].sort().join("~");
    const pair = found.get(key) ?? { key, ends: key.split("~"), sides: [], traffic: null };
    const was = earlier?.links.find((one) => one.source === link.source && one.target === link.target);
    let traffic = link.bytes_per_second;
    if (link.bytes !== null && was && seconds > 0) traffic = Math.max(0, (link.bytes - was.bytes) / seconds);
    pair.sides.push({ ...link, traffic });
    if (traffic !== null) pair.traffic = Math.max(pair.traffic ?? 0, traffic);
    found.set(key, pair);
  }
  for (const pair of found.values()) pair.state = worst(pair.sides.map(stateOf));
  return [...found.values()];
}

const ORDER = ["down", "degraded", "up"];
const WORDS = { up: "up", degraded: "degraded", down: "down", unknown: "not known" };
const stateOf = (link) => (link.live === 0 || link.lost ? "down" : link.live < link.tunnels ? "degraded" : "up");
const worst = (states) => ORDER.find((state) => states.includes(state)) ?? "unknown";

function clusterState(cluster, ways) {
  if (cluster.ready === false) return "down";
  const mine = ways.filter((pair) => pair.ends.includes(cluster.id)).map((pair) => pair.state);
  const state = worst(mine);
  if (state === "down" && mine.some((one) => one !== "down")) return "degraded";
  return mine.length === 0 && cluster.ready === true ? "up" : state;
}

function draw() {
  const set = chosenSet(last);
  chooseSets();
  const scope = last.scope === "node" ? `Node ${last.name}` : set ? `ClusterSet ${set.name}` : "no ClusterSet yet";
  byId("title").textContent = document.title = `mcagent: ${scope}`;
  byId("asked").textContent = `Version ${last.version} · data of ${clock(last.at)}`;
  if (!set) return;
  const ways = pairs(set, chosenSet(before));
  const states = new Map(set.clusters.map((cluster) => [cluster.id, clusterState(cluster, ways)]));
  summarize(set, ways);
  matrix(set, ways, states);
  picture(set, ways, states);
  details(set, ways, states);
  lists(set);
  table(set, ways, states);
}

function chooseSets() {
  const select = byId("sets"), names = last.sets.map((set) => set.name);
  select.hidden = names.length < 2;
  if (names.join("\n") === [...select.options].map((one) => one.value).join("\n")) return;
  const chosen = select.value;
  select.replaceChildren(...names.map((name) => element("option", {}, name)));
  if (names.includes(chosen)) select.value = chosen;
}

function summarize(set, ways) {
  const count = (state) => ways.filter((pair) => pair.state === state).length;
  const away = set.clusters.filter((cluster) => cluster.ready === false).length;
  const parts = [counted(set.clusters.length, "cluster"), `${count("up")} of ${counted(ways.length, "link")} up`];
  if (count("degraded")) parts.push(`${count("degraded")} degraded`);
  if (count("down")) parts.push(`${count("down")} down`);
  if (away) parts.push(`${counted(away, "cluster")} away`);
  if (set.policies !== null) parts.push(counted(set.policies, "policy", "policies"));
  parts.push(set.problem_count ? counted(set.problem_count, "problem") : "no problems");
  const state = count("down") || away ? "down" : count("degraded") || set.problem_count ? "degraded" : "up";
  const summary = byId("summary"), text = parts.join(" · ");
  if (summary.textContent !== text) summary.textContent = text; // a screen reader says it when it changed
  summary.className = `state ${state}`;
}

// --- the picture ----------------------------------------------------------------------------------------

function chosen() {
  const [kind, name] = decodeURIComponent(location.hash.slice(1)).split(/=(.*)/s);
  return { kind, name };
}

const address = (kind, name) => `#${kind}=${encodeURIComponent(name)}`;

function focus(set, { kind, name }) {
  if (kind === "cluster") return set.clusters.find((cluster) => cluster.id === name)?.id ?? null;
  if (kind === "link") return set.clusters.find((cluster) => name?.split("~").includes(cluster.id))?.id ?? null;
  return set.clusters.find((cluster) => cluster.own)?.id ?? null;
}

function neighbours(set, ways, center) {
  const near = new Set([center, ...ways.filter((pair) => pair.ends.includes(center)).flatMap((pair) => pair.ends)]);
  return set.clusters.filter((cluster) => near.has(cluster.id));
}

function places(clusters, many, center) {
  const [across, down] = many ? [225, 205] : [290, 215];
  const found = new Map(), own = clusters.find((cluster) => (center ? cluster.id === center : cluster.own));
  if (clusters.length === 2) {
    clusters.forEach((cluster, index) => found.set(cluster.id, { x: 130 + 540 * index, y: 280, angle: Math.PI / 2 }));
    return found;
  }
  const around = own ? clusters.filter((cluster) => cluster !== own) : clusters;
  if (own) found.set(own.id, { x: 400, y: 280, angle: Math.PI / 2 });
  around.forEach((cluster, index) => {
    const angle = (index / around.length) * 2 * Math.PI - Math.PI / 2;
    found.set(cluster.id, { x: 400 + across * Math.cos(angle), y: 280 + down * Math.sin(angle), angle });
  });
  if (!own && around.length === 1) found.set(around[0].id, { x: 400, y: 280, angle: Math.PI / 2 });
  return found;
}

// With many clusters the picture is that of one cluster: of the chosen one, or of a Node's own.
function picture(set, ways, states) {
  const choice = chosen(), center = set.clusters.length > FEW ? focus(set, choice) : null;
  byId("topology").toggleAttribute("hidden", set.clusters.length > FEW && !center);
  const clusters = center ? neighbours(set, ways, center) : set.clusters;
  const many = clusters.length > FEW, two = clusters.length === 2, at = places(clusters, many, center);
  const own = Boolean(center) || clusters.some((cluster) => cluster.own);
  const touches = (pair) => choice.kind === "cluster" && pair.ends.includes(choice.name);
  const shown = ways.filter((pair) => pair.ends.every((end) => at.has(end)) && (!center || pair.ends.includes(center)));
  const lines = shown.map((pair) => line(pair, at, choice, { own, many, two, touched: touches(pair) }));
  const dots = clusters.map((cluster) => dot(cluster, at.get(cluster.id), states.get(cluster.id), choice, { many, two }));
  byId("topology").setAttribute("viewBox", two ? "0 150 800 260" : many ? "-150 -150 1100 860" : "0 0 800 560");
  const focused = document.activeElement?.getAttribute?.("href");
  byId("topology").setAttribute("class", many ? "many" : "");
  byId("topology").replaceChildren(element("g", {}, ...lines), element("g", {}, ...dots));
  if (focused) [...byId("topology").querySelectorAll("a")].find((a) => a.getAttribute("href") === focused)?.focus();
}

function line(pair, at, choice, { own, many, two, touched }) {
  const [a, b] = pair.ends.map((end) => at.get(end));
  const bend = own ? 0 : 0.18; // towards the middle: lines of neighbours keep apart
  const middle = { x: (a.x + b.x) / 2 * (1 - bend) + 400 * bend, y: (a.y + b.y) / 2 * (1 - bend) + 280 * bend };
  const d = `M${a.x.toFixed(1)},${a.y.toFixed(1)} Q${middle.x.toFixed(1)},${middle.y.toFixed(1)} ${b.x.toFixed(1)},${b.y.toFixed(1)}`;
  const width = (WIDTHS[pair.state] ?? 1.5 + Math.min(3, Math.log10(1 + (pair.traffic ?? 0) / 1000) / 2)) * (many ? 0.5 : 1);
  const isChosen = choice.kind === "link" && choice.name === pair.key;
  const fresh = pair.sides.some((side) => side.since && new Date(last.at) - new Date(side.since) < FRESH);
  const faint = choice.kind === "cluster" && at.has(choice.name) && !touched;
  const classes = ["link", pair.state, isChosen && "chosen", fresh && "fresh", faint && "faint"];
  const title = `${pair.ends.join(" and ")}: ${WORDS[pair.state]}, ${rate(pair.traffic)}`;
  return element("a:svg", {
    class: classes.filter(Boolean).join(" "), href: address("link", pair.key), "aria-label": title,
    tabindex: pair.state === "up" && !isChosen ? "-1" : "0", // by keyboard: what is wrong first; all are in the table
  }, element("title", {}, title), element("path", { class: "way", d, "stroke-width": width }),
  element("path", { class: "hit", d }), ...(two ? spans(pair) : []));
}

// What two clusters have on their line: tunnels and traffic, the round trip where a Node has measured it.
function spans(pair) {
  const live = pair.sides.map((side) => `${side.live} of ${side.tunnels}`), trips = pair.sides.map((side) => side.round_trip_seconds);
  const trip = Math.max(...trips.map((seconds) => seconds ?? 0));
  const texts = [`${new Set(live).size === 1 ? live[0] : live.join(", ")} tunnels live`, rate(pair.state === "down" ? 0 : pair.traffic)];
  if (trip && pair.state !== "down") texts.push(`round trip ${fraction(trip, 1000, "ms")}`);
  return [element("text", { x: 400, y: 262, class: "span" }, texts.join(" · "))];
}

function dot(cluster, place, state, choice, { many, two }) {
  const isChosen = choice.kind === "cluster" && choice.name === cluster.id;
  const radius = many ? 5 : 14;
  const title = `Cluster ${cluster.id}: ${WORDS[state]}${cluster.why ? `: ${cluster.why}` : ""}`;
  return element("a:svg", {
    class: ["cluster", state, cluster.own && "own", isChosen && "chosen"].filter(Boolean).join(" "),
    href: address("cluster", cluster.id), "aria-label": title,
  }, element("title", {}, title), element("circle", { class: "dot", cx: place.x, cy: place.y, r: radius }),
  many ? spoke(cluster.id, place) : below(cluster.id, place),
  ...(two ? cluster.gateways.slice(0, 4).map((text, index) => element("text", { x: place.x, y: place.y + 58 + 18 * index, class: "gateway" }, text)) : []));
}

function below(text, { x, y, angle }) {
  return element("text", { x, y: y + (Math.sin(angle) >= -0.05 ? 36 : -24) }, text);
}

function spoke(text, { x, y, angle }) {
  const left = Math.cos(angle) < -0.001, degrees = (angle * 180) / Math.PI + (left ? 180 : 0);
  return element("text", {
    transform: `translate(${x.toFixed(1)},${y.toFixed(1)}) rotate(${degrees.toFixed(1)})`,
    x: left ? -10 : 10, y: 4, class: left ? "left" : "right",
  }, text);
}

// --- what was chosen ------------------------------------------------------------------------------------

function command(text) {
  const copy = element("button", { type: "button" }, "Copy");
  copy.addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(text); copy.textContent = "Copied"; }
    catch { copy.textContent = "Not allowed here"; }
  });
  return element("pre", {}, element("code", {}, text), copy);
}

function entries(pairsOfTexts) {
  const rows = pairsOfTexts.filter(([, text]) => text !== "" && text !== null && text !== undefined);
  return element("dl", {}, ...rows.flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text)]));
}

const stateText = (state) => element("span", { class: `state ${state}` }, WORDS[state]);

function details(set, ways, states) {
  const { kind, name } = chosen(), body = byId("details-body");
  const cluster = kind === "cluster" && set.clusters.find((one) => one.id === name);
  const pair = kind === "link" && ways.find((one) => one.key === name);
  if (body.contains(document.activeElement)) return; // the focus is on a button there
  if (cluster) {
    byId("details-title").textContent = `Cluster ${cluster.id}`;
    const links = ways.filter((one) => one.ends.includes(cluster.id)).map((one) => {
      const other = one.ends.find((end) => end !== cluster.id);
      return element("li", { class: one.state }, element("a", { href: address("link", one.key) }, other), " ",
        stateText(one.state), ` ${rate(one.traffic)}`);
    });
    body.replaceChildren(entries([["State", stateText(states.get(cluster.id))], ["Why", cluster.why],
      ["Since", cluster.since && moment(cluster.since)], ["Gateways", cluster.gateways.join(", ")],
      ["Networks", cluster.networks.join(", ")], ["Exported Services", cluster.services]]),
    element("h3", {}, "Links"), element("ul", { class: "list" }, ...links), element("h3", {}, "Ask further"),
    element("p", {}, "CONTEXT is that of the cluster in your kubeconfig, often its name."),
    command(`mcagent status --context ${cluster.id}`), command(`mcagent doctor --all --context ${cluster.id}`));
  } else if (pair) {
    byId("details-title").textContent = `Link ${pair.ends.join(" – ")}`;
    const sides = pair.sides.map((side) => element("div", {}, element("h3", {}, `Seen from ${side.source}`),
      entries([["State", stateText(stateOf(side))], ["Tunnels", `${side.live} of ${side.tunnels} live`],
        ["Last change", moment(side.since)], ["Why", side.why], ["Traffic", rate(side.traffic)],
        ["Round trip", fraction(side.round_trip_seconds, 1000, "ms")], ["Probes lost", fraction(side.loss_ratio, 100, "%")]])));
    const [a, b] = pair.ends;
    body.replaceChildren(...sides, element("h3", {}, "Ask further"),
      command(`mcagent trace --context ${a} --remote-context ${b} --from NAMESPACE/POD --to NAME.NAMESPACE.svc.clusterset.local:PORT`),
      command(`mcagent doctor --context ${a} --context ${b} --all`));
  } else if (kind) {
    byId("details-title").textContent = "Not here";
    body.replaceChildren(element("p", {}, `There is no ${kind} ${name} (any more).`));
  }
}

// --- lists ----------------------------------------------------------------------------------------------

function fill(list, items, none) {
  list.replaceChildren(...(items.length ? items : [element("li", {}, none)]));
}

function lists(set) {
  fill(byId("problems"), set.problems.map((one) => element("li", { class: one.error ? "down" : "degraded" },
    element("strong", {}, one.reason), ` ${one.message} `, element("small", {}, one.subject))), "None.");
  const rest = set.problem_count - set.problems.length;
  if (rest > 0) byId("problems").append(element("li", {}, `and ${rest} more: see /status`));
  fill(byId("changes"), set.changes.map((one) => element("li", { class: one.good ? "up" : "down" },
    element("small", {}, moment(one.at)), " ",
    element("strong", {}, `${one.source} → ${one.target}`), ` ${one.text}`)), "No change since the server started.");
}

function table(set, ways, states) {
  const filter = byId("filter").value.trim().toLowerCase();
  const found = set.clusters.filter((cluster) => cluster.id.toLowerCase().includes(filter));
  byId("matches").textContent = filter ? `${found.length} of ${set.clusters.length}` : "";
  found.sort((a, b) => RANK[states.get(a.id)] - RANK[states.get(b.id)] || a.id.localeCompare(b.id));
  if (byId("rows").contains(document.activeElement)) return; // the focus is in the table
  byId("rows").replaceChildren(...found.map((cluster) => {
    const mine = ways.filter((pair) => pair.ends.includes(cluster.id));
    const traffic = mine.reduce((sum, pair) => (pair.traffic === null ? sum : (sum ?? 0) + pair.traffic), null);
    const wrong = mine.filter((pair) => pair.state !== "up").slice(0, 4).flatMap((pair) => [" ",
      element("a", { href: address("link", pair.key), class: `state ${pair.state}` },
        pair.ends.find((end) => end !== cluster.id))]);
    // On a phone rows are wrapped: each field has its name then, and roles keep the table for screen readers.
    const field = (name, ...children) => element("td", { role: "cell", "data-name": name }, ...children);
    return element("tr", { role: "row" }, element("td", { role: "cell" }, element("a", { href: address("cluster", cluster.id) }, cluster.id)),
      element("td", { role: "cell" }, stateText(states.get(cluster.id))),
      field("links", `${mine.filter((pair) => pair.state === "up").length} of ${mine.length} up`, ...wrong),
      field("traffic", rate(traffic)), field("gateways", String(cluster.gateways.length)),
      field("services", cluster.services ?? "–"));
  }));
}

addEventListener("hashchange", () => { if (last) { document.activeElement?.closest("#details, #rows")?.querySelector(":focus")?.blur(); draw(); } });
byId("sets").addEventListener("change", draw);
byId("filter").addEventListener("input", () => last && draw());
byId("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, byId("token").value.trim());
  byId("token").value = "";
  byId("sign-in").hidden = true;
});
ask();
