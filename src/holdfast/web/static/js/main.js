// The shell: who we are, the bar at the top, which screen, keys, and what is shown while the server does not know us.
import { html, render, useEffect, useRef, useState, signal, kept, keep } from "./base.js";
import { get, meet, session, signIn, usePicture, Problem } from "./api.js";
import { connection, useLive } from "./live.js";
import { go, href, place, runHref, settled } from "./url.js";
import { ago, coarse, now, setZone, zone, zoneName } from "./format.js";
import { letters, setLetters, useKeys } from "./keys.js";
import { Drop } from "./parts/drop.js";
import { later } from "./parts/later.js";
import { Icon, Mark } from "./parts/icons.js";
import { changed, close, Frame, open, Sheet, sheet, addKind } from "./parts/sheet.js";
import { Toasts, toast, Trouble } from "./parts/show.js";
import { Runs } from "./screens/runs.js";

const busy = html`<main id="main" aria-busy="true"></main>`;
const Run = later(() => import("./screens/run.js"), "Run", busy);
const Letters = later(() => import("./screens/letters.js"), "Letters", busy);
const Workers = later(() => import("./screens/workers.js"), "Workers", busy);
const Overview = later(() => import("./screens/overview.js"), "Overview", busy);
const Audit = later(() => import("./screens/audit.js"), "Audit", busy);
const Events = later(() => import("./screens/events.js"), "Events", busy);
const Deploys = later(() => import("./screens/deploys.js"), "Deploys", busy);

const Schedules = later(() => import("./screens/schedules.js"), "Schedules", busy);
const Settings = later(() => import("./screens/settings.js"), "Settings", busy);
const Start = later(() => import("./screens/start.js"), "Start", busy);

/** Where to go: address, word, the letter after g, and what is shown there. */
const SCREENS = [["/", "Overview", "o", Overview], ["/runs", "Runs", "r", Runs], ["/letters", "Dead letters", "l", Letters], ["/schedules", "Schedules", "s", Schedules], ["/workers", "Workers", "w", Workers], ["/events", "Events", "e", Events], ["/deploys", "Deploys", "d", Deploys], ["/audit", "Audit", "a", Audit]];
const isAt = (to, path) => (to === "/" ? path === "/" : path === to || path.startsWith(to + "/"));

export function flipTheme() {
  const root = document.documentElement;
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  try { localStorage.setItem("holdfast-theme", root.dataset.theme); } catch { /* it holds for this tab */ }
}

function Connection() {
  const { state, reason, since } = connection.value;
  const about = session.value;
  const behind = state === "lost" ? coarse(now.value - since) : "";
  const words = { live: "live", connecting: "connecting", off: "not live", lost: `no live stream for ${behind}, retrying: ${reason}` }[state];
  const dot = { live: "pulse", connecting: "off", off: "off", lost: "lost" }[state];
  return html`<span class=${"store" + (state === "lost" ? " bad" : "")} data-live=${state} title=${words}><i class=${"dot " + dot}></i>${state === "lost" ? "not live" : html`<span class="db">${about.database && about.database + " · "}${{ sqlite: "SQLite", postgres: "PostgreSQL" }[about.store] ?? about.store}</span>`}<span class="vh" role="status">${words}</span></span>`;
}

function Search() {
  const field = useRef(null);
  const [text, set] = useState("");
  useKeys({ "/": () => (document.querySelector("[data-filter]") ?? field.current).focus() });
  const find = async (event) => {
    event.preventDefault();
    const word = text.trim();
    if (!word) return;
    try {
      const page = await get("/runs", { params: { q: word, limit: 2 } });
      if (page.items.length === 1 && page.items[0].id === word) go(runHref(word));
      else go(href("/runs", { q: word }));
      set("");
      field.current?.blur();
    } catch (error) {
      if (error instanceof Problem) go(href("/runs", { q: word }));
    }
  };
  return html`<form class="search" role="search" onSubmit=${find}><${Icon} name="search" /><input ref=${field} type="text" aria-label="Find a run" placeholder="Find a run" autocomplete="off" spellcheck="false" value=${text} onInput=${(e) => set(e.target.value)} onKeyDown=${(e) => { if (e.key === "Escape") e.target.blur(); }} /><kbd aria-hidden="true">/</kbd></form>`;
}

function Bar() {
  const about = session.value;
  const groups = usePicture("letters-count", (signal) => get("/letters/groups", { signal }));
  useLive("letters", (name, data) => { if (data.value?.items) groups.put(data.value); else groups.reload(); });
  const open = (groups.data?.items ?? []).reduce((n, each) => n + each.count, 0);
  const path = place.value.path;
  return html`${about.open && html`<div class="openbar">This dashboard is open to everyone who can reach it: dangerously_open=True</div>`}
  <header class="top">
    <a class="brand" href=${href("/")} aria-label="holdfast, overview"><${Mark} /><span>holdfast</span></a>
    <${Connection} />
    <nav class="nav" aria-label="Main">${SCREENS.map(([to, word], i) => html`<a class=${i > 4 ? "late" : ""} href=${href(to)} aria-current=${isAt(to, path) ? "page" : undefined}>${word}${to === "/letters" && open > 0 && html`<span class="badge">${open.toLocaleString("en-US")}<span class="vh"> open</span></span>`}</a>`)}<span class="rest"><${Drop} label="More" items=${SCREENS.slice(5).map(([to, word]) => [word, href(to)])} /></span><span class="whole"><${Drop} label=${SCREENS.find(([to]) => isAt(to, path))?.[1] ?? "Menu"} name="Menu" items=${[...SCREENS, ["/settings", "Settings"]].map(([to, word]) => [word, href(to)])} /></span></nav>
    <div class="right"><${Search} />
      <button class="icon" aria-label="Light or dark" onClick=${flipTheme}><${Icon} name="moon" /></button>
      ${about.name && html`<a class="who" href=${href("/settings")} title="Settings" aria-label=${`Settings; ${about.name}, ${about.role}`}><i class="face" aria-hidden="true">${(about.name ?? "?")[0].toUpperCase()}</i><span>${about.name} · ${about.role}</span></a>`}</div>
  </header>`;
}

