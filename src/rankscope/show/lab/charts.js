/* Charts that are created once and then updated with new rows. */

const OPTIONS = {
  mode: "vega-lite",
  renderer: "svg",
  actions: false,
  ast: true, // interpret expressions: the content policy forbids eval
  defaultStyle: false,
  tooltip: { disableDefaultStyle: true },
};

const script = document.getElementById("vega");
const vega = globalThis.vegaEmbed
  ? Promise.resolve()
  : new Promise((resolve) => { script.addEventListener("load", resolve); });

export class Chart {
  #holder; #spec; #source; #view = null; #drawn = null; #signals = {}; #busy = Promise.resolve();

  /* Uses its own element, because vega-embed sets the role and label of it. */
  constructor(holder, spec) {
    this.#holder = document.createElement("div");
    holder.append(this.#holder);
    this.#spec = spec;
    this.#source = spec.data.name;
  }

  /* Draw rows; pending rows of an earlier call are discarded. */
  show(rows, signals = {}) {
    this.rows = rows;
    Object.assign(this.#signals, signals);
    this.#busy = this.#busy.then(async () => {
      if (this.rows === rows) await this.#draw(rows);
    });
    return this.#busy;
  }

  set(name, value) {
    this.#signals[name] = value;
    this.#busy = this.#busy.then(async () => {
      if (this.#view && this.#view.signal(name) !== this.#signals[name]) {
        await this.#view.signal(name, this.#signals[name]).runAsync();
      }
    });
    return this.#busy;
  }

  async #draw(rows) {
    const spec = this.#fitted(rows);
    const key = JSON.stringify(spec.usermeta ?? null) + this.#room();
    if (this.#view && key === this.#drawn) {
      for (const [name, value] of Object.entries(this.#signals)) this.#view.signal(name, value);
      await this.#view.data(this.#source, rows.map((row) => ({ ...row }))).runAsync();
      return;
    }
    const filled = { ...spec, data: { name: this.#source, values: rows.map((row) => ({ ...row })) } };
    const before = this.#view;
    await vega;
    const { view } = await globalThis.vegaEmbed(this.#holder, filled, OPTIONS);
    before?.finalize();
    this.#view = view;
    this.#drawn = key;
    for (const [name, value] of Object.entries(this.#signals)) view.signal(name, value);
    await view.runAsync();
  }

  /* Shrink charts of fixed width to the available width. */
  #room() {
    const width = this.#spec.width;
    return typeof width === "number" ? Math.min(width, this.#holder.clientWidth - 24) : 0;
  }

  /* The legend shows only curves that are in the rows. */
  #fitted(rows) {
    const spec = structuredClone(this.#spec);
    if (typeof spec.width === "number") spec.width = spec.height = Math.max(160, this.#room());
    const field = spec.usermeta?.names;
    if (field === undefined) return spec;
    const present = new Set(rows.map((row) => row[field]));
    spec.usermeta.present = [...present].sort();
    for (const { encoding } of spec.layer) {
      for (const { field: own, scale } of Object.values(encoding)) {
        if (own !== field || !scale) continue;
        const kept = scale.domain.map((name) => present.has(name));
        scale.range = scale.range.filter((_, at) => kept[at]);
        scale.domain = scale.domain.filter((_, at) => kept[at]);
      }
    }
    return spec;
  }
}
