// Schedules: what the clock starts, the next ticks in both zones, the last runs, and every act on them.
import { html, useEffect, useState, quoted } from "../base.js";
import { ask, get, may, post, usePicture, Problem } from "../api.js";
import { useLivePicture } from "../live.js";
import { here, href, runHref } from "../url.js";
import { absolute, now, number, plural } from "../format.js";
import { durationOf, named, request, spelled } from "../parts/acts.js";
import { away, Away } from "../parts/away.js";
import { Copies } from "../parts/drop.js";
import { Icon } from "../parts/icons.js";
import { Foot, useFew, useScreen } from "../parts/screen.js";
import { addKind, changed, close, Command, Frame, open, Reason, reasonKept, useConfirm, Wrong } from "../parts/sheet.js";
import { Json, RunLink, Status, statusWord, Time, toast, Wide } from "../parts/show.js";
import { Part } from "../run/tabs.js";

const ACTS = {
  trigger: { verb: "Trigger", past: "triggered", role: "operator", icon: "nudge", says: "A run of it is started now, beside its timetable." },
  pause: { verb: "Pause", past: "paused", role: "operator", icon: "pause", says: "It starts nothing until it is resumed. What it started goes on." },
  resume: { verb: "Resume", past: "resumed", role: "operator", icon: "resume", says: "It goes on with its next tick; what it missed is caught up on as it says itself." },
  backfill: { verb: "Backfill", past: "backfilled", role: "operator", icon: "retry", says: "The runs of past ticks are started, those that there are none of." },
  delete: { verb: "Delete", past: "deleted", role: "admin", icon: "close", danger: true, says: "The schedule is forgotten. Its runs stay." },
};

/** When a local time is in the zone of a schedule: as it stands in the text, whatever zone is chosen here. */
const local = (text) => text.replace("T", " ").replace(/(:\d\d)(\.\d+)?([+-]\d\d:\d\d|Z)?$/, "$1 $3").trim();

const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/** A timetable in words where it is a usual one, else as it stands. */
export function inWords(when) {
  const found = when.match(/^(\S+) (\S+) (\S+) (\S+) (\S+) (\S+)$/);
  if (!found) return when;
  const [, minute, hour, day, month, weekday, zone] = found;
  const at = /^\d+$/.test(minute) && /^\d+$/.test(hour) ? `${hour.padStart(2, "0")}:${minute.padStart(2, "0")}` : null;
  const whole = [day, month, weekday].every((each) => each === "*");
  if (at && whole) return `every day at ${at}, ${zone}`;
  if (at && day === "*" && month === "*" && /^[0-6]$/.test(weekday)) return `every ${DAYS[weekday]} at ${at}, ${zone}`;
  if (at && day === "*" && month === "*" && weekday === "1-5") return `Monday to Friday at ${at}, ${zone}`;
  if (at && /^\d+$/.test(day) && month === "*" && weekday === "*") return `on day ${day} of every month at ${at}, ${zone}`;
  const every = minute.match(/^\*\/(\d+)$/);
  if (every && hour === "*" && whole) return `every ${every[1]} minutes, ${zone}`;
  if (/^\d+$/.test(minute) && hour === "*" && whole) return `every hour at minute ${minute}, ${zone}`;
  return when;
}

