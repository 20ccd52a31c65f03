// How single things are shown: statuses, times, sentences, JSON, problems.
import { html, signal, useLayoutEffect, useRef, useState } from "../base.js";
import { absolute, ago, clock, coarse, now, zone } from "../format.js";
import { runHref } from "../url.js";
import { Icon } from "./icons.js";

export const STATUSES = ["pending", "running", "suspended", "paused", "compensating", "cancelling", "blocked", "failed", "completed", "cancelled", "moving", "moved"];
const WORDS = { suspended: "Waiting", skipped: "Put off" };
export const TERMINAL = ["completed", "failed", "cancelled", "moved"];

export const statusWord = (status) => WORDS[status] ?? status[0].toUpperCase() + status.slice(1);
const tone = (status) => ({ waiting: "suspended", skipped: "suspended", lost: "pending" })[status] ?? status;

/** Icon, word and colour together. */
export function Status({ status, pill = false }) {
  return html`<span class=${"st s-" + tone(status) + (pill ? " pill" : "")}><${Icon} name=${tone(status)} />${statusWord(status)}</span>`;
}

/** An instant: absolute, with how long ago in a tooltip or below. */
export function Time({ at, millis, both, short }) {
  if (!at) return null;
  zone.value;
  const said = short ? ago(at) : clock(at, { millis });
  const other = short ? absolute(at) : absolute(at) + ", " + ago(at);
  if (!both) return html`<time datetime=${at} title=${other}>${said}</time>`;
  return html`<time datetime=${at} title=${absolute(at)}><span>${said}</span><span class="small">${ago(at)}</span></time>`;
}

const FAILS = /^(failed|waiting\.(retry|several)|blocked\.(code|stuck|poison))/;
const WARNS = /^(pending\.nobody|overdue|waiting\.queue\.nobody|running\.(silent|dead))/;

/** The id of a worker, of which the first half is enough to know it by. */
const LONG_ID = /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}$/;

