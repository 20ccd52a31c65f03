// The list of runs: found by a filter, each with why it is where it is; one or many are acted on.
import { html, signal, useEffect, useLayoutEffect, useMemo, useRef, useState, kept, keep, quoted } from "../base.js";
import { get, may, Problem, session, usePicture } from "../api.js";
import { connection, useLive, useLivePicture, useReading } from "../live.js";
import { go, here, href, place, runHref, settled, ROOT } from "../url.js";
import { coarse, counted, now, number, plural, span, told, zoneName, clock } from "../format.js";
import { useKeys } from "../keys.js";
import { away, Away } from "../parts/away.js";
import { ACTS } from "../parts/acts.js";
import { Bars, figuresView, instantOf, SPANS, written } from "../parts/chart.js";
import { Copies } from "../parts/drop.js";
import { Filter, tokensOf, without } from "../parts/filter.js";
import { Icon } from "../parts/icons.js";
import { Progress, useProgress } from "../parts/progress.js";
import { addKind, ActButton, changed, close, Frame, open, openAct, sheet } from "../parts/sheet.js";
import { Chips, coded, copy, plain, RunLink, Sentence, Status, statusWord, STATUSES, TERMINAL, Time, Trouble } from "../parts/show.js";

const PAGE = 50, NONE = [];
const COLUMNS = { progress: "Progress", attributes: "Attributes", started: "Started", took: "Took", tenant: "Tenant", actor: "Actor", version: "Version", priority: "Priority", worker: "Worker", updated: "Changed", parent: "Parent" };
const USUAL = "progress,attributes,started,took";

/** Filters under names, kept in this browser. */
export const savedViews = signal(kept("views", []));
/** Which runs are selected, under which filter; `all` are all that match. */
const selected = signal({ q: "", ids: new Set(), all: false });
const current = signal(null);
/** The page that was last shown, so that a run knows its neighbours. */
export const listed = signal({ q: "", ids: [], more: false });

export function Took({ head }) {
  if (head.ended_at) return span(Date.parse(head.ended_at) - Date.parse(head.created_at));
  if (head.status === "pending") return null;
  return coarse(now.value - Date.parse(head.created_at));
}

function Cell({ column, head }) {
  if (column === "progress") return html`<td class="c-prog"><${Progress} head=${head} /></td>`;
  if (column === "attributes") return html`<td class="c-attr"><div class="attrs"><${Chips} values=${head.attributes} /></div></td>`;
  if (column === "started") return html`<td class="time c-time"><${Time} at=${head.created_at} both /></td>`;
  if (column === "took") return html`<td class="time n c-took"><${Took} head=${head} /></td>`;
  if (column === "updated") return html`<td class="time c-other"><${Time} at=${head.updated_at} both /></td>`;
  if (column === "parent") return html`<td class="c-other">${head.parent && html`<${RunLink} id=${head.parent} />`}</td>`;
  const value = column.startsWith("=") ? head.attributes?.[column.slice(1)] : head[column];
  if (value === null || value === undefined) return html`<td class="c-other"></td>`;
  return html`<td class="c-other num">${column === "worker" ? coded("`" + value + "`") : plain(value)}</td>`;
}

function Row({ head, columns, here: is, chosen, gone, toggle }) {
  const mark = [chosen && "sel", is && "cur", TERMINAL.includes(head.status) && "done", gone && "gone"].filter(Boolean).join(" ");
  return html`<tr class=${mark} data-run=${head.id}>
    <td class="box"><input type="checkbox" aria-label=${"Select " + head.id} checked=${chosen} onClick=${(e) => toggle(head.id, e.shiftKey)} /></td>
    <td class="c-st"><${Status} status=${head.status} /></td>
    <td class="c-id"><a class="id" href=${runHref(head.id)} title=${head.id} onFocus=${() => { current.value = head.id; }}>${head.id}</a><span class="wf">${head.workflow}${head.version && ` · v${head.version}`}</span></td>
    <td class="c-why"><span class="why"><${Sentence} why=${head.why} /></span></td>
    ${columns.map((each) => html`<${Cell} column=${each} head=${head} />`)}
  </tr>`;
}

