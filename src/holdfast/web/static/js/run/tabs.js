// The other sides of a run: steps, history, messages, children, evidence and audit.
import { html, useEffect, useMemo, useRef, useState } from "../base.js";
import { get, may, usePicture } from "../api.js";
import { clock, number, plural, span } from "../format.js";
import { go, here, ROOT } from "../url.js";
import { Icon } from "../parts/icons.js";
import { revealing } from "../parts/reveal.js";
import { changed, open } from "../parts/sheet.js";
import { coded, Copy, isCut, Json, Status, Time, Trouble, Wide, plain } from "../parts/show.js";
import { verdictOf } from "./chain.js";
import { typeName } from "./step.js";

const path = (id, rest) => `/runs/${encodeURIComponent(id)}/${rest}`;

/** Show a picture of a part of the page; what fails takes nothing else with it. */
export function Part({ picture, empty, children }) {
  if (picture.problem && !picture.data) return html`<${Trouble} problem=${picture.problem} retry=${picture.reload} />`;
  if (!picture.data) return html`<p class="empty" aria-busy="true">Reading…</p>`;
  if (empty) return html`<p class="empty">${coded(empty)}</p>`;
  return html`<div class=${picture.problem ? "stale" : ""}>${children}</div>`;
}

const STEPS = 100;

export function Steps({ steps, partial }) {
  const [from, turn] = useState(0);
  if (!steps.length) return html`<p class="empty">It has called no step yet. <code>await ctx.step(activity, ...)</code> does.</p>`;
  return html`<${Wide}><table class="tbl"><caption class="vh">Steps</caption><thead><tr><th scope="col">Status</th><th scope="col">Step</th><th scope="col" class="n">Attempts</th><th scope="col">Began</th><th scope="col" class="n">Took</th><th scope="col">Result or error</th></tr></thead><tbody>
    ${steps.slice(from, from + STEPS).map((step) => html`<tr><td><${Status} status=${step.status} /></td><td><a href=${here({ tab: null, step: step.path })}><code>${step.path.split(/(?<=[/_])/).map((part) => html`${part}<wbr />`)}</code></a>${step.compensation && html`<span class="small">undoes</span>`}</td><td class="n">${step.attempts}</td><td><${Time} at=${step.started_at} /></td>
      <td class="n">${step.started_at && step.finished_at ? span(Date.parse(step.finished_at) - Date.parse(step.started_at)) : ""}</td>
      <td>${step.error && step.status !== "completed" ? html`<span class="s-failed">${typeName(step.error.type)}: ${step.error.message}</span>` : step.status === "completed" ? html`<code>${cut(plain(step.result ?? null))}</code>` : step.reason}</td></tr>`)}</tbody></table><//>
    ${steps.length > STEPS && html`<div class="older"><span class="dim num">${number(from + 1)} to ${number(Math.min(from + STEPS, steps.length))} of ${number(steps.length)} steps</span> <button class="btn small" disabled=${!from} onClick=${() => turn(from - STEPS)}><${Icon} name="left" />Before</button> <button class="btn small" disabled=${from + STEPS >= steps.length} onClick=${() => turn(from + STEPS)}>After<${Icon} name="right" /></button></div>`}${partial && html`<p class="empty">Steps that began in the newest facts; History has all.</p>`}`;
}

const cut = (text, most = 90) => (text.length > most ? text.slice(0, most) + "…" : text);
const ROW = 34, WINDOW = 40, PAGE = 500, ARCHIVED = 1000;
const FAILED = /failed|lost|cancel/;
const NONE = [];

const problemOf = (error) => (error?.type ? typeName(error.type) + (error.message ? ": " + error.message : "") : plain(error ?? null));

/** Facts that were cut away have the numbers of those that came after them. */
const nameOf = (fact) => (fact.archived ? `${fact.seq} ${fact.at}` : String(fact.seq));

