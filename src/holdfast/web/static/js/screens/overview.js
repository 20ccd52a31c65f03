// The overview: what needs a person first, then how things go, who does the work, and what comes next.
import { html, useEffect } from "../base.js";
import { get, usePicture } from "../api.js";
import { useLivePicture } from "../live.js";
import { go, here, href } from "../url.js";
import { bytes, counted, number, span, zoneName } from "../format.js";
import { away, Away } from "../parts/away.js";
import { Bars, figuresView, SPANS, written } from "../parts/chart.js";
import { Copies } from "../parts/drop.js";
import { Icon } from "../parts/icons.js";
import { Foot, useScreen } from "../parts/screen.js";
import { ActButton, changed } from "../parts/sheet.js";
import { copy, Sentence, Status, STATUSES, TERMINAL, Time, Wide } from "../parts/show.js";
import { Empty } from "./runs.js";
import { Part } from "../run/tabs.js";
import { typeName } from "../run/step.js";

const RARE = ["cancelling", "moving", "moved"];
const LATE = 60; // seconds after which a run is overdue
const WORD = { "1h": "last hour", "24h": "last 24 hours", "7d": "last 7 days", "30d": "last 30 days" };

/** The act that helps most, from why a run is where it is. */
function Helps({ head }) {
  const action = /^failed/.test(head.why.code) ? "retry" : /^blocked/.test(head.why.code) ? "recover" : null;
  return action && html`<${ActButton} action=${action} on=${{ ids: [head.id] }} small />`;
}

function Attention({ page, doctor }) {
  const items = page.data?.items ?? [];
  const findings = (doctor.data?.items ?? []).filter((each) => each.level !== "ok");
  const clear = page.data && doctor.data && !items.length && !findings.length;
  return html`<section class="panel" aria-label="Needs attention"><div class="ptitle"><h2>Needs attention</h2><span class="end">${items.length > 0 && html`<a class="btn small quiet" href=${href("/runs", { q: "is:attention" })}>All of them</a>`}</span></div>
    ${clear && html`<p class="empty good"><span class="s-completed"><${Icon} name="completed" /></span>Nothing waits for a person: no run is blocked or overdue, and no failure is unseen.</p>`}
    ${findings.length > 0 && html`<ul class="findings">${findings.map((each) => html`<li><span class=${each.level === "fail" ? "s-failed" : "s-paused"}><${Icon} name=${each.level === "fail" ? "failed" : "blocked"} /></span><b>${each.subject}</b> <span>${each.said}</span>${each.remedy && html`<code>${each.remedy}</code>`}</li>`)}</ul>`}
    <${Part} picture=${page} empty="">${items.length > 0 && html`<${Wide}><table class="tbl cards"><caption class="vh">Runs that need attention, newest first</caption><thead><tr><th scope="col">Status</th><th scope="col">Run</th><th scope="col">Now, and why</th><th scope="col">Started</th><th scope="col"><span class="vh">Acts</span></th></tr></thead><tbody>
      ${items.map((head) => html`<tr key=${head.id}><td><${Status} status=${head.status} /></td><td><a href=${href("/runs/" + encodeURIComponent(head.id))}><code>${head.id}</code></a><span class="small">${head.workflow}</span></td><td class="why"><${Sentence} why=${head.why} /></td><td><${Time} at=${head.created_at} short /></td><td class="n acts"><${Helps} head=${head} /></td></tr>`)}</tbody></table><//>`}<//></section>`;
}

const seconds = (value) => (value === null || value === undefined ? "–" : span(value * 1000));

function Course({ figures, spanName }) {
  const total = figures.data?.total;
  const ended = total ? total.completed + total.failed + total.cancelled : 0;
  const choose = (from, until) => go(href("/runs", { q: `ended:${written(from)}..${written(until)}` }));
  return html`<section class="panel" aria-label="How things go"><div class="ptitle"><h2>Ended and failed, ${WORD[spanName]}</h2><span class="end"><span class="spans" role="group" aria-label="How far back">${Object.keys(SPANS).map((each) => html`<a href=${here({ span: each === "24h" ? null : each })} data-replace="" aria-current=${each === spanName ? "true" : undefined}>${each.replace(/(\d+)/, "$1 ")}</a>`)}</span></span></div>
    <${Part} picture=${figures} empty=${!ended && "No run ended in this time. Workers add up what ends every ten seconds."}>
      <dl class="tiles"><div><dt>Ended</dt><dd>${number(ended)}</dd></div><div><dt>Failed</dt><dd class=${total?.failed ? "s-failed" : ""}>${number(total?.failed ?? 0)}<small>${ended ? ((100 * (total?.failed ?? 0)) / ended).toFixed(1) + " %" : ""}</small></dd></div><div><dt>Start to end</dt><dd>${seconds(total?.p50)}${total?.p95 != null && html`<small>p95 ${seconds(total.p95)}</small>`}</dd></div><div><dt>Due to claimed</dt><dd>${seconds(total?.claim_p50)}${total?.claim_p95 != null && html`<small>p95 ${seconds(total.claim_p95)}</small>`}</dd></div></dl>
      <${Bars} figures=${figures.data} choose=${choose} height=${92} note="" /><//></section>`;
}

