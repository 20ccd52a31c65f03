// The graph of a run: which steps follow which, each with what became of it, and of coded workflows the tree of calls.
import { html, useEffect, useMemo } from "../base.js";
import { get, usePicture } from "../api.js";
import { here, runHref } from "../url.js";
import { number, plural } from "../format.js";
import { drawing, Icon } from "../parts/icons.js";
import { Copy, statusWord } from "../parts/show.js";
import { Part } from "./tabs.js";

const WIDE = 176, HIGH = 40, ACROSS = 34, DOWN = 44;

/** Layers from top to bottom: a step lies below all that it follows; within a layer near to those. */
export function layersOf(nodes, edges) {
  const before = new Map(nodes.map((name) => [name, []]));
  for (const [from, to] of edges) if (before.has(from) && before.has(to) && from !== to) before.get(to).push(from);
  const rank = new Map();
  const going = new Set();
  const rankOf = (name) => {
    // Without recursion: a graph may be as deep as it has steps.
    const stack = [name];
    while (stack.length) {
      const top = stack.at(-1);
      if (rank.has(top)) { stack.pop(); continue; }
      going.add(top);
      const open = before.get(top).filter((each) => !rank.has(each) && !going.has(each));
      if (open.length) { stack.push(...open); continue; }
      rank.set(top, Math.max(-1, ...before.get(top).map((each) => rank.get(each) ?? -1)) + 1);
      going.delete(top);
      stack.pop();
    }
  };
  nodes.forEach(rankOf);
  const layers = [];
  for (const name of nodes) (layers[rank.get(name)] ??= []).push(name);
  const place = new Map();
  layers.forEach((layer, depth) => {
    const middle = (name) => { const above = before.get(name).filter((each) => place.has(each)); return above.length ? above.reduce((sum, each) => sum + place.get(each), 0) / above.length : layer.indexOf(name); };
    if (depth) layer.sort((a, b) => middle(a) - middle(b));
    layer.forEach((name, i) => place.set(name, i - (layer.length - 1) / 2));
  });
  return layers;
}

const cut = (text) => (text.length > 21 ? text.slice(0, 20) + "…" : text);
const tone = (status) => ({ waiting: "suspended", skipped: "suspended" })[status] ?? status;
/** How far a step says it is, in a few words. */
const progressed = (value) => { const said = value === null || value === undefined ? "" : typeof value === "object" ? Object.values(value).filter((each) => typeof each !== "object").map(String).join(" ") : typeof value === "number" && value <= 1 && value >= 0 ? Math.round(value * 100) + " %" : String(value); return said.length > 12 ? said.slice(0, 11) + "…" : said; };

/** Nodes and the lines between them. A node is few elements, and all lines are one: a graph may have hundreds of steps. */
function Drawing({ graph, selected }) {
  const drawn = useMemo(() => {
    const layers = layersOf(graph.nodes.map((each) => each.name), graph.edges.map((each) => [each.before, each.after]));
    const most = Math.max(1, ...layers.map((layer) => layer.length));
    const at = new Map();
    layers.forEach((layer, y) => layer.forEach((name, x) => at.set(name, [12 + (x + (most - layer.length) / 2) * (WIDE + ACROSS), 12 + y * (HIGH + DOWN)])));
    let lines = "", tips = "";
    for (const { before, after } of graph.edges) {
      if (before === after || !at.has(before) || !at.has(after)) continue;
      const [x1, y1] = at.get(before), [x2, y2] = at.get(after);
      const a = x1 + WIDE / 2, b = y1 + HIGH, c = x2 + WIDE / 2, d = y2 - 7;
      lines += `M${a} ${b}C${a} ${b + DOWN / 2} ${c} ${d - DOWN / 2} ${c} ${d}`;
      tips += `M${c - 4} ${d - 1}h8l-4 7z`;
    }
    return { at, lines, tips, width: 24 + most * (WIDE + ACROSS) - ACROSS, height: 24 + layers.length * (HIGH + DOWN) - DOWN };
  }, [graph]);
  return html`<div class="graph" tabindex="0" role="group" aria-label=${`Graph of ${plural(graph.nodes.length, "step")}`}><svg width=${drawn.width} height=${drawn.height} viewBox=${`0 0 ${drawn.width} ${drawn.height}`}>
    <path class="edge" d=${drawn.lines} /><path class="tip" d=${drawn.tips} />
    ${graph.nodes.map(({ name, status, path, attempts, progress }) => { const [x, y] = drawn.at.get(name); const far = status === "running" ? progressed(progress) : attempts > 1 ? attempts + "×" : ""; const said = `${name}, ${path ? statusWord(status) : "not called yet"}${attempts > 1 ? `, ${plural(attempts, "attempt")}` : ""}${status === "running" && far ? ", " + far : ""}`; return html`<a key=${name} class=${"node s-" + tone(status) + (path ? "" : " none") + (path && path === selected ? " sel" : "")} transform=${`translate(${x} ${y})`} href=${path ? here({ tab: null, step: path }) : undefined} role=${path ? undefined : "img"} aria-label=${said}>${name.length > 21 && html`<title>${name}</title>`}<rect width=${WIDE} height=${HIGH} rx="9" /><path class="icon" transform="translate(10 12)" d=${drawing(path ? tone(status) : "pending")} /><text x="33" y="25">${cut(name)}${far && html`<tspan class="far" x=${WIDE - 8} text-anchor="end">${far}</tspan>`}</text></a>`; })}</svg></div>`;
}

