// What the screens of the house have in common: title and keys, the line at the bottom, and long lists.
import { html, useEffect, useLayoutEffect, useState } from "../base.js";
import { number, zoneName } from "../format.js";
import { useKeys } from "../keys.js";
import { settled } from "../url.js";
import { copy } from "./show.js";

/** Name the window, scroll to where it was once something is there, and copy the screen as a command by its key. */
export function useScreen(name, ready, command = null) {
  useEffect(() => { document.title = name + " - holdfast"; }, []);
  useLayoutEffect(() => { if (ready) settled(); }, [ready]);
  useKeys(command ? { c: () => copy(command, "Command") } : {});
}

/** The line at the bottom: keys, each as a list of them and a word. */
export const Foot = ({ keys = [["j", "k", "move"], ["c", "copy as CLI"]] }) => html`<footer class="foot">${[...keys, ["?", "all keys"]].map((each) => html`<span>${each.slice(0, -1).map((key) => html`<kbd>${key}</kbd>`)} ${each.at(-1)}</span>`)}<span class="end">Times in ${zoneName()}</span></footer>`;

const AT_ONCE = 50, WORTH_FINDING = 20;

/** What of a list that may be long is shown: {shown, field, more}. `words` is the text of an item that a word is looked for in. */
export function useFew(items, words, what) {
  const [word, find] = useState("");
  const [most, show] = useState(AT_ONCE);
  const wanted = word.trim().toLowerCase();
  const found = wanted ? items.filter((each) => words(each).toLowerCase().includes(wanted)) : items;
  const field = items.length > WORTH_FINDING && html`<span class="field" style=${{ margin: 0 }}><input type="search" autocomplete="off" spellcheck="false" aria-label=${"Find " + what} placeholder=${`find in ${number(items.length)}`} value=${word} onInput=${(e) => find(e.target.value)} /></span>`;
  const more = found.length > most ? html`<p class="older"><button class="btn small" onClick=${() => show(most + AT_ONCE)}>Show ${number(Math.min(AT_ONCE, found.length - most))} more of ${number(found.length)}</button></p>` : !found.length && items.length > 0 && html`<p class="empty">None of these ${number(items.length)} has ${word.trim()} in it.</p>`;
  return { shown: found.slice(0, most), field, more };
}
