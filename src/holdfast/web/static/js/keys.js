// The keyboard: single letters act unless a field is being typed in, or letters were switched off.
import { useLayoutEffect, useRef, signal, kept, keep } from "./base.js";

/** Whether single letters act (WCAG 2.1.4: they can be switched off). */
export const letters = signal(kept("letters", true));

export function setLetters(on) {
  letters.value = on;
  keep("letters", on);
}

const layers = [];
let count = 0;
let first = null;

/** Let keys act while a component is shown. What was shown last comes first, however often what is behind it is drawn
 * again; and keys act on what is drawn, for they may come before it is seen.
 * @param {Record<string, (event: KeyboardEvent) => void>} actions */
export function useKeys(actions) {
  const own = useRef({ turn: 0, actions }).current;
  own.turn ||= ++count; // components above are drawn first
  own.actions = actions;
  useLayoutEffect(() => {
    layers.push(own);
    layers.sort((a, b) => a.turn - b.turn);
    return () => { layers.splice(layers.indexOf(own), 1); };
  }, []);
}

function typing(target) {
  if (!(target instanceof HTMLElement)) return false;
  if (target instanceof HTMLInputElement) return !["checkbox", "radio", "button", "submit"].includes(target.type);
  return target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement || target.isContentEditable;
}

addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const key = event.key === " " ? "space" : event.key.length === 1 ? event.key : event.key.toLowerCase();
  if (typing(event.target) && key !== "escape") return;
  if (key.length === 1 && !letters.value) return;
  if (key === "enter" && event.target instanceof Element && event.target.closest("a, button, summary")) return;
  const chord = first === "g" ? "g " + key : key;
  first = key === "g" && first !== "g" ? "g" : null;
  if (first) return;
  for (let i = layers.length - 1; i >= 0; i--) {
    const act = layers[i].actions[chord];
    if (act) {
      event.preventDefault();
      act(event);
      return;
    }
  }
});
