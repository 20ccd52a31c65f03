// Workers, queues and limits: who advances what, what waits, and what holds it back.
import { html, useEffect, useLayoutEffect, useState, quoted } from "../base.js";
import { ask, get, may, post, usePicture } from "../api.js";
import { useLivePicture } from "../live.js";
import { here, href, settled } from "../url.js";
import { coarse, millisOf, now, number, plural, zoneName } from "../format.js";
import { useKeys } from "../keys.js";
import { durationOf, spelled } from "../parts/acts.js";
import { Icon } from "../parts/icons.js";
import { Copies } from "../parts/drop.js";
import { addKind, changed, close, Command, Frame, open, Reason, reasonKept, told, useAct, Wrong } from "../parts/sheet.js";
import { copy, RunLink, Time, Wide } from "../parts/show.js";
import { Part } from "../run/tabs.js";

const STATE = { alive: ["completed", "s-completed"], silent: ["paused", "s-paused"], dead: ["failed", "s-failed"] };

const State = ({ state }) => html`<span class=${"st " + (STATE[state]?.[1] ?? "s-pending")}><${Icon} name=${STATE[state]?.[0] ?? "pending"} />${state}</span>`;

const HELD = { queue: "Attempts of this queue stay where they are; those that a worker has go on.", limit: "No step begins under this limit; those that hold a place go on." };

/** Let nothing begin of a queue or a limit, or let it go on. */
function Work({ on, name, paused }) {
  const [reason, setReason] = useState(reasonKept());
  const { act, busy, problem } = useAct();
  const verb = paused ? "resume" : "pause";
  const confirm = () => act(async () => {
    const did = await post("/work/" + verb, { kind: on, name, reason });
    close();
    told(did, `The ${on} ${name} ${paused ? "goes on" : "is paused"}`);
  }, reason);
  return html`<${Frame} title=${html`${paused ? "Resume" : "Pause"} the ${on} <code>${name}</code>`} confirm=${confirm} confirmWord=${paused ? "Resume" : "Pause"} busy=${busy}>
    <p>${paused ? "What waits goes on in its order." : HELD[on]}</p>
    <${Wrong} problem=${problem} />
    <${Reason} value=${reason} set=${setReason} />
    <${Command} spellings=${{ cli: [`holdfast ${verb} --${on}`, quoted(name), ...(reason ? ["--reason", quoted(reason)] : [])].join(" ") }} />
  <//>`;
}
addKind("work", Work);

const NUMBERS = { at_once: "At once", rate: "May begin", per: "in, as 1s or 1min", burst: "Of them together, at most", per_key_at_once: "For each key", trip_after: "After so many failures in a row nothing begins", cool_down: "for, as 30s" };
const LASTING = ["per", "cool_down"];

/** Other numbers for a limit than those that engines declare. */
function Override({ limit }) {
  const { numbers } = limit;
  const [before] = useState(() => Object.fromEntries(Object.keys(NUMBERS).map((name) => [name, numbers[name] === null ? "" : LASTING.includes(name) ? coarse(millisOf(numbers[name])).replaceAll(" ", "") : String(numbers[name])])));
  const [given, change] = useState({ ...before, reason: reasonKept() });
  const valueOf = (name) => (given[name] === before[name] ? numbers[name] : LASTING.includes(name) ? (given[name] ? durationOf(given[name]) : { per: "PT1S" }[name] ?? null) : given[name] ? Number(given[name]) : null);
  const wrong = (name) => given[name] && given[name] !== before[name] && (LASTING.includes(name) ? !durationOf(given[name]) : !/^[1-9]\d*$/.test(given[name]));
  const { act, busy, problem } = useAct();
  const body = Object.fromEntries(Object.keys(NUMBERS).map((name) => [name, valueOf(name)]));
  const confirm = () => act(async () => {
    const did = await ask("PUT", "/limits", { params: { name: limit.name, reason: given.reason }, body });
    close();
    told(did, `The limit ${limit.name} has these numbers now`);
  }, given.reason);
  const none = !["at_once", "rate", "per_key_at_once", "trip_after"].some((name) => given[name]);
  return html`<${Frame} title=${html`Change the limit <code>${limit.name}</code>`} confirm=${confirm} confirmWord="Change" busy=${busy} disabled=${none || Object.keys(NUMBERS).some(wrong)}>
    <p>These numbers hold on all workers, whatever engines declare, until they are cleared. What began goes on.</p>
    <${Wrong} problem=${problem} />
    ${Object.entries(NUMBERS).map(([name, word]) => html`<label class=${"field" + (wrong(name) ? " bad" : "")}><span>${word}</span><input type="text" autocomplete="off" defaultValue=${given[name]} onInput=${(e) => change((known) => ({ ...known, [name]: e.target.value.trim() }))} data-first=${name === "at_once"} /></label>`)}
    <${Reason} value=${given.reason} set=${(reason) => change((known) => ({ ...known, reason }))} />
    <${Command} spellings=${{ cli: ["holdfast limits override", quoted(limit.name), ...Object.keys(NUMBERS).filter((name) => given[name] && (name !== "per" || given.rate)).map((name) => `--${name.replaceAll("_", "-")} ${spelled(given[name])}`), ...(given.reason ? ["--reason", quoted(given.reason)] : [])].join(" ") }} />
  <//>`;
}
addKind("override", Override);

