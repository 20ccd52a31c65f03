// The graph of a workflow: which steps follow which, each with what became of it in this run.
import { html, useMemo } from "../base.js";
import { get, usePicture } from "../api.js";
import { here } from "../url.js";
import { number, plural } from "../format.js";
import { Icon } from "../parts/icons.js";
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

const cut = (text) => (text.length > 22 ? text.slice(0, 21) + "…" : text);

export const mermaid = (graph) => { const ids = new Map(graph.nodes.map((each, i) => [each.name, "n" + i])); const safe = (text) => text.replaceAll("&", "&amp;").replaceAll('"', "&quot;").replaceAll("<", "&lt;").replaceAll(">", "&gt;"); return ["flowchart TD", ...graph.nodes.map((each) => `    ${ids.get(each.name)}["${safe(each.name)}"]`), ...graph.edges.map((each) => `    ${ids.get(each.before)} --> ${ids.get(each.after)}`)].join("\n") + "\n"; };

function Drawing({ graph, steps, selected }) {
  const drawn = useMemo(() => {
    const layers = layersOf(graph.nodes.map((each) => each.name), graph.edges.map((each) => [each.before, each.after]));
    const most = Math.max(1, ...layers.map((layer) => layer.length));
    const at = new Map();
    layers.forEach((layer, y) => layer.forEach((name, x) => at.set(name, [12 + (x + (most - layer.length) / 2) * (WIDE + ACROSS), 12 + y * (HIGH + DOWN)])));
    return { at, width: 24 + most * (WIDE + ACROSS) - ACROSS, height: 24 + layers.length * (HIGH + DOWN) - DOWN };
  }, [graph]);
  const by = new Map();
  for (const step of steps) if (!step.compensation) by.set(step.name, step);
  return html`<div class="graph" tabindex="0" role="group" aria-label=${`Graph of ${plural(graph.nodes.length, "step")}`}><svg width=${drawn.width} height=${drawn.height} viewBox=${`0 0 ${drawn.width} ${drawn.height}`}>
    <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path class="tip" d="M0 0L8 4L0 8z" /></marker></defs>
    ${graph.edges.filter((each) => each.before !== each.after).map((each) => { const [x1, y1] = drawn.at.get(each.before), [x2, y2] = drawn.at.get(each.after); const a = x1 + WIDE / 2, b = y1 + HIGH, c = x2 + WIDE / 2, d = y2 - 2; return html`<path class="edge" d=${`M${a} ${b}C${a} ${b + DOWN / 2} ${c} ${d - DOWN / 2} ${c} ${d}`} marker-end="url(#arrow)" />`; })}
    ${graph.nodes.map(({ name, runs }) => { const [x, y] = drawn.at.get(name); const step = by.get(name); const status = step?.status ?? "pending"; const tone = { waiting: "suspended", skipped: "suspended" }[status] ?? status; return html`<a href=${step ? here({ tab: null, step: step.path }) : undefined} aria-label=${`${name}, ${step ? statusWord(status) : "not called yet"}`}><g class=${"node s-" + tone + (step ? "" : " none") + (step && step.path === selected ? " sel" : "")} transform=${`translate(${x} ${y})`}><title>${name}${!graph.declared ? `, in ${number(runs)} of ${number(graph.runs)} runs` : ""}</title><rect width=${WIDE} height=${HIGH} rx="9" /><svg x="10" y="12" width="16" height="16"><${Icon} name=${step ? tone : "pending"} /></svg><text x="33" y="25">${cut(name)}</text></g></a>`; })}</svg></div>`;
}

export function Graph({ workflow, steps, selected }) {
  const graph = usePicture("graph " + workflow, (signal) => get("/graph", { params: { workflow }, signal }));
  const data = graph.data;
  const names = new Set(data?.nodes.map((each) => each.name) ?? []);
  const done = new Set(steps.filter((each) => each.status === "completed" && names.has(each.name)).map((each) => each.name)).size;
  return html`<${Part} picture=${graph} empty=${data && !data.nodes.length && "It has called no step yet."}>${data && html`<div class="ptitle"><h2>${data.declared ? "As it is declared" : `As its newest ${plural(data.runs, "run")} went`}</h2><span class="dim">${number(done)} of ${plural(data.nodes.length, "step")} done in this run</span><span class="end"><${Copy} text=${mermaid(data)} what="Mermaid">Copy as Mermaid<//></span></div><${Drawing} graph=${data} steps=${steps} selected=${selected} />`}<//>`;
}
