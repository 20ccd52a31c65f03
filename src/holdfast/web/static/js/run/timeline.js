// The timeline: a row a call, bars for attempts, idle time folded.
import { html, useRef, useState, useLayoutEffect } from "../base.js";
import { clock, coarse, now, plural, span } from "../format.js";
import { go, here, runHref } from "../url.js";
import { useKeys } from "../keys.js";
import { Icon } from "../parts/icons.js";
import { scaleOf, ticksOf, zoomed } from "./bars.js";

const HEIGHT = 35, MANY = 60;
const p = (x) => x.toFixed(2) + "%";
const CLASS = { done: "b-ok", failed: "b-fail", running: "b-run", lost: "b-lost", wait: "b-wait", child: "b-child" };
const ICON = { completed: "completed", failed: "failed", waiting: "suspended", skipped: "suspended", running: "running", cancelled: "cancelled" };

function small(row) {
  if (row.kind === "join" || row.kind === "race") return `${row.kind} of ${row.branches.length}`;
  if (row.kind === "iteration") return plural(row.attempts, "call");
  if (row.kind !== "step") return { message: "message", child: "child", sleep: "sleep", loop: row.note || "loop", send: "sent", publish: "published" }[row.kind];
  return row.attempts > 1 ? plural(row.attempts, "attempt") : "";
}

function said(row, instant) {
  if (row.next && row.status !== "completed" && row.kind === "step") return `attempt ${row.attempts + 1} in ${coarse(row.next - instant)}`;
  if (row.kind === "message") return row.marks.length ? `${row.marks[0].by ? `from ${row.marks[0].by} ` : ""}after ${span(row.marks[0].at - row.begun)}` : row.note || "";
  if (row.kind === "child") return row.status === "running" ? "" : span((row.ended ?? instant) - row.begun);
  if (row.kind === "step") { const bar = row.bars.at(-1); return bar ? (bar.to === null ? coarse(instant - bar.from) : span(bar.to - bar.from)) : ""; }
  if (row.kind === "sleep") return row.ended ? span(row.ended - row.begun) : row.next ? `until ${clock(row.next)}` : "";
  if (row.ended) return span(row.ended - row.begun);
  return "";
}

function describe(row, instant) {
  const tried = row.attempts > 1 ? `, ${plural(row.attempts, "attempt")}` : "";
  return `${row.name}, ${row.kind}, ${row.status}${tried}${said(row, instant) ? ", " + said(row, instant) : ""}`;
}

/** About how many pixels a text of the timeline is wide. */
const wideOf = (text, bold = false) => text.length * (bold ? 6.6 : 6.2);

/** Where the words of a row have room: beside its last bar, before its first, or nowhere. */
function Words({ words, left, right, wide }) {
  const long = wideOf(words) + 8;
  if ((wide * (100 - right)) / 100 > long) return html`<text x=${p(right)} dx="6" y="21.5">${words}</text>`;
  return (wide * left) / 100 > long ? html`<text x=${p(left)} dx="-6" y="21.5" text-anchor="end">${words}</text>` : null;
}

function Bars({ row, scale, instant, wide }) {
  const out = [];
  let right = scale.at(row.begun);
  for (const back of row.backs) out.push(html`<line class="back" x1=${p(scale.at(back.from))} x2=${p(scale.at(back.to ?? instant))} y1="17.5" y2="17.5" />`);
  for (const bar of row.bars) {
    const from = scale.at(bar.from), to = scale.at(bar.to ?? Math.max(instant, bar.from));
    const width = Math.max(to - from, 0.5);
    out.push(html`<rect class=${CLASS[bar.state]} x=${p(from)} y="10.5" width=${p(width)} height="14" rx="3" opacity=${bar.ghost ? 0.45 : undefined} />`);
    if (bar.state === "failed" && !bar.ghost && width > 3) out.push(html`<svg x=${p(from + width / 2)} y="17.5" overflow="visible"><path class="cross" d="M-3.2 -3.2L3.2 3.2M3.2 -3.2L-3.2 3.2" /></svg>`);
    right = Math.max(right, from + width);
  }
  if (["join", "race", "loop"].includes(row.kind) && !row.folded) {
    const from = scale.at(row.begun), to = scale.at(row.ended ?? instant);
    right = to;
    out.push(html`<line class="b-group" x1=${p(from)} x2=${p(to)} y1="17.5" y2="17.5" /><line class="b-group" x1=${p(from)} x2=${p(from)} y1="12.5" y2="22.5" /><line class="b-group" x1=${p(to)} x2=${p(to)} y1="12.5" y2="22.5" />`);
  }
  for (const mark of row.marks) { out.push(html`<svg x=${p(scale.at(mark.at))} y="17.5" overflow="visible"><path class="msg" d="M0 -7L7 0L0 7L-7 0Z" /></svg>`); right = Math.max(right, scale.at(mark.at) + 0.8); }
  const words = said(row, instant);
  if (row.next && row.kind === "step" && row.status !== "completed") {
    const x = scale.at(row.next);
    out.push(html`<rect class="b-next" x=${p(x)} y="10.5" width="1.4%" height="14" rx="3" />`);
    if (words && (wide * (x - right)) / 100 > wideOf(words, true) + 14) out.push(html`<text class="s" x=${p(x)} dx="-8" y="14" text-anchor="end">${words}</text>`);
  } else if (words) {
    out.push(html`<${Words} words=${words} left=${scale.at(row.begun)} right=${right} wide=${wide} />`);
  }
  return html`<svg aria-hidden="true">${out}</svg>`;
}