const KEYS = [["/", "search"], ["g o r l s w e d a", "overview, runs, dead letters, schedules, workers, events, deploys, audit"], ["j k", "move"], ["x", "select"], ["enter", "open"], ["n", "show newer runs"], ["[ ]", "run before, after"], ["s p", "send, pause"], ["a", "all acts"], ["y", "copy the id"], ["c", "copy as a command"], ["f", "fold idle time"], ["t z", "theme, time zone"], ["esc", "close"], ["?", "these keys"]];

function Help() {
  const [wanted, want] = useState(zone.value);
  const save = () => {
    try {
      if (wanted !== "local") new Intl.DateTimeFormat("en", { timeZone: wanted });
      setZone(wanted);
      close();
    } catch {
      toast(`There is no time zone ${wanted}`, { icon: "failed" });
    }
  };
  return html`<${Frame} title="Keys and settings" confirm=${save} confirmWord="Save">
    <dl class="keys">${KEYS.map(([key, does]) => html`<dt>${key.split(/,? /).map((each) => html`<kbd>${each}</kbd> `)}</dt><dd>${does}</dd>`)}</dl>
    <label class="field"><span>Time zone: local, UTC, or a name as Europe/Berlin</span><input type="text" defaultValue=${wanted} onInput=${(e) => want(e.target.value.trim())} /></label>
    <label class="field check"><input type="checkbox" checked=${letters.value} onChange=${(e) => setLetters(e.target.checked)} /><span>Single letters act</span></label>
  <//>`;
}
addKind("help", Help);

const ZONES = ["local", "UTC"];

function SignIn() {
  const [token, set] = useState("");
  const [problem, setProblem] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    try { await signIn(token.trim()); } catch (error) { if (error instanceof Problem) setProblem(error); else throw error; }
  };
  return html`<main id="main"><form class="panel signin" onSubmit=${submit}>
    <h1>Sign in</h1><p>With a token. <code>holdfast ui</code> prints a link that has one, for one browser and once; run it again for another.</p>
    <label class=${"field" + (problem ? " bad" : "")}><span>Token</span><input type="password" autocomplete="current-password" value=${token} onInput=${(e) => set(e.target.value)} />${problem && html`<span class="wrong" role="alert">${problem.message}</span>`}</label>
    <button class="btn main" disabled=${!token.trim()}>Sign in</button>
  </form></main>`;
}

function Screen() {
  const { path, params } = place.value;
  const run = path.match(/^\/runs\/([^/]+)\/?$/);
  if (run) {
    let id = run[1];
    try { id = decodeURIComponent(run[1]); } catch { /* shown as it stands */ }
    return html`<${Run} key=${id} id=${id} params=${params} />`;
  }
  const found = SCREENS.find(([to]) => path === to || path === to + "/");
  if (path === "/settings") return html`<${Settings} />`;
  if (path === "/start") return html`<${Start} params=${params} />`;
  if (found) return html`<${found[3]} params=${params} />`;
  return html`<main id="main"><section class="panel notice"><h1 class="vh">Nowhere</h1><h2>There is no such page</h2><p>Nothing of the dashboard stands at <code>${path}</code>.</p><div class="acts"><a class="btn main" href=${href("/runs")}>All runs</a></div></section></main>`;
}

/** Go from row to row of what is shown, where a screen has no list of its own in which keys move. */
function move(by) {
  const rows = [...document.querySelectorAll("#main :is(tbody tr, .lines li, .calls li)")].filter((row) => row.checkVisibility() && row.querySelector("a, button"));
  const at = rows.findIndex((row) => row.contains(document.activeElement));
  const next = rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.max(0, Math.min(rows.length - 1, at + by))];
  next?.querySelector("a, button").focus();
}

function App() {
  const about = session.value;
  useKeys({
    ...Object.fromEntries(SCREENS.map(([to, , letter]) => ["g " + letter, () => go(href(to))])),
    "?": () => open({ kind: "help" }), t: flipTheme, j: () => move(1), k: () => move(-1),
    z: () => { setZone(ZONES[(ZONES.indexOf(zone.value) + 1) % ZONES.length]); toast("Times in " + zoneName(), { icon: "suspended" }); },
  });
  // Most browsers that come are known: what a list or a run shows is asked for while it is found out who we are.
  const early = about.state === "unknown" && place.value.path.startsWith("/runs");
  if (about.state === "entering") return busy;
  if (about.state === "out") return html`<${SignIn} />`;
  if (about.state === "away") return html`<main id="main"><${Trouble} problem=${about.problem} retry=${meet} /></main>`;
  return html`<a class="skip" href="#main">Skip to content</a><${Bar} />${about.state === "in" || early ? html`<${Screen} />` : busy}<${Sheet} /><${Toasts} />`;
}

async function begin() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    history.replaceState(history.state, "", location.pathname + location.search);
    try { await signIn(given); } catch (error) { if (!(error instanceof Problem)) throw error; session.value = { state: "out" }; }
  }
  if (["entering", "unknown"].includes(session.value.state)) await meet();
}

setInterval(() => { if (session.value.state === "away") meet(); }, 2000);
document.body.replaceChildren();
render(html`<${App} />`, document.body);
begin();