function Failing({ steps }) {
  const items = (steps.data?.items ?? []).filter((each) => each.failed + each.retried + each.lost > 0).slice(0, 8);
  return html`<section class="panel" aria-label="Steps that fail most"><div class="ptitle"><h2>Steps that fail most</h2></div><${Part} picture=${steps} empty=${!items.length && "No attempt of a step failed in this time."}><${Wide}><table class="tbl"><caption class="vh">Steps that fail most</caption><thead><tr><th scope="col">Step</th><th scope="col" class="n">Failed attempts</th><th scope="col" class="n">p50</th><th scope="col" class="n">p95</th><th scope="col">Last error</th></tr></thead><tbody>
    ${items.map((each) => { const bad = each.failed + each.retried + each.lost; return html`<tr><td><a href=${href("/runs", { q: `workflow:${JSON.stringify(each.workflow)} waiting:${JSON.stringify("step " + each.step)}` })}><code>${each.step}</code></a><span class="small">${each.workflow}</span></td><td class="n"><b class="s-failed">${number(bad)}</b> of ${number(bad + each.completed)}</td><td class="n">${seconds(each.p50)}</td><td class="n">${seconds(each.p95)}</td><td>${each.error_type && html`<a class="s-failed" href=${href("/letters")}>${typeName(each.error_type)}</a>`}</td></tr>`; })}</tbody></table><//><//></section>`;
}

function OpenRuns({ counts }) {
  const by = Object.fromEntries((counts.data?.items ?? []).map((each) => [each.status, each]));
  return html`<section class="panel" aria-label="Open runs"><div class="ptitle"><h2>Open runs</h2></div><${Part} picture=${counts}><ul class="lines">${STATUSES.filter((each) => !TERMINAL.includes(each) && (!RARE.includes(each) || by[each]?.n)).map((each) => html`<li><a href=${href("/runs", { q: "status:" + each })}><${Status} status=${each} /></a><b class="num">${counted(by[each] ?? { n: 0, exact: true })}</b></li>`)}</ul><//></section>`;
}

function Hands({ workers, database }) {
  const items = workers.data?.items ?? [];
  const lag = database.data?.lag;
  const of = (state) => items.filter((each) => each.state === state);
  return html`<section class="panel" aria-label="Workers"><div class="ptitle"><h2>Workers</h2><span class="end"><a class="btn small quiet" href=${href("/workers")}>All</a></span></div><${Part} picture=${workers} empty=${!items.length && "No worker is alive: `async with Engine(database, workflows=[...])` is one."}><ul class="lines"><li><span class="st s-completed"><${Icon} name="completed" />alive</span><b class="num">${number(of("alive").length)}</b></li>${of("silent").length > 0 && html`<li><span class="st s-paused"><${Icon} name="paused" />silent</span><b class="num">${number(of("silent").length)}</b></li>`}${of("dead").length > 0 && html`<li><span class="st s-failed"><${Icon} name="failed" />dead, of the last day</span><b class="num">${number(of("dead").length)}</b></li>`}<li><span>step bodies running</span><b class="num">${number(of("alive").reduce((n, each) => n + each.steps, 0))}</b></li><li><span>runs in memory</span><b class="num">${number(of("alive").reduce((n, each) => n + each.runs, 0))}</b></li>${lag != null && html`<li><span>oldest due run waits</span><b class=${"num" + (lag > LATE ? " s-failed" : "")}>${lag ? seconds(lag) : "none is due"}</b></li>`}</ul><//></section>`;
}

function Given({ groups }) {
  const items = (groups.data?.items ?? []).slice(0, 5);
  return html`<section class="panel" aria-label="Dead letters"><div class="ptitle"><h2>Dead letters</h2><span class="end"><a class="btn small quiet" href=${href("/letters")}>All</a></span></div><${Part} picture=${groups} empty=${!items.length && "None that no person has seen."}><ul class="lines">${items.map((each) => html`<li><a href=${href("/letters", { group: [each.workflow, each.step, each.error].join(" ") })}><span class="s-failed">${typeName(each.error) || "no error"}</span> <span class="dim">${each.workflow}${each.step && " · " + each.step}</span></a><b class="num">${number(each.count)}</b></li>`)}</ul><//></section>`;
}

