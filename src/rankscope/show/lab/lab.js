/* The page: its state is the address; figures come in two parts, the fast ones first. */

import { Chart } from "./charts.js";
import { makeControls } from "./controls.js";

const GRACE = 250; // milliseconds before a newer request replaces a running one
const PARTS = { first: ["residual", "plane", "sphere", "spectrum"], second: ["paths", "prediction", "bounds"] };
const SOURCES = { plane: "places", sphere: "places" };
const session = [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
const find = (id) => document.getElementById(id);

const load = async (path, signal) => {
  const reply = await fetch(path, { signal }).catch((error) => {
    throw signal?.aborted ? error : new Error("The lab does not respond. Start it again, then reload this page.");
  });
  const busy = { error: "The lab is busy. Reload this page in a few seconds." }; // an answer without JSON
  const body = await (reply.ok ? reply.json() : reply.json().catch(() => busy));
  if (!reply.ok) throw Object.assign(new Error(body.error), { code: reply.status });
  return body;
};

const ask = (part, query, signal) => {
  const fields = new URLSearchParams(query);
  fields.set("part", part);
  fields.set("session", session);
  return load(`/state.json?${fields}`, signal);
};

const refuse = (error) => {
  delete document.body.dataset.tone;
  find("headline").textContent = error.code === 422 ? "Invalid network" : "Error";
  find("described").textContent = "";
  find("refusal").textContent = error.message;
  find("refusal").hidden = false;
  document.body.classList.add("refused");
};

/* Request the first figures before the description of the page has arrived. */
let early = { search: location.search, answer: ask("first", location.search) };
early.answer.catch(() => {}); // handled where it is awaited

const told = await load("/lab.json").catch((error) => {
  refuse(error);
  throw error;
});
const defaults = Object.fromEntries(Object.entries(told.parameters).map(([name, each]) => [name, each.default]));
let state = { ...defaults };
let layers = 6;

const queryOf = (one) => {
  const fields = new URLSearchParams();
  for (const name of Object.keys(defaults)) if (one[name] !== defaults[name]) fields.set(name, one[name]);
  return fields.toString();
};

/* ---- figures ---- */

const charts = {};
const captions = {};
const saves = {};
for (const [name, title] of Object.entries(told.titles)) {
  const figure = find(name);
  const heading = document.createElement("h2");
  heading.textContent = title;
  const save = document.createElement("a");
  save.textContent = "SVG";
  save.className = "save";
  save.download = `lab-${name}.svg`;
  save.setAttribute("aria-label", `Save "${title}" as SVG`);
  const head = document.createElement("div");
  head.className = "head";
  head.append(heading, save);
  const holder = document.createElement("div");
  holder.className = "chart";
  holder.setAttribute("role", "img");
  holder.setAttribute("aria-label", title);
  const caption = document.createElement(figure.tagName === "FIGURE" ? "figcaption" : "p");
  caption.className = "caption";
  figure.prepend(head, holder, caption);
  charts[name] = new Chart(holder, told.charts[name]);
  captions[name] = { holder, caption, figure, title };
  saves[name] = save;
}

const draw = async (part, found) => {
  for (const name of PARTS[part]) {
    const { holder, caption, figure, title } = captions[name];
    const rows = found[SOURCES[name] ?? name];
    const sentence = found.sentences[name] ?? "";
    const note = found.notes[name] ?? "";
    const words = sentence.includes(note) ? sentence : `${sentence} ${note}`;
    write(caption, words);
    holder.setAttribute("aria-label", `${title}. ${words}`);
    figure.classList.toggle("empty", rows.length === 0);
    const ticks = found.ticks[name];
    if (rows.length) await charts[name].show(rows, ticks ? { ticks } : {});
    figure.classList.remove("waiting");
    if (!("firstChart" in document.body.dataset)) document.body.dataset.firstChart = performance.now();
  }
};

/* Show powers of ten with superscript exponents. */
const write = (node, text) => {
  const parts = text.replace(/\^\(([^()]*)\)/g, "^$1").split(/(?<=10)\^(−?[\d.,·⁰¹²³⁴⁵⁶⁷⁸⁹]*[\d⁰¹²³⁴⁵⁶⁷⁸⁹])/);
  node.replaceChildren(...parts.map((part, at) => {
    if (at % 2 === 0) return part;
    const raised = document.createElement("sup");
    raised.textContent = part;
    return raised;
  }));
};

const showAnswer = (found) => {
  document.body.dataset.tone = found.tone;
  write(find("headline"), found.headline);
  find("described").textContent = found.description;
  find("refusal").hidden = true;
  document.body.classList.remove("refused");
};

/* ---- requests: one at a time, the newest wins ---- */

let running = null;
let wanted = false;

const refresh = async () => {
  const now = performance.now();
  if (running?.part === "first" && now - running.began < GRACE) {
    wanted = true;
    return;
  }
  running?.abort.abort();
  const mine = { part: "first", began: now, abort: new AbortController() };
  running = mine;
  wanted = false;
  const query = queryOf(state);
  for (const name of PARTS.second) captions[name].figure.classList.add("waiting");
  try {
    const found = await (early?.answer ?? ask("first", query, mine.abort.signal));
    early = null;
    if (running !== mine) return;
    showAnswer(found);
    controls.mask.show(found.mask);
    setLayers(found.places.at(-1).layer);
    await draw("first", found);
    document.body.dataset.drawn = query;
    if (running !== mine) return;
    if (wanted) { running = null; await refresh(); return; }
    mine.part = "second";
    const more = await ask("second", query, mine.abort.signal);
    if (running !== mine) return;
    await draw("second", more);
    document.body.dataset.complete = query;
  } catch (error) {
    early = null;
    if (error.name === "AbortError" || running !== mine) return;
    if (wanted) { running = null; await refresh(); return; }
    if (error.code !== 409) refuse(error);
  } finally {
    if (running === mine) running = null;
  }
};

/* ---- the state and the address ---- */

const show = () => {
  for (const [name, control] of Object.entries(controls)) control.set(state[name]);
  const query = queryOf(state);
  find("python").href = `/snippet?${query}`;
  for (const [name, save] of Object.entries(saves)) {
    save.href = `/figure.svg?${query}${query ? "&" : ""}chart=${name}`;
  }
  for (const chip of document.querySelectorAll("#presets button")) {
    const chosen = chip.dataset.query === query;
    chip.setAttribute("aria-pressed", chosen);
    if (chosen) find("about").textContent = `${chip.dataset.paper} · ${chip.textContent} — ${chip.title}`;
  }
  if (!document.querySelector('#presets [aria-pressed="true"]')) {
    find("about").textContent = "Custom network";
  }
  return query;
};

const change = (name, text) => {
  state = { ...state, [name]: text };
  const heads = Number(state.heads);
  if (name === "heads" || name === "width") {
    const most = told.parameters.width.most;
    const width = Math.min(Math.floor(most / heads), Math.max(1, Math.round(state.width / heads)));
    state.width = String(width * heads);
  }
  if (name === "tokens" && state.mask.startsWith("bits:")) state.mask = controls.mask.resized(Number(text));
  const query = show();
  // The first change after a preset, a link or a reset adds an entry to the history.
  const step = history.state === "changed" ? "replaceState" : "pushState";
  history[step]("changed", "", query ? `/?${query}` : "/");
  refresh();
};

const goTo = (query, { push = false } = {}) => {
  state = { ...defaults };
  for (const [name, text] of new URLSearchParams(query)) if (name in state) state[name] = text;
  show();
  if (push) history.pushState(null, "", query ? `/?${query}` : "/");
  refresh();
};

/* ---- presets, buttons ---- */

const controls = makeControls(find("form"), told.parameters, change);

const groups = new Map();
for (const preset of told.presets) {
  if (!groups.has(preset.paper)) {
    const group = document.createElement("div");
    group.className = "group";
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", preset.paper);
    const name = document.createElement("span");
    name.className = "paper";
    name.textContent = preset.paper;
    group.append(name);
    groups.set(preset.paper, group);
    find("presets").append(group);
  }
  const chip = document.createElement("button");
  chip.type = "button";
  chip.textContent = preset.title;
  chip.title = preset.sentence;
  chip.dataset.query = preset.query;
  chip.dataset.paper = preset.paper;
  chip.addEventListener("click", () => goTo(preset.query, { push: true }));
  groups.get(preset.paper).append(chip);
}

find("reset").addEventListener("click", () => goTo("", { push: true }));
find("share").addEventListener("click", async () => {
  const button = find("share");
  try {
    await navigator.clipboard.writeText(location.href);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Copy the address of this page";
  }
  setTimeout(() => { button.textContent = "Copy link"; }, 1600);
});
addEventListener("popstate", () => goTo(location.search));

/* ---- animation of the layers ---- */

const shown = find("shown");
const setShown = (layer) => {
  shown.value = layer;
  find("shown-value").textContent = `${shown.value} of ${layers}`;
  for (const name of ["plane", "sphere"]) charts[name].set("shown", Number(shown.value));
};
const setLayers = (count) => {
  const atEnd = Number(shown.value) >= layers;
  layers = count;
  shown.max = count;
  setShown(atEnd ? count : Math.min(Number(shown.value), count));
};
let playing = 0;
const stop = () => { clearInterval(playing); playing = 0; find("play").textContent = "▶"; };
find("play").addEventListener("click", () => {
  if (playing) { stop(); return; }
  find("play").textContent = "❚❚";
  if (Number(shown.value) >= layers) setShown(0);
  playing = setInterval(() => {
    if (Number(shown.value) >= layers) stop();
    else setShown(Number(shown.value) + 1);
  }, Math.max(120, Math.min(450, 4000 / layers)));
});
shown.addEventListener("input", () => { stop(); setShown(Number(shown.value)); });

/* ---- rotation of the sphere ---- */

const globe = captions.sphere.holder;
const angle = { turn: 0.6, tilt: 0.35 };
const turnBy = (across, up) => {
  angle.turn += across;
  angle.tilt = Math.max(-1.5, Math.min(1.5, angle.tilt + up));
  charts.sphere.set("turn", angle.turn);
  charts.sphere.set("tilt", angle.tilt);
};
globe.tabIndex = 0;
globe.setAttribute("role", "group");
globe.addEventListener("keydown", (event) => {
  const steps = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, 0.1], ArrowDown: [0, -0.1] };
  if (!steps[event.key]) return;
  event.preventDefault();
  turnBy(...steps[event.key]);
});
let held = null;
globe.addEventListener("pointerdown", (event) => {
  held = [event.clientX, event.clientY];
  globe.setPointerCapture(event.pointerId);
});
globe.addEventListener("pointermove", (event) => {
  if (held === null) return;
  turnBy((held[0] - event.clientX) * 0.012, (event.clientY - held[1]) * 0.012);
  held = [event.clientX, event.clientY];
});
for (const kind of ["pointerup", "pointercancel"]) globe.addEventListener(kind, () => { held = null; });

/* ---- responsive layout ---- */

const narrow = matchMedia("(max-width: 60rem)");
const fold = () => { find("controls").open = !narrow.matches; };
narrow.addEventListener("change", fold);
fold();
let waiting = 0;
addEventListener("resize", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    for (const chart of Object.values(charts)) if (chart.rows?.length) chart.show([...chart.rows]);
  }, 200);
});

goTo(location.search);
