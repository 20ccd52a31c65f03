// Sheets: what an act will do, on how many, why, and the same as a command; beside what they are about.
import { html, parsed, signal, useEffect, useRef, useState, kept, keep, quoted } from "../base.js";
import { ask, get, may, post, Problem } from "../api.js";
import { number, plural } from "../format.js";
import { useKeys } from "../keys.js";
import { ACTS, bodyOf, cli, curl, durationOf, python } from "./acts.js";
import { Icon } from "./icons.js";
import { copy, Json, toast } from "./show.js";

/** The sheet that is open: {kind, ...}, or null. */
export const sheet = signal(null);
/** Counts up when an act has changed something: screens read again. */
export const changed = signal(0);

let opener = null;

export function open(given) {
  if (!sheet.value) opener = document.activeElement;
  sheet.value = given;
}

export function close() {
  sheet.value = null;
  if (opener instanceof HTMLElement && opener.isConnected) opener.focus();
  opener = null;
}

/** Open the sheet of an act on runs: {ids} or {q}. */
export const openAct = (action, on, more = {}) => open({ kind: "act", action, ...on, ...more });

/** The frame of every sheet: it takes the focus, escape closes it, Enter in a field confirms. */
export function Frame({ title, children, confirm, confirmWord, disabled, danger, busy, extra }) {
  const first = useRef(null);
  useEffect(() => {
    const field = first.current?.querySelector("[data-first]") ?? first.current?.querySelector("input, textarea, select") ?? first.current?.querySelector(".sfoot button");
    field?.focus();
  }, []);
  useKeys({ escape: close });
  const submit = (event) => {
    event.preventDefault();
    if (!disabled && !busy) confirm();
  };
  return html`<section class="sheet" role="dialog" aria-labelledby="sheet-title" ref=${first}><form onSubmit=${submit} novalidate>
    <div class="shead"><h2 id="sheet-title">${title}</h2><button type="button" class="icon" aria-label="Close" onClick=${close}><${Icon} name="close" /></button></div>
    <div class="body">${children}</div>
    <div class="sfoot"><button type="submit" class=${"btn main" + (danger ? " danger" : "")} disabled=${disabled || busy}>${busy ? "Working…" : confirmWord}</button>${extra}
      <button type="button" class="btn quiet" onClick=${close}>Close</button><span class="hint"><kbd>enter</kbd></span></div>
  </form></section>`;
}

/** The same as a command, with curl and Python behind it. */
export function Command({ spellings }) {
  const [kind, setKind] = useState("cli");
  const text = spellings[kind];
  return html`<div class="field"><span>The same as ${Object.keys(spellings).map((each, i) => html`${i ? " · " : ""}<button type="button" class="linklike" aria-pressed=${each === kind} onClick=${() => setKind(each)}>${{ cli: "a command", curl: "curl", python: "Python" }[each]}</button>`)}</span></div>
    <div class="cmd"><pre tabindex="0" role="group" aria-label="The same as a command">${text}</pre><button type="button" class="icon bordered" aria-label="Copy the command" onClick=${() => copy(text, "Command")}><${Icon} name="copy" /></button></div>`;
}

/** What a sheet does when it is confirmed: {confirm, busy, problem, setProblem}; its reason is kept for the next one. */
export function useConfirm(reason, work) {
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  const confirm = async () => {
    setBusy(true);
    setProblem(null);
    try {
      sessionStorage.setItem("holdfast-reason", reason);
      await work();
      changed.value++;
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      setProblem(error);
    }
    setBusy(false);
  };
  return { confirm, busy, problem, setProblem };
}

export const reasonKept = () => sessionStorage.getItem("holdfast-reason") ?? "";

/** What is done when a sheet is confirmed: {act(work, reason), busy, problem}. What went wrong is shown in the sheet, the
 * reason is kept for the next, and screens read again. */