export function coded(text, key) {
  return text.split(/`([^`]*)`/).map((part, i) => (i % 2 ? (LONG_ID.test(part) ? html`<code key=${key + i} title=${part}>${part.slice(0, 13)}</code>` : html`<code key=${key + i}>${part}</code>`) : part));
}

/** Times in a sentence go on while it is looked at: "in 38 s" is counted down to `until`, "since" up from `since`. */
function ticking(sentence, why, live) {
  if (!live) return sentence;
  let said = sentence;
  if (why.until) said = said.replace(/\bin (\d+(\.\d+)? (s|min|h|d)( \d+ (s|min|h))?)(?![\w])/, () => { const left = Date.parse(why.until) - now.value; return left > 0 ? "in " + coarse(left) : "now"; });
  if (why.since) said = said.replace(/\bsince \d+(\.\d+)? (s|min|h|d)( \d+ (s|min|h))?/, () => "since " + coarse(now.value - Date.parse(why.since)));
  return said;
}

/** The sentence that says why a run is where it is. */
export function Sentence({ why, live = true }) {
  let said = ticking(why.sentence, why, live);
  if (why.code.startsWith("blocked")) said = said.replace(/'([^'`]+)'/g, "`$1`"); // errors name things in quotes
  const at = said.search(/: (?=[^`]*(`[^`]*`[^`]*)*$)/);
  if (at > 0 && FAILS.test(why.code)) {
    const cause = said.slice(at + 2);
    return html`${coded(said.slice(0, at + 2), "a")}<span class="e">${cause}</span>`;
  }
  if (at > 0 && WARNS.test(why.code)) return html`<span class="a">${coded(said.slice(0, at + 1), "a")}</span>${coded(said.slice(at + 1), "b")}`;
  if (why.code === "compensating") {
    const after = said.match(/^(.* failed with )(\w+)(.*)$/s);
    if (after) return html`${coded(after[1], "a")}<span class="e">${after[2]}</span>${coded(after[3], "c")}`;
  }
  return html`${coded(said, "a")}`;
}

const LONGEST = 20_000, MOST_COLOURED = 200;

const MASKED = "\u2022".repeat(6);

/** A value that the server masks: whoever may see it can ask for it. */
function Masked({ pointer, reveal }) {
  const found = reveal.found(pointer);
  if (found) return html`<span class="revealed">${JSON.stringify(found.value)}</span>`;
  return html`<button class="linklike" aria-label=${"Reveal " + pointer} title="Reveal it, on record" onClick=${() => reveal.ask(pointer)}>"${MASKED}"</button>`;
}

function shown(value, depth, out, room, reveal, at = "") {
  const pad = "  ".repeat(depth);
  if (value === null || typeof value === "boolean") out.push(html`<span class="k">${String(value)}</span>`);
  else if (JSON.isRawJSON?.(value)) out.push(html`<span class="n">${value.rawJSON}</span>`);
  else if (typeof value === "number") out.push(html`<span class="n">${String(value)}</span>`);
  else if (value === MASKED && reveal) out.push(html`<${Masked} pointer=${at} reveal=${reveal} />`);
  else if (typeof value === "string") out.push(html`<span class="str">${JSON.stringify(value)}</span>`);
  else {
    const list = Array.isArray(value);
    const entries = list ? value.map((each) => [null, each]) : Object.entries(value);
    const flat = JSON.stringify(value);
    if (!entries.length) { out.push(list ? "[]" : "{}"); return; }
    const inline = flat.length < 36 && entries.every(([, each]) => each === null || typeof each !== "object" || JSON.isRawJSON?.(each));
    out.push(list ? "[" : "{");
    entries.forEach(([name, each], i) => {
      if (room.left-- <= 0) return;
      out.push(inline ? (i ? ", " : "") : (i ? "," : "") + "\n" + pad + "  ");
      if (!list) out.push(html`<span class="jk">${JSON.stringify(name)}</span>`, ": ");
      shown(each, depth + 1, out, room, reveal, `${at}/${list ? i : name.replaceAll("~", "~0").replaceAll("/", "~1")}`);
    });
    out.push((inline ? "" : "\n" + pad) + (list ? "]" : "}"));
  }
}

/** Whether the server has told only how a value begins. */
export const isCut = (value) => typeof value?.cut_from_bytes === "number";

async function download(whole, label) {
  const address = URL.createObjectURL(new Blob([JSON.stringify(await whole(), null, 2)], { type: "application/json" }));
  const link = Object.assign(document.createElement("a"), { href: address, download: label.toLowerCase().replaceAll(" ", "-") + ".json" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

/** The beginning of a long value, and beside it all of it as a file. */
function Beginning({ value, label, whole }) {
  const [problem, setProblem] = useState("");
  return html`<pre class="json" tabindex="0" role="group" aria-label=${label}>${value.begins}…</pre>
    <p class="dim">${Math.ceil(value.cut_from_bytes / 1024).toLocaleString("en-US")} KiB, of which this is the beginning${whole && html` · <button class="linklike" onClick=${() => download(whole, label).then(() => setProblem(""), (error) => setProblem(error.message))}>download</button>`}${problem && html` · <span class="s-failed">${problem}</span>`}</p>`;
}

/** A value as JSON, with colours unless it has very many parts; a very long one is cut, and can be copied whole. */
export function Json({ value, label, whole: all, reveal }) {
  const [whole, setWhole] = useState(false);
  if (isCut(value)) return html`<${Beginning} value=${value} label=${label} whole=${all} />`;
  const text = JSON.stringify(value, null, 2) ?? "null";
  if (text.length > LONGEST && !whole) {
    return html`<pre class="json" tabindex="0" role="group" aria-label=${label}>${text.slice(0, LONGEST)}…</pre>
      <button class="linklike" onClick=${() => setWhole(true)}>show all ${text.length.toLocaleString("en-US")} characters</button>`;
  }
  let out = [];
  const room = { left: MOST_COLOURED };
  if (text.length <= LONGEST) shown(value, 0, out, room, reveal);
  if (text.length > LONGEST || room.left < 0) out = [text];
  return html`<pre class="json" tabindex="0" role="group" aria-label=${label}>${out}</pre>`;
}

/** A table; where it is narrow each row is a card, and each cell is labelled by the head of its column. */
export function Wide({ children }) {
  const box = useRef(null);
  useLayoutEffect(() => {
    const heads = [...box.current.querySelectorAll("thead th")].map((each) => (each.querySelector(".vh") ? "" : each.textContent));
    for (const row of box.current.querySelectorAll("tbody tr")) [...row.children].forEach((cell, i) => { if (heads[i]) cell.dataset.label = heads[i]; });
  });
  return html`<div class="scroller" ref=${box}>${children}</div>`;
}

export const Chips = ({ values }) => Object.entries(values ?? {}).map(([name, value]) =>
  html`<span class="chip" key=${name} title=${name + " = " + plain(value)}>${name} <b>${plain(value)}</b></span>`);

export const plain = (value) => (isCut(value) ? value.begins : typeof value === "string" ? value : JSON.stringify(value));

export const RunLink = ({ id, children }) => html`<a href=${runHref(id)}>${children ?? html`<code>${id}</code>`}</a>`;

/** What failed, whether it is retried, and what to give to whoever looks into it. */
export function Trouble({ problem, retry, children }) {
  return html`<section class="panel notice bad" role="alert">
    <h2>${problem.title}</h2>
    <p>${problem.message}</p>
    ${problem.passing && html`<p>It is tried again every 2 seconds.</p>`}
    ${problem.role && html`<p>It needs the role <b>${problem.role}</b>.</p>`}
    ${problem.instance && html`<p>Request <code>${problem.instance}</code></p>`}
    ${children}
    <div class="acts">${retry && html`<button class="btn small" onClick=${retry}>Try now</button>`}
    ${problem.instance && html`<${Copy} text=${problem.instance} what="Request id">Copy request id<//>`}</div>
  </section>`;
}

/** Messages at the edge of the page: {text, undo, icon}. */
export const toasts = signal([]);
let numbered = 0;

export function toast(text, { undo, icon = "completed" } = {}) {
  const id = ++numbered;
  const drop = () => { toasts.value = toasts.value.filter((each) => each.id !== id); };
  toasts.value = [...toasts.value.slice(-3), { id, text, undo: undo && (() => { drop(); undo(); }), icon, drop }];
  setTimeout(drop, undo ? 12_000 : 6_000);
}

export function Toasts() {
  return html`<div class="toasts" role="status" aria-live="polite">${toasts.value.map((each) => html`<div class="toast" key=${each.id}>
    <${Icon} name=${each.icon} /><span>${each.text}</span>
    ${each.undo && html`<button onClick=${each.undo}>Undo</button>`}
    <button aria-label="Close this message" onClick=${each.drop}>×</button>
  </div>`)}</div>`;
}

export async function copy(text, what = "") {
  try {
    await navigator.clipboard.writeText(text);
    toast((what || "Text") + " copied", { icon: "copy" });
  } catch {
    toast("The browser does not allow copying here: " + text, { icon: "failed" });
  }
}

export function Copy({ text, what, children, small = true, icon = "copy" }) {
  return html`<button class=${"btn quiet" + (small ? " small" : "")} onClick=${() => copy(text, what)}><${Icon} name=${icon} />${children}</button>`;
}
