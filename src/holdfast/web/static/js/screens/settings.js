// Settings, kept in this browser: theme, time zone, density, single letters, saved views; and the tokens of the database.
import { html, useEffect, useState, keep, quoted } from "../base.js";
import { ask, get, may, post, session, usePicture } from "../api.js";
import { href } from "../url.js";
import { absolute, now, setZone, zone, zoneName } from "../format.js";
import { letters, setLetters } from "../keys.js";
import { durationOf } from "../parts/acts.js";
import { Icon } from "../parts/icons.js";
import { useScreen } from "../parts/screen.js";
import { addKind, changed, close, Command, Frame, open, Reason, reasonKept, useConfirm, Wrong } from "../parts/sheet.js";
import { Copy, copy, Time, toast, Wide } from "../parts/show.js";
import { Part } from "../run/tabs.js";
import { savedViews } from "./runs.js";

const THEMES = { "": "As the system has it", light: "Light", dark: "Dark" };
const DENSITIES = { "": "Comfortable", compact: "Compact" };

const chosen = (name) => { try { return localStorage.getItem("holdfast-" + name) ?? ""; } catch { return ""; } };

/** Keep a choice that is looked at before anything is painted (theme.js), and follow it at once. */
function choose(name, value) {
  try {
    if (value) localStorage.setItem("holdfast-" + name, value);
    else localStorage.removeItem("holdfast-" + name);
  } catch { /* it holds for this tab */ }
  const root = document.documentElement;
  if (name === "theme") root.dataset.theme = value || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  else root.dataset.density = value;
}

function Choice({ name, word, values }) {
  const [now, set] = useState(chosen(name));
  return html`<fieldset class="choice"><legend>${word}</legend>${Object.entries(values).map(([value, said]) => html`<label><input type="radio" name=${name} checked=${now === value} onChange=${() => { set(value); choose(name, value); }} />${said}</label>`)}</fieldset>`;
}

function Zone() {
  const [text, type] = useState(zone.value);
  const save = (event) => {
    event.preventDefault();
    const name = text.trim() || "local";
    try {
      if (name !== "local") new Intl.DateTimeFormat("en", { timeZone: name });
      setZone(name);
      toast("Times in " + zoneName());
    } catch {
      toast(`There is no time zone ${name}`, { icon: "failed" });
    }
  };
  return html`<form class="zoneform" onSubmit=${save}><label class="field"><span>Time zone: local, UTC, or a name as Europe/Berlin</span><input type="text" autocomplete="off" spellcheck="false" value=${text} onInput=${(e) => type(e.target.value)} /></label><button class="btn">Save</button><span class="dim">now: ${absolute(now.value)}</span></form>`;
}

function Views() {
  const views = savedViews.value;
  const drop = (name) => { savedViews.value = views.filter(([each]) => each !== name); keep("views", savedViews.value); };
  if (!views.length) return html`<p class="empty">None yet. Save view on the list of runs keeps a filter under a name.</p>`;
  return html`<ul class="lines">${views.map(([name, q]) => html`<li><span><a href=${href("/runs", { q })}>${name}</a> <code class="dim">${q}</code></span><b><${Copy} text=${location.origin + href("/runs", { q })} what="Link">copy link<//><button class="btn small quiet" onClick=${() => drop(name)}>Remove</button></b></li>`)}</ul>`;
}

const LASTS = { "30d": "30 days", "90d": "90 days", "365d": "a year", "": "until it is revoked" };

/** A token is shown once, when it was made. */
function NewToken() {
  const [given, change] = useState({ name: "", role: "viewer", expires: "90d", reason: reasonKept() });
  const set = (more) => change((known) => ({ ...known, ...more }));
  const [made, setMade] = useState(null);
  const { confirm, busy, problem } = useConfirm(given.reason, async () => {
    setMade(await post("/tokens", { name: given.name, role: given.role, expires_in: given.expires ? durationOf(given.expires) : null, reason: given.reason }));
  });
  const choice = (name, word, values) => html`<label class="field"><span>${word}</span><select value=${given[name]} onChange=${(e) => set({ [name]: e.target.value })}>${Object.entries(values).map(([value, said]) => html`<option value=${value}>${said}</option>`)}</select></label>`;
  if (made) return html`<${Frame} title="The token, shown this once" confirm=${close} confirmWord="Done"><p>Give it to <b>${made.name}</b>. It is kept nowhere: only its hash is in the database.</p><div class="cmd"><pre tabindex="0" role="group" aria-label="The token">${made.token}</pre><button type="button" class="icon bordered" aria-label="Copy the token" onClick=${() => copy(made.token, "Token")}><${Icon} name="copy" /></button></div><//>`;
  return html`<${Frame} title="New token" confirm=${confirm} confirmWord="Make it" busy=${busy} disabled=${!given.name.trim()}>
    <p>A program, or a person in another browser, is known by it. What is done with it is on record under its name.</p><${Wrong} problem=${problem} />
    <label class="field"><span>Name, as the audit trail will have it</span><input type="text" autocomplete="off" value=${given.name} onInput=${(e) => set({ name: e.target.value })} data-first /></label>
    ${choice("role", "Role", { viewer: "viewer: sees all but payloads", reader: "reader: sees payloads, too", operator: "operator: acts on runs, letters and schedules", admin: "admin: may do everything" })}${choice("expires", "May be used for", LASTS)}
    <${Reason} value=${given.reason} set=${(reason) => set({ reason })} />
    <${Command} spellings=${{ cli: ["holdfast token create --name", quoted(given.name || "NAME"), "--role", given.role, "--expires", given.expires || "never", given.reason && "--reason " + quoted(given.reason)].filter(Boolean).join(" ") }} /><//>`;
}
addKind("token", NewToken);