export function useAct() {
  const [state, set] = useState({ problem: null, busy: false });
  const act = async (work, reason) => {
    let problem = null;
    set({ problem, busy: true });
    try {
      if (reason !== undefined) sessionStorage.setItem("holdfast-reason", reason);
      await work();
      changed.value++;
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      problem = error;
    }
    set({ problem, busy: false });
  };
  return { ...state, act };
}

/** Say what came of an act. */
export const told = (did, said, undo) => (did.changed ? toast(said, { undo }) : toast(`Nothing was changed: ${did.said || "it is in no state for it"}`, { icon: "blocked" }));

export function Reason({ value, set, required }) {
  return html`<label class="field"><span>Reason${required ? ", which is needed" : ", for the audit trail"}</span><input type="text" name="reason" autocomplete="off" required=${required} aria-required=${required} value=${value} onInput=${(e) => set(e.target.value)} /></label>`;
}

function Options({ action, given, set, steps }) {
  if (action === "cancel") return html`<label class="field check"><input type="checkbox" checked=${given.compensate} onChange=${(e) => set({ compensate: e.target.checked })} /><span>Undo what it has done, too</span></label>`;
  if (action === "pause") return html`<label class=${"field" + (given.duration && !durationOf(given.duration) ? " bad" : "")}><span>Goes on by itself after</span><input type="text" placeholder="only when it is resumed; or 30min, 2h, 1d" autocomplete="off" defaultValue=${given.duration ?? ""} onInput=${(e) => set({ duration: e.target.value.trim() })} /></label>`;
  if (action === "rerun" && steps) return html`<label class="field"><span>From</span><select value=${given.from_step ?? ""} onChange=${(e) => set({ from_step: e.target.value })}><option value="">its beginning</option>${steps.map((path) => html`<option value=${path}>${path}</option>`)}</select></label>`;
  return null;
}

/** Whatever went wrong, in the sheet that it went wrong in. */
export const Wrong = ({ problem }) => problem && html`<div class="plan bad" role="alert"><${Icon} name="failed" /><div><b>${problem.title}</b><br /><span class="wrap">${problem.message}</span></div></div>`;

function ActOnOne({ action, id, step, steps, status }) {
  const act = ACTS[action];
  const [given, change] = useState({ reason: reasonKept(), step, from_step: action === "rerun" ? step : undefined });
  const set = (more) => change((known) => ({ ...known, ...more }));
  const [plan, setPlan] = useState(null);
  const [unfit, setUnfit] = useState(null);
  const doing = useAct();
  const problem = doing.problem ?? unfit;
  const path = `/runs/${encodeURIComponent(id)}/${action}`;
  useEffect(() => {
    const abort = new AbortController();
    const wait = setTimeout(() => post(path, { ...bodyOf(action, given), dry_run: true }, { signal: abort.signal })
      .then((found) => { setPlan(found); setUnfit(null); })
      .catch((error) => { if (error instanceof Problem) { setPlan(null); setUnfit(error); } }), 60);
    return () => { clearTimeout(wait); abort.abort(); };
  }, [given.from_step, given.step, given.compensate, given.duration]);
  const refused = plan && (plan.said ?? "").startsWith("it is ");
  const confirm = () => doing.act(async () => {
    const did = await post(path, bodyOf(action, given));
    close();
    told(did, `${id} ${act.past}`, act.undo && (() => undo(act.undo, id)));
  }, given.reason);
  const short = (act.needsReason && !given.reason.trim()) || (given.duration && !durationOf(given.duration));
  return html`<${Frame} title=${html`${act.verb} <code>${id}</code>`} confirm=${confirm} confirmWord=${act.verb} danger=${act.danger} busy=${doing.busy} disabled=${short || refused || (problem && !plan)}>
    <p>${act.one}</p>
    ${refused && html`<div class="plan no"><${Icon} name="blocked" /><div>It cannot be done: ${plan.said}.</div></div>`}
    ${plan && !refused && plan.steps?.length > 0 && html`<div class="plan"><${Icon} name="retry" /><div>It ${plan.said}. Done again: <ul>${plan.steps.slice(0, 12).map((each) => html`<li><code>${each}</code></li>`)}</ul>${plan.steps.length > 12 && `and ${plan.steps.length - 12} more`}${plan.children?.length > 0 && html`<p>Children concerned: ${plan.children.join(", ")}</p>`}</div></div>`}
    <${Wrong} problem=${problem} />
    <${Options} action=${action} given=${given} set=${set} steps=${steps} />
    <${Reason} value=${given.reason} set=${(reason) => set({ reason })} required=${act.needsReason} />
    <${Command} spellings=${{ cli: cli(action, { ids: [id] }, given), curl: curl(action, { ids: [id] }, given), python: python(action, { ids: [id] }, given) }} />
  <//>`;
}

