// The URL holds what is shown: path and parameters. Going back restores them, and where the page was scrolled to.
import { signal } from "./base.js";

export const ROOT = document.querySelector('meta[name="holdfast-root"]')?.getAttribute("content") ?? "";

function read() {
  const path = location.pathname.startsWith(ROOT) ? location.pathname.slice(ROOT.length) : location.pathname;
  return { path: path || "/", params: new URLSearchParams(location.search) };
}

/** Where we are. */
export const place = signal(read());

let scrollTo = null;
if ("scrollRestoration" in history) history.scrollRestoration = "manual";

/** Return the address of a screen. @param {string} path @param {Record<string, any>} [params] */
export function href(path, params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value !== null && value !== undefined && value !== "" && value !== false) query.set(name, String(value));
  }
  const text = query.toString();
  return ROOT + path + (text ? "?" + text : "");
}

/** Return the address of this screen with some parameters changed. @param {Record<string, any>} changes */
export function here(changes) {
  return href(place.value.path, { ...Object.fromEntries(place.value.params), ...changes });
}

export const runHref = (id, params) => href("/runs/" + encodeURIComponent(id), params);

/** Go to an address of this application. */
export function go(address, { replace = false } = {}) {
  if (replace) history.replaceState(history.state, "", address);
  else {
    history.replaceState({ y: scrollY }, "");
    history.pushState({ y: 0 }, "", address);
  }
  const before = place.value.path;
  place.value = read();
  if (!replace && before !== place.value.path) scrollTo = 0;
}

/** Called by a screen once it shows its content: then the page is scrolled to where it was. */
export function settled() {
  if (scrollTo !== null) {
    window.scrollTo(0, scrollTo);
    scrollTo = null;
  }
}

addEventListener("popstate", (event) => {
  scrollTo = event.state?.y ?? 0;
  place.value = read();
});
let saving = 0;
addEventListener("scroll", () => {
  clearTimeout(saving);
  saving = setTimeout(() => { if (scrollTo === null) history.replaceState({ ...history.state, y: scrollY }, ""); }, 150);
}, { passive: true });

document.addEventListener("click", (event) => {
  if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const link = event.target instanceof Element ? event.target.closest("a[href]") : null;
  if (!(link instanceof HTMLAnchorElement) || link.target || link.hasAttribute("download")) return;
  if (link.origin !== location.origin || !link.pathname.startsWith(ROOT + "/") || link.getAttribute("href")?.startsWith("#")) return;
  if (/^\/(api|static)\//.test(link.pathname.slice(ROOT.length))) return;
  event.preventDefault();
  go(link.getAttribute("href"), { replace: link.hasAttribute("data-replace") });
});