/** Counts of statuses as one, which says no more than the first 10,000 exactly. */
function together(counts) {
  const n = counts.reduce((sum, each) => sum + each.n, 0);
  return { n: Math.min(n, 10_000), exact: n <= 10_000 && counts.every((each) => each.exact) };
}

/** What stands above the list waits for the list: its rows are what people came for. */
function useCounts(q, ready) {
  const rest = without(q, "status").trim();
  const counts = usePicture(ready ? "counts " + rest : null, (signal) => get("/counts", { params: rest ? { q: rest, zone: zoneName() } : {}, signal }));
  useLivePicture(rest ? "counts?q=" + encodeURIComponent(rest) : "counts", counts);
  useEffect(() => { if (changed.value) counts.reload(); }, [changed.value]);
  return counts;
}

/** Beside the title: how many runs there are, or fit, and how many of them are open. */
function Total({ q, counts }) {
  const items = counts.data?.items;
  if (!items?.length || !counts.fresh) return null;
  const open = together(items.filter((each) => !TERMINAL.includes(each.status)));
  return html`<span class="count num">${counted(together(items))} ${without(q, "status").trim() ? "fit" : "in all"}, ${counted(open)} open</span>`;
}

/** Statuses that stand in the strip only while a run has them. */
const SELDOM = ["cancelling", "moving", "moved"];

/** How many there are of each status: of all, or of those that a filter leaves. */
function Strip({ q, counts }) {
  const rest = without(q, "status").trim();
  const by = Object.fromEntries((counts.data?.items ?? []).map((each) => [each.status, each]));
  const chosen = tokensOf(q).find((each) => each.startsWith("status:"))?.slice(7).split(",") ?? [];
  const to = (status) => here({ q: (rest + (status ? " status:" + status : "")).trim(), cursor: null, from: null });
  const known = Object.keys(by).length > 0;
  const all = known && together(counts.data.items);
  const shown = STATUSES.filter((each) => !SELDOM.includes(each) || by[each]?.n || chosen.includes(each));
  return html`<div class=${"stat" + (counts.problem ? " stale" : "")} role="group" aria-label="By status" tabindex="0">
    <a href=${to("")} aria-current=${chosen.length ? undefined : "true"}><span class="st">All</span><b>${all ? counted(all) : "…"}</b></a>
    ${shown.map((each) => html`<a href=${to(each)} aria-current=${chosen.includes(each) ? "true" : undefined}><${Status} status=${each} /><b>${known ? counted(by[each] ?? { n: 0, exact: true }) : "…"}</b></a>`)}
  </div>`;
}

/** Which stretch of time a filter is about, if it says one: [from, until] in milliseconds. */
function stretchOf(tokens) {
  const said = tokens.find((each) => /^(created|ended):/.test(each))?.replace(/^\w+:/, "");
  if (!said) return null;
  const [begin, end] = said.split("..");
  const instant = now.peek();
  const from = begin ? instantOf(begin, instant) : null;
  return from === null ? null : [from, (end && instantOf(end, instant)) || instant];
}

const LATER = 12_000;