const mark = (row) => "s-" + ({ waiting: "suspended", skipped: "suspended" }[row.status] ?? row.status);

function Row({ row, scale, instant, selected, flip, wide }) {
  if (row.kind === "more") return html`<div class="row more" role="listitem"><button class="name linklike" style=${{ "--d": row.depth }} onClick=${() => flip(row.key)}>${row.name}…</button></div>`;
  if (row.ghost) return html`<div class="row ghost" role="listitem"><span class="name"><span class=${mark(row)}><${Icon} name=${ICON[row.status] ?? row.status} /></span><code title=${row.path}>${row.name}</code><small>${small(row)}</small><span class="vh">${describe(row, instant)}</span></span><${Bars} row=${row} scale=${scale} instant=${instant} wide=${wide} /></div>`;
  return html`<div class=${"row" + (selected ? " sel" : "")} role="listitem" data-path=${row.path}>
    ${row.folds && html`<button class="caret" style=${{ "--d": row.depth }} aria-expanded=${!row.folded} aria-label=${(row.folded ? "Unfold " : "Fold ") + row.name} onClick=${() => flip(row.path)}><${Icon} name=${row.folded ? "right" : "down"} /></button>`}
    <a class="name" style=${{ "--d": row.depth }} href=${row.child ? runHref(row.child) : row.kind === "iteration" ? here({}) : here({ step: row.path })} data-replace=${row.child ? undefined : ""} onClick=${row.kind === "iteration" ? (e) => { e.preventDefault(); flip(row.path); } : undefined} aria-current=${selected ? "true" : undefined} aria-label=${describe(row, instant)}><span class=${mark(row)}><${Icon} name=${ICON[row.status] ?? row.status} /></span><code title=${row.path}>${row.name}</code><small>${small(row)}</small></a>
    <${Bars} row=${row} scale=${scale} instant=${instant} wide=${wide} /></div>`;
}

const KEY = [["b-ok", "done"], ["b-fail", "failed"], ["b-run", "running"], ["b-lost", "lost with its worker"], ["back", "waiting to try again"], ["b-wait", "waiting"], ["msg", "message"], ["b-child", "child"], ["b-next", "planned"], ["was", "cut away"]];

function Key({ rows }) {
  const used = new Set(rows.flatMap((row) => [...row.bars.map((bar) => CLASS[bar.state]), row.backs.length && "back", row.marks.length && "msg", row.next && "b-next", row.bars.some((bar) => bar.ghost) && "was"]));
  return html`<div class="key">${KEY.filter(([each]) => used.has(each)).map(([each, word]) => html`<span><svg aria-hidden="true">${each === "back" ? html`<line class="back" x1="0" x2="20" y1="5" y2="5" />` : each === "msg" ? html`<path class="msg" d="M10 0L15 5L10 10L5 5Z" />` : html`<rect class=${each === "was" ? "b-fail" : each} opacity=${each === "was" ? 0.45 : undefined} x="1" y="0.7" width="18" height="8.6" rx="2.5" />`}</svg>${word}</span>`)}</div>`;
}