/** What a fact says, in words where it is of a usual kind; its data as they are recorded are a click away. */
function told({ kind, data }) {
  const list = Array.isArray(data) ? data : null;
  if (!list) return plain(data ?? null);
  const until = (value) => (typeof value === "number" ? `, until ${clock(value / 1000)}` : "");
  const said = {
    step: () => (list[1] > 1 ? `attempt ${list[1]}` : ""),
    attempt: () => `attempt ${list[0]}`,
    "step completed": () => plain(list[1] ?? null),
    "step failed": () => problemOf(list[1]),
    "attempt failed": () => problemOf(list[1]) + (typeof list[2] === "number" ? `; next at ${clock(list[2] / 1000)}` : ""),
    "attempt lost": () => plain(list[1] ?? ""),
    receive: () => [list[0]].flat().join(" or ") + until(list[1]),
    message: () => `${list[0]}: ${plain(list[2] ?? null)}`,
    sleep: () => (typeof list[0] === "number" ? `until ${clock(list[0] / 1000)}` : ""),
    compensation: () => `${list[1]}, if it fails`,
    join: () => [list[0]].flat().join(", "),
    race: () => [list[0]].flat().join(", "),
  }[kind];
  return said ? said() : JSON.stringify(data);
}

export function History({ id, total, reopened, params }) {
  const [items, set] = useState([]);
  const [next, setNext] = useState(0);
  const [problem, setProblem] = useState(null);
  const text = params.get("find") ?? "", failed = params.get("failed") === "yes", archived = params.get("archived") === "yes";
  const turn = (changes) => go(here(changes), { replace: true });
  const [shown, show] = useState(null);
  const [top, scroll] = useState(0);
  const past = usePicture(archived && reopened ? `archived ${id} ${reopened}` : null, (signal) => get(path(id, "history"), { params: { archived: true, newest: true, limit: ARCHIVED, cut: true }, signal }), { once: true });
  const busy = useRef(false);
  const read = useRef(0);
  const box = useRef(null);
  const more = async (from) => {
    if (busy.current || from < read.current) return; // an effect of an earlier picture may ask for what has come meanwhile
    busy.current = true;
    try {
      const page = await get(path(id, "history"), { params: { after: from, limit: PAGE, cut: true } });
      set((known) => (from ? [...known, ...page.items] : page.items));
      read.current = page.next ?? page.items.at(-1)?.seq ?? from;
      setNext(page.next);
      setProblem(null);
    } catch (error) {
      setProblem(error);
    }
    busy.current = false;
  };
  useEffect(() => { more(0); }, [id]);
  // What was recorded meanwhile is read from where we are.
  useEffect(() => { if (next === null && items.length && total > items.at(-1).seq) more(items.at(-1).seq); }, [total]);
  const wanted = text.trim().toLowerCase();
  const old = archived && past.fresh ? past.data.items : NONE;
  // Made again only when facts came or others are wanted: not for each scrolled row of a hundred thousand.
  const found = useMemo(() => {
    const all = old.length ? [...old, ...items] : items;
    return failed || wanted ? all.filter((each) => (!failed || FAILED.test(each.kind)) && (!wanted || each.kind.includes(wanted) || each.path.toLowerCase().includes(wanted) || JSON.stringify(each.data).toLowerCase().includes(wanted))) : all;
  }, [old, items, failed, wanted]);
  const first = Math.max(0, Math.floor(top / ROW) - 8);
  useEffect(() => { if (next && (first + WINDOW) * 1.5 > found.length) more(next); }, [first, next, found.length]);
  const shownEntry = shown === null ? null : found.find((each) => nameOf(each) === shown);
  if (problem && !items.length) return html`<${Trouble} problem=${problem} retry=${() => more(0)} />`;
  return html`<div class="histbar"><label class="field"><span class="vh">Find in the history</span><input type="search" placeholder="kind, path or text" value=${text} onInput=${(e) => turn({ find: e.target.value })} /></label><label class="check"><input type="checkbox" checked=${failed} onChange=${(e) => turn({ failed: e.target.checked ? "yes" : null })} /> failed only</label>${reopened > 0 && html`<label class="check"><input type="checkbox" checked=${archived} onChange=${(e) => turn({ archived: e.target.checked ? "yes" : null })} /> cut away, too</label>`}<span class="dim num">${number(found.length)}${next ? " of those read so far" : ""}</span></div>
    <div class="virtual" ref=${box} onScroll=${(e) => scroll(e.target.scrollTop)} tabindex="0" role="region" aria-label="Facts">
      <div class="tall" style=${{ height: found.length * ROW + "px" }}><div class="win" style=${{ transform: `translateY(${first * ROW}px)` }}>
        ${found.slice(first, first + WINDOW).map((each) => html`<button class=${"fact" + (FAILED.test(each.kind) ? " bad" : "") + (each.archived ? " ghost" : "")} key=${nameOf(each)} aria-expanded=${shown === nameOf(each)} onClick=${() => show(shown === nameOf(each) ? null : nameOf(each))}><span class="num dim">${each.seq}</span><span class="num">${clock(each.at, { millis: true })}</span><b>${each.kind}</b><code>${each.path}</code><span class="data">${each.archived && html`<i>cut away</i> `}${cut(told(each), 160)}</span></button>`)}</div></div></div>
    ${shownEntry && html`<div class="raw"><h3>Fact ${shownEntry.seq}${shownEntry.archived ? ", cut away" : ""}: ${shownEntry.kind} ${shownEntry.path} <span class="end"><${Copy} text=${JSON.stringify(shownEntry)} what="Fact">copy<//></span></h3><${Json} value=${shownEntry.data} label="The fact as it is recorded" reveal=${!shownEntry.archived && revealing({ id, field: "fact", n: shownEntry.seq })} />${!shownEntry.archived && [shownEntry.data].flat().some(isCut) && html`<p><a class="linklike" href=${ROOT + "/api/v1" + path(id, "history") + `?after=${shownEntry.seq - 1}&limit=1`} download=${`fact-${shownEntry.seq}.json`}>download the whole fact</a></p>`}</div>`}`;
}

