// A heat map on a canvas. A cell is selected with the pointer or the arrow keys and described in an output element.
import {make} from "./dom.js";

const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function rgb(color) {
  const hex = color.replace("#", "");
  return [0, 2, 4].map(at => Number.parseInt(hex.slice(at, at + 2), 16));
}

// 64 colours from cold to hot.
function ramp() {
  const stops = ["--heat-0", "--heat-1", "--heat-2"].map(name => rgb(css(name)));
  return Array.from({length: 64}, (_, i) => {
    const at = i / 63 * 2, from = Math.min(1, Math.floor(at)), part = at - from;
    return `rgb(${stops[from].map((channel, c) => Math.round(channel + (stops[from + 1][c] - channel) * part)).join(" ")})`;
  });
}

export class HeatMap {
  // `top`: the value of the hottest colour. `column`: what a column is, such as "expert". `unit`: of the counts.
  // `name`: describes a column of a row; by default its number.
  constructor(canvas, output, {top, column, unit, name = (row, x) => `${column} ${x}`}) {
    Object.assign(this, {canvas, output, top, column, unit, name, rows: [], columns: 0, marks: [], cell: null});
    canvas.addEventListener("pointermove", event => this.pick(this.cellAt(event)));
    canvas.addEventListener("pointerleave", () => this.pick(null));
    canvas.addEventListener("keydown", event => this.key(event));
    canvas.addEventListener("blur", () => this.pick(null));
    new ResizeObserver(() => this.draw()).observe(canvas.parentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  // `rows`: see heatOf. `marks`: columns that begin with a line.
  set(rows, columns, marks = []) {
    Object.assign(this, {rows, columns, marks});
    this.draw();
    this.describe();
  }

  sizes() {
    const labels = 30, width = this.canvas.clientWidth;
    const height = Math.max(5, Math.min(22, Math.round(300 / Math.max(1, this.rows.length))));
    return {labels, width, cell: (width - labels) / Math.max(1, this.columns), height};
  }

  draw() {
    const {canvas, rows} = this;
    if (!canvas.clientWidth || !rows.length) return;
    const {labels, width, cell, height} = this.sizes();
    const scale = devicePixelRatio, axis = 16, total = rows.length * height + axis;
    canvas.style.height = total + "px";
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(total * scale);
    const context = canvas.getContext("2d"), colors = ramp();
    context.scale(scale, scale);
    context.font = "10px system-ui, 'DejaVu Sans', sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "right";
    const gapX = cell >= 6 ? 1 : 0, gapY = height >= 6 ? 1 : 0, quiet = css("--quiet");
    const every = Math.ceil(13 / height);
    rows.forEach((row, y) => {
      context.fillStyle = quiet;
      if (y % every === 0) context.fillText(row.layer, labels - 8, y * height + height / 2);
      row.heat.forEach((value, x) => {
        context.fillStyle = colors[Math.min(63, Math.round(63 * value / this.top))];
        context.fillRect(labels + x * cell, y * height, cell - gapX + (gapX ? 0 : 0.5), height - gapY);
      });
    });
    context.fillStyle = quiet;
    context.textAlign = "center";
    const step = [1, 2, 4, 8, 16, 32, 64, 128].find(each => each * cell >= 26) ?? 256;
    for (let x = 0; x < this.columns; x += step) context.fillText(x, labels + (x + 0.5) * cell, total - axis / 2 + 1);
    for (const x of this.marks) context.fillRect(labels + x * cell - 1, 0, 1, rows.length * height);
    if (this.cell) {
      const [x, y] = this.cell;
      context.strokeStyle = css("--ink");
      context.lineWidth = 1.5;
      context.strokeRect(labels + x * cell - 0.5, y * height - 0.5, cell - gapX + 1, height - gapY + 1);
    }
  }

  cellAt(event) {
    const box = this.canvas.getBoundingClientRect(), {labels, cell, height} = this.sizes();
    const x = Math.floor((event.clientX - box.left - labels) / cell), y = Math.floor((event.clientY - box.top) / height);
    return x >= 0 && x < this.columns && y >= 0 && y < this.rows.length ? [x, y] : null;
  }

  key(event) {
    const move = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[event.key];
    if (!move || !this.rows.length) return;
    event.preventDefault();
    const [x, y] = this.cell ?? [-move[0], -move[1]].map(each => Math.max(0, each));
    const inside = (at, count) => Math.max(0, Math.min(count - 1, at));
    this.pick([inside(x + move[0], this.columns), inside(y + move[1], this.rows.length)]);
  }

  pick(cell) {
    this.cell = cell;
    this.draw();
    this.describe();
  }

  // The selected cell, or the hottest one.
  describe() {
    let cell = this.cell, hottest = -1;
    if (cell && (cell[0] >= this.columns || cell[1] >= this.rows.length)) cell = this.cell = null;
    let best = [0, 0];
    this.rows.forEach((row, y) => row.heat.forEach((value, x) => {
      if (value > hottest) [hottest, best] = [value, [x, y]];
    }));
    if (!this.rows.length) return;
    const text = ([x, y]) => {
      const row = this.rows[y], count = Math.round(row.counts[x]);
      return `layer ${row.layer}, ${this.name(row, x)}: ${row.heat[x].toFixed(2)}× the mean, ${count.toLocaleString("en")} ${this.unit}`;
    };
    const summary = "hottest: " + text(best);
    this.output.textContent = cell ? text(cell) : summary;
    this.canvas.setAttribute("aria-label", `Heat map of ${this.rows.length} layers and ${this.columns} ${this.column}s; ${summary}`);
  }
}

// The legend of a chart's series.
export function showLegend(element, series) {
  element.replaceChildren(...series.map(({name, color}) => {
    const entry = make("span", {}, name);
    entry.style.setProperty("--color", `var(${color})`);
    return entry;
  }));
}
