// Deploys: which versions of workflows runs and workers have, and which runs new code does not fit.
import { html, useEffect } from "../base.js";
import { get, may, usePicture } from "../api.js";
import { useLivePicture } from "../live.js";
import { href } from "../url.js";
import { counted, number, plural, zoneName } from "../format.js";
import { away, Away } from "../parts/away.js";
import { Copies } from "../parts/drop.js";
import { Icon } from "../parts/icons.js";
import { Foot, useFew, useScreen } from "../parts/screen.js";
import { ActButton, changed } from "../parts/sheet.js";
import { coded, Copy, copy, RunLink, Sentence, Time, Wide } from "../parts/show.js";
import { Code } from "../run/step.js";
import { Part } from "../run/tabs.js";

/** Runs that are blocked, by workflow and by what does not fit: the same sentence but for its instants. */
function grouped(heads) {
  const groups = new Map();
  for (const head of heads) {
    const key = head.workflow + "\n" + head.why.sentence.replace(/\d\d:\d\d(:\d\d)?/g, "");
    groups.set(key, [...(groups.get(key) ?? []), head]);
  }
  return [...groups.values()].sort((a, b) => b.length - a.length);
}

/** The code in what helps, to be pasted. */
const pasted = (say) => say.match(/`((?:if|await|ctx)\b[^`]*)`/)?.[1];

/** A call: its path has the kind in it, if the code gave it no name. */
const called = (call) => (call ? html`<code>${call.path}</code>${!call.path.startsWith(call.kind) && html` <span class="dim">${call.kind}</span>`}` : html`<span class="dim">not reached</span>`);

/** What the server says, as a sentence. */
const sentence = (said) => said[0].toUpperCase() + said.slice(1) + (/[.:`]$/.test(said) ? "" : ".");

/** The calls of a run's history beside those of the code at hand, and the lines where they part. */
function Parted({ id }) {
  const page = usePicture("misfit " + id, (signal) => get(`/runs/${encodeURIComponent(id)}/misfit`, { signal }), { once: true });
  const { misfit, lines = [], said } = page.data ?? {};
  const many = Math.max(misfit?.recorded.length ?? 0, misfit?.present.length ?? 0);
  return html`<${Part} picture=${page} empty=${!misfit && said && sentence(said)}>${misfit && html`
    ${many > 0 && html`<${Wide}><table class="tbl parted"><caption class="vh">Calls of its history beside those of the code</caption><thead><tr><th scope="col">Recorded</th><th scope="col">Now</th><th scope="col">Where</th></tr></thead><tbody>${Array.from({ length: many }, (_, i) => { const [was, is] = [misfit.recorded[i], misfit.present[i]]; const differs = !was || (is && (was.path !== is.path || was.kind !== is.kind)); return html`<tr class=${differs ? "differs" : is ? "" : "unreached"}><td>${called(was)}</td><td>${called(is)}</td><td class="dim">${differs && html`<span class="vh">differs, </span>`}${is?.file && `${is.file.split("/").pop()}:${is.line}`}</td></tr>`; })}</tbody></table><//>`}
    ${lines.length > 0 && html`<${Code} place=${{ file: misfit.file, line: misfit.line, name: "", lines }} />`}
    ${misfit.trial && html`<p class="dim">${misfit.trial.fits ? "Pasted around this line, it fits: that was tried." : misfit.trial.tried ? html`Pasted around this line, it still does not fit: <span>${coded(misfit.trial.said, "t")}</span>` : `What to paste was not tried: ${misfit.trial.said}.`}</p>`}`}<//>`;
}