async function undo(action, id) {
  try {
    const did = await post(`/runs/${encodeURIComponent(id)}/${action}`, { reason: "undone at once" });
    changed.value++;
    told(did, `${id} ${ACTS[action].past}`);
  } catch (error) {
    if (error instanceof Problem) toast(error.message, { icon: "failed" });
  }
}

const OFTEN = 300;

/** Follow an act on many until it is over, and say what came of it; return for how many it went wrong.
 * @param {{id: string, progress: any}} begun */
export async function followed(begun, { past, what, tell, stopped }) {
  tell({ id: begun.id, ...begun.progress });
  for (;;) {
    const view = await get("/bulk/" + begun.id);
    const now = view.progress;
    tell({ id: begun.id, ...now });
    changed.value++;
    if (view.state === "failed") throw new Problem(0, { title: "It was not finished", detail: `${view.said}. ${plural(now.changed, what)} ${past} before that; the same again finishes it.` }, "/bulk");
    if (view.state !== "running") {
      const failed = Object.values(now.failed ?? {}).reduce((a, b) => a + b, 0);
      toast(`${plural(now.changed, what)} ${past}${failed ? `, ${number(failed)} went wrong` : ""}${stopped() ? ", then stopped" : ""}`, { icon: failed ? "failed" : "completed" });
      return failed;
    }
    await new Promise((done) => setTimeout(done, OFTEN));
  }
}

export const stopMany = (job) => ask("DELETE", "/bulk/" + job.id).catch(() => {});

/** How far an act on many has come, and what went wrong of it. */
export const Job = ({ job, of }) => job && html`<div class="meter" role="progressbar" aria-label="Progress" aria-valuemin="0" aria-valuemax=${of} aria-valuenow=${job.changed ?? 0}><i style=${{ width: Math.min(100, (100 * (job.changed ?? 0)) / Math.max(1, of)) + "%" }} /></div><p>${number(job.changed ?? 0)} of ${number(of)}</p>
    ${Object.entries(job.errors ?? {}).slice(0, 5).map(([about, why]) => html`<p class="wrap"><code>${about}</code>: ${why}</p>`)}`;

/** What of many can be acted on, and what is in the way of the rest. */
export const Plan = ({ plan, children }) => html`<div class=${"plan" + (plan.can ? "" : " no")} data-plan><${Icon} name=${plan.can ? "completed" : "blocked"} /><div>${children}<b>${number(plan.can)}${plan.exact === false ? "+" : ""} can</b>${Object.entries(plan.cannot ?? {}).map(([why, n]) => `, ${number(n)} cannot: ${why}`)}</div></div>`;

