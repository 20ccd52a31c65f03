// The page of one run: why it is where it is, what happened when, and every act on it.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState, quoted, keep, kept } from "../base.js";
import { get, may, session, usePicture, Problem } from "../api.js";
import { connection, useLive } from "../live.js";
import { go, here, href, place, runHref, settled } from "../url.js";
import { coarse, counted, now, number, zoneName } from "../format.js";
import { useKeys } from "../keys.js";
import { away, Away } from "../parts/away.js";
import { ACTS } from "../parts/acts.js";
import { Icon } from "../parts/icons.js";
import { ActButton, changed, open, openAct, sheet } from "../parts/sheet.js";
import { coded, copy, Sentence, Status, TERMINAL, Time, Trouble } from "../parts/show.js";
import { later } from "../parts/later.js";
import { Aside } from "../run/aside.js";
import { rowsOf, sendersOf, together } from "../run/bars.js";
import { foldedRows } from "../run/folds.js";
import { StepPanel } from "../run/step.js";
import { Children } from "../run/children.js";
import { History, Messages, Record, Steps } from "../run/tabs.js";
import { Timeline } from "../run/timeline.js";
import { Took, listed } from "./runs.js";

const reading = html`<p class="empty" aria-busy="true">Reading…</p>`;
const Graph = later(() => import("../run/graph.js"), "Graph", reading);
const State = later(() => import("../run/state.js"), "State", reading);
const MOST_FACTS = 5000, PAGE = 1000, NONE = [];
/** Of a longer run the newest so many facts are looked at, for its steps and for what changes. */
const NEWEST = 2000;

/** Read the facts that the timeline is drawn of: all of them, or of a very long run the newest. */
async function factsOf(id, known, signal) {
  const path = `/runs/${encodeURIComponent(id)}/history`;
  if (!known?.items.length) {
    // The newest tell how many there are, before the run itself is read.
    const { items } = await get(path, { params: { newest: "true", limit: PAGE, cut: true }, signal });
    if (items.length < PAGE) return { items, partial: false };
    if (items.at(-1).seq > MOST_FACTS) return { items, partial: true };
  }
  const items = known ? [...known.items] : [];
  for (let after = items.at(-1)?.seq ?? 0; ; ) {
    const page = await get(path, { params: { after, limit: PAGE, cut: true }, signal });
    items.push(...page.items);
    if (!page.next) return { items, partial: known?.partial ?? false };
    after = page.next;
  }
}

/** The acts that a status calls for come first; all others are behind "More". */
const FIRST = { failed: ["retry", "rerun"], completed: ["rerun"], cancelled: ["resume", "rerun"], paused: ["resume", "cancel"], blocked: ["recover", "cancel"] };

function Acts({ head, waits, steps }) {
  const [shown, show] = useState(false);
  const box = useRef(null);
  const on = { ids: [head.id] };
  const first = FIRST[head.status] ?? ["pause", "cancel"];
  const rest = Object.keys(ACTS).filter((each) => !first.includes(each));
  const fits = (each) => ACTS[each].fits.includes(head.status);
  const more = (each) => (each === "rerun" ? { steps } : {});
  useEffect(() => {
    const away = (event) => { if (!box.current?.contains(event.target)) show(false); };
    if (shown) { document.addEventListener("pointerdown", away); box.current.querySelector(".menu button:not([disabled])")?.focus(); }
    return () => document.removeEventListener("pointerdown", away);
  }, [shown]);
  const key = (event) => {
    if (event.key === "Escape") { show(false); event.stopPropagation(); box.current.querySelector("button").focus(); }
    const list = [...box.current.querySelectorAll(".menu button:not([disabled])")];
    const at = list.indexOf(document.activeElement);
    if (event.key === "ArrowDown" && at >= 0) { event.preventDefault(); list[(at + 1) % list.length].focus(); }
    if (event.key === "ArrowUp" && at >= 0) { event.preventDefault(); list[(at + list.length - 1) % list.length].focus(); }
  };
  const send = () => open({ kind: "send", id: head.id, names: waits });
  useKeys({ a: () => show(true), ...(head.ended_at || !may("operator") ? {} : { s: send, p: () => openAct(head.status === "paused" ? "resume" : "pause", on) }) });
  return html`<div class="end">${!head.ended_at && html`<button class="btn" disabled=${!may("operator")} title=${may("operator") ? undefined : "Needs the role operator"} onClick=${send}><${Icon} name="send" />Send…</button>`}
    ${first.map((each) => html`<${ActButton} action=${each} on=${on} more=${more(each)} fits=${fits(each)} />`)}
    <span class="drop" ref=${box} onKeyDown=${key}><button class="btn" aria-expanded=${shown} aria-haspopup="menu" onClick=${() => show(!shown)}>More <${Icon} name="down" /></button>
      ${shown && html`<div class="menu" role="menu" aria-label="All acts">${rest.map((each) => html`<button role="menuitem" class=${ACTS[each].danger ? "danger" : ""} disabled=${!fits(each) || !may(ACTS[each].role)} title=${may(ACTS[each].role) ? undefined : "Needs the role " + ACTS[each].role} onClick=${() => { show(false); openAct(each, on, more(each)); }}><${Icon} name=${each} />${ACTS[each].verb}…${!may(ACTS[each].role) ? html`<small>${ACTS[each].role}</small>` : ""}</button>`)}
        <button role="menuitem" onClick=${() => { show(false); copy(head.id, "Id"); }}><${Icon} name="copy" />Copy id<small>y</small></button></div>`}</span></div>`;
}

