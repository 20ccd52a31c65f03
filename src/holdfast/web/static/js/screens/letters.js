// Dead letters: what was given up, by its cause; a group is replayed, or one of it is tried first.
import { html, useEffect, useLayoutEffect, useRef, useState, quoted } from "../base.js";
import { ask, get, may, post, usePicture } from "../api.js";
import { useLivePicture } from "../live.js";
import { here, settled } from "../url.js";
import { number, plural, zoneName } from "../format.js";
import { useKeys } from "../keys.js";
import { Copies } from "../parts/drop.js";
import { Icon } from "../parts/icons.js";
import "../parts/purge.js";
import { addKind, changed, close, Command, followed, Frame, Job, open, Plan, Reason, reasonKept, stopMany, told, useAct, Wrong } from "../parts/sheet.js";
import { copy, RunLink, Time, Trouble, Wide } from "../parts/show.js";
import { typeName } from "../run/step.js";

const same = (letter, group) => letter.workflow === group.workflow && (letter.step || letter.name) === group.step && (letter.error?.type ?? "") === group.error;

const LETTER_ACTS = {
  replay: { verb: "Replay", past: "replayed", says: "Its run goes on from the step that failed; a message is delivered again. Steps keep their keys, so that what was done is not done twice." },
  acknowledge: { verb: "Acknowledge", past: "acknowledged", says: "It is noted that it was seen. Nothing else is done; it leaves this list." },
  remove: { verb: "Remove", past: "removed", says: "The letter is removed. Its run stays as it is." },
};

const actOn = (action, id, reason) => (action === "remove" ? ask("DELETE", "/letters/" + encodeURIComponent(id), { params: { reason } }) : post(`/letters/${encodeURIComponent(id)}/${action}`, { reason }));

const command = (action, words, reason) => ({ cli: ["holdfast letters", action === "acknowledge" ? "ack" : action, ...words, ...(reason ? ["--reason", quoted(reason)] : [])].join(" ") });

function LetterSheet({ action, letter }) {
  const { verb, past, says } = LETTER_ACTS[action];
  const [reason, setReason] = useState(reasonKept());
  const { act, busy, problem } = useAct();
  const confirm = () => act(async () => {
    const did = await actOn(action, letter.id, reason);
    close();
    told(did, `1 letter ${past}`);
  }, reason);
  return html`<${Frame} title=${html`${verb} <code>${letter.run || letter.name}</code>`} confirm=${confirm} confirmWord=${verb} busy=${busy} danger=${action === "remove"}>
    <p>${says}</p>
    <${Wrong} problem=${problem} />
    <${Reason} value=${reason} set=${setReason} />
    <${Command} spellings=${command(action, [letter.id], reason)} />
  <//>`;
}

/** All letters of a cause: counted first, and acted on by the server, which goes on when this page is left. */
function GroupSheet({ action, group }) {
  const { verb, past, says } = LETTER_ACTS[action];
  const { workflow, step, error } = group;
  const [reason, setReason] = useState(reasonKept());
  const [plan, setPlan] = useState(null);
  const [job, setJob] = useState(null);
  const stopped = useRef(false);
  const { act, problem } = useAct();
  const bulk = (more) => post("/letters/bulk", { action, workflow, step, error, ...more });
  const look = async () => setPlan(await bulk());
  useEffect(() => { act(look); }, []);
  const confirm = () => act(async () => {
    try {
      const begun = await bulk({ until: plan.until, dry_run: false, reason });
      if (!(await followed(begun, { past, what: "letter", tell: setJob, stopped: () => stopped.current })) && !stopped.current) close();
    } finally { setJob(null); }
  }, reason);
  const one = () => act(async () => {
    told(await actOn(action, group.example, reason), `1 letter ${past}`);
    await look();
  }, reason);
  const words = Object.entries({ workflow, step, error }).flatMap(([name, value]) => ["--" + name, quoted(value)]);
  return html`<${Frame} title=${`${verb} ${plural(plan?.matched ?? group.count, "letter")}`} confirm=${confirm} confirmWord=${plan ? `${verb} ${number(plan.can)}` : verb} busy=${job !== null} disabled=${!plan?.can || !reason.trim()} danger=${action === "remove"}
      extra=${job ? html`<button type="button" class="btn" onClick=${() => { stopped.current = true; stopMany(job); }}>Stop</button>` : action === "replay" && html`<button type="button" class="btn" disabled=${!plan?.can} onClick=${one}>Try one first</button>`}>
    <p>${says}</p>
    ${plan ? html`<${Plan} plan=${plan}>${plural(plan.matched, "letter")}${plan.exact ? "" : " and more"} of <code>${workflow}</code>, step <code>${step}</code>, <span class="s-failed">${typeName(error) || "no error"}</span>: <//>` : !problem && html`<p class="dim">Counting…</p>`}
    <${Job} job=${job} of=${plan?.can ?? 0} />
    <${Wrong} problem=${problem} />
    <${Reason} value=${reason} set=${setReason} required=${true} />
    <${Command} spellings=${command(action, words, reason)} />
  <//>`;
}
addKind("letter", LetterSheet);
addKind("letters", GroupSheet);