/** The words of the axis that have room, in pixels: the first instant, how long folded stretches were, and then the rest. */
function labelsOf(ticks, folds, here, wide) {
  const px = (x) => (x * wide) / 100;
  const taken = here === null ? [] : [[px(here) - 19, px(here) + 19]];
  const out = [];
  const put = (text, wanted, fold = false) => {
    const long = wideOf(text, fold);
    const fits = (x) => x >= -2 && x + long <= wide && taken.every(([from, to]) => x + long + 7 < from || x - 7 > to);
    // A fold that ends at the mark of now says its length before it.
    const besides = fold && here !== null && Math.abs(wanted(long) + long / 2 - px(here)) < long / 2 + 26;
    const at = [wanted(long), ...(besides ? [px(here) - 27 - long] : [])].find(fits);
    if (at === undefined) return;
    taken.push([at, at + long]);
    out.push({ x: at, text, fold });
  };
  const [first, ...rest] = ticks.map((tick) => [tick.since ? "+" + coarse2(tick.since) : clock(tick.at), (long) => px(tick.x) - (tick.since ? long / 2 : 0), !tick.since]);
  if (first) put(first[0], first[1]);
  for (const each of folds) put(coarse(each.to - each.from), (long) => px(each.x + each.width / 2) - long / 2, true);
  for (const [text, wanted] of [...rest.filter((each) => each[2]), ...rest.filter((each) => !each[2])]) put(text, wanted);
  return out;
}

const LEAST = 0.5;

/** A stretch of the scale as the address says it, and how it is changed. */
function useZoom(given) {
  const read = (given ?? "").match(/^(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)$/);
  const zoom = read && Number(read[2]) - Number(read[1]) >= LEAST && Number(read[2]) <= 100 ? [Number(read[1]), Number(read[2])] : null;
  const set = (from, to) => {
    const wide = Math.max(LEAST, Math.min(100, to - from));
    const left = Math.max(0, Math.min(100 - wide, from));
    go(here({ zoom: wide > 99 ? null : `${+left.toFixed(2)}-${+(left + wide).toFixed(2)}` }), { replace: true });
  };
  const [from, to] = zoom ?? [0, 100];
  const by = (factor, at = 0.5) => { const wide = (to - from) * factor, middle = from + (to - from) * at; set(middle - wide * at, middle + wide * (1 - at)); };
  const move = (share) => { const far = (to - from) * share; set(from + far, to + far); };
  return { zoom, choose: (a, b) => set(from + (to - from) * a, from + (to - from) * b), by, move, reset: () => set(0, 100) };
}

