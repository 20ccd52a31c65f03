// The filter language in a field: what was said stands as tokens, what is being typed is completed.
import { html, useEffect, useRef, useState } from "../base.js";
import { get, Problem } from "../api.js";
import { Icon } from "./icons.js";

const TOKEN = /(?:[^\s"]|"(?:[^"\\]|\\.)*")+/g;

/** Take a filter apart into its words. @param {string} q */
export const tokensOf = (q) => q.match(TOKEN) ?? [];

/** A filter without the words of one kind. @param {string} q @param {string} kind */
export const without = (q, kind) => tokensOf(q).filter((each) => !each.startsWith(kind + ":") && !each.startsWith("-" + kind + ":")).join(" ");

const AGO = { s: "second", min: "minute", m: "minute", h: "hour", d: "day", w: "week" };

function told(token) {
  const word = token.match(/^(-?)([A-Za-z_]+):(.*)$/s);
  if (word) {
    const ago = word[3].match(/^-(\d+)(s|min|m|h|d|w)$/);
    const value = ago ? `last ${ago[1] === "1" ? "" : ago[1] + " "}${AGO[ago[2]]}${ago[1] === "1" ? "" : "s"}` : word[3].replace(/^"(.*)"$/, "$1");
    return [(word[1] ? "not " : "") + word[2], word[2] === "quiet" && ago ? "for " + value.replace("last ", "") : value];
  }
  const attribute = token.match(/^([^=]+)=(.*)$/s);
  return attribute ? [attribute[1], attribute[2]] : ["id or workflow", token];
}

export function Filter({ q, set, children }) {
  const [text, type] = useState("");
  const [offers, offer] = useState([]);
  const [at, move] = useState(-1);
  const field = useRef(null);
  const tokens = tokensOf(q);
  useEffect(() => {
    if (document.activeElement !== field.current) return undefined;
    const abort = new AbortController();
    const wait = setTimeout(() => get("/suggest", { params: { q: text, at: text.length }, signal: abort.signal })
      .then((found) => { offer((found.items ?? found).slice(0, 12)); move(-1); })
      .catch((error) => { if (error instanceof Problem) offer([]); }), 90);
    return () => { clearTimeout(wait); abort.abort(); };
  }, [text]);
  const drop = (i) => set(tokens.filter((_, n) => n !== i).join(" "));
  const add = (more) => { type(""); offer([]); set([...tokens, ...tokensOf(more)].join(" ")); };
  const taken = (each) => (typeof each === "string" ? each : each.text ?? each.insert ?? each.value ?? "");
  const choose = (each) => {
    const chosen = taken(each);
    const words = tokensOf(text);
    const begun = text.endsWith(" ") || !words.length ? words : words.slice(0, -1);
    if (/[:=,]$/.test(chosen)) { type([...begun, chosen].join(" ")); field.current.focus(); }
    else add([...begun, chosen].join(" "));
  };
  const key = (event) => {
    if (event.key === "ArrowDown" && offers.length) { event.preventDefault(); move((at + 1) % offers.length); }
    else if (event.key === "ArrowUp" && offers.length) { event.preventDefault(); move((at <= 0 ? offers.length : at) - 1); }
    else if (event.key === "Tab" && offers.length && text && !event.shiftKey) { event.preventDefault(); choose(offers[Math.max(at, 0)]); }
    else if (event.key === "Enter") { event.preventDefault(); if (at >= 0) choose(offers[at]); else if (text.trim()) add(text); }
    else if (event.key === "Escape") { event.preventDefault(); if (offers.length) offer([]); else field.current.blur(); }
    else if (event.key === "Backspace" && !text && tokens.length) { event.preventDefault(); type(tokens.at(-1)); drop(tokens.length - 1); }
  };
  return html`<div class="query">
    ${tokens.map((token, i) => { const [name, value] = told(token); return html`<span class="tok" key=${token + i} title=${token}><span class="k">${name}</span><span class="v">${value}</span><button aria-label=${"Remove " + token} onClick=${() => drop(i)}><${Icon} name="close" /></button></span>`; })}
    <span class="drop grow"><input ref=${field} type="text" data-filter role="combobox" aria-label="Filter" aria-expanded=${offers.length > 0} aria-controls="offers" aria-autocomplete="list" aria-activedescendant=${at >= 0 ? "offer-" + at : undefined} placeholder="status: workflow: id: attribute=value …" autocomplete="off" spellcheck="false" value=${text}
      onInput=${(e) => type(e.target.value)} onKeyDown=${key} onBlur=${() => setTimeout(() => offer([]), 150)} />
      <ul class="suggest" id="offers" role="listbox" aria-label="Completions" hidden=${!offers.length}>${offers.map((each, i) => html`<li id=${"offer-" + i} role="option" aria-selected=${i === at} onMouseDown=${(e) => { e.preventDefault(); choose(each); }}>${taken(each)}${each.about && html`<small>${each.about}</small>`}</li>`)}</ul></span>
    ${children}
  </div>`;
}
