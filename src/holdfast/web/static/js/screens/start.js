// Starting a run: a form from the JSON Schema of what the workflow takes, or the arguments as JSON.
import { html, parsed, useEffect, useState, quoted } from "../base.js";
import { get, may, post, usePicture, Problem } from "../api.js";
import { go, here, runHref } from "../url.js";
import { durationOf, request, spelled } from "../parts/acts.js";
import { Foot, useScreen } from "../parts/screen.js";
import { changed, Command, Reason, reasonKept, useConfirm, Wrong } from "../parts/sheet.js";
import { RunLink, Status, toast } from "../parts/show.js";
import { Part } from "../run/tabs.js";

/** A schema without what only wraps it: a reference, or "this or null". */
function plainSchema(schema, defs, depth = 0) {
  if (!schema || depth > 20) return {};
  if (schema.$ref) return { ...plainSchema(defs[schema.$ref.split("/").pop()], defs, depth + 1), ...(schema.default !== undefined ? { default: schema.default } : {}) };
  const some = (schema.anyOf ?? []).filter((each) => each.type !== "null");
  if (some.length === 1) return { ...schema, ...plainSchema(some[0], defs, depth + 1), nullable: true, anyOf: undefined };
  return schema;
}

/** A value to begin with. */
function example(schema, defs, depth = 0) {
  const plain = plainSchema(schema, defs);
  if (plain.default !== undefined) return plain.default;
  if (plain.enum) return plain.enum[0];
  if (plain.nullable) return null;
  if (plain.type === "object" && plain.properties && depth < 5) return Object.fromEntries(Object.entries(plain.properties).filter(([name]) => (plain.required ?? []).includes(name)).map(([name, each]) => [name, example(each, defs, depth + 1)]));
  return { object: {}, array: [], string: "", integer: 0, number: 0, boolean: false }[plain.type] ?? null;
}

const SIMPLE = ["string", "integer", "number", "boolean"];

/** One argument: a field that fits its type; what has parts is JSON. Kept as text until it is sent. */
function Argument({ name, schema, required, text, set, wrong }) {
  const id = "argument-" + name;
  const about = [schema.description, schema.type && SIMPLE.includes(schema.type) ? schema.type : "JSON", required ? "" : "optional"].filter(Boolean).join(", ");
  const field = schema.enum ? html`<select id=${id} value=${text} onChange=${(e) => set(e.target.value)}>${!required && html`<option value=""></option>`}${schema.enum.map((each) => html`<option value=${JSON.stringify(each)}>${String(each)}</option>`)}</select>`
    : schema.type === "boolean" ? html`<select id=${id} value=${text} onChange=${(e) => set(e.target.value)}><option value=""></option><option value="true">true</option><option value="false">false</option></select>`
    : SIMPLE.includes(schema.type) ? html`<input id=${id} type="text" inputmode=${schema.type === "string" ? undefined : "decimal"} autocomplete="off" spellcheck="false" aria-invalid=${Boolean(wrong)} value=${text} onInput=${(e) => set(e.target.value)} />`
    : html`<textarea id=${id} spellcheck="false" aria-invalid=${Boolean(wrong)} value=${text} onInput=${(e) => set(e.target.value)} />`;
  return html`<div class=${"field" + (wrong ? " bad" : "")}><label for=${id}><code>${name}</code> <small class="inline">${about}</small></label>${field}${wrong && html`<span class="wrong">${wrong}</span>`}</div>`;
}

/** What was typed, as a value: [value, what is wrong]; undefined where nothing was given. */
function valueOf(schema, text, required) {
  if (text === "" && schema.type === "string" && required && !schema.nullable) return ["", ""];
  if (text.trim() === "") return required && !schema.nullable ? [undefined, "It is needed"] : [schema.nullable && required ? null : undefined, ""];
  if (schema.enum || schema.type === "boolean") return [JSON.parse(text), ""];
  if (schema.type === "string") return [text, ""];
  try {
    const value = parsed(text);
    if (schema.type === "integer" && !Number.isInteger(value) && !JSON.isRawJSON?.(value)) return [undefined, "It must be a whole number"];
    if (schema.type === "number" && typeof value !== "number" && !JSON.isRawJSON?.(value)) return [undefined, "It must be a number"];
    return [value, ""];
  } catch (error) {
    return [undefined, error.message];
  }
}

