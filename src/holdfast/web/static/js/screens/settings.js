// Settings, kept in this browser: theme, time zone, density, single letters, and the views that were saved.
import { html, useEffect, useLayoutEffect, useState, keep } from "../base.js";
import { session } from "../api.js";
import { href, settled } from "../url.js";
import { absolute, now, setZone, zone, zoneName } from "../format.js";
import { letters, setLetters } from "../keys.js";
import { Copy, toast } from "../parts/show.js";
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

export function Settings() {
  const about = session.value;
  useEffect(() => { document.title = "settings - holdfast"; }, []);
  useLayoutEffect(settled, []);
  return html`<main id="main" tabindex="-1" class="s-settings stack"><div class="phead"><h1>Settings</h1><span class="count">kept in this browser</span></div>
    <section class="panel" aria-label="Look"><div class="ptitle"><h2>Look</h2></div><div class="settingsbox"><${Choice} name="theme" word="Theme" values=${THEMES} /><${Choice} name="density" word="Rows of lists" values=${DENSITIES} /><${Zone} /><label class="field check"><input type="checkbox" checked=${letters.value} onChange=${(e) => setLetters(e.target.checked)} /><span>Single letters act</span></label></div></section>
    <section class="panel" aria-label="Saved views"><div class="ptitle"><h2>Saved views</h2></div><${Views} /></section>
    <section class="panel" aria-label="You"><div class="ptitle"><h2>You</h2></div><ul class="lines"><li><span>Name, as the audit trail has it</span><b>${about.name}</b></li><li><span>Role</span><b>${about.role}</b></li><li><span>holdfast</span><b>${about.version}</b></li></ul></section>
  </main>`;
}