function Ticks({ schedules }) {
  const items = (schedules.data?.items ?? []).filter((each) => each.next_at && !each.paused).sort((a, b) => Date.parse(a.next_at) - Date.parse(b.next_at)).slice(0, 5);
  return html`<section class="panel" aria-label="Next ticks"><div class="ptitle"><h2>Next ticks</h2><span class="end"><a class="btn small quiet" href=${href("/schedules")}>Schedules</a></span></div><${Part} picture=${schedules} empty=${!items.length && "No schedule is to start anything. `engine.schedules.put` makes one."}><ul class="lines">${items.map((each) => html`<li><span><a href=${href("/schedules", { id: each.id })}><code>${each.id}</code></a> <span class="dim">${each.workflow}</span></span><b class="num"><${Time} at=${each.next_at} /></b></li>`)}</ul><//></section>`;
}

function Store({ database }) {
  const about = database.data;
  const rows = about ? [["Kind", { sqlite: "SQLite", postgres: "PostgreSQL" }[about.kind] ?? about.kind], ["Schema", String(about.schema_number)], ["Durability", about.durability], ["Size", about.size !== null && bytes(about.size)], ["Write-ahead log", about.wal !== null && bytes(about.wal)], ["Free on its disk", about.free !== null && bytes(about.free)]].filter(([, value]) => value) : [];
  return html`<section class="panel" aria-label="Database"><div class="ptitle"><h2>Database</h2></div><${Part} picture=${database}><ul class="lines">${rows.map(([name, value]) => html`<li><span>${name}</span><b class="num">${value}</b></li>`)}</ul><//></section>`;
}

export function Overview({ params }) {
  const spanName = SPANS[params.get("span")] ? params.get("span") : "24h";
  const read = (path) => (signal) => get(path, { signal });
  const attention = usePicture(`overview attention ${zoneName()}`, (signal) => get("/runs", { params: { q: "is:attention", limit: 10 }, sentences: true, signal }));
  const doctor = usePicture("doctor", read("/doctor"));
  const [byTime, byStep] = ["time", "step"].map((by) => figuresView({ by, last: spanName }));
  const course = usePicture(byTime, read("/" + byTime));
  const steps = usePicture(byStep, read("/" + byStep));
  const counts = usePicture("counts ", read("/counts"));
  const workers = usePicture("workers", read("/workers"));
  const groups = usePicture("groups", read("/letters/groups"));
  const schedules = usePicture("schedules", (signal) => get("/schedules", { params: { cut: true }, signal }));
  const database = usePicture("database", read("/database"));
  const all = [attention, doctor, course, steps, counts, workers, groups, schedules, database];
  useLivePicture("runs?q=is%3Aattention&limit=10", attention);
  useLivePicture("counts", counts);
  useLivePicture(byTime, course);
  useLivePicture(byStep, steps);
  useLivePicture("letters", groups);
  useLivePicture("workers", workers);
  useLivePicture("schedules?cut=true", schedules);
  useLivePicture("doctor", doctor);
  useLivePicture("database", database);
  useEffect(() => { if (changed.value) for (const each of all) each.reload(); }, [changed.value]);
  useScreen("overview", Boolean(attention.data), "holdfast");
  const gone = away(all);
  if (counts.data && !counts.data.items.some((each) => each.n)) return html`<main id="main" tabindex="-1" class="s-overview"><div class="phead"><h1>Overview</h1></div><section class="panel" aria-label="First steps"><${Empty} q="" /></section></main>`;
  return html`<main id="main" tabindex="-1" class=${"s-overview stack" + (gone ? " stale" : "")}>
    <div class="phead"><h1>Overview</h1><${Away} of=${gone} tag="span" /><div class="end"><${Copies} command="holdfast" path="/counts" python="await LocalDesk(engine.store).counts()" /><a class="btn main" href=${href("/start")}><${Icon} name="plus" />Start a run</a></div></div>
    <${Attention} page=${attention} doctor=${doctor} />
    <${Course} figures=${course} spanName=${spanName} />
    <div class="tiled"><${Failing} steps=${steps} /><${OpenRuns} counts=${counts} /></div>
    <div class="tiled four"><${Hands} workers=${workers} database=${database} /><${Given} groups=${groups} /><${Ticks} schedules=${schedules} /><${Store} database=${database} /></div>
    <${Foot} keys=${[["g", "r", "runs"], ["/", "search"], ["c", "copy as CLI"]]} />
  </main>`;
}