function Buttons({ letter, group }) {
  const may_ = may("operator");
  return Object.entries(LETTER_ACTS).map(([action, act]) => html`<button class=${"btn small" + (action === "replay" ? "" : " quiet")} disabled=${!may_} title=${may_ ? undefined : "Needs the role operator"} onClick=${() => open(group ? { kind: "letters", action, group, id: JSON.stringify(group) } : { kind: "letter", action, letter, id: letter.id })}>${action === "replay" && html`<${Icon} name="retry" />`}${act.verb}${(group?.count ?? 1) > 1 ? ` ${number(group.count)}` : ""}…</button>`);
}

export function Letters({ params }) {
  const seen = params.get("seen") === "yes";
  const groups = usePicture("groups", (signal) => get("/letters/groups", { signal }));
  const list = usePicture("letters " + seen, (signal) => get("/letters", { params: { limit: 200, seen: String(seen) }, signal }));
  const again = () => { groups.reload(); list.reload(); };
  useLivePicture("letters", groups);
  useLivePicture(`newest-letters?limit=200&seen=${seen}`, list);
  useEffect(() => { if (changed.value) again(); }, [changed.value]);
  useEffect(() => { document.title = "dead letters - holdfast"; }, []);
  useLayoutEffect(() => { if (groups.data) settled(); }, [Boolean(groups.data)]);
  const items = list.data?.items ?? [];
  const found = groups.data?.items ?? [];
  const shown = params.get("group");
  const keyOf = (group) => [group.workflow, group.step, group.error].join(" ");
  const chosen = found.find((group) => keyOf(group) === shown);
  const letters = seen ? items : chosen ? items.filter((each) => same(each, chosen)) : items;
  const step = (by) => {
    const links = [...document.querySelectorAll("a.group")];
    const at = links.indexOf(document.activeElement);
    links[Math.max(0, Math.min(links.length - 1, at + by))]?.focus();
  };
  useKeys({ j: () => step(1), k: () => step(-1), c: () => copy("holdfast letters groups", "Command") });
  const problem = groups.problem ?? list.problem;
  return html`<main id="main" tabindex="-1" class=${"s-letters stack" + (problem && groups.data ? " stale" : "")}>
    <div class="phead"><h1>Dead letters</h1><span class="count num">${groups.data ? `${number(found.reduce((n, each) => n + each.count, 0))} that no person has seen` : ""}</span>
      <div class="end"><a class="btn quiet" href=${here({ seen: seen ? null : "yes", group: null })}>${seen ? "Unseen" : "Seen ones"}</a><button class="btn quiet" disabled=${!may("admin")} title=${may("admin") ? undefined : "Needs the role admin"} onClick=${() => open({ kind: "purge" })}>Purge…</button><${Copies} command="holdfast letters groups" path="/letters/groups" python="await LocalDesk(engine.store).letter_groups()" /></div></div>
    ${problem && !groups.data && html`<${Trouble} problem=${problem} retry=${again} />`}
    ${!seen && groups.data && (found.length ? html`<section class="panel" aria-label="By cause"><div class="ptitle"><h2>By cause</h2></div><${Wide}><table class="tbl"><caption class="vh">Dead letters by cause</caption><thead><tr><th scope="col">Cause</th><th scope="col">Workflow and step</th><th scope="col" class="n">Letters</th><th scope="col">First</th><th scope="col">Last</th><th scope="col"><span class="vh">Acts</span></th></tr></thead><tbody>
      ${found.map((group) => html`<tr><td><a class="group s-failed" href=${here({ group: keyOf(group) === shown ? null : keyOf(group) })} aria-current=${keyOf(group) === shown ? "true" : undefined}>${typeName(group.error) || "no error"}</a></td><td>${group.workflow} · <code>${group.step}</code></td><td class="n"><b>${number(group.count)}</b></td><td><${Time} at=${group.first} /></td><td><${Time} at=${group.last} /></td><td class="n acts"><${Buttons} group=${group} /></td></tr>`)}</tbody></table><//></section>`
      : html`<section class="panel notice"><h2>No dead letters</h2><p>A step that is given up after its last attempt leaves one, and so does a message that no run can take. They wait here until a person replays or acknowledges them.</p></section>`)}
    ${letters.length > 0 && html`<section class="panel" aria-label="Letters"><div class="ptitle"><h2>${seen ? "Seen" : chosen ? typeName(chosen.error) : "Newest"}</h2>${chosen && html`<span class="end"><a class="btn small quiet" href=${here({ group: null })}>All causes</a></span>`}</div><${Wide}><table class="tbl"><caption class="vh">Letters</caption><thead><tr><th scope="col">Run</th><th scope="col">Step</th><th scope="col">Error</th><th scope="col" class="n">Attempts</th><th scope="col">When</th><th scope="col"><span class="vh">Acts</span></th></tr></thead><tbody>
      ${letters.map((each) => html`<tr><td>${each.run ? html`<${RunLink} id=${each.run} />` : each.kind}<span class="small">${each.workflow}</span></td><td><code>${each.step || each.name}</code></td><td>${each.error && html`<span class="s-failed">${typeName(each.error.type)}${each.error.message ? ": " + each.error.message : ""}</span>`}${each.outcome && html`<span class="small">${each.outcome}</span>`}</td><td class="n">${each.attempts}</td><td><${Time} at=${each.at} /></td><td class="n acts">${!each.outcome && html`<${Buttons} letter=${each} />`}</td></tr>`)}</tbody></table><//></section>`}
    <footer class="foot"><span><kbd>j</kbd><kbd>k</kbd> move</span><span><kbd>?</kbd> all keys</span><span class="end">Times in ${zoneName()}</span></footer>
  </main>`;
}
