// The runs that a run started, and theirs: a tree, each with its status and why it is where it is.
import { html, useEffect, useState } from "../base.js";
import { get, usePicture } from "../api.js";
import { useLivePicture } from "../live.js";
import { number, plural, zoneName } from "../format.js";
import { href } from "../url.js";
import { Icon } from "../parts/icons.js";
import { changed } from "../parts/sheet.js";
import { RunLink, Sentence, Status, Time, Wide } from "../parts/show.js";
import { Part } from "./tabs.js";

const DEEPEST = 10, SMALL = 40, MOST = 150;

/** Rows of a tree that are shown: what is below a row that is folded is not. A small tree is open by itself. */
export function shownOf(items, flipped) {
  const open = items.length <= SMALL, out = [];
  let below = Infinity;
  items.forEach((each, i) => {
    if (each.depth > below) return;
    below = Infinity;
    const folds = items[i + 1]?.depth > each.depth;
    const folded = folds && flipped.has(each.head.id) === open;
    if (folded) below = each.depth;
    out.push({ ...each, folds, folded });
  });
  return out;
}

export function Children({ id }) {
  const view = `run/${id}/children?depth=${DEEPEST}`;
  const page = usePicture(`children ${id} ${zoneName()}`, (signal) => get(`/runs/${encodeURIComponent(id)}/children`, { params: { depth: DEEPEST }, sentences: true, signal }));
  useLivePicture(view, page);
  useEffect(() => { if (changed.value) page.reload(); }, [changed.value]);
  const [flipped, setFlipped] = useState(new Set());
  const [most, show] = useState(MOST);
  const flip = (each) => setFlipped((known) => { const other = new Set(known); if (!other.delete(each)) other.add(each); return other; });
  const items = page.data?.items ?? [];
  const rows = shownOf(items, flipped);
  const all = href("/runs", { q: `parent:${/^[\w.@-]+$/.test(id) ? id : JSON.stringify(id)}` });
  return html`<${Part} picture=${page} empty=${!items.length && "It has no children. `ctx.child(workflow, ...)` starts one."}><div class="ptitle"><h2>${plural(items.length, "run")}${page.data?.more ? " and more" : ""}</h2><span class="end"><a class="btn small quiet" href=${all}>As a list</a></span></div><${Wide}><table class="tbl"><caption class="vh">Children, each below its parent</caption><thead><tr><th scope="col">Status</th><th scope="col">Run</th><th scope="col">Now, and why</th><th scope="col">Started</th></tr></thead><tbody>
    ${rows.slice(0, most).map(({ head, depth, folds, folded }) => html`<tr key=${head.id} data-run=${head.id}><td><${Status} status=${head.status} /></td><td class="kin" style=${{ "--d": depth - 1 }}>${folds && html`<button class="btn small quiet" aria-expanded=${!folded} aria-label=${(folded ? "Unfold " : "Fold ") + head.id} onClick=${() => flip(head.id)}><${Icon} name=${folded ? "right" : "down"} /></button>`}<${RunLink} id=${head.id} /><span class="small">${head.workflow} · v${head.version}</span></td><td class="why"><${Sentence} why=${head.why} /></td><td><${Time} at=${head.created_at} /></td></tr>`)}</tbody></table><//>
    ${rows.length > most && html`<div class="older"><button class="btn small" onClick=${() => show(most + MOST)}>${number(rows.length - most)} more</button></div>`}
    ${page.data?.more && html`<p class="empty">Of each run the newest 200 children are here, and 1,000 in all; <a href=${all}>the list</a> has every child of this one.</p>`}<//>`;
}
