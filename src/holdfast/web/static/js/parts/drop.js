// Menus that drop from a button: opened by clicking or by keys, closed by escape or by a click elsewhere.
import { html, useEffect, useRef, useState, quoted } from "../base.js";
import { ROOT } from "../url.js";
import { Icon } from "./icons.js";
import { copy } from "./show.js";

/** A button with a menu; what is chosen closes it. `items` are [word, act, icon]. */
export function Drop({ label, name, items, quiet = true, up = false }) {
  const [shown, show] = useState(false);
  const box = useRef(null);
  useEffect(() => {
    const away = (event) => { if (!box.current?.contains(event.target)) show(false); };
    if (shown) { document.addEventListener("pointerdown", away); box.current.querySelector('[role="menuitem"]')?.focus(); }
    return () => document.removeEventListener("pointerdown", away);
  }, [shown]);
  const key = (event) => {
    if (!shown) return;
    if (event.key === "Escape") { event.stopPropagation(); show(false); box.current.querySelector("button").focus(); }
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    const all = [...box.current.querySelectorAll('[role="menuitem"]')];
    all[(all.indexOf(document.activeElement) + by + all.length) % all.length]?.focus();
  };
  return html`<span class="drop" ref=${box} onKeyDown=${key}><button class=${"btn" + (quiet ? " quiet" : "") + (label ? "" : " arrow")} aria-label=${name} aria-haspopup="menu" aria-expanded=${shown} onClick=${() => show(!shown)}>${label}<${Icon} name="down" /></button>
    ${shown && html`<div class=${"menu" + (up ? " up" : "")} role="menu" aria-label=${name ?? label}>${items.map(([word, act, icon]) => (typeof act === "string" ? html`<a role="menuitem" href=${act} onClick=${() => show(false)}>${word}</a>` : html`<button role="menuitem" onClick=${() => { show(false); box.current?.querySelector("button").focus(); act(); }}>${icon && html`<${Icon} name=${icon} />`}${word}</button>`))}</div>`}</span>`;
}

/** Copy what is shown as a command; as curl and as Python behind the arrow. */
export function Copies({ command, path, params = {}, python }) {
  const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value !== "" && value !== null && value !== undefined)).toString();
  const curl = `curl ${quoted(location.origin + ROOT + "/api/v1" + path + (query ? "?" + query : ""))} -H "Authorization: Bearer $HOLDFAST_TOKEN"`;
  return html`<span class="joined"><button class="btn quiet" onClick=${() => copy(command, "Command")}><${Icon} name="terminal" />Copy as CLI</button><${Drop} name="Other ways to copy" items=${[["Copy as CLI", () => copy(command, "Command")], ["Copy as curl", () => copy(curl, "curl")], ...(python ? [["Copy as Python", () => copy(python, "Python")]] : [])]} /></span>`;
}
