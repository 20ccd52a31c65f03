// Dead letters: what was given up, by its cause; a group is replayed, or one of it is tried first.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../base.js";
import { ask, get, may, post, usePicture, Problem } from "../api.js";
import { useLivePicture } from "../live.js";
import { go, here, href, runHref, settled } from "../url.js";
import { number, plural, zoneName } from "../format.js";
import { useKeys } from "../keys.js";
import { Icon } from "../parts/icons.js";
import { addKind, changed, close, Command, Frame, open, Reason } from "../parts/sheet.js";
import { copy, RunLink, Time, toast, Trouble, Wide } from "../parts/show.js";
import { typeName } from "../run/step.js";

const same = (letter, group) => letter.workflow === group.workflow && letter.step === group.step && (letter.error?.type ?? "") === group.error;

const LETTER_ACTS = {
  replay: { verb: "Replay", past: "replayed", says: "Its run goes on from the step that failed; a message is delivered again. Steps keep their keys, so that what was done is not done twice." },
  acknowledge: { verb: "Acknowledge", past: "acknowledged", says: "It is noted that it was seen. Nothing else is done; it leaves this list." },
  remove: { verb: "Remove", past: "removed", says: "The letter is removed. Its run stays as it is." },
};

const PAGE = 200;

/** The letters of a group, newest first, page by page: there may be thousands. */
async function* lettersOf(group) {
  for (let before = null; ; ) {
    const { items } = await get("/letters", { params: { limit: PAGE, workflow: group.workflow, before } });
    if (!items.length) return;
    yield* items.filter((each) => same(each, group));
    before = items.at(-1).id;
  }
}

async function actOn(action, letter, reason) {
  if (action === "remove") return ask("DELETE", "/letters/" + encodeURIComponent(letter.id), { params: { reason } });
  return post(`/letters/${encodeURIComponent(letter.id)}/${action}`, { reason });
}

function LetterSheet({ action, letters, group }) {
  const act = LETTER_ACTS[action];
  const [reason, setReason] = useState(sessionStorage.getItem("holdfast-reason") ?? "");
  const [state, setState] = useState({ done: 0, wrong: [], busy: false, stop: false });
  const stopped = useRef(false);
  useEffect(() => () => { stopped.current = true; }, []);
  const count = group?.count ?? letters.length;
  const many = count > 1;
  const run = async (one) => {
    sessionStorage.setItem("holdfast-reason", reason);
    const wrong = [];
    let done = 0;
    stopped.current = false;
    setState({ done, wrong, busy: true });
    try {
      for await (const letter of one || !group ? letters.slice(0, one ? 1 : undefined) : lettersOf(group)) {
        if (stopped.current) break;
        try {
          await actOn(action, letter, reason);
          done++;
        } catch (error) {
          if (!(error instanceof Problem)) throw error;
          wrong.push([letter.run, error.message]);
          if (error.passing) break;
        }
        setState({ done, wrong, busy: true });
      }
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      wrong.push(["", error.message]); // the next page could not be read
    }
    changed.value++;
    setState({ done, wrong, busy: false });
    toast(`${plural(done, "letter")} ${act.past}${wrong.length ? `, ${number(wrong.length)} went wrong` : ""}`, { icon: wrong.length ? "failed" : "completed" });
    if (!wrong.length && !one && !stopped.current) close();
  };
  const title = many ? `${act.verb} ${plural(count, "letter")}` : `${act.verb} ${letters[0].run}`;
  const word = action === "acknowledge" ? "ack" : action;
  return html`<${Frame} title=${title} confirm=${() => run(false)} confirmWord=${many ? `${act.verb} ${number(count)}` : act.verb} busy=${state.busy} disabled=${many && !reason.trim()} danger=${action === "remove"}
      extra=${state.busy ? html`<button type="button" class="btn" onClick=${() => { stopped.current = true; }}>Stop</button>` : many && action === "replay" && html`<button type="button" class="btn" onClick=${() => run(true)}>Try one first</button>`}>
    <p>${act.says}</p>
    ${group && html`<div class="plan" data-plan><${Icon} name="completed" /><div><b>${plural(count, "letter")}</b> of <code>${group.workflow}</code>, step <code>${group.step}</code>, <span class="s-failed">${typeName(group.error)}</span></div></div>`}
    ${state.busy && html`<div class="meter" role="progressbar" aria-label="Progress" aria-valuemin="0" aria-valuemax=${count} aria-valuenow=${state.done}><i style=${{ width: Math.min(100, (100 * state.done) / count) + "%" }} /></div>`}
    ${state.wrong.slice(0, 5).map(([run, why]) => html`<div class="plan bad" role="alert"><${Icon} name="failed" /><div class="wrap"><code>${run}</code>: ${why}</div></div>`)}
    <${Reason} value=${reason} set=${setReason} required=${many} />
    <${Command} spellings=${{ cli: `holdfast letters ${word} ${letters.slice(0, 3).map((each) => each.id).join(" ")}${count > 3 ? " ..." : ""}` }} />
  <//>`;
}
addKind("letters", LetterSheet);