/** What ended and failed over time: figures of all runs or of one workflow, else the newest that fit; a stretch is chosen by dragging. */
function Hist({ q, span, ready }) {
  const tokens = tokensOf(q);
  const workflow = tokens.find((each) => /^workflow:[^,]+$/.test(each))?.slice(9).replace(/^"(.*)"$/, "$1");
  const stretch = stretchOf(tokens);
  const other = tokens.some((each) => !/^(workflow:[^,]+|created:.*|ended:.*)$/.test(each));
  // A stretch is counted by the clock of the server, once it has said the time.
  const view = stretch || other ? null : figuresView({ by: "time", last: span, workflow });
  const since = other && !stretch ? span : "";
  const wanted = view ?? (other ? `fits ${q} ${since} ${zoneName()}` : `hist ${workflow ?? ""} ${tokens.find((each) => /^(created|ended):/.test(each))}`);
  const figures = usePicture(!ready || (!view && !told.value) ? null : wanted, async (signal) => {
    if (view) return get("/" + view, { signal });
    const instant = now.peek();
    const [from, until] = stretchOf(tokens) ?? [instant - SPANS[span], instant];
    const params = { since: new Date(from).toISOString(), until: until >= instant - 1000 ? null : new Date(until).toISOString() };
    if (!other) return get("/figures", { params: { by: "time", workflow, ...params }, signal });
    const bars = await get("/bars", { params: { q, zone: zoneName(), ...params }, signal });
    return { ...bars, items: bars.items.map(({ at, ended, failed }) => ({ at, failed, completed: ended - failed, cancelled: 0 })) };
  });
  useLivePicture(ready ? view : null, figures);
  const late = useRef(0);
  useLive(view ? null : "counts", () => {
    // Workers add up their figures every ten seconds: what changed now is in them a little later.
    late.current ||= setTimeout(() => { late.current = 0; figures.reload(); }, LATER);
  });
  useEffect(() => () => clearTimeout(late.current), []);
  if (!figures.data && !figures.problem) return html`<div class="hist wait"></div>`;
  if (!figures.data || (figures.problem && !figures.fresh) || (!stretch && !figures.data.items.some((each) => each.completed + each.failed + each.cancelled))) return null;
  const choose = (from, until) => go(here({ q: [...tokens.filter((each) => !/^(created|ended):/.test(each)), `ended:${written(from)}..${written(until)}`].join(" "), cursor: null, from: null }));
  const note = other ? (figures.data.partial ? "of the newest that fit" : "that fit") : workflow ? "of " + workflow : "";
  return html`<${Bars} figures=${figures.data} choose=${choose} note=${note}>${!stretch && html`<div class="spans" role="group" aria-label="How far back the bars go">${Object.keys(SPANS).map((each) => html`<a href=${here({ span: each === "24h" ? null : each })} data-replace="" aria-current=${each === span ? "true" : undefined}>${each.replace(/(\d+)/, "$1 ")}</a>`)}</div>`}<//>`;
}

function Views({ q, ready }) {
  const attention = usePicture(ready ? "attention" : null, (signal) => get("/counts/runs", { params: { q: "is:attention" }, signal }));
  const saved = savedViews.value;
  const views = [["Needs attention", "is:attention", attention.data], ["Waiting over a day", "status:suspended quiet:-1d"], ["Mine", "actor:" + quotedWord(session.value.name)], ...saved];
  return html`<span class="views">${views.map(([name, filter, count]) => html`<a class="btn small quiet" href=${href("/runs", { q: filter })} aria-current=${filter === q ? "true" : undefined}>${name}${count?.n > 0 && html` <span class="badge">${counted(count)}</span>`}</a>`)}</span>`;
}

const quotedWord = (text) => (/^[\w.@-]+$/.test(text ?? "") ? text : JSON.stringify(text ?? ""));

function SaveView({ q }) {
  const [name, set] = useState("");
  const save = () => { savedViews.value = [...kept("views", []).filter(([each]) => each !== name.trim()), [name.trim(), q]].slice(-12); keep("views", savedViews.value); close(); };
  return html`<${Frame} title="Save this view" confirm=${save} confirmWord="Save" disabled=${!name.trim()}>
    <p>The filter <code>${q || "all runs"}</code> under a name, in this browser. The address of the page is the view, too: it can be shared.</p>
    <label class="field"><span>Name</span><input type="text" autocomplete="off" value=${name} onInput=${(e) => set(e.target.value)} /></label>
  <//>`;
}
addKind("view", SaveView);

function Columns({ chosen }) {
  const [shown, show] = useState(false);
  const [name, type] = useState("");
  const box = useRef(null);
  const set = (list) => go(here({ cols: list.join(",") === USUAL ? null : list.join(",") || "none" }), { replace: true });
  const flip = (each) => set(chosen.includes(each) ? chosen.filter((one) => one !== each) : [...chosen, each]);
  useEffect(() => {
    const away = (event) => { if (!box.current?.contains(event.target)) show(false); };
    if (shown) document.addEventListener("pointerdown", away);
    return () => document.removeEventListener("pointerdown", away);
  }, [shown]);
  return html`<span class="drop" ref=${box} onKeyDown=${(e) => { if (e.key === "Escape") { show(false); e.stopPropagation(); box.current.querySelector("button").focus(); } }}><button class="btn small quiet" aria-expanded=${shown} onClick=${() => show(!shown)}>Columns</button>
    ${shown && html`<div class="menu up" role="group" aria-label="Columns">${[...Object.keys(COLUMNS), ...chosen.filter((each) => each.startsWith("="))].map((each) => html`<label><input type="checkbox" checked=${chosen.includes(each)} onChange=${() => flip(each)} />${COLUMNS[each] ?? each.slice(1)}</label>`)}<hr />
      <label class="field"><input type="text" aria-label="An attribute as a column" placeholder="an attribute" value=${name} onInput=${(e) => type(e.target.value)} onKeyDown=${(e) => { if (e.key === "Enter" && name.trim()) { flip("=" + name.trim()); type(""); } }} /></label></div>`}</span>`;
}

