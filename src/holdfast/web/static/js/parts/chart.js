// Bars over time: what ended, and of it what failed; a stretch is chosen by dragging, or by the arrow keys.
import { html, useRef, useState } from "../base.js";
import { absolute, clock, number, plural } from "../format.js";

const HEIGHT = 70, ROOM = 18; // above the bars, for what stands beside them: the legend, and how far back they go

/** Bars of figures by time. `choose(from, until)` is called with the instants of a stretch. */
export function Bars({ figures, choose, note, height = HEIGHT, children }) {
  const box = useRef(null);
  const [brush, setBrush] = useState(null);
  const items = figures?.items ?? [];
  const many = items.length;
  const sums = items.map((each) => each.completed + each.failed + each.cancelled);
  const top = Math.max(1, ...sums);
  const wide = 100 / Math.max(1, many);
  const starts = items.map((each) => Date.parse(each.at));
  const end = (i) => starts[i + 1] ?? starts[i] + (figures.slot ?? 60) * 1000;
  const place = (event) => { const area = box.current.getBoundingClientRect(); return Math.max(0, Math.min(many - 1, Math.floor(((event.clientX - area.left) / area.width) * many))); };
  const done = (from, to) => { setBrush(null); choose(starts[Math.min(from, to)], end(Math.max(from, to))); };
  const down = (event) => {
    if (event.button !== 0 || !many || !choose) return;
    event.currentTarget.setPointerCapture(event.pointerId);
    setBrush({ from: place(event), to: place(event), dragging: true });
  };
  const move = (event) => { if (brush?.dragging) setBrush({ ...brush, to: place(event) }); };
  const up = (event) => { if (brush?.dragging) done(brush.from, place(event)); };
  const key = (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by && many && choose) {
      event.preventDefault();
      event.stopPropagation();
      const to = Math.max(0, Math.min(many - 1, (brush?.to ?? (by > 0 ? -1 : many)) + by));
      setBrush({ from: event.shiftKey && brush ? brush.from : to, to, dragging: false });
    } else if (event.key === "Enter" && brush) { event.preventDefault(); done(brush.from, brush.to); }
    else if (event.key === "Escape" && brush) { event.stopPropagation(); setBrush(null); }
  };
  const [a, b] = brush ? [Math.min(brush.from, brush.to), Math.max(brush.from, brush.to)] : [0, -1];
  const inside = items.slice(a, b + 1);
  const count = (list, name) => list.reduce((n, each) => n + each[name], 0);
  const all = (list) => count(list, "completed") + count(list, "failed") + count(list, "cancelled");
  const said = brush ? `${absolute(starts[a])} to ${absolute(end(b))}: ${plural(all(inside), "run")} ended, ${number(count(inside, "failed"))} failed` : "";
  const label = `Runs that ended${note ? " " + note : ""}: ${number(all(items))}, of them ${number(count(items, "failed"))} failed${choose ? ". Arrow keys choose a bar, with shift a stretch, Enter shows its runs" : ""}`;
  const marks = many ? [0, 1, 2, 3, 4, 5].map((i) => (i < 5 ? clock(starts[Math.floor((i * many) / 5)]).replace(/^(\d\d:\d\d):\d\d$/, "$1") : "now")) : [];
  if (figures && Date.parse(figures.until) < end(many - 1) - 2 * (figures.slot ?? 0) * 1000) marks[5] = clock(figures.until);
  return html`<div class="hist"><svg class="bars" ref=${box} role=${choose ? "application" : "img"} aria-label=${label} tabindex=${choose ? 0 : undefined} style=${{ height: height + "px" }} onPointerDown=${down} onPointerMove=${move} onPointerUp=${up} onPointerCancel=${() => setBrush(null)} onKeyDown=${key} onBlur=${() => setBrush(null)}>
      ${items.map((each, i) => { const x = i * wide + wide * 0.1, tall = (height - ROOM) * (sums[i] / top), bad = sums[i] ? tall * (each.failed / sums[i]) : 0; return html`${tall > 0 && html`<rect class="ok" x=${x.toFixed(2) + "%"} y=${(height - tall).toFixed(1)} width=${(wide * 0.8).toFixed(2) + "%"} height=${(tall - bad).toFixed(1)} rx="1" />`}${bad > 0 && html`<rect class="bad" x=${x.toFixed(2) + "%"} y=${(height - Math.max(bad, 1.5)).toFixed(1)} width=${(wide * 0.8).toFixed(2) + "%"} height=${Math.max(bad, 1.5).toFixed(1)} rx="1" />`}`; })}
      <line class="base" x1="0" x2="100%" y1=${height - 0.5} y2=${height - 0.5} />
      ${brush && html`<rect class="brush" x=${(a * wide).toFixed(2) + "%"} y="0" width=${((b - a + 1) * wide).toFixed(2) + "%"} height=${height} rx="3" />`}</svg>
    <div class="axis" aria-hidden="true">${marks.map((each) => html`<span>${each}</span>`)}</div>
    <div class="legend">${brush ? html`<span>${said}</span>` : html`<span><i class="i-ok"></i>ended${note && html` <span class="note">${note}</span>`}</span><span><i class="i-bad"></i>failed</span>`}${children}</div>
    ${choose && html`<span class="vh" role="status">${said}</span>`}</div>`;
}

/** How far back figures may go, in milliseconds. */
export const SPANS = { "1h": 3600e3, "24h": 86400e3, "7d": 7 * 86400e3, "30d": 30 * 86400e3 };

/** Figures that go back from now, as what is read and as what is watched: many pages that show the same are one look. */
export const figuresView = ({ by, last, workflow }) => `figures?by=${by}${last === "24h" ? "" : `&last=PT${SPANS[last] / 1000}S`}${workflow ? "&workflow=" + encodeURIComponent(workflow) : ""}`;

const UNITS = { s: 1e3, min: 60e3, m: 60e3, h: 3600e3, d: 86400e3, w: 604800e3 };

/** An instant as a filter says it: -24h, a date, a time; null for what is none. */
export function instantOf(text, now) {
  const ago = text.match(/^-(\d+)(s|min|m|h|d|w)$/);
  if (ago) return now - Number(ago[1]) * UNITS[ago[2]];
  const at = Date.parse(text);
  return Number.isNaN(at) ? null : at;
}

/** An instant in a filter: in UTC, to the minute where it is one. */
export const written = (at) => new Date(at).toISOString().replace(/(:00)?\.000Z$/, "Z");