function Blocked({ page }) {
  const all = page.data?.items ?? [];
  const items = all.filter((head) => head.why.code === "blocked.mismatch");
  const groups = grouped(items);
  const mixed = all.length > items.length; // those that are blocked for another reason are not meant
  return html`<section class="panel" aria-label="Blocked by divergence"><div class="ptitle"><h2>Blocked: their history does not fit the code</h2><span class="end">${items.length > 1 && html`<${ActButton} action="recover" on=${mixed ? { ids: items.map((each) => each.id) } : { q: "status:blocked" }} label=${mixed && page.data?.next ? `Recover these ${number(items.length)} after the deploy…` : `Recover all ${number(items.length)}${page.data?.next ? "+" : ""} after the deploy…`} small />`}</span></div>
    <${Part} picture=${page} empty=${!all.length && "No run is blocked. `holdfast check` says before a deploy which runs would be."}>${groups.map((group) => { const first = group[0]; return html`<div class="blockedgroup"><p class="why"><b>${plural(group.length, "run")}</b> of <code>${first.workflow}</code>, first <${RunLink} id=${group.at(-1).id} />: <${Sentence} why=${first.why} live=${false} /></p>
      ${(first.why.help ?? []).map((each) => html`<p class="paste"><span>${coded(sentence(each.say), "h")}</span>${pasted(each.say) && html` <${Copy} text=${pasted(each.say)} what="Code">copy<//>`}${each.command && html` <code>${each.command}</code> <${Copy} text=${each.command} what="Command">copy<//>`}</p>`)}
      ${may("reader") && html`<${Parted} key=${group.at(-1).id} id=${group.at(-1).id} />`}
      <p><${ActButton} action="recover" on=${{ ids: group.map((each) => each.id) }} label=${`Recover ${plural(group.length, "run")} after the deploy…`} small /></p></div>`; })}
      ${all.length > items.length && html`<p class="empty"><a href=${href("/runs", { q: "status:blocked" })}>${plural(all.length - items.length, "run")}</a> ${all.length - items.length === 1 ? "is" : "are"} blocked for another reason.</p>`}${page.data?.next && html`<p class="empty">The newest 200 are shown.</p>`}<//></section>`;
}

/** The fingerprints of the code that workers have of a version: there should be one. */
function Prints({ of = [] }) {
  if (!of.length) return html`<span class="dim">–</span>`;
  return html`${of.slice(0, 3).map((each) => html`<code class="print" title=${"Fingerprint " + each}>${each.slice(0, 10)}</code> `)}${of.length > 1 && html`<span class="small s-paused">${of.length} different: a rollout is under way, or the code changed without a version</span>`}`;
}

function Versions({ versions }) {
  const items = versions.data?.items ?? [];
  const few = useFew(items, (each) => `${each.workflow} ${each.version}`, "a version");
  return html`<section class="panel" aria-label="Versions"><div class="ptitle"><h2>Versions</h2><span class="end">${few.field}</span></div><${Part} picture=${versions} empty=${!items.length && "No workflow has runs, and no worker has one."}><${Wide}><table class="tbl"><caption class="vh">Versions of workflows</caption><thead><tr><th scope="col">Workflow</th><th scope="col">Version</th><th scope="col">Code</th><th scope="col" class="n">Open runs</th><th scope="col">Workers that have it</th></tr></thead><tbody>
    ${few.shown.map((each) => html`<tr key=${each.workflow + " " + each.version}><td><a href=${href("/runs", { q: "workflow:" + JSON.stringify(each.workflow) })}>${each.workflow}</a></td><td>${each.version ? "v" + each.version : html`<span class="dim">not known yet</span>`}</td><td><${Prints} of=${each.fingerprints} /></td><td class="n">${each.open.n ? html`<a href=${href("/runs", { q: `workflow:${JSON.stringify(each.workflow)} version:${JSON.stringify(each.version)} is:open` })}>${counted(each.open)}</a>` : 0}</td><td>${each.workers ? plural(each.workers, "worker") : each.open.n ? html`<span class="st s-failed"><${Icon} name="failed" />no worker serves it any more</span>` : html`<span class="dim">none</span>`}</td></tr>`)}</tbody></table><//>${few.more}<//></section>`;
}

function Checks({ checks }) {
  const items = checks.data?.items ?? [];
  return html`<section class="panel" aria-label="Checks"><div class="ptitle"><h2>Last checks before a deploy</h2></div><${Part} picture=${checks} empty=${!items.length && "None is on record. `holdfast check --record` replays every open run against new code, and leaves its report here."}><${Wide}><table class="tbl"><caption class="vh">Reports of checks</caption><thead><tr><th scope="col">When</th><th scope="col">Who</th><th scope="col">Of what</th><th scope="col" class="n">Open runs</th><th scope="col">Came to</th></tr></thead><tbody>
    ${items.map((row) => html`<tr><td><${Time} at=${row.at} both /></td><td><b>${row.by}</b></td><td><code>${row.app}</code></td><td class="n">${number(row.runs)}</td><td>${row.fit === row.runs ? html`<span class="st s-completed"><${Icon} name="completed" />all fit</span>` : html`<span class="st s-failed"><${Icon} name="failed" />${number(row.runs - row.fit)} would be blocked</span>${row.groups.length > 0 && html`<ul class="found">${row.groups.map((each) => html`<li><b>${number(each.count)}</b> of <code>${each.workflow}</code>, first <${RunLink} id=${each.first} />: <span class="dim">${each.said}</span></li>`)}</ul>`}`}</td></tr>`)}</tbody></table><//><//></section>`;
}

export function Deploys() {
  const blocked = usePicture("blocked " + zoneName(), (signal) => get("/runs", { params: { q: "status:blocked", limit: 200 }, sentences: true, signal }));
  const versions = usePicture("versions", (signal) => get("/versions", { signal }));
  const checks = usePicture("checks", (signal) => get("/checks", { params: { limit: 10 }, signal }));
  const again = () => { blocked.reload(); versions.reload(); checks.reload(); };
  useLivePicture("runs?q=status%3Ablocked&limit=200", blocked);
  useLivePicture("versions", versions);
  useLivePicture("checks?limit=10", checks);
  const gone = away([blocked, versions, checks]);
  useEffect(() => { if (changed.value) again(); }, [changed.value]);
  useScreen("deploys", Boolean(versions.data), "holdfast check");
  return html`<main id="main" tabindex="-1" class=${"s-deploys stack" + (gone ? " stale" : "")}>
    <div class="phead"><h1>Deploys</h1><span class="count num">${versions.data ? plural(versions.data.items.length, "version") : ""}</span><div class="end"><${Copies} command="holdfast check" path="/versions" python="await LocalDesk(engine.store).versions()" /></div></div>
    <${Away} of=${gone} />
    <${Blocked} page=${blocked} /><${Versions} versions=${versions} /><${Checks} checks=${checks} />
    <${Foot} />
  </main>`;
}