function ActOnMany({ action, ids, q, said }) {
  const act = ACTS[action];
  const [given, change] = useState({ reason: reasonKept() });
  const set = (more) => change((known) => ({ ...known, ...more }));
  const [plan, setPlan] = useState(null);
  const [problem, setProblem] = useState(null);
  const [typed, setTyped] = useState("");
  const [job, setJob] = useState(null);
  const stopped = useRef(false);
  const look = () => {
    setProblem(null);
    post("/bulk", { action, ...(ids ? { ids } : { q }), dry_run: true }).then(setPlan).catch((error) => { if (error instanceof Problem) setProblem(error); });
  };
  useEffect(look, [action]);
  const confirm = async () => {
    setProblem(null);
    try {
      sessionStorage.setItem("holdfast-reason", given.reason);
      const begun = await post("/bulk", { selection: plan.selection, action, dry_run: false, ...bodyOf(action, given) });
      const failed = await followed(begun, { past: act.past, what: "run", tell: setJob, stopped: () => stopped.current });
      if (!failed) close();
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      setProblem(error);
      setJob(null);
    }
  };
  const stop = () => { stopped.current = true; stopMany(job); };
  const many = act.danger && plan && plan.can > 100;
  const disabled = !plan || plan.can === 0 || !given.reason.trim() || (many && typed.replaceAll(",", "") !== String(plan.can));
  return html`<${Frame} title=${html`${act.verb} ${ids ? plural(ids.length, "run") : "all that match"}`} confirm=${confirm} confirmWord=${plan ? `${act.verb} ${number(plan.can)}` : act.verb} danger=${act.danger} busy=${job !== null} disabled=${disabled}
      extra=${job && html`<button type="button" class="btn" onClick=${stop}>Stop</button>`}>
    <p>${act.many}</p>
    ${!ids && html`<p class="dim">Runs that fit <code>${q}</code>. Those that are started from now on are not among them.</p>`}
    ${plan === null && !problem && html`<div class="plan"><${Icon} name="running" /><div>Counting…</div></div>`}
    ${plan && html`<${Plan} plan=${plan} />`}
    <${Job} job=${job} of=${plan?.can ?? 0} />
    <${Wrong} problem=${problem} />
    ${problem?.status === 409 && html`<p><button type="button" class="btn small" onClick=${look}>Count again</button></p>`}
    <${Options} action=${action} given=${given} set=${set} />
    <${Reason} value=${given.reason} set=${(reason) => set({ reason })} required=${true} />
    ${many && html`<label class="field"><span>Type ${number(plan.can)} to go on</span><input type="text" inputmode="numeric" autocomplete="off" value=${typed} onInput=${(e) => setTyped(e.target.value)} /></label>`}
    <${Command} spellings=${{ cli: cli(action, { ids, q }, given), curl: curl(action, { ids, q }, given), python: python(action, { ids, q }, given) }} />
  <//>`;
}

function Send({ id, names }) {
  const [given, change] = useState({ name: names?.[0] ?? "", payload: "{}", reason: reasonKept() });
  const set = (more) => change((known) => ({ ...known, ...more }));
  const { act, busy, problem } = useAct();
  const [reply, setReply] = useState(null);
  let payload, wrong = "";
  try { payload = given.payload.trim() ? parsed(given.payload) : null; } catch (error) { wrong = error.message; }
  const confirm = () => act(async () => {
    const said = { name: given.name, payload, ...(given.reason ? { reason: given.reason } : {}) };
    const did = await post(`/runs/${encodeURIComponent(id)}/${given.ask ? "requests" : "messages"}`, said);
    if (given.ask) return setReply(did);
    close();
    toast(`Message ${given.name} sent to ${id}`, { icon: "send" });
  }, given.reason);
  return html`<${Frame} title=${html`Send to <code>${id}</code>`} confirm=${confirm} confirmWord="Send" busy=${busy} disabled=${!given.name.trim() || wrong}>
    <p>It is put into the inbox of the run, and taken when its code receives that name.${names?.length > 0 && html` It waits for ${names.map((each, i) => html`${i ? " or " : ""}<code>${each}</code>`)}.`}</p>
    <${Wrong} problem=${problem} />
    ${reply && html`<div class="field"><span>It replied</span></div><${Json} value=${reply.answer ?? null} label="Reply" />`}
    <label class="field"><span>Name</span><input type="text" autocomplete="off" value=${given.name} onInput=${(e) => set({ name: e.target.value })} data-first=${!given.name} /></label>
    <label class=${"field" + (wrong ? " bad" : "")}><span>Payload, JSON</span><textarea spellcheck="false" aria-invalid=${Boolean(wrong)} value=${given.payload} onInput=${(e) => set({ payload: e.target.value })} data-first=${Boolean(given.name)} onKeyDown=${(e) => { if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) confirm(); }} />${wrong && html`<span class="wrong">${wrong}</span>`}</label>
    <label class="field check"><input type="checkbox" checked=${given.ask} onChange=${(e) => set({ ask: e.target.checked })} /><span>A request: wait up to 30 s for its reply</span></label>
    <${Reason} value=${given.reason} set=${(reason) => set({ reason })} />
    <${Command} spellings=${{ cli: [`holdfast ${given.ask ? "ask" : "send"}`, quoted(id), quoted(given.name || "NAME"), quoted(given.payload)].join(" ") }} />
  <//>`;
}

