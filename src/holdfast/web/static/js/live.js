// Live views: one stream of what changed, opened again by itself, closed while the tab is hidden. While there is none,
// because the server is away or a proxy cuts streams, views are read again every few seconds.
import { parsed, signal, useEffect, useRef } from "./base.js";
import { ROOT } from "./url.js";
import { heard, zoneName } from "./format.js";

const HIDDEN = 30_000;
const LOOK = 4_000;

/** {state: "off" | "connecting" | "live" | "lost", since, reason}. */
export const connection = signal({ state: "off", since: Date.now() });

const listeners = new Map();
let source = null;
let opened = "";
let retry = 0;
let reading = 0;
let wait = 1000;

function say(state, reason = "") {
  if (connection.value.state !== state || connection.value.reason !== reason) connection.value = { state, reason, since: Date.now() };
}

function stop() {
  source?.close();
  source = null;
  opened = "";
  clearTimeout(retry);
}

function refresh() {
  const views = [...listeners.keys()].sort();
  const query = new URLSearchParams([...views.map((view) => ["view", view]), ["relative", "true"], ["zone", zoneName()]]).toString();
  if (!views.length) {
    stop();
    say("off");
    return;
  }
  if (source ? opened === query : reading) return;
  stop();
  opened = query;
  if (connection.value.state !== "lost") say("connecting");
  const mine = (source = new EventSource(ROOT + "/api/v1/live?" + query));
  mine.onopen = () => { wait = 1000; say("live"); };
  mine.onerror = () => {
    if (mine !== source) return;
    // The browser tries again by itself unless the server refused: then we do.
    say("lost", navigator.onLine ? "the server does not answer" : "this device is offline");
    if (mine.readyState === EventSource.CLOSED) {
      source = null;
      opened = "";
      retry = setTimeout(refresh, wait);
      wait = Math.min(wait * 2, 15_000);
    }
  };
  for (const name of ["rows", "run", "counts", "letters", "workers", "bulk", "schedules", "events", "audit", "figures", "versions", "checks", "doctor", "database", "gone", "problem", "bye"]) {
    mine.addEventListener(name, (event) => {
      say("live");
      let data;
      try { data = parsed(event.data); } catch { return; }
      if (data.value?.as_of) heard(data.value.as_of);
      if (name === "bye") { source = null; mine.close(); opened = ""; retry = setTimeout(refresh, 50); return; }
      for (const each of listeners.get(data.view) ?? []) each(name, data);
    });
  }
}

setInterval(() => {
  if (connection.value.state !== "lost" || document.hidden) return;
  for (const [view, each] of listeners) for (const hear of each) hear("look", { view });
}, LOOK);

let asked = 0;
const soon = () => { clearTimeout(asked); asked = setTimeout(refresh, 30); };

/** Hear what changes of a view while a component is shown. @param {string | null} view @param {(name: string, data: any) => void} hear */
export function useLive(view, hear) {
  const ref = useRef({ view, hear });
  ref.current = { view, hear };
  useEffect(() => {
    if (view === null) return undefined;
    const call = (name, data) => { if (ref.current.view === view) ref.current.hear(name, data); }; // what is shown may be another by now
    if (!listeners.has(view)) listeners.set(view, new Set());
    listeners.get(view).add(call);
    soon();
    return () => {
      listeners.get(view)?.delete(call);
      if (!listeners.get(view)?.size) listeners.delete(view);
      soon();
    };
  }, [view]);
}

/** While a screen reads what it is opened for, no stream begins: it would read the same, and then once more.
 * @param {boolean} busy */
export function useReading(busy) {
  useEffect(() => {
    if (!busy) return undefined;
    reading++;
    return () => { reading--; soon(); };
  }, [busy]);
}

/** Keep a picture as a view has it: what the stream brings is shown, and read only while there is none. */
export function useLivePicture(view, picture) {
  useLive(view, (name, data) => {
    if (data.value && name !== "gone" && name !== "problem") picture.put(data.value);
    else picture.reload();
  });
}

let hide = 0;
document.addEventListener("visibilitychange", () => {
  clearTimeout(hide);
  if (document.hidden) hide = setTimeout(() => { stop(); say("off"); }, HIDDEN);
  else soon();
});
addEventListener("online", soon);
addEventListener("pagehide", stop);