function Buttons({ letters, group }) {
  const may_ = may("operator");
  return Object.entries(LETTER_ACTS).map(([action, act]) => html`<button class=${"btn small" + (action === "replay" ? "" : " quiet")} disabled=${!may_ || !letters.length} title=${may_ ? undefined : "Needs the role operator"} onClick=${() => open({ kind: "letters", action, letters, group, id: letters.map((each) => each.id).join() })}>${action === "replay" && html`<${Icon} name="retry" />`}${act.verb}${(group?.count ?? 1) > 1 ? ` ${number(group.count)}` : ""}…</button>`);
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
      <div class="end"><a class="btn quiet" href=${here({ seen: seen ? null : "yes", group: null })}>${seen ? "Unseen" : "Seen ones"}</a><button class="btn quiet" onClick=${() => copy("holdfast letters groups", "Command")}><${Icon} name="terminal" />Copy as CLI</button></div></div>
    ${problem && !groups.data && html`<${Trouble} problem=${problem} retry=${again} />`}
    ${!seen && groups.data && (found.length ? html`<section class="panel" aria-label="By cause"><div class="ptitle"><h2>By cause</h2></div><${Wide}><table class="tbl"><caption class="vh">Dead letters by cause</caption><thead><tr><th scope="col">Cause</th><th scope="col">Workflow and step</th><th scope="col" class="n">Letters</th><th scope="col">First</th><th scope="col">Last</th><th scope="col"><span class="vh">Acts</span></th></tr></thead><tbody>
      ${found.map((group) => { const own = items.filter((each) => same(each, group)); return html`<tr><td><a class="group s-failed" href=${here({ group: keyOf(group) === shown ? null : keyOf(group) })} aria-current=${keyOf(group) === shown ? "true" : undefined}>${typeName(group.error) || "no error"}</a></td><td>${group.workflow} · <code>${group.step}</code></td><td class="n"><b>${number(group.count)}</b></td><td><${Time} at=${group.first} /></td><td><${Time} at=${group.last} /></td><td class="n acts"><${Buttons} letters=${own} group=${group} /></td></tr>`; })}</tbody></table><//></section>`
      : html`<section class="panel notice"><h2>No dead letters</h2><p>A step that is given up after its last attempt leaves one, and so does a message that no run can take. They wait here until a person replays or acknowledges them.</p></section>`)}
    ${letters.length > 0 && html`<section class="panel" aria-label="Letters"><div class="ptitle"><h2>${seen ? "Seen" : chosen ? typeName(chosen.error) : "Newest"}</h2>${chosen && html`<span class="end"><a class="btn small quiet" href=${here({ group: null })}>All causes</a></span>`}</div><${Wide}><table class="tbl"><caption class="vh">Letters</caption><thead><tr><th scope="col">Run</th><th scope="col">Step</th><th scope="col">Error</th><th scope="col" class="n">Attempts</th><th scope="col">When</th><th scope="col"><span class="vh">Acts</span></th></tr></thead><tbody>
      ${letters.map((each) => html`<tr><td>${each.run ? html`<${RunLink} id=${each.run} />` : each.kind}<span class="small">${each.workflow}</span></td><td><code>${each.step || each.name}</code></td><td>${each.error && html`<span class="s-failed">${typeName(each.error.type)}${each.error.message ? ": " + each.error.message : ""}</span>`}${each.outcome && html`<span class="small">${each.outcome}</span>`}</td><td class="n">${each.attempts}</td><td><${Time} at=${each.at} /></td><td class="n acts">${!each.outcome && html`<${Buttons} letters=${[each]} />`}</td></tr>`)}</tbody></table><//></section>`}
    <footer class="foot"><span><kbd>j</kbd><kbd>k</kbd> move</span><span><kbd>?</kbd> all keys</span><span class="end">Times in ${zoneName()}</span></footer>
  </main>`;
}