const PROGRAM = `import asyncio
from holdfast import Context, Engine, activity, workflow

@activity
async def greet(name: str) -> str:
    return f"Hello, {name}!"

@workflow
async def welcome(ctx: Context, name: str) -> str:
    return await ctx.step(greet, name)

async def main() -> None:
    async with Engine("sqlite:///shop.db", workflows=[welcome]) as engine:
        run = await engine.start(welcome, "Ada")
        print(await run.result())

asyncio.run(main())`;

export function Empty({ q }) {
  if (q) {
    return html`<div class="notice"><h2>No run fits</h2><p>Nothing matches <code>${q}</code>. A word alone is an id, the beginning of ids, or a workflow; <code>customer=c-2210</code> finds by an attribute.</p>
      <div class="acts"><a class="btn" href=${href("/runs")}>All runs</a></div></div>`;
  }
  return html`<div class="notice"><h2>There are no runs yet</h2><p>They appear here as soon as a program starts one, for example this:</p><pre tabindex="0">${PROGRAM}</pre></div>`;
}

function Bulk({ q, page }) {
  const mine = selected.value;
  if (mine.q !== q || (!mine.ids.size && !mine.all)) return null;
  const on = mine.all ? { q } : { ids: [...mine.ids] };
  const narrow = q.trim() && !/\bis:attention\b/.test(q);
  const clear = () => { selected.value = { q, ids: new Set(), all: false }; };
  return html`<div class="bulk" role="toolbar" aria-label="With the selected runs"><span class="how"><b>${mine.all ? "All that match" : plural(mine.ids.size, "selected", "selected")}</b>${!mine.all && narrow && page?.next && html` <span class="dim">· <button class="linklike" onClick=${() => { selected.value = { ...mine, all: true }; }}>all that match</button></span>`}</span><span class="sep"></span>
    ${["retry", "pause", "cancel", "terminate"].map((each) => html`<${ActButton} action=${each} on=${on} small />`)}
    <${More} on=${on} />
    <button class="btn small quiet" onClick=${() => copy(mine.all ? `holdfast list ${quoted(q)}` : `holdfast show ${[...mine.ids].map(quoted).join(" ")}`, "Command")}><${Icon} name="terminal" />CLI</button>
    <button class="icon" aria-label="Clear the selection" onClick=${clear}><${Icon} name="close" /></button></div>`;
}

function More({ on }) {
  const [shown, show] = useState(false);
  return html`<span class="drop" onKeyDown=${(e) => { if (e.key === "Escape" && shown) { show(false); e.stopPropagation(); } }}><button class="btn small" aria-expanded=${shown} onClick=${() => show(!shown)}>More <${Icon} name="down" /></button>
    ${shown && html`<div class="menu up">${["resume", "rerun", "recover", "nudge"].map((each) => html`<button disabled=${!may(ACTS[each].role)} onClick=${() => { show(false); openAct(each, on); }}><${Icon} name=${each} />${ACTS[each].verb}…</button>`)}</div>`}</span>`;
}

