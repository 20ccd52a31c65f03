// Acting on runs: which acts there are, on what they fit, and the same act as a command line.
import { quoted } from "../base.js";
import { ROOT } from "../url.js";

const OPEN = ["pending", "running", "suspended", "paused", "cancelling", "compensating", "blocked"];
const TERMINAL = ["completed", "failed", "cancelled"];

/** Every act: its words, who may, on which statuses it fits, and the act that takes it back. */
export const ACTS = {
  cancel: { verb: "Cancel", past: "cancelled", role: "operator", undo: "resume", fits: [...OPEN.filter((s) => !["cancelling", "compensating"].includes(s)), "moving"],
    one: "It is asked to stop: its step in hand ends, its code may clean up, and nothing new begins.", many: "They are asked to stop: steps in hand end, their code may clean up, and nothing new begins." },
  pause: { verb: "Pause", past: "paused", role: "operator", undo: "resume", fits: OPEN.filter((s) => !["cancelling", "blocked", "paused"].includes(s)),
    one: "It begins nothing more; the step in hand ends. Resume lets it go on where it is.", many: "They begin nothing more; steps in hand end. Resume lets them go on where they are." },
  resume: { verb: "Resume", past: "resumed", role: "operator", fits: ["paused", "cancelled"],
    one: "It goes on where it was.", many: "They go on where they were." },
  retry: { verb: "Retry", past: "retried", role: "operator", fits: ["failed"],
    one: "It goes on from the step that failed. What is done and was not undone stays done, and keeps its keys.", many: "They go on from the steps that failed. What is done and was not undone stays done, and keeps its keys." },
  rerun: { verb: "Rerun", past: "run again", role: "operator", fits: TERMINAL,
    one: "A step and all after it are done again, with the code there is now.", many: "They are done again from their beginning, with the code there is now." },
  recover: { verb: "Recover", past: "recovered", role: "operator", fits: ["blocked"],
    one: "It is tried again with the code that the workers have now.", many: "They are tried again with the code that the workers have now." },
  nudge: { verb: "Try now", past: "nudged", role: "operator", fits: ["suspended", "cancelling", "compensating"],
    one: "What waits to be tried again is tried now. This adds no attempt to its budget.", many: "What waits to be tried again is tried now. This adds no attempt to their budgets." },
  terminate: { verb: "Terminate", past: "terminated", role: "admin", danger: true, needsReason: true, fits: OPEN,
    one: "It ends here and now, without asking its code. Nothing is undone.", many: "They end here and now, without asking their code. Nothing is undone." },
};

const LENGTH = /^(?:(\d+) ?d)? ?(?:(\d+) ?h)? ?(?:(\d+) ?m(?:in)?)? ?(?:(\d+) ?s)?$/;

/** A duration as the server reads it: 1h30min, or 1 h 30 min, is PT1H30M; null for what is none. */
export function durationOf(text) {
  const [whole, d, ...parts] = text.trim().match(LENGTH) ?? [];
  const time = parts.map((each, i) => (each ? each + "HMS"[i] : "")).join("");
  return whole ? `P${d ? d + "D" : ""}${time && "T" + time}` : null;
}

/** The same as commands take it. */
export const spelled = (text) => text.replace(/ /g, "").replace(/m(?!in)/, "min");

/** What is sent, from what was filled in. */
export function bodyOf(action, given) {
  const body = { reason: given.reason ?? "" };
  if (action === "cancel" && given.compensate) body.compensate = true;
  if (action === "pause" && given.duration) body.duration = durationOf(given.duration) ?? given.duration;
  if (action === "rerun" && given.from_step) body.from_step = given.from_step;
  if (action === "nudge" && given.step) body.step = given.step;
  return body;
}

/** The act as people write it in a terminal. */
export function cli(action, { ids, q }, given = {}) {
  const words = ["holdfast", action, ...(ids ?? []).map(quoted)];
  if (!ids) words.push("--where", quoted(q));
  if (action === "cancel" && given.compensate) words.push("--compensate");
  if (action === "pause" && given.duration) words.push("--for", spelled(given.duration));
  if (action === "rerun" && given.from_step) words.push("--from", quoted(given.from_step));
  if (action === "nudge" && given.step) words.push("--step", quoted(given.step));
  if (given.reason) words.push("--reason", quoted(given.reason));
  return words.join(" ");
}

/** A request as curl sends it. */
export function request(method, path, body = null, params = {}) {
  const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value)).toString();
  return `curl -X ${method} ${quoted(location.origin + ROOT + "/api/v1" + path + (query && "?" + query))} -H "Authorization: Bearer $HOLDFAST_TOKEN"${body ? ` -H "Content-Type: application/json" -d ${quoted(JSON.stringify(body))}` : ""}`;
}

export function curl(action, { ids, q }, given = {}) {
  if (ids?.length === 1) return request("POST", `/runs/${ids[0]}/${action}`, bodyOf(action, given));
  return request("POST", "/bulk", { action, ...(ids ? { ids } : { q }), dry_run: true });
}

/** A value as Python writes it. */
export function literal(value) {
  if (value === null || typeof value === "boolean") return { null: "None", true: "True", false: "False" }[value];
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object" && !JSON.isRawJSON?.(value)) return `{${Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${literal(each)}`).join(", ")}}`;
  return JSON.stringify(value);
}

/** Arguments by name, those that say something. */
export const named = (given) => Object.entries(given).filter(([, value]) => value !== "" && value !== undefined).map(([name, value]) => `${name}=${literal(value)}`).join(", ");

export function python(action, { ids, q }, given = {}) {
  const extra = named({ by: "me", ...bodyOf(action, given) });
  if (ids?.length === 1) return `await engine.get(${JSON.stringify(ids[0])}).${action}(${extra})`;
  if (ids) return `for run_id in ${JSON.stringify(ids)}:\n    await engine.get(run_id).${action}(${extra})`;
  return `chosen = await desk.select(${JSON.stringify(action)}, ${JSON.stringify(q)})\nasync for progress in desk.bulk(chosen.selection, Options(${extra})):\n    print(progress)`;
}
