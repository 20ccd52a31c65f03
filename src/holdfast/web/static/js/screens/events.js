// Events: what is queued under each name, which runs wait for it, and a form to publish one.
import { html, parsed, useEffect, useState, quoted } from "../base.js";
import { get, may, post, usePicture } from "../api.js";
import { useLivePicture } from "../live.js";
import { here } from "../url.js";
import { number, plural } from "../format.js";
import { literal, named, request } from "../parts/acts.js";
import { away, Away } from "../parts/away.js";
import { Copies } from "../parts/drop.js";
import { Icon } from "../parts/icons.js";
import { Foot, useFew, useScreen } from "../parts/screen.js";
import { addKind, changed, close, Command, Frame, open, Reason, reasonKept, useConfirm, Wrong } from "../parts/sheet.js";
import { plain, RunLink, Time, toast, Wide } from "../parts/show.js";
import { Part } from "../run/tabs.js";

function Publish({ name: given }) {
  const [name, setName] = useState(given ?? "");
  const [text, setText] = useState("{}");
  const [reason, setReason] = useState(reasonKept());
  let payload, wrong = "";
  try { payload = text.trim() ? parsed(text) : null; } catch (error) { wrong = error.message; }
  const body = { name, payload, ...(reason ? { reason } : {}) };
  const { confirm, busy, problem } = useConfirm(reason, async () => {
    const did = await post("/events", body);
    close();
    toast(did.count ? `Event ${name} given to ${plural(did.count, "run")}` : `Event ${name} is queued until a run receives it`, { icon: "send" });
  });
  return html`<${Frame} title="Publish an event" confirm=${confirm} confirmWord="Publish" busy=${busy} disabled=${!name.trim() || wrong}>
    <p>A run that waits for the name is given it; without one it is queued. How many get it is the event's own rule.</p>
    <${Wrong} problem=${problem} />
    <label class="field"><span>Name</span><input type="text" autocomplete="off" value=${name} onInput=${(e) => setName(e.target.value)} data-first=${!given} /></label>
    <label class=${"field" + (wrong ? " bad" : "")}><span>Payload, JSON</span><textarea spellcheck="false" aria-invalid=${Boolean(wrong)} value=${text} onInput=${(e) => setText(e.target.value)} data-first=${Boolean(given)} />${wrong && html`<span class="wrong">${wrong}</span>`}</label>
    <${Reason} value=${reason} set=${setReason} />
    <${Command} spellings=${{ cli: ["holdfast publish", quoted(name || "NAME"), quoted(text), reason && "--reason " + quoted(reason)].filter(Boolean).join(" "), ...(wrong ? {} : { curl: request("POST", "/events", body), python: `await engine.publish(${literal(name || "NAME")}, ${literal(payload)}, ${named({ by: "me", reason })})` }) }} />
  <//>`;
}
addKind("publish", Publish);

const PublishButton = ({ name, small }) => html`<button class=${"btn" + (small ? " small" : " main")} disabled=${!may("operator")} title=${may("operator") ? undefined : "Needs the role operator"} onClick=${() => open({ kind: "publish", name, id: name })}><${Icon} name="send" />Publish…</button>`;

function One({ name }) {
  const page = usePicture("event " + name, (signal) => get("/events/queued", { params: { name, limit: 50, cut: true }, signal }));
  useLivePicture(`events/queued?name=${encodeURIComponent(name)}&limit=50&cut=true`, page);
  useEffect(() => { if (changed.value) page.reload(); }, [changed.value]);
  const { queued = [], waiting = [] } = page.data ?? {};
  return html`<section class="panel" aria-label=${"Event " + name}><div class="ptitle"><h2><code>${name}</code></h2><span class="end"><${PublishButton} name=${name} small /><a class="btn small quiet" href=${here({ name: null })}>All names</a></span></div>
    <${Part} picture=${page} empty=${!queued.length && !waiting.length && "Nothing is queued under this name, and no run waits for it."}>
      ${waiting.length > 0 && html`<${Wide}><table class="tbl"><caption class="vh">Runs that wait</caption><thead><tr><th scope="col">Run that waits</th><th scope="col">Since</th></tr></thead><tbody>${waiting.map((each) => html`<tr><td><${RunLink} id=${each.run} /></td><td><${Time} at=${each.since} both /></td></tr>`)}</tbody></table><//>`}
      ${queued.length > 0 && html`<${Wide}><table class="tbl"><caption class="vh">Queued</caption><thead><tr><th scope="col">Queued</th><th scope="col">Payload</th><th scope="col">Event</th></tr></thead><tbody>${queued.map((each) => html`<tr><td><${Time} at=${each.at} both /></td><td class="wide"><code>${plain(each.payload ?? null).slice(0, 400)}</code></td><td><code class="dim">${each.id}</code></td></tr>`)}</tbody></table><//>`}
      ${page.data?.next && html`<p class="empty">These are the oldest 50.</p>`}<//></section>`;
}

export function Events({ params }) {
  const names = usePicture("events", (signal) => get("/events", { signal }));
  useLivePicture("events", names);
  useEffect(() => { if (changed.value) names.reload(); }, [changed.value]);
  useScreen("events", Boolean(names.data), "holdfast events");
  const items = names.data?.items ?? [];
  const chosen = params.get("name");
  const gone = away([names]);
  const few = useFew(items, (each) => each.name, "an event");
  return html`<main id="main" tabindex="-1" class=${"s-events stack" + (gone ? " stale" : "")}>
    <div class="phead"><h1>Events</h1><span class="count num">${names.data ? `${plural(items.length, "name")}` : ""}</span><div class="end"><${Copies} command="holdfast events" path="/events" python="await LocalDesk(engine.store).event_names()" /><${PublishButton} /></div></div>
    <${Away} of=${gone} />
    ${chosen && html`<${One} key=${chosen} name=${chosen} />`}
    <section class="panel" aria-label="Names"><div class="ptitle"><h2>Names</h2><span class="end">${few.field}</span></div><${Part} picture=${names} empty=${!items.length && "No event is queued, and no run waits for one. `ctx.receive_event(name)` waits; `engine.publish(name, payload)` publishes."}><${Wide}><table class="tbl"><caption class="vh">Events by name</caption><thead><tr><th scope="col">Name</th><th scope="col" class="n">Queued</th><th scope="col">Oldest</th><th scope="col" class="n">Runs that wait</th><th scope="col">Since</th><th scope="col">Each is given</th><th scope="col"><span class="vh">Acts</span></th></tr></thead><tbody>
      ${few.shown.map((each) => html`<tr key=${each.name}><td><a href=${here({ name: each.name })} aria-current=${each.name === chosen ? "true" : undefined}><code>${each.name}</code></a></td><td class="n">${number(each.queued)}</td><td>${each.oldest && html`<${Time} at=${each.oldest} short />`}</td><td class="n">${number(each.waiting)}</td><td>${each.since && html`<${Time} at=${each.since} short />`}</td><td class="dim">${each.rule || "by default to the run that waits longest"}</td><td class="n acts"><${PublishButton} name=${each.name} small /></td></tr>`)}</tbody></table><//>${few.more}<//></section>
    <${Foot} />
  </main>`;
}