export function Runs({ params }) {
  const q = params.get("q") ?? "";
  const cursor = params.get("cursor");
  const from = Number(params.get("from") ?? 0) || 0;
  const columns = useMemo(() => { const given = params.get("cols"); return given === "none" ? [] : (given ?? USUAL).split(",").filter((each) => COLUMNS[each] || each.startsWith("=")); }, [params.get("cols")]);
  const page = usePicture(`runs ${q} ${cursor ?? ""} ${zoneName()}`, async (signal) => {
    const begun = performance.now();
    const found = await get("/runs", { params: { q, limit: PAGE, cursor }, sentences: true, signal });
    return { ...found, took: performance.now() - begun, newer: 0, gone: [] };
  });
  const items = page.data?.items ?? NONE;
  const ready = Boolean(page.data || page.problem);
  useReading(!ready);
  const counts = useCounts(q, ready);
  useProgress(items, columns.includes("progress"));
  useLive(cursor ? null : "runs?q=" + encodeURIComponent(q), async (name, data) => {
    const known = page.data;
    if (known && name === "rows") page.put((now) => now && merged(now, data.value));
    else if (known) { const fresh = await renewed(known, q); page.put((now) => (now === known ? fresh : undefined)); }
    else page.reload();
  });
  useEffect(() => { if (changed.value) page.reload(); }, [changed.value]);
  useEffect(() => { if (page.fresh) listed.value = { q, ids: items.map((each) => each.id), more: Boolean(page.data?.next) }; }, [page.data]);
  useEffect(() => { document.title = (q ? q + " - " : "") + "runs - holdfast"; }, [q]);
  useLayoutEffect(() => { if (page.fresh) settled(); }, [page.fresh, page.data]);
  // Keys may come faster than the page is drawn: what is selected is read at each of them.
  const chosenNow = () => (selected.value.q === q ? selected.value : { q, ids: new Set(), all: false });
  const mine = chosenNow();
  const last = useRef(null);
  const toggle = (id, span) => {
    const ids = new Set(chosenNow().ids);
    const adding = !ids.has(id);
    const [a, b] = [items.findIndex((each) => each.id === last.current), items.findIndex((each) => each.id === id)];
    const range = span && a >= 0 ? items.slice(Math.min(a, b), Math.max(a, b) + 1) : [items[b]];
    for (const each of range) if (adding) ids.add(each.id); else ids.delete(each.id);
    last.current = id;
    selected.value = { q, ids, all: false };
  };
  const others = columns.filter((each) => !USUAL.split(",").includes(each)).length;
  const all = items.length > 0 && items.every((each) => mine.ids.has(each.id));
  const toggleAll = () => { selected.value = { q, ids: all ? new Set() : new Set(items.map((each) => each.id)), all: false }; };
  const set = (text) => go(here({ q: text, cursor: null, from: null }));
  const step = (by) => {
    const at = items.findIndex((each) => each.id === current.value);
    const to = items[Math.max(0, Math.min(items.length - 1, at < 0 ? 0 : at + by))];
    if (to) document.querySelector(`tr[data-run="${CSS.escape(to.id)}"] a.id`)?.focus();
  };
  const newer = () => (cursor ? go(here({ cursor: null, from: null })) : page.reload());
  const command = "holdfast list" + tokensOf(q).map((each) => " " + quoted(each)).join("");
  useKeys({
    j: () => step(1), k: () => step(-1), arrowdown: () => step(1), arrowup: () => step(-1), n: newer,
    x: () => current.value && items.some((each) => each.id === current.value) && toggle(current.value, false),
    enter: () => current.value && go(runHref(current.value)),
    c: () => copy(command, "Command"), y: () => current.value && copy(current.value, "Id"),
    p: () => { const { ids } = chosenNow(); if (ids.size) openAct("pause", { ids: [...ids] }); },
    a: () => document.querySelector(".bulk button")?.focus(),
    escape: () => { selected.value = { q, ids: new Set(), all: false }; },
  });
  const data = page.data;
  const gone = away([page]);
  return html`<main id="main" tabindex="-1" class="s-runs">
    <div class="head"><h1>Runs</h1><${Total} q=${q} counts=${counts} />
      <div class="end"><${Copies} command=${command} path="/runs" params=${{ q, limit: PAGE }} python=${`await LocalDesk(engine.store).heads(${JSON.stringify(q)})`} /><button class="btn quiet" onClick=${() => open({ kind: "view", q })}>Save view</button><a class="btn main" href=${href("/start")}><${Icon} name="plus" />Start a run</a></div></div>
    <section class="panel" aria-label="Filter"><${Filter} q=${q} set=${set}><${Views} q=${q} ready=${ready} /><//><${Strip} q=${q} counts=${counts} /><${Hist} q=${q} ready=${ready} span=${SPANS[params.get("span")] ? params.get("span") : "24h"} /></section>
    ${page.problem && !gone && html`<div class="gap"><${Trouble} problem=${page.problem} retry=${page.reload} /></div>`}
    <${Away} of=${gone} />
    ${!(page.problem && !gone) && html`<section class=${"panel list" + (gone || !page.fresh ? " stale" : "")} aria-label="Runs" aria-busy=${page.loading}>
      ${(data?.newer > 0 || cursor) && html`<button class="fresh" onClick=${newer}>${cursor ? "Back to the newest" : plural(data.newer, "newer run") + " · show them"} <kbd>n</kbd></button>`}
      ${data && items.length === 0 && !data.partial ? html`<${Empty} q=${q} />` : html`<div class=${others > 2 ? "scroller" : undefined}><table style=${{ "--wide": others > 2 ? 1000 + 110 * others + "px" : undefined }}><caption class="vh">Runs${q ? " that fit " + q : ""}, newest first</caption>
        <thead><tr><th class="box" scope="col"><input type="checkbox" aria-label="Select all on this page" checked=${all} onClick=${toggleAll} /></th><th scope="col" class="c-st">Status</th><th scope="col" class="c-id">Run</th><th scope="col" class="c-why">Now, and why</th>
          ${columns.map((each) => html`<th scope="col" class=${{ progress: "c-prog", attributes: "c-attr", started: "c-time", took: "n c-took" }[each] ?? "c-other"}>${COLUMNS[each] ?? each.slice(1)}</th>`)}</tr></thead>
        <tbody>${items.map((head) => html`<${Row} key=${head.id} head=${head} columns=${columns} here=${current.value === head.id} chosen=${mine.ids.has(head.id) || mine.all} gone=${data.gone?.includes(head.id)} toggle=${toggle} />`)}</tbody></table></div>`}
      ${data && (items.length > 0 || data.partial) && html`<div class="pager"><span class="num">${items.length ? `${number(from + 1)} to ${number(from + items.length)}` : "None yet"}${data.searched_to ? `, searched back to ${clock(data.searched_to)}` : ""}${data.took ? ` in ${number(Math.max(1, Math.round(data.took)))} ms` : ""}</span>
        <span class="end"><${Columns} chosen=${columns} />${data.next && html`<a class="btn small" href=${here({ cursor: data.next, from: from + items.length })}>${data.partial ? "Keep looking" : "Older"} <${Icon} name="right" /></a>`}</span></div>`}
    </section>`}
    <${Bulk} q=${q} page=${data} />
    <footer class="foot"><span><kbd>j</kbd><kbd>k</kbd> move</span><span><kbd>x</kbd> select</span><span><kbd>enter</kbd> open</span><span><kbd>/</kbd> search</span><span><kbd>?</kbd> all keys</span><span class="end">Times in ${zoneName()}${connection.value.state === "live" ? " · live" : ""}</span></footer>
  </main>`;
}