const begin = (schema, defs) => { const plain = plainSchema(schema, defs); const value = plain.default !== undefined || !SIMPLE.includes(plain.type) ? example(schema, defs) : undefined; return value === undefined ? "" : plain.type === "string" && !plain.enum ? String(value ?? "") : value === null ? "" : JSON.stringify(value, null, plain.type === "object" ? 2 : 0); };

function Form({ about }) {
  const defs = about.schema.$defs ?? {};
  const properties = Object.entries(about.schema.properties ?? {});
  const needed = new Set(about.schema.required ?? []);
  const [raw, setRaw] = useState(!properties.length && !about.schema.type);
  const [texts, setTexts] = useState(() => Object.fromEntries(properties.map(([name, each]) => [name, begin(each, defs)])));
  const [json, setJson] = useState(() => JSON.stringify(example({ ...about.schema, default: undefined }, defs) ?? {}, null, 2));
  const [given, change] = useState({ id: "", tenant: "", priority: "", delay: "", attributes: "", reason: reasonKept() });
  const set = (more) => change((known) => ({ ...known, ...more }));
  const [other, setOther] = useState(null);
  useEffect(() => {
    setOther(null);
    if (!/^[A-Za-z0-9._:@=+~-]+$/.test(given.id)) return undefined;
    const abort = new AbortController();
    const wait = setTimeout(() => get(`/runs/${encodeURIComponent(given.id)}`, { signal: abort.signal }).then((found) => setOther(found.head)).catch((error) => { if (!abort.signal.aborted && !(error instanceof Problem)) throw error; }), 250);
    return () => { clearTimeout(wait); abort.abort(); };
  }, [given.id]);
  const wrong = {};
  let args = {};
  if (raw) {
    try { args = json.trim() ? parsed(json) : {}; if (args === null || typeof args !== "object" || Array.isArray(args)) wrong.json = "It must be an object: arguments by name"; } catch (error) { wrong.json = error.message; }
  } else {
    for (const [name, each] of properties) {
      const [value, said] = valueOf(plainSchema(each, defs), texts[name] ?? "", needed.has(name));
      if (said) wrong[name] = said;
      else if (value !== undefined) args[name] = value;
    }
  }
  let attributes;
  try {
    attributes = given.attributes.trim() ? parsed(given.attributes) : undefined;
    if (attributes !== undefined && (attributes === null || typeof attributes !== "object" || Array.isArray(attributes))) wrong.attributes = "It must be an object: values by name";
  } catch (error) { wrong.attributes = error.message; }
  const delay = given.delay && durationOf(given.delay);
  if (given.delay && !delay) wrong.delay = "As 30s, 10min, 2h, 1d";
  if (given.priority && !/^-?\d{1,3}$/.test(given.priority)) wrong.priority = "A whole number from -100 to 100";
  const body = { workflow: about.workflow, arguments: args, ...(given.id ? { id: given.id } : {}), ...(given.tenant ? { tenant: given.tenant } : {}), ...(given.priority ? { priority: Number(given.priority) } : {}), ...(delay ? { delay } : {}), ...(attributes ? { attributes } : {}), ...(given.reason ? { reason: given.reason } : {}) };
  const some = Object.keys(wrong).length > 0;
  const { confirm, busy, problem } = useConfirm(given.reason, async () => {
    const did = await post("/runs", body);
    toast(did.changed ? `${did.run} started` : `${did.run} was started before`);
    go(runHref(did.run));
  });
  const submit = (event) => { event.preventDefault(); if (!some && !busy) confirm(); };
  const command = ["holdfast start", quoted(about.workflow), quoted(JSON.stringify(args)), ...["id", "tenant", "priority"].map((name) => given[name] && `--${name} ${quoted(given[name])}`), delay && "--delay " + spelled(given.delay), ...Object.entries(wrong.attributes ? {} : (attributes ?? {})).map(([name, value]) => `--attribute ${quoted(name + "=" + (/^[a-z][\w-]*$/i.test(value) && !["true", "false", "null"].includes(value) ? value : JSON.stringify(value)))}`), given.reason && "--reason " + quoted(given.reason)].filter(Boolean).join(" ");
  const option = (name, word, hint) => html`<label class=${"field" + (wrong[name] ? " bad" : "")}><span>${word}</span><input type="text" autocomplete="off" spellcheck="false" placeholder=${hint} defaultValue=${given[name]} onInput=${(e) => set({ [name]: e.target.value.trim() })} />${wrong[name] && html`<span class="wrong">${wrong[name]}</span>`}</label>`;
  return html`<form class="startform" onSubmit=${submit}>
    <div><div class="ptitle flat"><h2>Arguments</h2>${properties.length > 0 && html`<span class="end"><button type="button" class="linklike" aria-pressed=${raw} onClick=${() => { if (!raw && !some) setJson(JSON.stringify(args, null, 2)); setRaw(!raw); }}>${raw ? "as a form" : "as JSON"}</button></span>`}</div>
      ${raw ? html`<label class=${"field" + (wrong.json ? " bad" : "")}><span>Arguments by name, JSON</span><textarea rows="8" spellcheck="false" aria-invalid=${Boolean(wrong.json)} value=${json} onInput=${(e) => setJson(e.target.value)} />${wrong.json && html`<span class="wrong">${wrong.json}</span>`}</label>`
        : properties.length ? properties.map(([name, each]) => html`<${Argument} key=${name} name=${name} schema=${plainSchema(each, defs)} required=${needed.has(name)} text=${texts[name] ?? ""} set=${(text) => setTexts({ ...texts, [name]: text })} wrong=${wrong[name]} />`) : html`<p class="dim">It takes none.</p>`}</div>
    <div><div class="ptitle flat"><h2>Options</h2></div>
      ${option("id", "Id", "made up if there is none")}${other && html`<p class="plan no"><span>There is a run with this id: <${RunLink} id=${other.id} /> of <code>${other.workflow}</code>, <${Status} status=${other.status} /></span></p>`}
      ${option("delay", "Begins after", "at once; or 30s, 10min, 2h, 1d")}${option("priority", "Priority", "0")}${option("tenant", "Tenant", "")}
      <label class=${"field" + (wrong.attributes ? " bad" : "")}><span>Attributes, JSON</span><textarea class="short" spellcheck="false" value=${given.attributes} onInput=${(e) => set({ attributes: e.target.value })} />${wrong.attributes && html`<span class="wrong">${wrong.attributes}</span>`}</label>
      <${Reason} value=${given.reason} set=${(reason) => set({ reason })} /></div>
    <div class="last"><${Wrong} problem=${problem} /><${Command} spellings=${{ cli: command, curl: request("POST", "/runs", body) }} />
      <button class="btn main" disabled=${some || busy || !may("operator")} title=${may("operator") ? undefined : "Needs the role operator"}>${busy ? "Starting…" : "Start"}</button>${!may("operator") && html` <span class="dim">It needs the role operator.</span>`}</div>
  </form>`;
}

export function Start({ params }) {
  const inputs = usePicture("inputs", (signal) => get("/inputs", { signal }));
  useScreen("start", Boolean(inputs.data));
  const items = inputs.data?.items ?? [];
  const chosen = items.find((each) => each.workflow === params.get("workflow")) ?? (items.length === 1 ? items[0] : null);
  return html`<main id="main" tabindex="-1" class="s-start stack">
    <div class="phead"><h1>Start a run</h1></div>
    <section class="panel" aria-label="Start a run"><${Part} picture=${inputs} empty=${!items.length && "No code is at hand here: a dashboard that an application mounts with its engine has it, and so has `holdfast ui --app module:engine`. `holdfast start` starts a run from a terminal."}>
      <div class="filters"><label class="field"><span>Workflow</span><select value=${chosen?.workflow ?? ""} onChange=${(e) => go(here({ workflow: e.target.value }), { replace: true })}><option value="">choose one</option>${items.map((each) => html`<option value=${each.workflow}>${each.workflow} v${each.version}</option>`)}</select></label></div>
      ${chosen && html`<${Form} key=${chosen.workflow} about=${chosen} />`}<//></section>
    <${Foot} keys=${[]} />
  </main>`;
}
