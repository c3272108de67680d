/* The mask as a grid: one row per query, one column per key. Edit it with the pointer, or with
   the keyboard: arrows move, the space bar toggles an entry. */

export class MaskGrid {
  #holder; #said; #onChange; #cells = []; #rows = []; #at = [0, 0]; #paint = null;

  constructor(holder, said, onChange) {
    this.#holder = holder;
    this.#said = said;
    this.#onChange = onChange;
    holder.addEventListener("keydown", (event) => this.#key(event));
    holder.addEventListener("pointerdown", (event) => this.#press(event));
    holder.addEventListener("pointermove", (event) => this.#move(event));
    for (const kind of ["pointerup", "pointercancel"]) {
      holder.addEventListener(kind, () => this.#release());
    }
  }

  get rows() {
    return this.#rows.map((row) => row.join(""));
  }

  show(rows) {
    if (this.#paint !== null) return; // do not overwrite while painting
    if (rows.length !== this.#cells.length) this.#build(rows.length);
    this.#rows = rows.map((row) => [...row].map(Number));
    for (const [q, row] of this.#rows.entries()) {
      for (const [k, value] of row.entries()) this.#mark(q, k, value);
    }
  }

  #build(count) {
    this.#holder.style.setProperty("--count", count);
    this.#at = this.#at.map((at) => Math.min(at, count - 1));
    this.#cells = Array.from({ length: count }, () => []);
    this.#holder.setAttribute("aria-rowcount", count);
    this.#holder.setAttribute("aria-colcount", count);
    this.#holder.replaceChildren(...this.#cells.map((row, q) => {
      const line = document.createElement("div");
      line.setAttribute("role", "row");
      for (let k = 0; k < count; k += 1) {
        const cell = document.createElement("div");
        cell.setAttribute("role", "gridcell");
        cell.dataset.place = `${q} ${k}`;
        cell.tabIndex = q === this.#at[0] && k === this.#at[1] ? 0 : -1;
        row.push(cell);
        line.append(cell);
      }
      return line;
    }));
  }

  #mark(q, k, value) {
    const cell = this.#cells[q][k];
    const text = value ? "true" : "false";
    if (cell.getAttribute("aria-selected") === text) return;
    cell.setAttribute("aria-selected", text);
    cell.setAttribute("aria-label", `token ${q} ${value ? "attends" : "does not attend"} to token ${k}`);
  }

  #set(q, k, value) {
    if (this.#rows[q][k] === value) return false;
    if (!value && this.#rows[q].reduce((sum, each) => sum + each, 0) === 1) {
      this.#said.textContent = `Token ${q} must attend to at least one token.`;
      return false;
    }
    this.#rows[q][k] = value;
    this.#mark(q, k, value);
    this.#said.textContent = `Token ${q} ${value ? "attends" : "no longer attends"} to token ${k}.`;
    return true;
  }

  #focus(q, k) {
    const last = this.#cells.length - 1;
    const [row, column] = [q, k].map((at) => Math.max(0, Math.min(last, at)));
    this.#cells[this.#at[0]][this.#at[1]].tabIndex = -1;
    this.#at = [row, column];
    const cell = this.#cells[row][column];
    cell.tabIndex = 0;
    cell.focus({ preventScroll: true });
  }

  #key(event) {
    const [q, k] = this.#at;
    const last = this.#cells.length - 1;
    const moves = {
      ArrowUp: [q - 1, k], ArrowDown: [q + 1, k], ArrowLeft: [q, k - 1], ArrowRight: [q, k + 1],
      Home: [q, 0], End: [q, last], PageUp: [0, k], PageDown: [last, k],
    };
    if (moves[event.key]) this.#focus(...moves[event.key]);
    else if (event.key === " " || event.key === "Enter") {
      if (this.#set(q, k, 1 - this.#rows[q][k])) this.#onChange();
    } else return;
    event.preventDefault();
  }

  #cellAt(event) {
    const place = document.elementFromPoint(event.clientX, event.clientY)?.dataset?.place;
    return place === undefined ? null : place.split(" ").map(Number);
  }

  #press(event) {
    const place = this.#cellAt(event);
    if (event.button !== 0 || place === null) return;
    event.preventDefault();
    this.#focus(...place);
    this.#paint = 1 - this.#rows[place[0]][place[1]];
    this.#holder.setPointerCapture(event.pointerId);
    if (this.#set(...place, this.#paint)) this.#onChange();
  }

  #move(event) {
    if (this.#paint === null) return;
    const place = this.#cellAt(event);
    if (place !== null && this.#set(...place, this.#paint)) this.#onChange();
  }

  #release() {
    this.#paint = null;
  }
}

/* Rows of ones and zeros as hex digits; and rows resized to the number of tokens. */
export const toBits = (rows) =>
  "bits:" + rows.join("").replace(/.{1,4}/g, (four) => parseInt(four.padEnd(4, "0"), 2).toString(16));

export const resized = (rows, count) =>
  Array.from({ length: count }, (_, q) =>
    Array.from({ length: count }, (_, k) => rows[q]?.[k] ?? (q === k ? "1" : "0")).join(""));
