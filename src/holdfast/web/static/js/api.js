// Requests to the server: problems as errors, and the last picture of everything that was read.
import { parsed, signal, useEffect, useState, useRef, useCallback } from "./base.js";
import { ROOT } from "./url.js";
import { answered, heard, zoneName } from "./format.js";

const API = ROOT + "/api/v1";

/** Who we are and what answers: {state: "entering" | "unknown" | "in" | "out" | "away", name, role, store, ...}. */
export const session = signal({ state: new URLSearchParams(location.hash.slice(1)).get("token") ? "entering" : "unknown" });

/** What the server, or the way to it, said instead of an answer. */
export class Problem extends Error {
  constructor(status, body, about) {
    super(body.detail || body.title || "There was no answer");
    this.status = status;
    this.title = body.title || (status ? "The server answered " + status : "The server does not answer");
    this.code = String(body.type || "").split("/").pop();
    this.instance = body.instance || "";
    this.role = body.role || "";
    this.about = about;
  }

  get passing() {
    return this.status === 0 || this.status === 429 || this.status >= 502;
  }
}

const PATIENT = 5;

/** Ask the server. Sentences come with relative times, in the zone that is chosen. */
export async function ask(method, path, { body, params, signal: abort, sentences = false, whole = false } = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params ?? {})) {
    if (Array.isArray(value)) for (const each of value) query.append(name, String(each));
    else if (value !== null && value !== undefined && value !== "") query.set(name, String(value));
  }
  if (sentences) {
    query.set("relative", "true");
    query.set("zone", zoneName());
  }
  const headers = { Accept: "application/json" };
  if (method !== "GET") Object.assign(headers, { "Content-Type": "application/json", "X-Holdfast": "1" });
  let answer;
  try {
    for (let tries = 0; ; tries++) {
      answer = await fetch(API + path + (query.size ? "?" + query : ""), {
        method, headers, signal: abort, credentials: "same-origin", cache: "no-store",
        body: body === undefined ? undefined : JSON.stringify(body),
      });
      // Who looks faster than a principal may, as down a very long history, is put off for a moment.
      if (answer.status !== 429 || method !== "GET" || tries === PATIENT) break;
      await new Promise((done) => setTimeout(done, 1000 * (Number(answer.headers.get("Retry-After")) || 1)));
      abort?.throwIfAborted();
    }
  } catch (error) {
    if (abort?.aborted) throw error;
    throw new Problem(0, { title: "The server does not answer", detail: "The request did not get through; it is tried again by itself." }, path);
  }
  const text = await answer.text();
  let value = null;
  try {
    value = text ? parsed(text) : null;
  } catch {
    value = { detail: text.slice(0, 300) };
  }
  if (!answer.ok) {
    if (answer.status === 401) session.value = { ...session.value, state: "out" };
    throw new Problem(answer.status, value ?? {}, path);
  }
  if (value?.as_of) heard(value.as_of);
  else answered(answer.headers.get("Date"));
  return whole ? { value, status: answer.status, location: answer.headers.get("Location") } : value;
}

export const get = (path, options) => ask("GET", path, options);
export const post = (path, body, options) => ask("POST", path, { ...options, body });

const ROLES = ["viewer", "reader", "operator", "admin"];

/** Whether we may do what a role may. */
export const may = (role) => ROLES.indexOf(session.value.role ?? "viewer") >= ROLES.indexOf(role);

export async function meet() {
  try {
    const about = await get("/");
    session.value = { ...about, state: "in" };
  } catch (error) {
    if (error instanceof Problem && error.status === 401) session.value = { state: "out" };
    else session.value = { ...session.value, state: session.value.state === "in" ? "in" : "away", problem: error };
  }
}

/** Exchange a token for a session. */
export async function signIn(token) {
  await post("/session", { token });
  await meet();
}

const pictures = new Map();

function remember(key, picture) {
  pictures.delete(key);
  pictures.set(key, picture);
  if (pictures.size > 40) pictures.delete(pictures.keys().next().value);
}

/** Read something and keep its last picture: {data, problem, at, loading, reload, put}.
 *
 * A picture that was read before under the same key is shown at once, and read again. After a problem that passes it is
 * tried again by itself; what was shown stays. A new key keeps the old picture in sight until its own is there. What stays
 * as it is under its key is read `once`. */
export function usePicture(key, read, { once = false } = {}) {
  const [, again] = useState(0);
  const state = useRef({ key: null, problem: null, loading: false, timer: 0, abort: null, shown: null });
  const reader = useRef(read);
  reader.current = read;
  const load = useCallback(async () => {
    const mine = state.current;
    if (mine.key === null) return;
    mine.abort?.abort();
    clearTimeout(mine.timer);
    const abort = (mine.abort = new AbortController());
    const asked = mine.key;
    mine.loading = true;
    again((n) => n + 1);
    try {
      const data = await reader.current(abort.signal);
      remember(asked, { data, at: Date.now() });
      if (mine.key === asked) mine.problem = null;
    } catch (error) {
      if (abort.signal.aborted) return;
      if (!(error instanceof Problem)) throw error;
      if (mine.key === asked) {
        mine.problem = error;
        if (error.passing) mine.timer = setTimeout(load, 2000);
      }
    } finally {
      if (mine.abort === abort) mine.loading = false;
      again((n) => n + 1);
    }
  }, []);
  const mine = state.current;
  if (mine.key !== key) {
    mine.key = key;
    mine.problem = null;
  }
  useEffect(() => {
    if (key !== null && !(once && pictures.has(key))) load();
    return () => {
      mine.abort?.abort();
      clearTimeout(mine.timer);
    };
  }, [key]);
  const put = useCallback((change) => {
    const known = pictures.get(state.current.key);
    const data = typeof change === "function" ? change(known?.data) : change;
    if (data === undefined) return;
    remember(state.current.key, { data, at: Date.now() });
    state.current.problem = null;
    again((n) => n + 1);
  }, []);
  const own = pictures.get(key);
  if (own) mine.shown = own;
  return { data: own?.data ?? mine.shown?.data, fresh: Boolean(own), problem: mine.problem, at: (own ?? mine.shown)?.at, loading: mine.loading, reload: load, put };
}