function Act({ action, id }) {
  const act = ACTS[action];
  const day = new Date(now.peek() - 86400e3).toISOString().slice(0, 10);
  const [given, change] = useState({ reason: reasonKept(), start: day + "T00:00:00Z", end: new Date(now.peek()).toISOString().slice(0, 10) + "T00:00:00Z" });
  const set = (more) => change((known) => ({ ...known, ...more }));
  const filling = action === "backfill";
  const body = { id, reason: given.reason, ...(filling ? { start: given.start, end: given.end } : {}) };
  const python = `await engine.schedules.${action}(${JSON.stringify(id)}, ${filling ? `start=datetime.fromisoformat(${JSON.stringify(given.start)}), end=datetime.fromisoformat(${JSON.stringify(given.end)}), ` : ""}${named({ by: "me", reason: given.reason })})`;
  const { confirm, busy, problem, setProblem } = useConfirm(given.reason, async () => {
    const did = action === "delete" ? await ask("DELETE", "/schedules", { params: { id, reason: given.reason } }) : await post("/schedules/" + action, body);
    close();
    toast(did.changed ? `${id} ${act.past}${did.started?.length ? `: ${plural(did.started.length, "run")} started` : ""}` : `Nothing was changed: ${did.said}`, { icon: did.changed ? "completed" : "blocked" });
  });
  const span = filling && Date.parse(given.start) < Date.parse(given.end);
  const [past, setPast] = useState(null);
  useEffect(() => {
    setPast(null);
    if (!span) return undefined;
    const abort = new AbortController();
    const wait = setTimeout(() => get("/schedules/past", { params: { id, start: new Date(given.start).toISOString(), end: new Date(given.end).toISOString(), n: 1000 }, signal: abort.signal })
      .then((page) => { setPast(page.items); setProblem(null); }).catch((error) => { if (abort.signal.aborted) return; if (!(error instanceof Problem)) throw error; setProblem(error); }), 200);
    return () => { clearTimeout(wait); abort.abort(); };
  }, [given.start, given.end]);
  const missing = (past ?? []).filter((each) => !each.status);
  const bad = filling && !missing.length;
  const moment = (name, word) => html`<label class=${"field" + (Number.isNaN(Date.parse(given[name])) ? " bad" : "")}><span>${word}</span><input type="text" autocomplete="off" defaultValue=${given[name]} onInput=${(e) => set({ [name]: e.target.value.trim() })} /></label>`;
  return html`<${Frame} title=${html`${act.verb} <code>${id}</code>`} confirm=${confirm} confirmWord=${filling && missing.length ? `Backfill ${plural(missing.length, "run")}` : act.verb} danger=${act.danger} busy=${busy} disabled=${bad}>
    <p>${act.says}</p><${Wrong} problem=${problem} />
    ${filling && html`${moment("start", "Ticks from")}${moment("end", "and before")}
      <div class=${"plan" + (past && !missing.length ? " no" : "")} data-plan>${!span ? "Say two moments, the first before the second." : !past ? (problem ? "" : "Looking…") : html`<div><b>${past.length ? `${plural(missing.length, "run")} of ${plural(past.length, "tick")} would be started` : "It has no tick in that time"}</b>${past.length > missing.length && html`<span>, ${plural(past.length - missing.length, "tick")} ${past.length - missing.length === 1 ? "has" : "have"} a run</span>`}<ul>${missing.slice(0, 6).map((each) => html`<li>${absolute(each.at)} <span class="dim">${local(each.local)} there${each.note && ", " + each.note}</span></li>`)}${missing.length > 6 && html`<li class="dim">and ${number(missing.length - 6)} more</li>`}</ul></div>`}</div>`}
    <${Reason} value=${given.reason} set=${(reason) => set({ reason })} />
    <${Command} spellings=${{ cli: ["holdfast schedules", action, quoted(id), filling && `--from ${given.start} --until ${given.end}`, given.reason && "--reason " + quoted(given.reason)].filter(Boolean).join(" "), curl: action === "delete" ? request("DELETE", "/schedules", null, body) : request("POST", "/schedules/" + action, body), python }} />
  <//>`;
}
addKind("schedule", Act);

const Button = ({ action, id, small }) => html`<button class=${"btn" + (small ? " small" : "") + (ACTS[action].danger ? " danger" : "")} disabled=${!may(ACTS[action].role)} title=${may(ACTS[action].role) ? undefined : "Needs the role " + ACTS[action].role} onClick=${() => open({ kind: "schedule", action, id })}><${Icon} name=${ACTS[action].icon} />${ACTS[action].verb}…</button>`;