/** What helps, as a button: from the code of the reason. */
function helping(why, head, waits, steps) {
  const on = { ids: [head.id] };
  if (/^waiting\.(retry|condition|several)/.test(why.code) && steps.some((each) => ["waiting", "skipped"].includes(each.status))) return html`<${ActButton} action="nudge" on=${on} label="Try now" main />`;
  if (/^failed/.test(why.code)) return html`<${ActButton} action="retry" on=${on} main />`;
  if (/^blocked/.test(why.code)) return html`<${ActButton} action="recover" on=${on} main />`;
  if (why.code === "paused" && head.status === "paused") return html`<${ActButton} action="resume" on=${on} main />`;
  if (/^waiting\.message/.test(why.code)) return html`<button class="btn main" disabled=${!may("operator")} onClick=${() => open({ kind: "send", id: head.id, names: waits })}><${Icon} name="send" />Send…</button>`;
  if (why.code === "waiting.child" && why.subject.child) return html`<a class="btn" href=${runHref(why.subject.child)}>Open <code>${why.subject.child}</code></a>`;
  return null;
}

/** What a command that helps does, and to which run: the page itself shows a run, and has a button for each act on it. */
function aboutOf(command) {
  const found = command.match(/^holdfast (\w+) ([^\s'-][^\s']*)/);
  return found ? { verb: found[1], run: found[2] } : {};
}

/** How many runs wait to try the same step again: what is down for one is down for all. */
function useOthers(why, head, steps) {
  const step = /^waiting\.(retry|several)/.test(why.code) ? (why.subject?.step ?? steps.find((each) => each.status === "waiting")?.path) : null;
  const q = step ? `workflow:${JSON.stringify(head.workflow)} waiting:${JSON.stringify("step " + step)}` : "";
  const found = usePicture(step ? "others " + q : null, (signal) => get("/counts/runs", { params: { q }, signal }));
  return step && found.fresh && found.data.n > 1 ? { q, ...found.data } : null;
}

