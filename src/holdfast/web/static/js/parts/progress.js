// How far runs have come: asked for those that are shown, and again for those that are not over.
import { html, signal, useEffect } from "../base.js";
import { get, Problem } from "../api.js";
import { number, plural } from "../format.js";

const MOST = 50, LONGEST = 6000, SEGMENTS = 12;
const known = signal(new Map());

/** Ids in groups that fit into an address. */
function* groups(ids) {
  let group = [], long = 0;
  for (const id of ids) {
    if (group.length === MOST || long + id.length > LONGEST) { yield group; group = []; long = 0; }
    group.push(id);
    long += id.length + 5;
  }
  if (group.length) yield group;
}

async function read(heads, signal) {
  const ended = new Map(heads.map((head) => [head.id, head.ended_at]));
  for (const ids of groups(ended.keys())) {
    const found = await get("/progress", { params: { run: ids }, signal });
    const all = new Map([...known.value].slice(-500));
    for (const each of found.items) all.set(each.run, { ...each, ended: ended.get(each.run) });
    known.value = all;
  }
}

/** Keep the progress of runs up to date while they are shown. */
export function useProgress(heads, wanted) {
  useEffect(() => {
    if (!wanted) return undefined;
    const abort = new AbortController();
    const stale = heads.filter((head) => !head.ended_at || known.value.get(head.id)?.ended !== head.ended_at);
    if (stale.length) read(stale, abort.signal).catch((error) => { if (!abort.signal.aborted && !(error instanceof Problem)) throw error; });
    return () => abort.abort();
  }, [heads, wanted]);
}

/** One segment a step, in the order of what became of them; many steps are one bar. */
export function Progress({ head }) {
  const of = known.value.get(head.id);
  if (!of) return null;
  const undoing = head.status === "compensating";
  const called = of.done + of.failed + of.running + of.waiting;
  const all = Math.max(of.total ?? 0, called);
  if (!all) return html`<span class="small">${undoing ? `${number(of.undone)} undone` : "no steps yet"}</span>`;
  const open = { paused: "p", blocked: "k" }[head.status] ?? "w";
  const parts = [[undoing ? "u" : "c", undoing ? of.undone : of.done], ["c", undoing ? of.done - of.undone : 0], ["f", of.failed], ["r", of.running], [open, of.waiting], ["", all - called]].filter(([, n]) => n > 0);
  const segments = all <= SEGMENTS ? parts.flatMap(([kind, n]) => Array.from({ length: n }, () => html`<i class=${kind} />`)) : parts.map(([kind, n]) => html`<i class=${kind + " part"} style=${{ flexGrow: String(n) }} />`);
  const said = (undoing ? `${number(of.undone)} undone` : of.done === all ? plural(all, "step") : `${number(of.done)} of ${plural(all, "step")}`) + (of.partial ? ", or more" : "");
  return html`<div class="prog" aria-hidden="true">${segments}</div><span class="small">${said}</span>`;
}