function Ticks({ ticks }) {
  const items = ticks.data?.items ?? [];
  return html`<${Part} picture=${ticks} empty=${!items.length && "There is no tick any more."}><table class="tbl keep ticks"><caption class="vh">Next ticks</caption><thead><tr><th scope="col">Next ticks, here</th><th scope="col">In its zone</th></tr></thead><tbody>
    ${items.map((each) => html`<tr><td><${Time} at=${each.at} both /></td><td class="num">${local(each.local)}${each.note && html`<span class="small s-paused">${each.note}</span>`}</td></tr>`)}</tbody></table><//>`;
}

/** Another timetable tried out before it is put: its next ticks as it is typed. */
function Edit({ schedule }) {
  const found = schedule.when.match(/^(.+) (\S+)$/);
  const cronNow = found && !schedule.when.startsWith("every ") ? found[1] : "";
  const every = schedule.when.match(/^every (.+)$/)?.[1].replace(/ /g, "") ?? "";
  const [given, change] = useState({ cron: cronNow, every, timezone: cronNow ? found[2] : "UTC", overlap: schedule.overlap, catch_up: schedule.catch_up, reason: reasonKept() });
  const set = (more) => change((known) => ({ ...known, ...more }));
  const lasting = given.every ? durationOf(given.every) : null;
  const when = given.cron ? { cron: given.cron, timezone: given.timezone } : { every: lasting };
  const asked = { id: schedule.id, reason: given.reason };
  const body = { workflow: schedule.workflow, arguments: null, ...when, jitter: schedule.jitter, until: schedule.until, overlap: given.overlap, catch_up: given.catch_up };
  const [ticks, setTicks] = useState(null);
  const { confirm, busy, problem, setProblem } = useConfirm(given.reason, async () => {
    await ask("PUT", "/schedules", { params: asked, body });
    close();
    toast(`${schedule.id} put`);
  });
  useEffect(() => {
    setTicks(null);
    if (!given.cron && !lasting) { setProblem(null); return undefined; }
    const abort = new AbortController();
    const wait = setTimeout(() => get("/schedules/preview", { params: { ...when, n: 5 }, signal: abort.signal })
      .then((page) => { setTicks(page.items); setProblem(null); }).catch((error) => { if (error instanceof Problem) { setTicks(null); setProblem(error); } }), 200);
    return () => { clearTimeout(wait); abort.abort(); };
  }, [given.cron, given.timezone, given.every]);
  const choice = (name, word, values) => html`<label class="field"><span>${word}</span><select value=${given[name]} onChange=${(e) => set({ [name]: e.target.value })}>${values.map((each) => html`<option value=${each}>${each}</option>`)}</select></label>`;
  return html`<${Frame} title=${html`Edit <code>${schedule.id}</code>`} confirm=${confirm} confirmWord="Put" busy=${busy} disabled=${!ticks?.length}>
    <p>The schedule is put with this timetable; its input stays, and so do its runs.</p><${Wrong} problem=${problem} />
    <label class=${"field" + (problem ? " bad" : "")}><span>Cron: minute, hour, day, month, weekday</span><input type="text" autocomplete="off" spellcheck="false" placeholder=${every ? "none: it ticks every so often" : ""} defaultValue=${given.cron} onInput=${(e) => set({ cron: e.target.value.trim() })} data-first=${!every} /></label>
    ${given.cron ? html`<label class="field"><span>Time zone</span><input type="text" autocomplete="off" spellcheck="false" defaultValue=${given.timezone} onInput=${(e) => set({ timezone: e.target.value.trim() })} /></label>` : html`<label class=${"field" + (given.every && !lasting ? " bad" : "")}><span>Or every: 30s, 15min, 1h30min, 1d</span><input type="text" autocomplete="off" spellcheck="false" defaultValue=${given.every} onInput=${(e) => set({ every: e.target.value.trim() })} data-first=${Boolean(every)} /></label>`}
    <div class="plan" data-ticks><div>${ticks?.length ? html`<b>${given.cron ? inWords(`${given.cron} ${given.timezone}`) : "every " + given.every}</b><ul>${ticks.map((each) => html`<li>${absolute(each.at)}${given.cron && html` <span class="dim">${local(each.local)} there</span>`}${each.note && html` <span class="s-paused">${each.note}</span>`}</li>`)}</ul>` : "Its next ticks are shown here."}</div></div>
    ${choice("catch_up", "Of ticks that were missed", ["latest", "all", "none"])}${choice("overlap", "If the last run is still open", ["skip", "allow", "cancel"])}
    <${Reason} value=${given.reason} set=${(reason) => set({ reason })} />
    <${Command} spellings=${{ cli: ["holdfast schedules put", quoted(schedule.id), quoted(schedule.workflow), "--keep-input", ...(given.cron ? ["--cron", quoted(given.cron), "--zone", quoted(given.timezone)] : ["--every", spelled(given.every || "1h")]), "--overlap", given.overlap, "--catch-up", given.catch_up, given.reason && "--reason " + quoted(given.reason)].filter(Boolean).join(" "), curl: request("PUT", "/schedules", body, asked) }} />
  <//>`;
}
addKind("timetable", Edit);

