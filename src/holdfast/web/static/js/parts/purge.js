// Deleting what is old for good: counted first, by kind and age.
import { html, useEffect, useState, quoted } from "../base.js";
import { post, Problem } from "../api.js";
import { number } from "../format.js";
import { durationOf, spelled } from "./acts.js";
import { Icon } from "./icons.js";
import { addKind, close, Command, Frame, Reason, reasonKept, useAct, Wrong } from "./sheet.js";
import { toast } from "./show.js";

const KINDS = { seen_letters: "dead letters that were seen", letters: "dead letters, seen or not", completed: "completed runs", failed: "failed runs", cancelled: "cancelled runs", events: "events that no run took" };

const sum = (counts) => Object.values(counts).reduce((a, b) => a + b, 0);

function Purge() {
  const [kind, setKind] = useState("seen_letters");
  const [age, setAge] = useState("30d");
  const [reason, setReason] = useState(reasonKept());
  const [plan, setPlan] = useState(null);
  const [typed, setTyped] = useState("");
  const { act, busy, problem } = useAct();
  const older = durationOf(age);
  const asked = { kinds: [kind], older_than: older };
  useEffect(() => {
    setPlan(null);
    setTyped("");
    if (!older) return undefined;
    const abort = new AbortController();
    const wait = setTimeout(() => post("/purge", asked, { signal: abort.signal }).then(setPlan, (error) => { if (!(error instanceof Problem)) throw error; }), 90);
    return () => { clearTimeout(wait); abort.abort(); };
  }, [kind, older]);
  const count = plan ? sum(plan.counts) : 0;
  const said = number(count) + (plan && !plan.finished ? "+" : "");
  const confirm = () => act(async () => {
    let gone = 0;
    for (let done = { finished: false }; !done.finished; gone += sum(done.counts)) done = await post("/purge", { ...asked, dry_run: false, reason });
    close();
    toast(`${number(gone)} ${KINDS[kind]} deleted`);
  }, reason);
  const many = count > 100;
  const command = ["holdfast purge", kind, "--older-than", spelled(age) || "AGE", ...(reason ? ["--reason", quoted(reason)] : [])].join(" ");
  return html`<${Frame} title="Purge" confirm=${confirm} confirmWord=${plan ? `Delete ${said}` : "Delete"} danger busy=${busy} disabled=${!count || !reason.trim() || (many && typed.replaceAll(",", "") !== String(count))}>
    <p>What is older than an age is deleted for good. Runs that have not ended are never touched.</p>
    <label class="field"><span>What</span><select data-first value=${kind} onChange=${(e) => setKind(e.target.value)}>${Object.entries(KINDS).map(([each, word]) => html`<option value=${each}>${word}</option>`)}</select></label>
    <label class=${"field" + (older ? "" : " bad")}><span>Older than</span><input type="text" autocomplete="off" value=${age} onInput=${(e) => setAge(e.target.value)} />${!older && html`<span class="wrong">as 12h, 30d</span>`}</label>
    ${plan && html`<div class=${"plan" + (count ? "" : " no")} data-plan><${Icon} name=${count ? "completed" : "blocked"} /><div>${count ? html`<b>${said}</b> would be deleted` : "Nothing is that old"}</div></div>`}
    <${Wrong} problem=${problem} />
    <${Reason} value=${reason} set=${setReason} required=${true} />
    ${many && html`<label class="field"><span>Type ${said} to go on</span><input type="text" inputmode="numeric" autocomplete="off" value=${typed} onInput=${(e) => setTyped(e.target.value)} /></label>`}
    <${Command} spellings=${{ cli: command }} />
  <//>`;
}
addKind("purge", Purge);
