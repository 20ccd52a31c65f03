// One step: its attempts, what it was given and gave, the last error with its own frames open.
import { html, useState } from "../base.js";
import { get, may, usePicture } from "../api.js";
import { clock, coarse, millisOf, now, span } from "../format.js";
import { href } from "../url.js";
import { revealing } from "../parts/reveal.js";
import { ActButton } from "../parts/sheet.js";
import { Copy, isCut, Json, Status, TERMINAL, Time } from "../parts/show.js";

const LIBRARY = /site-packages|[\\/]lib[\\/]python|[\\/]holdfast[\\/](?!web[\\/]browser)|<frozen|<string>/;

/** Take a traceback apart: frames with file, line, function, text. */
export function framesOf(text) {
  const frames = [];
  for (const line of (text ?? "").split("\n")) {
    const head = line.match(/^\s*File "(.*)", line (\d+)(?:, in (.*))?$/);
    if (head) frames.push({ file: head[1], line: Number(head[2]), name: head[3] ?? "", text: [], library: LIBRARY.test(head[1]) });
    else if (frames.length && /^\s{4}/.test(line) && !/^\s*[\^~]+\s*$/.test(line)) frames.at(-1).text.push(line.slice(4));
  }
  return frames;
}

const short = (file) => file.split(/[\\/]/).slice(-2).join("/");
export const typeName = (type) => String(type ?? "").split(".").pop();

