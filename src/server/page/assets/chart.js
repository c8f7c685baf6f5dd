// Lines over the last five minutes on a canvas.

const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const SPAN_MS = 300_000;

// The end of an axis. `whole`: its half is a whole number.
const niceTop = (value, whole) => {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1e-9)));
  return (whole ? [2, 4, 6, 8, 10, 20] : [1, 1.5, 2, 3, 4, 6, 8, 10]).map(each => each * power).find(each => each >= value * 0.999);
};

export class Chart {
  // `series`: [{name, color}], colours as names of CSS variables. `top`: fixed end of the axis, or null.
  // `least`: least end of the axis. `whole`: values are whole numbers. `format`: of values.
  constructor(canvas, {label, series, top = null, least = 1, whole = false, format}) {
    Object.assign(this, {canvas, label, series, top, least, whole, format, points: [], hover: null});
    canvas.addEventListener("pointermove", event => {
      this.hover = event.clientX - canvas.getBoundingClientRect().left;
      this.draw();
    });
    canvas.addEventListener("pointerleave", () => { this.hover = null; this.draw(); });
    new ResizeObserver(() => this.draw()).observe(canvas.parentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  // `values`: one for each series; null: a gap.
  add(time, values) {
    this.points.push({time, values});
    while (this.points[0].time < time - SPAN_MS) this.points.shift();
    const text = this.series.map(({name}, i) => name + " " + (values[i] === null ? "none" : this.format(values[i]))).join(", ");
    this.canvas.setAttribute("aria-label", `${this.label} over time; now: ${text}`);
    this.draw();
  }

  draw() {
    const {canvas, points} = this, width = canvas.clientWidth, height = canvas.clientHeight;
    if (!width || !points.length) return;
    canvas.width = Math.round(width * devicePixelRatio);
    canvas.height = Math.round(height * devicePixelRatio);
    const context = canvas.getContext("2d");
    context.scale(devicePixelRatio, devicePixelRatio);
    context.font = "10px system-ui, 'DejaVu Sans', sans-serif";
    context.textBaseline = "middle";
    const greatest = Math.max(this.least, ...points.flatMap(point => point.values.map(value => value ?? 0)));
    const top = this.top ?? niceTop(greatest, this.whole);
    // The axis begins with the first point, so that a page that has just opened shows its few points; at least a minute.
    const end = points.at(-1).time, span = Math.min(SPAN_MS, Math.max(60_000, end - points[0].time));
    const box = {left: 34, right: width - 6, top: 8, bottom: height - 16};
    const x = time => box.right - (end - time) / span * (box.right - box.left);
    const y = value => box.bottom - value / top * (box.bottom - box.top);
    context.strokeStyle = css("--line");
    context.fillStyle = css("--quiet");
    context.lineWidth = 1;
    context.textAlign = "right";
    for (const part of [0, 0.5, 1]) {
      const at = Math.round(y(part * top)) + 0.5;
      context.beginPath();
      context.moveTo(box.left, at);
      context.lineTo(box.right, at);
      context.stroke();
      context.fillText(this.format(part * top), box.left - 6, at);
    }
    context.fillText("now", box.right, height - 6);
    context.textAlign = "left";
    context.fillText(span >= 120_000 ? `−${Math.round(span / 60_000)} min` : `−${Math.round(span / 1000)} s`, box.left, height - 6);
    this.series.forEach(({color}, i) => {
      context.strokeStyle = css(color);
      context.fillStyle = css(color);
      context.lineWidth = 2;
      context.lineJoin = "round";
      context.beginPath();
      let open = false;
      for (const {time, values} of points) {
        if (values[i] === null || x(time) < box.left - 2) { open = false; continue; }
        if (open) context.lineTo(x(time), y(values[i]));
        else context.moveTo(x(time), y(values[i]));
        open = true;
      }
      context.stroke();
      const last = points.at(-1).values[i];
      if (last === null) return;
      context.beginPath();
      context.arc(box.right - 1, y(last), 3, 0, 7);
      context.fill();
    });
    if (this.hover !== null && this.hover >= box.left) this.drawHover(context, box, x);
  }

  drawHover(context, box, x) {
    const near = this.points.reduce((best, point) =>
      Math.abs(x(point.time) - this.hover) < Math.abs(x(best.time) - this.hover) ? point : best);
    const at = Math.round(x(near.time)) + 0.5;
    context.strokeStyle = css("--quiet");
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(at, box.top);
    context.lineTo(at, box.bottom);
    context.stroke();
    const text = new Date(near.time).toLocaleTimeString([], {hour12: false}) + "  " + this.series.map(({name}, i) =>
      (this.series.length > 1 ? name + " " : "") + (near.values[i] === null ? "–" : this.format(near.values[i]))).join("  ");
    const wide = context.measureText(text).width + 12;
    const left = Math.max(box.left, Math.min(at - wide / 2, box.right - wide));
    context.fillStyle = css("--surface");
    context.fillRect(left, 0, wide, 17);
    context.strokeRect(Math.round(left) + 0.5, 0.5, wide, 16);
    context.fillStyle = css("--ink");
    context.textAlign = "left";
    context.fillText(text, left + 6, 9);
  }
}
