/* Controls generated from the parameters: sliders, choices and the mask. */

import { MaskGrid, resized, toBits } from "./mask.js";

const make = (kind, attributes = {}, ...children) => {
  const node = document.createElement(kind);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
};

const shortened = (value) => String(Number(value.toPrecision(3)));

/* A slider, with a linear or logarithmic scale. */
const slider = (name, told, onChange) => {
  const log = told.logarithmic;
  const place = (value) => (log ? Math.log10(value) : value);
  const input = make("input", {
    type: "range", id: name, name,
    min: place(told.least), max: place(told.most), step: log ? 0.01 : told.step,
  });
  const output = make("output", { for: name });
  const read = () => (log ? shortened(10 ** Number(input.value)) : shortened(Number(input.value)));
  const say = (text) => {
    output.textContent = told.words?.[text] ?? text;
    input.setAttribute("aria-valuetext", output.textContent);
  };
  input.addEventListener("input", () => { say(read()); onChange(name, read()); });
  const label = make("label", { for: name }, make("span", {}, told.title), output);
  return {
    node: make("div", { class: "control" }, label, input),
    set: (text) => { input.value = place(Number(text)); say(text); },
  };
};

const choice = (name, told, onChange) => {
  const select = make("select", { id: name, name });
  for (const [value, words] of Object.entries(told.options)) {
    select.append(make("option", { value }, words));
  }
  select.addEventListener("change", () => onChange(name, select.value));
  const label = make("label", { for: name }, make("span", {}, told.title));
  return {
    node: make("div", { class: "control choice" }, label, select),
    set: (text) => { select.value = text; },
  };
};

const mask = (name, told, onChange) => {
  const select = make("select", { id: name, name });
  for (const [value, words] of Object.entries(told.options)) {
    select.append(make("option", { value }, words.split(/[: ]/)[0]));
  }
  select.append(make("option", { value: "bits" }, "your own"));
  const usual = (kind) => told.options[kind].split(/[: ]/)[1];
  const takes = (kind) => kind in told.options && told.options[kind].includes(":");
  const number = make("input", { type: "range", id: `${name}-number`, min: 0, max: 12, step: 1 });
  const output = make("output", { for: `${name}-number` });
  const reach = make("div", { class: "control" },
    make("label", { for: `${name}-number` }, make("span", {}, "Reach"), output), number);
  const said = make("p", { class: "said", "aria-live": "polite" });
  const holder = make("div", {
    class: "mask", role: "grid", "aria-label": "Mask: who attends (rows) to whom (columns)",
    "aria-describedby": "mask-help",
  });
  const help = make("p", { class: "help", id: "mask-help" },
    "Row: the token that attends; column: the token it attends to. Paint with the pointer, or use the arrow keys and the space bar.");
  const grid = new MaskGrid(holder, said, () => {
    select.value = "bits";
    reach.hidden = true;
    onChange(name, toBits(grid.rows));
  });
  select.addEventListener("change", () => {
    const kind = select.value;
    if (kind === "bits") onChange(name, toBits(grid.rows));
    else onChange(name, takes(kind) ? `${kind}:${usual(kind)}` : kind);
  });
  number.addEventListener("input", () => {
    output.textContent = number.value;
    onChange(name, `${select.value}:${number.value}`);
  });
  const label = make("label", { for: name }, make("span", {}, told.title));
  return {
    node: make("div", {}, make("div", { class: "control choice" }, label, select), reach, holder, said, help),
    set: (text) => {
      const [kind, rest] = text.split(":");
      select.value = kind;
      reach.hidden = !takes(kind);
      if (takes(kind)) { number.value = rest; output.textContent = rest; }
    },
    show: (rows) => { number.max = rows.length; grid.show(rows); },
    resized: (count) => toBits(resized(grid.rows, count)),
  };
};

/* All controls by parameter name, added to the form in groups. */
export const makeControls = (form, parameters, onChange) => {
  const kinds = { whole: slider, real: slider, choice, mask };
  const groups = new Map();
  const controls = {};
  for (const [name, told] of Object.entries(parameters)) {
    if (!groups.has(told.group)) {
      groups.set(told.group, make("fieldset", {}, make("legend", {}, told.group)));
      form.append(groups.get(told.group));
    }
    controls[name] = kinds[told.kind](name, told, onChange);
    groups.get(told.group).append(controls[name].node);
  }
  form.addEventListener("submit", (event) => event.preventDefault());
  return controls;
};
