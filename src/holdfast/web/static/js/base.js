// What every module uses: Preact with templates, signals, and what is kept in the browser.
import { h, render, Fragment } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState, useCallback } from "preact/hooks";
import { signal, computed, effect, batch } from "@preact/signals";
import htm from "htm";

export const html = htm.bind(h);
export { h, render, Fragment, useEffect, useLayoutEffect, useMemo, useRef, useState, useCallback };
export { signal, computed, effect, batch };

/** JSON as a value. A whole number that a float cannot hold stays as it is written: it is shown, and sent, to the digit. */
export function parsed(text) {
  if (!JSON.rawJSON || !/\d{16}/.test(text)) return JSON.parse(text);
  return JSON.parse(text, (name, value, about) => (typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(about.source) ? JSON.rawJSON(about.source) : value));
}

/** What was kept under a name in this browser, or `other`. @param {string} name @param {any} other */
export function kept(name, other) {
  try {
    const text = localStorage.getItem("holdfast-" + name);
    return text === null ? other : JSON.parse(text);
  } catch {
    return other;
  }
}

/** Keep a value under a name; a browser that refuses storage forgets it with the tab. @param {string} name @param {any} value */
export function keep(name, value) {
  try {
    localStorage.setItem("holdfast-" + name, JSON.stringify(value));
  } catch {
    /* nothing to do: it holds for this tab */
  }
}

/** Return text for the command line, quoted where a shell would take it apart. @param {string} text */
export function quoted(text) {
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(text) ? text : "'" + text.replaceAll("'", `'"'"'`) + "'";
}