function Attributes({ id, values }) {
  const [text, setText] = useState(JSON.stringify(values, null, 2));
  const [reason, setReason] = useState(reasonKept());
  const { act, busy, problem } = useAct();
  let wanted, wrong = "";
  try {
    wanted = parsed(text);
    if (wanted === null || typeof wanted !== "object" || Array.isArray(wanted)) wrong = "It must be an object: names and values";
  } catch (error) { wrong = error.message; }
  const patch = {};
  if (!wrong) {
    for (const [name, value] of Object.entries(wanted)) if (JSON.stringify(values[name]) !== JSON.stringify(value)) patch[name] = value;
    for (const name of Object.keys(values)) if (!(name in wanted)) patch[name] = null;
  }
  const many = Object.keys(patch).length;
  const confirm = () => act(async () => {
    await ask("PATCH", `/runs/${encodeURIComponent(id)}/attributes`, { body: patch, params: { reason } });
    close();
    toast(`Attributes of ${id} set`);
  }, reason);
  const command = ["holdfast set", quoted(id), ...Object.entries(patch).map(([name, value]) => quoted(`${name}=${value === null ? "" : typeof value === "string" ? value : JSON.stringify(value)}`))].join(" ");
  return html`<${Frame} title=${html`Attributes of <code>${id}</code>`} confirm=${confirm} confirmWord=${many ? `Set ${plural(many, "attribute")}` : "Set"} busy=${busy} disabled=${wrong || !many}>
    <p>By attributes a run is found, as in <code>customer=c-2210</code>. One that is left out is removed.</p>
    <${Wrong} problem=${problem} />
    <label class=${"field" + (wrong ? " bad" : "")}><span>Attributes, JSON</span><textarea spellcheck="false" aria-invalid=${Boolean(wrong)} value=${text} onInput=${(e) => setText(e.target.value)} data-first />${wrong && html`<span class="wrong">${wrong}</span>`}</label>
    <${Reason} value=${reason} set=${setReason} />
    <${Command} spellings=${{ cli: command }} />
  <//>`;
}

const KINDS = { send: Send, attributes: Attributes };

/** More kinds of sheets, by screens that have their own. */
export function addKind(name, component) {
  KINDS[name] = component;
}

export function Sheet() {
  const given = sheet.value;
  if (!given) return null;
  const key = JSON.stringify([given.kind, given.action, given.ids, given.q, given.id, given.step]);
  if (given.kind === "act") {
    if (given.ids?.length === 1) return html`<${ActOnOne} key=${key} id=${given.ids[0]} ...${given} />`;
    return html`<${ActOnMany} key=${key} ...${given} />`;
  }
  const Kind = KINDS[given.kind];
  return html`<${Kind} key=${key} ...${given} />`;
}

/** A button that opens the sheet of an act; shown disabled, with the role it needs, where we may not. */
export function ActButton({ action, on, label, small, main, more, fits = true }) {
  const act = ACTS[action];
  const allowed = may(act.role);
  const why = !allowed ? `Needs the role ${act.role}` : !fits ? "The run is in no state for it" : undefined;
  return html`<button class=${"btn" + (small ? " small" : "") + (main ? " main" : "") + (act.danger ? " danger" : "")} disabled=${!allowed || !fits} title=${why} onClick=${() => openAct(action, on, more)}><${Icon} name=${action} />${label ?? act.verb + "…"}</button>`;
}
