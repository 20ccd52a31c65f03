// Beside a run: facts, attributes, input and result, what would be undone, what was done to it.
import { html } from "../base.js";
import { get, may } from "../api.js";
import { absolute, clock, coarse, now } from "../format.js";
import { href } from "../url.js";
import { revealing, useForgetting } from "../parts/reveal.js";
import { open } from "../parts/sheet.js";
import { Chips, Copy, isCut, Json, RunLink, Time } from "../parts/show.js";
import { Code, ErrorView, usePlaces } from "./step.js";
import { done } from "./tabs.js";

const Ahead = ({ at }) => { const left = Date.parse(at) - now.value; return html`<${Time} at=${at} /> <span class="dim">${left > 0 ? "in " + coarse(left) : coarse(-left) + " ago"}</span>`; };

export function Aside({ run, undos, audit }) {
  const { head } = run;
  useForgetting(head.id);
  const places = usePlaces(head.id, null, !head.ended_at && ["suspended", "running", "paused"].includes(head.status) && `${head.status} ${head.updated_at} ${run.entries}`);
  const facts = [
    ["Workflow", html`<a href=${href("/runs", { q: "workflow:" + head.workflow })}>${head.workflow}</a> v${head.version}`],
    ["Worker", head.worker && html`<a href=${href("/workers", { worker: head.worker })}><code>${head.worker.slice(0, 13)}</code></a>`],
    ["Began", html`<${Time} at=${head.created_at} millis />`],
    ["Ended", head.ended_at && html`<${Time} at=${head.ended_at} millis />`],
    ["Begins", head.begins_at && !head.ended_at && html`<${Ahead} at=${head.begins_at} />`],
    ["Deadline", head.deadline_at && html`<${Ahead} at=${head.deadline_at} />`],
    ["Parent", head.parent && html`<${RunLink} id=${head.parent} />`],
    ["Unique key", head.unique_key && html`<code>${head.unique_key}</code>`],
    ["Tenant", head.tenant], ["Started by", head.actor], ["Priority", String(head.priority)],
    ["Reopened", head.reopened ? (head.reopened === 1 ? "once" : head.reopened + " times") : "never"],
    ["Facts", String(run.entries)],
  ].filter(([, value]) => value);
  const whole = (field) => async () => (await get(`/runs/${encodeURIComponent(head.id)}`, { params: { facts: 1 } }))[field];
  const copied = (value, what) => !isCut(value) && html`<span class="end"><${Copy} text=${JSON.stringify(value)} what=${what}>copy<//></span>`;
  return html`<aside class="panel side" aria-label="About this run">
    <section><h2 class="h3">About</h2><dl class="kv">${facts.map(([name, value]) => html`<dt>${name}</dt><dd class="num">${value}</dd>`)}</dl></section>
    <section><h2 class="h3">Attributes <span class="end"><button class="linklike" disabled=${!may("operator")} onClick=${() => open({ kind: "attributes", id: head.id, values: head.attributes ?? {} })}>edit</button></span></h2><div class="chips">${Object.keys(head.attributes ?? {}).length ? html`<${Chips} values=${head.attributes} />` : html`<span class="dim">none</span>`}</div></section>
    <section><h2 class="h3">Input ${copied(run.input, "Input")}</h2><${Json} value=${run.input} label="Input" whole=${whole("input")} reveal=${revealing({ id: head.id, field: "input" })} /></section>
    ${head.status === "completed" && html`<section><h2 class="h3">Result ${copied(run.output, "Result")}</h2><${Json} value=${run.output} label="Result" whole=${whole("output")} reveal=${revealing({ id: head.id, field: "output" })} /></section>`}
    ${run.error && html`<section><h2 class="h3">Error</h2><${ErrorView} error=${run.error} run=${head.id} /></section>`}
    ${places.length > 0 && html`<section><h2 class="h3">Its code is here</h2>${places.map((each) => html`<${Code} place=${each} />`)}</section>`}
    ${run.compensation?.length > 0 ? html`<section><h2 class="h3">Undone</h2><ol class="undo">${run.compensation.map((each) => html`<li>${each.name ? html`<code>${each.name}</code>` : html`<span class="dim">hidden</span>`}<small>${each.status}</small></li>`)}</ol></section>`
      : undos.length > 0 && !head.ended_at && html`<section><h2 class="h3">If it failed now, this would be undone</h2><ol class="undo">${undos.map((each) => html`<li>${each.name ? html`<code>${each.name}</code>` : html`<span class="dim">hidden</span>`}</li>`)}</ol></section>`}
    ${audit.data?.items?.length > 0 && html`<section><h2 class="h3">Done to it</h2><ul class="done">${audit.data.items.slice(0, 6).map((row) => html`<li><${Time} at=${row.at} />${done(row)}</li>`)}</ul></section>`}
    <section><h2 class="h3">In the terminal <span class="end"><${Copy} text=${"holdfast why " + head.id} what="Command">copy<//></span></h2><pre class="json" tabindex="0" role="group" aria-label="Command">holdfast why ${head.id}</pre></section>
  </aside>`;
}