export function Messages({ id, rows, waits, ended }) {
  const inbox = usePicture("inbox " + id, (signal) => get(path(id, "inbox"), { params: { cut: true }, signal }));
  useEffect(() => { if (changed.value) inbox.reload(); }, [changed.value]);
  const taken = rows.filter((row) => row.kind === "message" && row.marks.length);
  const replied = taken.some((row) => row.marks[0].replied);
  const sent = rows.filter((row) => row.kind === "send" || row.kind === "publish");
  const unread = inbox.data?.items ?? [];
  return html`<div class="ptitle"><h2>In its inbox</h2><span class="end"><button class="btn small" disabled=${!may("operator") || ended} title=${may("operator") ? undefined : "Needs the role operator"} onClick=${() => open({ kind: "send", id, names: waits })}><${Icon} name="send" />Send…</button></span></div>
    <${Part} picture=${inbox} empty=${!unread.length && "No message is unread. Send puts one in; the code takes it by `ctx.receive(name)`."}><${Wide}><table class="tbl"><caption class="vh">Unread messages</caption><thead><tr><th scope="col">Name</th><th scope="col">Came</th><th scope="col">Payload</th></tr></thead><tbody>${unread.map((each) => html`<tr><td><code>${each.name}</code></td><td><${Time} at=${each.sent_at} /></td><td><code>${cut(plain(each.payload ?? null), 300)}</code></td></tr>`)}</tbody></table><//><//>
    ${taken.length > 0 && html`<div class="ptitle"><h2>Taken</h2></div><${Wide}><table class="tbl"><caption class="vh">Messages that were taken</caption><thead><tr><th scope="col">Name</th><th scope="col">Taken</th><th scope="col" class="n">Waited</th><th scope="col">From</th>${replied && html`<th scope="col">Replied</th>`}<th scope="col">Payload</th></tr></thead><tbody>${taken.map((row) => html`<tr><td><a href=${here({ tab: null, step: row.path })}><code>${row.name}</code></a></td><td><${Time} at=${new Date(row.marks[0].at).toISOString()} /></td><td class="n">${span(row.marks[0].at - row.begun)}</td><td>${row.marks[0].by}</td>${replied && html`<td>${row.marks[0].replied && html`<${Time} at=${new Date(row.marks[0].replied).toISOString()} />`}</td>`}<td><code>${cut(plain(row.marks[0].payload ?? null), 300)}</code></td></tr>`)}</tbody></table><//>`}
    ${sent.length > 0 && html`<div class="ptitle"><h2>Sent</h2></div><${Wide}><table class="tbl"><caption class="vh">Messages that it sent</caption><tbody>${sent.map((row) => html`<tr><td><code>${row.name}</code></td><td><${Time} at=${new Date(row.begun).toISOString()} /></td></tr>`)}</tbody></table><//>`}`;
}

/** What was done to a run, in words. */
export function done(row) {
  const detail = row.detail ?? {};
  const about = row.action === "reveal" ? [detail.field, detail.step, detail.pointer].filter(Boolean).join(" ") : detail.name ?? (detail.attributes ? Object.keys(detail.attributes).join(", ") : "");
  const verb = { start: "started it", send: "sent", attributes: "set", set_attributes: "set", pause: "paused it", resume: "resumed it", cancel: "cancelled it", terminate: "terminated it", retry: "retried it", rerun: "ran it again", recover: "recovered it", nudge: "nudged it", reveal: "revealed", record: "recorded it" }[row.action.replace(/^run\./, "")] ?? row.action;
  return html`<b>${row.actor || "someone"}</b> ${verb} ${about && html`<code>${about}</code>`}${detail.reason ? html` <i>${detail.reason}</i>` : ""}`;
}

export function Record({ id, audit }) {
  const evidence = usePicture("evidence " + id, (signal) => get(path(id, "evidence"), { signal }));
  const verdict = usePicture("verdict " + id, (signal) => verdictOf(id, signal));
  const whole = usePicture("verdict", (signal) => verdictOf(null, signal));
  const rows = evidence.data?.items ?? [];
  const acts = audit.data?.items ?? [];
  return html`<div class="ptitle"><h2>Done to it</h2><span class="end"><span class="dim">newest first</span><${Seal} verdict=${whole.data} of="the audit trail" /></span></div>
    <${Part} picture=${audit} empty=${!acts.length && "Nothing was done to it by a person."}><${Wide}><table class="tbl"><caption class="vh">Audit trail of this run</caption><thead><tr><th scope="col">When</th><th scope="col">What</th><th scope="col">Detail</th></tr></thead><tbody>${acts.map((row) => html`<tr><td><${Time} at=${row.at} /></td><td>${done(row)}</td><td><code class="dim">${cut(JSON.stringify(row.detail ?? {}), 200)}</code></td></tr>`)}</tbody></table><//><//>
    <div class="ptitle"><h2>Evidence</h2><span class="end">${rows.length > 0 && may("admin") && html`<a class="btn small quiet" href=${ROOT + "/api/v1/audit/export?run=" + encodeURIComponent(id)} download=${`${id}-evidence.ndjson`}>Export</a>`}${rows.length > 0 && html`<${Seal} verdict=${verdict.data} of="what it put on record" />`}</span></div>
    <${Part} picture=${evidence} empty=${!rows.length && "It put nothing on record. Its code does so with `ctx.evidence`."}><${Wide}><table class="tbl"><caption class="vh">Evidence</caption><thead><tr><th scope="col">When</th><th scope="col">What</th><th scope="col">Data</th></tr></thead><tbody>${rows.map((row) => html`<tr><td><${Time} at=${row.recorded_at} /></td><td><b>${row.kind}</b><span class="small">${row.id}</span></td><td><code>${cut(JSON.stringify(row.data ?? null), 400)}</code></td></tr>`)}</tbody></table><//><//>`;
}

/** Whether a chain holds, and where that was found out. */
export function Seal({ verdict, of = "" }) {
  if (!verdict) return null;
  const where = verdict.here ? "in this browser" : "by the server";
  const about = `${plural(verdict.checked, "row")} of ${of} ${verdict.checked === 1 ? "holds" : "hold"}, checked ${where}`;
  return verdict.ok ? html`<span class="seal" title=${about}><${Icon} name="completed" />chain verified ${where}</span>` : html`<span class="seal s-failed" role="alert" title=${about}><${Icon} name="failed" />chain broken at row ${verdict.broken_at}, checked ${where}</span>`;
}