function Banner({ why, head, waits, steps }) {
  const others = useOthers(why, head, steps);
  const source = why.source;
  const help = (why.help ?? []).filter((each) => each.command).map((each) => ({ ...each, ...aboutOf(each.command) })).filter((each) => !(each.run === head.id && (ACTS[each.verb] || ["show", "why", "send"].includes(each.verb))));
  const advice = (why.help ?? []).filter((each) => !each.command);
  return html`<section class=${"panel whybox w-" + head.status} aria-label="Why it is where it is"><span class="lead"><span class=${"s-" + head.status}><${Icon} name=${head.status} /></span><span class="vh">Why</span></span>
    <p><${Sentence} why=${why} /></p>
    <span class="src">${advice.map((each) => html`<span class="help">${coded(each.say[0].toUpperCase() + each.say.slice(1))}</span>`)}${source && html`<code>${source.file.split("/").slice(-2).join("/")}:${source.line}</code> <span class="line">${source.text}</span>`}${why.chain?.length > 0 && html`<span class="chain">${why.chain.map((each) => html` <${Icon} name="right" /> <a href=${runHref(each.run)}><code>${each.run}</code></a>`)}</span>`}${others && html`<a class="others" href=${href("/runs", { q: others.q })}>${others.exact ? number(others.n - 1) : counted(others)} other ${others.n === 2 ? "run waits" : "runs wait"} to try this step again</a>`}${help.map((each) => html`<span class="help">${each.say}: ${each.run && ["show", "why"].includes(each.verb) ? html`<a href=${runHref(each.run)}><code>${each.run}</code></a>` : html`<button class="linklike" onClick=${() => copy(each.command, "Command")} title="Copy"><code>${each.command}</code></button>`}</span>`)}</span>
    <span class="do">${helping(why, head, waits, steps)}${others && html`<${ActButton} action="pause" on=${{ q: others.q }} label=${`Pause all ${counted(others)}…`} />`}</span></section>`;
}

const TABS = [["", "Timeline"], ["steps", "Steps"], ["history", "History"], ["graph", "Graph"], ["messages", "Messages"], ["children", "Children"], ["state", "State"], ["record", "Evidence and audit"]];

