// The audit trail: who did what, newest first, and whether the chain of it holds, checked here.
import { html, useEffect, useMemo, useState, quoted } from "../base.js";
import { get, may, usePicture, Problem } from "../api.js";
import { useLivePicture } from "../live.js";
import { go, here, href, ROOT, runHref } from "../url.js";
import { now, number, span } from "../format.js";
import { named } from "../parts/acts.js";
import { away, Away } from "../parts/away.js";
import { instantOf } from "../parts/chart.js";
import { Copies } from "../parts/drop.js";
import { Icon } from "../parts/icons.js";
import { Foot, useScreen } from "../parts/screen.js";
import { changed } from "../parts/sheet.js";
import { plain, Time, Wide } from "../parts/show.js";
import { checkedHere } from "../run/chain.js";
import { Part, Seal } from "../run/tabs.js";

/** The reason of an act, and what else is on record of it; what lasts is recorded in microseconds. */
function told(detail) {
  const { reason, numbers, ...more } = detail && typeof detail === "object" ? detail : { more: detail };
  const all = { ...more, ...(typeof numbers === "string" ? JSON.parse(numbers) : {}) };
  if (!all.rate && all.at_once !== undefined) delete all.per; // of no rate
  return [reason, Object.entries(all).filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => (["per", "cool_down"].includes(name) && typeof value === "number" ? [name, span(value / 1000)] : [name, value]))];
}

const PAGE = 50;
const FIELDS = { actor: "Who", action: "What was done", target: "To what" };

/** Check the whole chain: here where we may read its rows as they are stored, else the server does. */
function Chain() {
  const [verdict, set] = useState(null);
  const [problem, setProblem] = useState(null);
  const check = async (signal) => {
    set(null);
    setProblem(null);
    try {
      if (may("admin")) set({ ...(await checkedHere(null, signal, (now) => set({ ...now, here: true, going: true }))), here: true });
      else set({ ...(await get("/audit/verify", { signal })), here: false });
    } catch (error) {
      if (signal?.aborted) return;
      if (!(error instanceof Problem)) throw error;
      setProblem(error);
    }
  };
  useEffect(() => { const abort = new AbortController(); check(abort.signal); return () => abort.abort(); }, []);
  if (problem) return html`<span class="seal s-failed" role="alert"><${Icon} name="failed" />the chain cannot be read: ${problem.message}</span>`;
  if (!verdict || (verdict.going && verdict.ok)) return html`<span class="dim" role="status">checking${verdict ? ` row ${number(verdict.checked)}` : ""}…</span>`;
  return html`<${Seal} verdict=${verdict} of="the audit trail" /><button class="btn small quiet" onClick=${() => check()}>Check again</button>`;
}

const shortened = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);

const Target = ({ row }) => (/^(run\.|start$|send$|cancel$|pause$|resume$|retry$|rerun$|recover$|nudge$|terminate$|attributes$|set_attributes$)/.test(row.action) && row.target ? html`<a href=${runHref(row.target)}><code>${row.target}</code></a>` : html`<code>${row.target}</code>`);