const MOST_CALLS = 200;
const NAMED = { iteration: "iteration", loop: "loop", join: "join", race: "race", message: "message", child: "child", sleep: "sleep", send: "sent", publish: "published" };

/** What the code has called, as a tree: branches, loops and what was called in them. */
function Calls({ rows, selected, flip }) {
  const shown = rows.slice(0, MOST_CALLS);
  return html`<ul class="calls" aria-label="Calls of this run, as a tree">${shown.map((row) => html`<li key=${row.path} style=${{ "--d": row.depth }} class=${row.path === selected ? "sel" : ""}>${row.kind === "more" ? html`<button class="linklike" onClick=${() => flip(row.key)}>${row.name}…</button>` : html`<span class=${"s-" + tone(row.status)}><${Icon} name=${tone(row.status)} /></span><a href=${row.child ? runHref(row.child) : here({ tab: null, step: row.path })}><code>${row.name}</code></a>${NAMED[row.kind] && row.kind !== "iteration" && html`<span class="dim">${NAMED[row.kind]}</span>`}${row.attempts > 1 && row.kind === "step" && html`<span class="dim">${plural(row.attempts, "attempt")}</span>`}${row.note && html`<span class="dim">${row.note}</span>`}<span class="vh">${statusWord(row.status)}</span>${row.folds && html`<button class="linklike" aria-expanded=${!row.folded} onClick=${() => flip(row.path)}>${row.folded ? "unfold" : "fold"}<span class="vh"> ${row.name}</span></button>`}`}</li>`)}</ul>${rows.length > MOST_CALLS && html`<p class="empty">The first ${number(MOST_CALLS)} of ${number(rows.length)} calls; History has all.</p>`}`;
}

export function Graph({ id, entries, rows, selected, flip }) {
  const graph = usePicture("graph " + id, (signal) => get(`/runs/${encodeURIComponent(id)}/graph`, { signal }));
  useEffect(() => { if (graph.data) graph.reload(); }, [entries]);
  const data = graph.data;
  return html`<${Part} picture=${graph} empty=${data && !data.nodes.length && !rows.length && "It has called nothing yet."}>${data && html`${data.nodes.length > 0 && html`<div class="ptitle"><h2>${data.declared ? "As it is declared" : "Which step followed which"}</h2><span class="dim"><b class="num">${number(data.done)}</b> of ${plural(data.nodes.length, "step")} done<${Bar} done=${data.done} of=${data.nodes.length} /></span><span class="end"><${Copy} text=${data.mermaid} what="Mermaid">Copy as Mermaid<//></span></div>
    ${data.partial && html`<p class="partial">Of its first facts: it has more than are looked at here.</p>`}<${Drawing} graph=${data} selected=${selected} />`}
    ${!data.declared && html`<div class="ptitle over"><h2>Calls, as a tree</h2></div><${Calls} rows=${rows} selected=${selected} flip=${flip} />`}`}<//>`;
}

const Bar = ({ done, of }) => html`<svg class="share" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true"><rect class="all" width="100" height="6" rx="3" /><rect class="part" width=${(100 * done) / of} height="6" rx="3" /></svg>`;