function One({ schedule }) {
  const id = schedule.id;
  const ticks = usePicture("ticks " + id, (signal) => get("/schedules/preview", { params: { id, n: 20 }, signal }));
  const mine = `id:${JSON.stringify(id + ":").slice(1, -1)}*`;
  const runs = usePicture("runs of " + id, (signal) => get("/runs", { params: { q: mine, limit: 50 }, sentences: true, signal }));
  const past = usePicture("past of " + id, (signal) => get("/schedules/past", { params: { id, n: 50 }, signal }));
  const again = () => { ticks.reload(); runs.reload(); past.reload(); };
  useLivePicture(`runs?q=${encodeURIComponent(mine)}&limit=50`, runs);
  useEffect(() => { if (changed.value) again(); }, [changed.value]);
  useEffect(() => { if (runs.data) again(); }, [schedule.next_at, schedule.last_run]);
  const gaps = (past.data?.items ?? []).filter((each) => !each.status);
  const last = [...(runs.data?.items ?? []).map((head) => ({ at: Date.parse(head.created_at), head })), ...gaps.map((gap) => ({ at: Date.parse(gap.at), gap }))].sort((a, b) => a.at - b.at).slice(-50);
  return html`<section class="panel" aria-label=${"Schedule " + id}><div class="ptitle"><h2><code>${id}</code></h2><span class="dim">${inWords(schedule.when)}</span><span class="end"><${Button} action="trigger" id=${id} small /><${Button} action=${schedule.paused ? "resume" : "pause"} id=${id} small /><${Button} action="backfill" id=${id} small /><button class="btn small" disabled=${!may("admin")} title=${may("admin") ? undefined : "Needs the role admin"} onClick=${() => open({ kind: "timetable", schedule, id })}><${Icon} name="edit" />Edit…</button><${Button} action="delete" id=${id} small /><a class="btn small quiet" href=${here({ id: null })}>All</a></span></div>
    ${schedule.wrong && html`<p class="empty s-failed" role="alert">${schedule.wrong}</p>`}
    ${last.length ? html`<ul class="squares" aria-label="Its last ticks and runs, oldest first">${last.map(({ head, gap }) => gap ? html`<li key=${gap.run}><span class="sq gap" role="img" aria-label=${`${absolute(gap.at)}: no run, ${gap.note}`} title=${`${absolute(gap.at)}: no run, ${gap.note}`}></span></li>` : html`<li key=${head.id}><a class=${"sq s-" + head.status} href=${runHref(head.id)} title=${`${head.id}: ${statusWord(head.status)}`}><span class="vh">${head.id}, ${statusWord(head.status)}</span></a></li>`)}</ul>` : html`<p class="squares dim">It has started no run yet.</p>`}
    ${gaps.length > 0 && html`<details class="gaps"><summary>${plural(gaps.length, "tick")} of its last ${number(past.data.items.length)} ${gaps.length === 1 ? "has" : "have"} no run</summary><ul class="lines">${[...gaps].reverse().slice(0, 20).map((each) => html`<li><span class="num"><${Time} at=${each.at} /></span><span class="dim">${each.note}</span></li>`)}</ul></details>`}
    <div class="tiled"><${Ticks} ticks=${ticks} /><div class="inputbox"><h3 class="h3">Input of its runs</h3><${Json} value=${schedule.input} label="Input" whole=${async () => (await get("/schedules", { params: { id } })).items[0].input} /></div></div></section>`;
}