function Revoke({ token }) {
  const [reason, setReason] = useState(reasonKept());
  const { confirm, problem } = useConfirm(reason, async () => {
    await ask("DELETE", "/tokens/" + encodeURIComponent(token.id), { params: { reason } });
    close();
    toast(`The token of ${token.name} is revoked`);
  });
  return html`<${Frame} title=${html`Revoke the token of <b>${token.name}</b>`} confirm=${confirm} confirmWord="Revoke" danger><p>Sessions and streams that were opened with it end within a second. It cannot be undone.</p><${Wrong} problem=${problem} /><${Reason} value=${reason} set=${setReason} /><${Command} spellings=${{ cli: "holdfast token revoke " + quoted(token.id) + (reason ? " --reason " + quoted(reason) : "") }} /><//>`;
}
addKind("revoke", Revoke);

function Tokens() {
  const tokens = usePicture(may("admin") ? "tokens" : null, (signal) => get("/tokens", { signal }));
  useEffect(() => { if (changed.value) tokens.reload(); }, [changed.value]);
  const items = tokens.data?.items ?? [];
  return html`<section class="panel" aria-label="Tokens"><div class="ptitle"><h2>Tokens</h2><span class="end"><button class="btn small" disabled=${!may("admin")} title=${may("admin") ? undefined : "Needs the role admin"} onClick=${() => open({ kind: "token" })}><${Icon} name="plus" />New token…</button></span></div>
    ${!may("admin") ? html`<p class="empty">Who may use the API, and as what, is an admin's to say.</p>` : html`<${Part} picture=${tokens} empty=${!items.length && "There is none. A program is known by one: `Authorization: Bearer hf_...`"}><${Wide}><table class="tbl"><caption class="vh">Tokens</caption><thead><tr><th scope="col">Name</th><th scope="col">Role</th><th scope="col">State</th><th scope="col">Made</th><th scope="col">Ends</th><th scope="col"><span class="vh">Acts</span></th></tr></thead><tbody>
      ${items.map((each) => html`<tr key=${each.id}><td><b>${each.name}</b><span class="small"><code>${each.id}</code></span></td><td>${each.role}</td><td><span class=${each.state === "live" ? "s-completed" : "dim"}>${each.state}</span></td><td><${Time} at=${each.created_at} short /></td><td>${each.revoked_at ? html`<${Time} at=${each.revoked_at} short />` : each.expires_at ? html`<${Time} at=${each.expires_at} short />` : html`<span class="dim">never</span>`}</td><td class="n acts">${each.state === "live" && html`<button class="btn small danger" onClick=${() => open({ kind: "revoke", token: each, id: each.id })}><${Icon} name="close" />Revoke…</button>`}</td></tr>`)}</tbody></table><//><//>`}</section>`;
}

export function Settings() {
  const about = session.value;
  useScreen("settings", true);
  return html`<main id="main" tabindex="-1" class="s-settings stack"><div class="phead"><h1>Settings</h1><span class="count">kept in this browser</span></div>
    <section class="panel" aria-label="Look"><div class="ptitle"><h2>Look</h2></div><div class="settingsbox"><${Choice} name="theme" word="Theme" values=${THEMES} /><${Choice} name="density" word="Rows of lists" values=${DENSITIES} /><${Zone} /><label class="field check"><input type="checkbox" checked=${letters.value} onChange=${(e) => setLetters(e.target.checked)} /><span>Single letters act</span></label></div></section>
    <section class="panel" aria-label="Saved views"><div class="ptitle"><h2>Saved views</h2></div><${Views} /></section>
    <${Tokens} />
    <section class="panel" aria-label="You"><div class="ptitle"><h2>You</h2></div><ul class="lines"><li><span>Name, as the audit trail has it</span><b>${about.name}</b></li><li><span>Role</span><b>${about.role}</b></li><li><span>holdfast</span><b>${about.version}</b></li></ul></section>
  </main>`;
}