/** The declared numbers again. */
function Restore({ limit }) {
  const [reason, setReason] = useState(reasonKept());
  const { act, busy, problem } = useAct();
  const confirm = () => act(async () => {
    const did = await ask("DELETE", "/limits", { params: { name: limit.name, reason } });
    close();
    told(did, `The limit ${limit.name} has its declared numbers again`);
  }, reason);
  return html`<${Frame} title=${html`Restore the limit <code>${limit.name}</code>`} confirm=${confirm} confirmWord="Restore" busy=${busy}>
    <p>What engines declare holds again: <b>${limit.declared}</b>.</p><${Wrong} problem=${problem} />
    <${Reason} value=${reason} set=${setReason} />
    <${Command} spellings=${{ cli: ["holdfast limits restore", quoted(limit.name), ...(reason ? ["--reason", quoted(reason)] : [])].join(" ") }} />
  <//>`;
}
addKind("restore", Restore);

const Numbers = ({ kind, limit }) => html`<button class="btn small quiet" disabled=${!may("operator")} title=${may("operator") ? undefined : "Needs the role operator"} onClick=${() => open({ kind, limit, id: kind + limit.name })}>${kind === "override" ? "Change" : "Restore"}…<span class="vh"> limit ${limit.name}</span></button>`;

const Hold = ({ on, name, paused }) => html`<button class="btn small quiet" disabled=${!may("operator")} title=${may("operator") ? undefined : "Needs the role operator"} onClick=${() => open({ kind: "work", on, name, paused, id: on + name })}>${paused ? "Resume" : "Pause"}…<span class="vh"> ${on} ${name}</span></button>`;

function Queues({ queues, workers }) {
  const items = queues.data?.items ?? [];
  const alive = (workers.data?.items ?? []).filter((each) => each.state === "alive");
  return html`<section class="panel" aria-label="Queues"><div class="ptitle"><h2>Queues</h2></div><${Part} picture=${queues} empty=${!items.length && "Nothing waits in a queue. `@activity(queue=\"gpu\")` puts attempts into one."}><${Wide}><table class="tbl"><caption class="vh">Queues</caption><thead><tr><th scope="col">Queue</th><th scope="col">Activity</th><th scope="col" class="n">Waiting</th><th scope="col" class="n">Taken</th><th scope="col">Oldest</th><th scope="col">Served by</th><th scope="col"><span class="vh">Acts</span></th></tr></thead><tbody>
    ${items.map((each) => { const serve = alive.filter((worker) => worker.queues.includes(each.queue)).length; return html`<tr><td><code>${each.queue}</code>${each.paused && html` <span class="s-paused">paused</span>`}</td><td><code>${each.activity}</code></td><td class="n">${number(each.waiting)}${each.waiting >= 10_000 ? "+" : ""}</td><td class="n">${number(each.taken)}</td><td>${each.oldest && html`<${Time} at=${each.oldest} short />`}</td><td>${serve ? plural(serve, "worker") : html`<span class="st s-failed"><${Icon} name="failed" />no worker serves it</span>`}</td><td class="n acts"><${Hold} on="queue" name=${each.queue} paused=${each.paused} /></td></tr>`; })}</tbody></table><//><//></section>`;
}