/** Put a newer picture of the first page into the one that is shown: rows change in place, those that left fade, newer
 * ones are only counted, so that nothing moves under the pointer. */
export function merged(known, fresh) {
  if (!known) return { ...fresh, newer: 0, gone: [] };
  const by = new Map(fresh.items.map((head) => [head.id, head]));
  const shown = new Set(known.items.map((head) => head.id));
  const newer = fresh.items.filter((head) => !shown.has(head.id) && (!known.items.length || head.created_at >= known.items[0].created_at)).length;
  const last = fresh.items.at(-1)?.created_at ?? "";
  const gone = known.items.filter((head) => !by.has(head.id) && (!fresh.next || head.created_at > last)).map((head) => head.id);
  if (!known.items.length) return { ...fresh, newer: 0, gone: [] };
  const items = known.items.map((head) => { const now = by.get(head.id); return now && JSON.stringify(now) !== JSON.stringify(head) ? now : head; });
  const same = items.every((head, at) => head === known.items[at]); // as the first picture of a stream is: nothing is asked for anew
  return { ...known, as_of: fresh.as_of, items: same ? known.items : items, newer, gone };
}

async function renewed(known, q) {
  try {
    return merged(known, await get("/runs", { params: { q, limit: PAGE }, sentences: true }));
  } catch (problem) {
    if (problem instanceof Problem) return undefined;
    throw problem;
  }
}
