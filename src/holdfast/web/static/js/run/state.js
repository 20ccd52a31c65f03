// What the code of a run says of its state: the answers to its queries, where that code is at hand.
import { html, useEffect } from "../base.js";
import { get, may, usePicture } from "../api.js";
import { Copy, Json } from "../parts/show.js";
import { Part } from "./tabs.js";

export function State({ id, entries }) {
  const page = usePicture(may("reader") ? "state " + id : null, (signal) => get(`/runs/${encodeURIComponent(id)}/state`, { signal }));
  useEffect(() => { if (page.data) page.reload(); }, [entries]);
  if (!may("reader")) return html`<p class="empty">What code answers may have payloads in it: it needs the role <b>reader</b>.</p>`;
  const items = page.data?.items ?? [];
  const said = page.data?.said ?? "";
  return html`<${Part} picture=${page} empty=${!items.length && said && said[0].toUpperCase() + said.slice(1) + "."}><div class="state"><div class="ptitle"><h2>What its code answers to queries</h2><span class="dim">worked out from its history; nothing is executed</span></div>
    ${items.map((each) => html`<div class="ptitle flat"><h3><code>${each.name}</code></h3><span class="end">${!each.error && html`<${Copy} text=${JSON.stringify(each.answer ?? null, null, 2)} what="Answer">copy<//>`}</span></div>${each.error ? html`<p class="empty s-failed">${each.error}</p>` : html`<${Json} value=${each.answer ?? null} label=${"Answer to " + each.name} />`}`)}</div><//>`;
}