export function Audit({ params }) {
  const asked = Object.fromEntries(Object.keys(FIELDS).map((name) => [name, params.get(name) ?? ""]));
  const before = params.get("before");
  const times = Object.fromEntries(["since", "until"].map((name) => [name, params.get(name) ?? ""]));
  const key = JSON.stringify([asked, times, before]);
  const instants = () => Object.fromEntries(Object.entries(times).map(([name, text]) => { const at = text ? instantOf(text, now.peek()) : null; return [name, at === null ? null : new Date(at).toISOString()]; }));
  const page = usePicture("trail " + key, (signal) => get("/audit", { params: { ...asked, ...instants(), before, limit: PAGE }, signal }));
  // The newest page is kept as it is; times such as -24h are taken when the page is opened.
  const view = useMemo(() => "audit?" + new URLSearchParams(Object.entries({ ...asked, ...instants(), limit: PAGE }).filter(([, value]) => value)), [key]);
  useLivePicture(before ? null : view, page);
  const gone = away([page]);
  useEffect(() => { if (changed.value) page.reload(); }, [changed.value]);
  const [typed, type] = useState({ ...asked, ...times });
  useEffect(() => type({ ...asked, ...times }), [key]);
  const given = Object.fromEntries(Object.entries(typed).map(([name, text]) => [name, text.trim()]));
  const wrong = (name) => given[name] && instantOf(given[name], now.peek()) === null;
  const find = (event) => { event.preventDefault(); if (!wrong("since") && !wrong("until")) go(here({ ...given, before: null })); };
  const some = Object.values(asked).some(Boolean) || Object.values(times).some(Boolean);
  const command = "holdfast audit list" + Object.entries(asked).filter(([, value]) => value).map(([name, value]) => ` --${name} ${quoted(value)}`).join("") + Object.entries(instants()).filter(([, at]) => at).map(([name, at]) => ` --${name} ${at}`).join("");
  useScreen("audit", page.fresh, command);
  const items = page.data?.items ?? [];
  return html`<main id="main" tabindex="-1" class=${"s-audit stack" + (gone ? " stale" : "")}>
    <div class="phead"><h1>Audit</h1><span class="count">what was done, and by whom</span><div class="end">${may("admin") ? html`<a class="btn quiet" href=${ROOT + "/api/v1/audit/export"} download="audit.ndjson"><${Icon} name="save" />Export</a>` : html`<button class="btn quiet" disabled title="Needs the role admin"><${Icon} name="save" />Export</button>`}<${Copies} command=${command} path="/audit" params=${{ ...asked, ...instants() }} python=${`await LocalDesk(engine.store).audit(${named(asked)})`} /></div></div>
    <${Away} of=${gone} />
    <section class="panel" aria-label="The audit trail"><div class="ptitle"><h2>${before ? "Older" : "Newest first"}</h2><span class="end"><${Chain} /></span></div>
      <form class="filters" role="search" aria-label="Find in the audit trail" onSubmit=${find}>${Object.entries(FIELDS).map(([name, word]) => html`<label class="field"><span>${word}</span><input type="text" autocomplete="off" spellcheck="false" value=${typed[name]} onInput=${(e) => type({ ...typed, [name]: e.target.value })} /></label>`)}${[["since", "From"], ["until", "Before"]].map(([name, word]) => html`<label class=${"field short" + (wrong(name) ? " bad" : "")}><span>${word}</span><input type="text" autocomplete="off" placeholder=${name === "since" ? "-24h, or a date" : "now"} aria-invalid=${Boolean(wrong(name))} value=${typed[name]} onInput=${(e) => type({ ...typed, [name]: e.target.value })} />${wrong(name) && html`<span class="wrong">as -24h, -7d, 2026-11-01</span>`}</label>`)}<button class="btn">Find</button>${(some || before) && html`<a class="btn quiet" href=${href("/audit")}>All</a>`}</form>
      <${Part} picture=${page} empty=${!items.length && (some ? "Nothing like this is on record." : "Nothing was done by a person yet. Every act on a run, a letter or a schedule leaves a row here.")}><${Wide}><table class="tbl trail"><caption class="vh">What was done, newest first</caption><thead><tr><th scope="col" class="n">Row</th><th scope="col">When</th><th scope="col">Who</th><th scope="col">What</th><th scope="col">To what</th><th scope="col">Why, and more</th></tr></thead><tbody>
        ${items.map((row) => { const [reason, rest] = told(row.detail); return html`<tr key=${row.n}><td class="n dim">${number(row.n)}</td><td><${Time} at=${row.at} both /></td><td><b>${row.actor}</b></td><td>${row.action}</td><td><${Target} row=${row} /></td><td>${reason && html`<span>${String(reason).slice(0, 300)}</span>`}${rest.length > 0 && html`<span class="small pairs">${rest.slice(0, 12).map(([name, value]) => html`<span>${name} <code>${shortened(plain(value), 120)}</code></span> `)}</span>`}</td></tr>`; })}</tbody></table><//><//>
      ${page.data?.next && html`<div class="older"><a class="btn small" href=${here({ before: page.data.next })}>Older <${Icon} name="right" /></a></div>`}</section>
    <${Foot} />
  </main>`;
}