function Limits({ limits }) {
  const items = limits.data?.items ?? [];
  return html`<section class="panel" aria-label="Limits"><div class="ptitle"><h2>Limits</h2></div><${Part} picture=${limits} empty=${!items.length && "There is no limit. `Engine(limits=[Limit(name=\"openai\", at_once=10)])` makes one."}><${Wide}><table class="tbl"><caption class="vh">Limits</caption><thead><tr><th scope="col">Limit</th><th scope="col">Allows</th><th scope="col" class="n">Used</th><th scope="col" class="n">Waiting</th><th scope="col">Next turn</th><th scope="col"><span class="vh">Acts</span></th></tr></thead><tbody>
    ${items.map((each) => html`<tr><td><code>${each.name}</code>${each.paused && html` <span class="s-paused">paused</span>`}${each.keys?.length > 0 && html`<span class="small">${plural(each.keys.length, "key")} in use</span>`}</td><td>${each.allows}${each.overridden && html` <span class="small">by an operator; declared: ${each.declared}</span>`}</td><td class="n">${number(each.used)}</td><td class="n">${each.waiting > 0 ? html`<a href=${href("/runs", { q: `waiting:"limit ${each.name}"` })}>${number(each.waiting)}</a>` : 0}</td><td>${each.next_turn && html`<${Time} at=${each.next_turn} />`}</td><td class="n acts">${each.numbers && html`<${Numbers} kind="override" limit=${each} />`}${each.overridden && html`<${Numbers} kind="restore" limit=${each} />`}<${Hold} on="limit" name=${each.name} paused=${each.paused} /></td></tr>`)}</tbody></table><//><//></section>`;
}

function Bodies({ worker }) {
  return html`<section class="panel" aria-label="What it runs"><div class="ptitle"><h2>Bodies of <code>${worker.id}</code>, oldest first</h2><span class="end"><a class="btn small quiet" href=${here({ worker: null })}>All workers</a></span></div>
    ${worker.bodies.length ? html`<${Wide}><table class="tbl"><caption class="vh">Step bodies that run</caption><thead><tr><th scope="col">Run</th><th scope="col">Step</th><th scope="col" class="n">Attempt</th><th scope="col" class="n">For</th></tr></thead><tbody>${worker.bodies.map((body) => html`<tr><td><${RunLink} id=${body.run} /></td><td><code>${body.step}</code></td><td class="n">${body.attempt}</td><td class="n">${coarse(now.value - Date.parse(body.since))}</td></tr>`)}</tbody></table><//>` : html`<p class="empty">No body ran when it was last heard of.</p>`}
    <dl class="about"><dt>Python</dt><dd>${worker.python}</dd><dt>holdfast</dt><dd>${worker.holdfast}</dd><dt>Workflows</dt><dd>${Object.entries(worker.workflows).map(([name, version]) => html`<span class="chip">${name} <b>v${version}</b></span> `)}</dd></dl></section>`;
}

export function Workers({ params }) {
  const workers = usePicture("workers", (signal) => get("/workers", { signal }));
  const queues = usePicture("queues", (signal) => get("/queues", { signal }));
  const limits = usePicture("limits", (signal) => get("/limits", { signal }));
  const again = () => { workers.reload(); queues.reload(); limits.reload(); };
  useLivePicture("workers", workers);
  useLivePicture("queues", queues);
  useLivePicture("limits", limits);
  useEffect(() => { if (changed.value) again(); }, [changed.value]);
  useEffect(() => { document.title = "workers - holdfast"; }, []);
  useLayoutEffect(() => { if (workers.data) settled(); }, [Boolean(workers.data)]);
  const items = workers.data?.items ?? [];
  const chosen = items.find((each) => each.id === params.get("worker"));
  const alive = items.filter((each) => each.state === "alive");
  useKeys({ c: () => copy("holdfast workers", "Command") });
  return html`<main id="main" tabindex="-1" class="s-workers stack">
    <div class="phead"><h1>Workers</h1><span class="count num">${workers.data ? `${number(alive.length)} alive, ${number(alive.reduce((n, each) => n + each.steps, 0))} bodies running` : ""}</span><div class="end"><${Copies} command="holdfast workers" path="/workers" python="await LocalDesk(engine.store).workers()" /></div></div>
    ${chosen && html`<${Bodies} worker=${chosen} />`}
    <section class="panel" aria-label="Workers"><div class="ptitle"><h2>Workers</h2></div><${Part} picture=${workers} empty=${!items.length && "No worker is alive. `async with Engine(database, workflows=[...])` is one; `holdfast start` only asks for a run."}><${Wide}><table class="tbl"><caption class="vh">Workers</caption><thead><tr><th scope="col">State</th><th scope="col">Worker</th><th scope="col">Host</th><th scope="col">Since</th><th scope="col">Heard of</th><th scope="col">Queues</th><th scope="col" class="n">Bodies</th><th scope="col" class="n">Runs in memory</th></tr></thead><tbody>
      ${items.map((each) => html`<tr><td><${State} state=${each.state} /></td><td><a href=${here({ worker: each.id })}><code>${each.id}</code></a><span class="small">${plural(Object.keys(each.workflows).length, "workflow")}</span></td><td>${each.host}<span class="small">pid ${each.pid}</span></td><td><${Time} at=${each.joined_at} /></td><td><${Time} at=${each.heard_at} short /></td><td>${each.queues.map((queue) => html`<span class="chip">${queue}</span> `)}</td><td class="n">${number(each.steps)}${each.max_steps ? ` of ${number(each.max_steps)}` : ""}</td><td class="n">${number(each.runs)}</td></tr>`)}</tbody></table><//><//></section>
    <${Queues} queues=${queues} workers=${workers} />
    <${Limits} limits=${limits} />
    <footer class="foot"><span><kbd>?</kbd> all keys</span><span class="end">Times in ${zoneName()}</span></footer>
  </main>`;
}