export function Schedules({ params }) {
  const list = usePicture("schedules", (signal) => get("/schedules", { params: { cut: true }, signal }));
  useLivePicture("schedules?cut=true", list);
  useEffect(() => { if (changed.value) list.reload(); }, [changed.value]);
  useScreen("schedules", Boolean(list.data), "holdfast schedules list");
  const gone = away([list]);
  const items = list.data?.items ?? [];
  const chosen = items.find((each) => each.id === params.get("id"));
  const few = useFew(items, (each) => `${each.id} ${each.workflow} ${each.when}`, "a schedule");
  return html`<main id="main" tabindex="-1" class=${"s-schedules stack" + (gone ? " stale" : "")}>
    <div class="phead"><h1>Schedules</h1><span class="count num">${list.data ? number(items.length) : ""}</span><div class="end"><${Copies} command="holdfast schedules list" path="/schedules" python="await engine.schedules.list()" /></div></div>
    <${Away} of=${gone} />
    ${chosen && html`<${One} key=${chosen.id} schedule=${chosen} />`}
    <section class="panel" aria-label="Schedules"><div class="ptitle"><h2>All schedules</h2><span class="end">${few.field}</span></div><${Part} picture=${list} empty=${!items.length && "There is no schedule. `await engine.schedules.put(\"nightly\", workflow, cron=\"30 2 * * *\", timezone=\"Europe/Berlin\")` makes one."}><${Wide}><table class="tbl"><caption class="vh">Schedules</caption><thead><tr><th scope="col">Schedule</th><th scope="col">Starts</th><th scope="col">When</th><th scope="col">Next</th><th scope="col">Last run</th><th scope="col">Overlap</th><th scope="col"><span class="vh">Acts</span></th></tr></thead><tbody>
      ${few.shown.map((each) => html`<tr key=${each.id}><td><a href=${here({ id: each.id })} aria-current=${each.id === chosen?.id ? "true" : undefined}><code>${each.id}</code></a>${each.paused && html`<span class="small s-paused">paused</span>`}${each.wrong && html`<span class="small s-failed">${each.wrong}</span>`}</td><td><a href=${href("/runs", { q: "workflow:" + JSON.stringify(each.workflow) })}>${each.workflow}</a></td><td>${inWords(each.when)}<span class="small"><code>${each.when}</code></span></td><td>${each.paused ? "" : each.next_at ? html`<${Time} at=${each.next_at} both />` : html`<span class="dim">never again</span>`}</td><td>${each.last_run && html`<${RunLink} id=${each.last_run} />${each.last_status && html`<span class="small"><${Status} status=${each.last_status} /></span>`}`}</td><td>${each.overlap}</td><td class="n acts"><${Button} action="trigger" id=${each.id} small /><${Button} action=${each.paused ? "resume" : "pause"} id=${each.id} small /></td></tr>`)}</tbody></table><//>${few.more}<//></section>
    <${Foot} />
  </main>`;
}