export function Timeline({ rows: own, ghosts, all, head, fold, selected, partial, zoom: given, flip }) {
  const rows = ghosts.length ? [...own, ...ghosts] : own;
  const open = !head.ended_at;
  const instant = open ? now.value : Date.parse(head.ended_at);
  const { zoom, choose, by, move, reset } = useZoom(given);
  const plain = scaleOf([...all, ...ghosts], { begin: Date.parse(head.created_at), now: instant, open, fold });
  const scale = zoom ? zoomed(plain, zoom) : plain;
  const [drag, setDrag] = useState(null);
  const axis = useRef(null);
  const share = (event) => { const area = axis.current.getBoundingClientRect(); return Math.max(0, Math.min(1, (event.clientX - area.left) / area.width)); };
  const down = (event) => { if (event.button === 0) { event.currentTarget.setPointerCapture(event.pointerId); setDrag([share(event), share(event)]); } };
  const up = (event) => { if (drag) { const [a, b] = [drag[0], share(event)].sort((one, other) => one - other); setDrag(null); if (b - a > 0.01) choose(a, b); } };
  useLayoutEffect(() => {
    // Wheel events that are to be kept from scrolling must be listened to by hand.
    const wheel = (event) => { if (!event.ctrlKey && !event.metaKey) return; event.preventDefault(); by(event.deltaY > 0 ? 1.25 : 0.8, share(event)); };
    const box = axis.current.closest(".tl");
    box.addEventListener("wheel", wheel, { passive: false });
    return () => box.removeEventListener("wheel", wheel);
  });
  useKeys({ "+": () => by(0.6), "-": () => by(1 / 0.6), 0: reset, arrowleft: () => zoom && move(-0.25), arrowright: () => zoom && move(0.25) });
  const here = open ? scale.at(instant) : null;
  const ticks = ticksOf(scale);
  const [wide, measure] = useState(760);
  useLayoutEffect(() => {
    const watch = new ResizeObserver(([entry]) => measure(Math.round(entry.contentRect.width)));
    watch.observe(axis.current);
    return () => watch.disconnect();
  }, []);
  const inside = (x, more = 0) => x + more > 0 && x < 100;
  const folds = scale.folds.filter((each) => inside(each.x, each.width));
  const labels = labelsOf(ticks, folds, open && inside(here) ? here : null, wide);
  const box = useRef(null);
  const [top, scroll] = useState(0);
  const windowed = rows.length > MANY;
  const first = windowed ? Math.max(0, Math.floor(top / HEIGHT) - 10) : 0;
  const shown = windowed ? rows.slice(first, first + 50) : rows;
  useLayoutEffect(() => {
    if (!windowed || !selected) return;
    const at = rows.findIndex((row) => row.path === selected) * HEIGHT;
    if (at >= 0 && box.current && (at < box.current.scrollTop || at > box.current.scrollTop + box.current.clientHeight - HEIGHT)) box.current.scrollTop = at - 100;
  }, [selected, windowed]);
  const undoing = own.findIndex((row) => row.undoing);
  const list = (from, to) => shown.slice(Math.max(0, from - first), Math.max(0, to - first)).map((row) => html`<${Row} key=${row.key ?? row.path} row=${row} scale=${scale} instant=${instant} selected=${row.path === selected} flip=${flip} wide=${wide} />`);
  return html`<div class=${"tl" + (zoom ? " zoomed" : "")}><svg class="defs" aria-hidden="true"><defs><pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect class="h1" width="7" height="7" /><line class="h2" x1="0" y1="0" x2="0" y2="7" stroke-width="2" /></pattern><pattern id="lost" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect class="h3" width="5" height="5" /><line class="h4" x1="0" y1="0" x2="0" y2="5" stroke-width="2" /></pattern></defs></svg>
    <div class="axis"><span>Call</span><svg role="presentation" ref=${axis} onPointerDown=${down} onPointerMove=${(e) => drag && setDrag([drag[0], share(e)])} onPointerUp=${up} onPointerCancel=${() => setDrag(null)} onDblClick=${reset}>${labels.map((each) => html`<text class=${each.fold ? "s fold" : ""} x=${each.x.toFixed(1)} y="20">${each.text}</text>`)}
      ${drag && html`<rect class="brush" x=${p(100 * Math.min(...drag))} width=${p(100 * Math.abs(drag[1] - drag[0]))} y="0" height="32" />`}
      ${open && inside(here) && html`<svg x=${p(scale.at(instant))} overflow="visible"><rect class="nowbox" x="-17" y="7" width="34" height="18" rx="9" /><text class="nowtext" x="0" y="20" text-anchor="middle">now</text></svg>`}</svg></div>
    ${partial && html`<p class="partial">${partial}</p>`}
    <div class=${"rows" + (windowed ? " windowed" : "")} ref=${box} onScroll=${windowed ? (e) => scroll(e.target.scrollTop) : undefined} tabindex=${windowed ? 0 : undefined} role=${windowed ? "region" : undefined} aria-label=${windowed ? "Calls" : undefined}>
      <svg class="grid" aria-hidden="true">${folds.map((each) => html`<rect class="f" x=${p(each.x)} y="0" width=${p(each.width)} height="100%" />`)}${ticks.map((tick) => html`<line x1=${p(tick.x)} x2=${p(tick.x)} y1="0" y2="100%" />`)}${open && inside(here) && html`<line class="now" x1=${p(scale.at(instant))} x2=${p(scale.at(instant))} y1="0" y2="100%" />`}</svg>
      <div role="list" aria-label="What happened when" style=${windowed ? { height: rows.length * HEIGHT + "px", paddingTop: first * HEIGHT + "px" } : undefined}>
        ${undoing < 0 ? list(0, own.length) : html`${list(0, undoing)}${!windowed && html`<div class="undoline" role="presentation">undoing</div>`}${list(undoing, own.length)}`}${ghosts.length > 0 && html`${!windowed && html`<div class="undoline past" role="presentation">before it went on, and not since</div>`}${list(own.length, rows.length)}`}</div></div>
    <div class="keyline"><${Key} rows=${[...all, ...ghosts]} /><span class="zoom" role="group" aria-label="Zoom of the timeline">${zoom && html`<button class="btn small quiet" onClick=${reset}>Whole run</button>`}<button class="icon" aria-label="Zoom in" title="Zoom in: +, or drag along the times" onClick=${() => by(0.6)}><${Icon} name="plus" /></button><button class="icon" aria-label="Zoom out" title="Zoom out: -" disabled=${!zoom} onClick=${() => by(1 / 0.6)}><${Icon} name="minus" /></button></span></div></div>`;
}

const coarse2 = (millis) => (millis < 1000 ? millis + " ms" : millis < 60_000 && millis % 1000 ? (millis / 1000).toFixed(1) + " s" : coarse(millis));