export function Run({ id, params }) {
  const path = `/runs/${encodeURIComponent(id)}`;
  const run = usePicture(`run ${id} ${zoneName()}`, (signal) => get(path, { params: { facts: NEWEST, cut: true }, sentences: true, signal }));
  const why = usePicture(`why ${id} ${zoneName()}`, (signal) => get(path + "/why", { sentences: true, signal }));
  const audit = usePicture("audit " + id, (signal) => get(path + "/audit", { signal }));
  const data = run.data?.head?.id === id ? run.data : null;
  const known = useRef(null);
  const facts = usePicture("facts " + id, async (signal) => (known.current = await factsOf(id, known.current, signal)));
  const again = () => { run.reload(); why.reload(); audit.reload(); facts.reload(); };
  useLive(`run/${id}?facts=${NEWEST}&cut=true`, (name, data) => {
    const same = [(seen) => seen?.entries, (seen) => seen?.head?.status, (seen) => seen?.head?.updated_at].every((of) => of(data.value) === of(run.data));
    if (name === "look" || !same) again();
  });
  useEffect(() => { if (changed.value) again(); }, [changed.value]);
  const head = data?.head;
  useEffect(() => { document.title = `${id} ${head ? head.status : ""} - holdfast`; }, [id, head?.status]);
  useLayoutEffect(() => { if (data) settled(); }, [Boolean(data)]);
  const past = usePicture(head?.reopened ? `archived ${id} ${head.reopened}` : null, (signal) => get(path + "/history", { params: { archived: true, newest: true, limit: PAGE, cut: true }, signal }), { once: true });
  const cutAway = head?.reopened && past.fresh ? past.data.items : NONE;
  const drawn = useMemo(() => rowsOf(together(cutAway, facts.data?.items ?? []), data?.head, sendersOf(audit.data?.items ?? [])), [facts.data, cutAway, audit.data, data?.head?.ended_at]);
  const failedOnly = params.get("failed") === "yes";
  const fold = params.get("fold") !== "no";
  const tab = params.get("tab") ?? "";
  const [flipped, setFlipped] = useState(new Set());
  const flip = (path) => setFlipped((known) => { const other = new Set(known); if (!other.delete(path)) other.add(path); return other; });
  const steps = data?.steps ?? [];
  const reason = why.data?.run === id ? why.data : head?.why;
  const troubled = drawn.rows.find((row) => row.path === reason?.subject?.step) ?? drawn.rows.findLast((row) => row.kind === "step" && ["waiting", "running", "failed", "skipped"].includes(row.status)) ?? drawn.rows.findLast((row) => row.kind === "step");
  const selected = params.get("step") ?? troubled?.path ?? null;
  const row = drawn.rows.find((each) => each.path === selected);
  const shown = useMemo(() => (failedOnly ? drawn.rows.filter((each) => each.status === "failed" || each.bars.some((bar) => bar.state === "failed" || bar.state === "lost")).map((each) => ({ ...each, depth: 0 })) : foldedRows(drawn.rows, flipped, selected)), [drawn, failedOnly, flipped, selected]);
  const drawnWaits = drawn.rows.filter((each) => each.kind === "message" && each.status === "waiting").flatMap((each) => each.name.split(" or "));
  const waits = drawnWaits.length ? drawnWaits : (reason?.subject?.message ?? "").split(/,\s*| or /).filter(Boolean); // the facts may be under way
  const neighbours = listed.value.ids;
  const at = neighbours.indexOf(id);
  const near = (by) => { const to = neighbours[at + by]; if (at >= 0 && to) go(runHref(to)); };
  const move = (by) => {
    const calls = shown.filter((each) => each.kind !== "more" && each.kind !== "iteration");
    const i = calls.findIndex((each) => each.path === selected);
    const to = calls[Math.max(0, Math.min(calls.length - 1, i + by))];
    if (to) go(here({ step: to.path, tab: null }), { replace: true });
  };
  // Where tabs are wider than the screen the chosen one may lie outside of it.
  useLayoutEffect(() => { document.querySelector('[role="tab"][aria-selected="true"]')?.scrollIntoView({ block: "nearest", inline: "nearest" }); }, [tab, Boolean(data)]);
  const toggleFold = () => go(here({ fold: fold ? "no" : null }), { replace: true });
  useKeys({ "[": () => near(-1), "]": () => near(1), j: () => move(1), k: () => move(-1), arrowdown: () => move(1), arrowup: () => move(-1), f: toggleFold, c: () => copy("holdfast why " + quoted(id), "Command"), y: () => copy(id, "Id") });
  if (run.problem && !data) {
    return html`<main id="main" tabindex="-1" class="s-run"><div class="crumb"><a href=${href("/runs")}>Runs</a></div><h1 class="vh">${id}</h1><${Trouble} problem=${run.problem} retry=${again}><p><a href=${href("/runs", { q: id })}>Look for runs whose id begins so</a></p><//></main>`;
  }
  if (!data) return html`<main id="main" class="s-run" aria-busy="true"></main>`;
  const counts = { steps: data.partial ? 0 : steps.length, history: data.entries, messages: drawn.rows.filter((each) => each.kind === "message").length, children: drawn.rows.filter((each) => each.kind === "child").length, record: audit.data?.items?.length };
  const doneSteps = steps.filter((each) => each.status === "completed" && !each.compensation).length;
  const called = steps.filter((each) => !each.compensation).length;
  const stale = run.problem && run.problem.passing;
  const tabKey = (event) => {
    const i = TABS.findIndex(([each]) => each === tab);
    const to = { ArrowRight: (i + 1) % TABS.length, ArrowLeft: (i + TABS.length - 1) % TABS.length }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    go(here({ tab: TABS[to][0] || null }), { replace: true });
    requestAnimationFrame(() => document.querySelector('[role="tab"][aria-selected="true"]')?.focus());
  };
  return html`<main id="main" tabindex="-1" class=${"s-run" + (stale ? " stale" : "")}>
    <div class="crumb"><a href=${href("/runs")}>Runs</a>${listed.value.q && html`<${Icon} name="right" /><a href=${href("/runs", { q: listed.value.q })}>${listed.value.q}</a>`}${at >= 0 && html`<${Icon} name="right" /><span>${at + 1} of ${neighbours.length}${listed.value.more ? "+" : ""}</span>`}${head.parent && html`<${Icon} name="right" /><a href=${runHref(head.parent)}>${head.parent}</a>`}</div>
    <div class="head"><h1>${id}</h1><${Status} status=${head.status} pill /><span class="wf"><b>${head.workflow}</b> v${head.version} · started <${Time} at=${head.created_at} />${head.actor && ` by ${head.actor}`} · <${Took} head=${head} /> · ${data.partial ? html`about <b>${number(data.entries)}</b> facts` : called ? html`<b>${doneSteps}</b> of <b>${called}</b> ${called === 1 ? "step" : "steps"}` : "no steps" + (head.ended_at ? "" : " yet")}</span>
      <${Acts} head=${head} waits=${waits} steps=${steps.filter((each) => !each.compensation).map((each) => each.path)} /></div>
    <${Away} of=${away([run])} />
    <${Banner} why=${reason} head=${head} waits=${waits} steps=${steps} />
    <div class="cols"><div>
      <section class="panel" aria-label=${TABS.find(([each]) => each === tab)?.[1] ?? "Timeline"}>
        <div class="tabs"><div class="set" role="tablist" aria-label="Views of the run" onKeyDown=${tabKey}>${TABS.map(([each, word]) => html`<a role="tab" id=${"tab-" + (each || "timeline")} aria-selected=${each === tab} aria-controls="tabpanel" tabindex=${each === tab ? 0 : -1} href=${here({ tab: each || null })} data-replace="">${word}${counts[each] ? html`<i>${number(counts[each])}</i>` : ""}</a>`)}</div>
          ${/^https?:/.test(session.value.logs_url ?? "") && html`<a class="logs" target="_blank" rel="noreferrer" href=${session.value.logs_url.replaceAll("{run_id}", encodeURIComponent(id))}>Logs <${Icon} name="right" /></a>`}
          ${tab === "" && html`<span class="tools"><button class="btn small quiet" aria-pressed=${fold} onClick=${toggleFold}><${Icon} name="fold" />${fold ? "Idle time folded" : "Fold idle time"}</button><button class="btn small quiet" aria-pressed=${failedOnly} onClick=${() => go(here({ failed: failedOnly ? null : "yes" }), { replace: true })}>Failed only</button></span>`}</div>
        <div id="tabpanel" role="tabpanel" aria-labelledby=${"tab-" + (tab || "timeline")}>
        ${tab === "" && (facts.problem && !facts.data ? html`<${Trouble} problem=${facts.problem} retry=${facts.reload} />` : shown.length ? html`<${Timeline} rows=${shown} ghosts=${failedOnly ? NONE : drawn.ghosts} all=${drawn.rows} zoom=${params.get("zoom")} flip=${flip} head=${head} fold=${fold} selected=${selected} partial=${facts.data?.partial ? `The newest ${number(PAGE)} of ${number(data.entries)} facts are drawn; History has all.` : ""} />` : html`<p class="empty">${failedOnly ? "Nothing of it failed." : facts.data ? "It has called nothing yet." : "Reading…"}</p>`)}
        ${tab === "steps" && html`<${Steps} steps=${steps} partial=${data.partial} />`}
        ${tab === "history" && html`<${History} key=${id} id=${id} total=${data.entries} reopened=${head.reopened} params=${params} />`}
        ${tab === "graph" && html`<${Graph} key=${id} id=${id} entries=${data.entries} rows=${foldedRows(drawn.rows, flipped, selected)} selected=${selected} flip=${flip} />`}
        ${tab === "messages" && html`<${Messages} id=${id} rows=${drawn.rows} waits=${waits} ended=${Boolean(head.ended_at)} />`}
        ${tab === "children" && html`<${Children} key=${id} id=${id} />`}
        ${tab === "state" && html`<${State} key=${id} id=${id} entries=${data.entries} />`}
        ${tab === "record" && html`<${Record} id=${id} audit=${audit} />`}</div>
      </section>
      ${tab === "" && row && html`<${StepPanel} key=${row.path} row=${row} step=${steps.find((each) => each.path === row.path)} head=${head} />`}
    </div><${Aside} run=${data} undos=${drawn.undos} audit=${audit} /></div>
    <footer class="foot"><span><kbd>[</kbd><kbd>]</kbd> run before, after</span><span><kbd>↑</kbd><kbd>↓</kbd> step</span><span><kbd>s</kbd> send</span><span><kbd>p</kbd> pause</span><span><kbd>f</kbd> fold idle time</span><span><kbd>c</kbd> copy as CLI</span><span><kbd>?</kbd> all keys</span><span class="end">Times in ${zoneName()}${connection.value.state === "live" ? " · live" : ""}</span></footer>
  </main>`;
}