const PART = /("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|#.*$)|\b(async|await|class|def|return|raise|if|elif|else|for|while|with|as|in|not|and|or|is|None|True|False|try|except|finally|import|from|lambda|yield|pass)\b|\b(\d[\d_.]*)\b/g;

/** A line of Python, with colours. */
function coloured(text) {
  const out = [];
  let from = 0;
  for (const found of text.matchAll(PART)) {
    out.push(text.slice(from, found.index), html`<span class=${found[1] ? "str" : found[2] ? "k" : "n"}>${found[0]}</span>`);
    from = found.index + found[0].length;
  }
  return [...out, text.slice(from)];
}

/** Lines around a place in code. */
export function Code({ place }) {
  const lines = place.lines.filter((each, i) => place.lines.slice(i).some((one) => one.text.trim()));
  const depth = Math.min(...place.lines.filter((each) => each.text.trim()).map((each) => each.text.match(/^ */)[0].length));
  return html`<p class="frame"><code title=${place.file}>${short(place.file)}</code><span>${place.name && place.name + ", "}line ${place.line}</span></p>
    <pre tabindex="0" class="code" role="group" aria-label=${"Lines around line " + place.line}>${lines.map((each) => html`<span class=${each.n === place.line ? "hit" : "near"}><span class="ln">${each.n}</span>${coloured(each.text.slice(depth))}${"\n"}</span>`)}</pre>`;
}

/** The code around where a run waits, or around an error of it: read where the server has the files, unchanged. */
export function usePlaces(id, step, stamp) {
  const wanted = may("reader") && stamp;
  const places = usePicture(wanted ? `places ${id} ${step ?? ""} ${stamp}` : null, (signal) => get(`/runs/${encodeURIComponent(id)}/frames`, { params: { step }, signal }), { once: true });
  return (wanted && places.fresh && places.data?.items) || [];
}

function Frame({ frame, places }) {
  const place = places.find((each) => each.file === frame.file && each.line === frame.line);
  if (place) return html`<${Code} place=${place} />`;
  return html`<p class="frame"><code title=${frame.file}>${short(frame.file)}</code><span>${frame.name && frame.name + ", "}line ${frame.line}</span></p>
    ${frame.text.length > 0 && html`<pre tabindex="0" role="group" aria-label=${"Line " + frame.line}><span class="hit"><span class="ln">${frame.line}</span>${frame.text.join("\n")}</span></pre>`}`;
}

/** An error: what it said, where; frames of libraries are folded. */
export function ErrorView({ error, run, step }) {
  const places = usePlaces(run, step, error.traceback && error.message);
  const [whole, setWhole] = useState(false);
  const frames = framesOf(error.traceback);
  const own = frames.filter((each) => !each.library);
  const hidden = frames.length - own.length;
  return html`<p class="err wrap">${typeName(error.type)}${error.message ? ": " + error.message : ""}</p>
    ${whole ? html`<pre tabindex="0" class="json" role="group" aria-label="Traceback">${error.traceback}</pre>` : own.map((frame) => html`<${Frame} frame=${frame} places=${places} />`)}
    <p class="trace">${error.cause && html`caused by <code>${typeName(error.cause.type)}</code>${error.cause.message ? ": " + error.cause.message : ""} · `}${!whole && hidden > 0 && `${hidden} ${hidden === 1 ? "frame" : "frames"} of libraries hidden · `}${error.traceback && html`<button class="linklike" onClick=${() => setWhole(!whole)}>${whole ? "own frames" : "whole traceback"}</button>`}</p>`;
}

/** Reads what a fact of a history has in the third place, whole. */
const third = (id, seq) => async () => (await get(`/runs/${encodeURIComponent(id)}/history`, { params: { after: seq - 1, limit: 1 } })).items[0].data[2];

function Attempts({ row, worker }) {
  return html`<table class="att"><caption class="vh">Attempts: number, when it began, how long it took, what came of it</caption><colgroup><col class="c1" /><col class="c2" /><col class="c3" /><col /></colgroup><tbody>
    ${row.bars.slice(-30).map((bar) => html`<tr title=${bar.state === "running" && worker ? "on " + worker : undefined}><td class="dim">${bar.attempt}</td><td><${Time} at=${new Date(bar.from).toISOString()} millis /></td><td>${bar.to === null ? coarse(now.value - bar.from) : span(bar.to - bar.from)}</td>
      <td class=${"outcome " + { failed: "s-failed", done: "s-completed", lost: "s-pending", running: "s-running" }[bar.state]} title=${bar.error?.message}>${bar.state === "failed" ? typeName(bar.error?.type) + (bar.error?.message ? ": " + bar.error.message : "") : bar.state === "lost" ? "lost with its worker" + (bar.why ? ": " + bar.why : "") : bar.state === "running" && worker ? html`running on <a href=${href("/workers", { worker })}><code>${worker.slice(0, 13)}</code></a>` : bar.state}</td></tr>`)}
    ${row.next && html`<tr><td class="dim">${row.attempts + 1}</td><td>${clock(row.next, { millis: true })}</td><td class="dim">${row.next > now.value ? "in " + coarse(row.next - now.value) : "now"}</td><td class="s-suspended">planned</td></tr>`}</tbody></table>`;
}

/** The first clause of what the server says, as a sentence. */
const first = (text) => { const said = text.split(": ")[0]; return said[0].toUpperCase() + said.slice(1) + "."; };

const isRecorded = (row) => row.arguments !== undefined && row.arguments !== null;

/** What is known of a call by its record, or by replaying the run where the server has its code. */
function useCall(row, head) {
  const wanted = row.kind === "step" && may("reader") && (!isRecorded(row) || row.attempts > 1 || row.next);
  return usePicture(wanted ? `arguments ${head.id} ${row.path}` : null, (signal) => get(`/runs/${encodeURIComponent(head.id)}/arguments`, { params: { step: row.path, cut: true }, signal }), { once: true });
}

/** How long is waited between attempts: as the code says it, or else as it was. */
function backoff(row, retry) {
  if (retry) return "backoff " + retry.replace(" x ", " × ");
  const waits = row.backs.filter((each) => each.to !== null).slice(-4).map((each) => span(each.to - each.from));
  return waits.length ? `waits ${row.backs.length > 4 ? "…, " : ""}${waits.join(", ")}` : "";
}

/** How the code at hand runs a step: its queue, its limit, how long an attempt may take. */
function Ways({ call }) {
  if (!call) return null;
  const { queue, limit, timeout, heartbeat_timeout: silent } = call;
  return html`${queue && html` · queue <a href=${href("/workers")}><code>${queue}</code></a>`}${limit && html` · limit <a href=${href("/workers")}><code>${limit}</code></a>`}${timeout && ` · at most ${coarse(millisOf(timeout))}`}${silent && ` · heartbeat each ${coarse(millisOf(silent))}`}`;
}

/** What a step was called with. */
function Arguments({ row, head, found }) {
  const recorded = isRecorded(row);
  const whole = recorded ? third(head.id, row.argued) : async () => (await get(`/runs/${encodeURIComponent(head.id)}/arguments`, { params: { step: row.path } })).arguments;
  const value = recorded ? row.arguments : found.fresh ? found.data?.arguments : undefined;
  const there = value !== undefined && value !== null;
  return html`<h3>Arguments ${there && !isCut(value) && html`<span class="end"><${Copy} text=${JSON.stringify(value)} what="Arguments">copy<//></span>`}</h3>
    ${there ? html`<${Json} value=${value} label="Arguments" whole=${whole} reveal=${revealing({ id: head.id, field: "arguments", step: row.path })} />` : html`<p class="dim">${!may("reader") ? "hidden" : found.data?.said ? html`<span title=${found.data.said}>${first(found.data.said)}</span>` : (found.loading ? "Reading…" : html`Not recorded; <code>@activity(record_arguments=True)</code> records them.`)}</p>`}
    ${there && !recorded && found.data?.source === "replayed" && html`<p class="note">found by replaying the run with the code of this server</p>`}`;
}

export function StepPanel({ row, step, head }) {
  const status = step?.status ?? row.status;
  const waits = ["waiting", "skipped"].includes(status) && !head.ended_at;
  const error = row.error ?? step?.error;
  const ended = TERMINAL.includes(head.status);
  const on = { ids: [head.id] };
  const call = useCall(row, head);
  const kind = { message: "receives a message", child: "child", sleep: "sleep" }[row.kind] ?? row.kind;
  return html`<section class="panel step" aria-label=${"Step " + row.path}>
    <header><${Status} status=${status} /><h2>${row.name}</h2><span class="dim wrap">${kind}${row.path !== row.name ? html` · <code>${row.path}</code>` : ""}${step?.idempotency_key ? html` · key <code>${step.idempotency_key}</code>` : ""}<${Ways} call=${call.fresh && call.data} />${step?.reason && !step.reason.startsWith("limit ") ? " · " + step.reason : ""}</span>
      <span class="end">${waits && html`<${ActButton} action="nudge" on=${on} more=${{ step: row.path }} label="Try now" small />`}${row.kind === "step" && html`<${ActButton} action="rerun" on=${on} more=${{ step: row.path }} label="Rerun from here…" small fits=${ended} />`}</span></header>
    <div class="two"><div>
      ${row.kind === "step" ? html`<h3>Attempts <span class="end">${backoff(row, call.fresh ? call.data?.retry : "")}</span></h3><${Attempts} row=${row} worker=${head.worker} />` : html`<h3>Began</h3><p><${Time} at=${new Date(row.begun).toISOString()} millis />${row.ended ? html`, ended after ${span(row.ended - row.begun)}` : ""}</p>`}
      ${step?.progress !== null && step?.progress !== undefined && html`<h3>Progress ${step.heartbeat_at && html`<span class="end"><${Time} at=${step.heartbeat_at} short /></span>`}</h3><${Json} value=${step.progress} label="Progress" reveal=${revealing({ id: head.id, field: "progress", step: row.path })} />`}
      ${row.kind === "step" && html`<${Arguments} row=${row} head=${head} found=${call} />`}
    </div><div>
      ${error ? html`<h3>Last error</h3><${ErrorView} error=${error} run=${head.id} step=${row.path} />` : null}
      ${status === "completed" && row.kind === "step" && html`<h3>Result ${!isCut(step?.result) && html`<span class="end"><${Copy} text=${JSON.stringify(step?.result ?? null)} what="Result">copy<//></span>`}</h3><${Json} value=${step?.result ?? null} label="Result" reveal=${revealing({ id: head.id, field: "result", step: row.path })} whole=${async () => (await get(`/runs/${encodeURIComponent(head.id)}/steps`)).items.find((each) => each.path === row.path)?.result} />`}
      ${row.marks.map((mark) => html`<h3>${mark.what} <span class="end">${mark.by ? `from ${mark.by}, ` : ""}${clock(mark.at, { millis: true })}${mark.replied ? `, replied after ${span(mark.replied - mark.at)}` : ""}</span></h3>${mark.payload === undefined ? null : html`<${Json} value=${mark.payload} label="Payload" whole=${third(head.id, mark.seq)} reveal=${revealing({ id: head.id, field: "fact", n: mark.seq, at: "/2" })} />`}`)}
      ${!error && status !== "completed" && !row.marks.length && html`<h3>Result</h3><p class="dim">None yet.</p>`}
    </div></div></section>`;
}
