// Small drawings: 16 px, lines in the colour of the text.
import { html } from "../base.js";

const PATHS = {
  pending: [["circle", { cx: 8, cy: 8, r: 6.3, "stroke-dasharray": "2.2 2.4" }]],
  running: [["circle", { cx: 8, cy: 8, r: 6.3, "stroke-opacity": ".3" }], ["path", { d: "M8 1.7a6.3 6.3 0 0 1 6.3 6.3" }]],
  suspended: [["circle", { cx: 8, cy: 8, r: 6.3 }], ["path", { d: "M8 4.6V8l2.3 1.5" }]],
  paused: [["circle", { cx: 8, cy: 8, r: 6.3 }], ["path", { d: "M6.5 5.8v4.4M9.5 5.8v4.4" }]],
  compensating: [["path", { d: "M3.2 6.2h6.3a3.6 3.6 0 0 1 0 7.2H6" }], ["path", { d: "M5.8 3.2L2.8 6.2l3 3" }]],
  blocked: [["path", { d: "M5.4 1.9h5.2l3.5 3.5v5.2l-3.5 3.5H5.4l-3.5-3.5V5.4z" }], ["path", { d: "M8 5v3.6M8 11v.1" }]],
  failed: [["circle", { cx: 8, cy: 8, r: 6.3 }], ["path", { d: "M5.9 5.9l4.2 4.2M10.1 5.9l-4.2 4.2" }]],
  completed: [["circle", { cx: 8, cy: 8, r: 6.3 }], ["path", { d: "M5.2 8.2l2 2 3.7-4.2" }]],
  cancelled: [["circle", { cx: 8, cy: 8, r: 6.3 }], ["path", { d: "M3.8 12.2l8.4-8.4" }]],
  cancelling: [["circle", { cx: 8, cy: 8, r: 6.3, "stroke-dasharray": "2.2 2.4" }], ["path", { d: "M3.8 12.2l8.4-8.4" }]],
  search: [["circle", { cx: 7, cy: 7, r: 4.6 }], ["path", { d: "M10.6 10.6L14 14" }]],
  moon: [["path", { d: "M13.4 9.6A5.8 5.8 0 0 1 6.4 2.6a5.8 5.8 0 1 0 7 7z" }]],
  close: [["path", { d: "M4.5 4.5l7 7M11.5 4.5l-7 7" }]],
  terminal: [["rect", { x: 1.8, y: 2.8, width: 12.4, height: 10.4, rx: 1.8 }], ["path", { d: "M4.6 6.2L6.7 8l-2.1 1.8M8.4 10h3" }]],
  copy: [["rect", { x: 5.4, y: 5.4, width: 8, height: 8, rx: 1.5 }], ["path", { d: "M10.6 5.2V3.4A1 1 0 0 0 9.600 2.400H3.400A1 1 0 0 0 2.400 3.400v6.200a1 1 0 0 0 1 1h1.800" }]],
  retry: [["path", { d: "M13.2 8a5.2 5.2 0 1 1-1.6-3.7" }], ["path", { d: "M13.4 2.2v2.9h-2.9" }]],
  pause: [["path", { d: "M5.5 3.5v9M10.5 3.5v9" }]],
  resume: [["path", { d: "M5 3.2v9.600l7.800-4.800z" }]],
  cancel: [["rect", { x: 3.6, y: 3.6, width: 8.8, height: 8.8, rx: 1.5 }]],
  terminate: [["path", { d: "M8 2v5.400M4.200 4.200a5.400 5.400 0 1 0 7.600 0" }]],
  send: [["path", { d: "M14 2L7.4 8.6M14 2L9.8 14 7.4 8.6 2 6.2z" }]],
  nudge: [["path", { d: "M8.8 1.8L3.4 9h4L7.2 14.2 12.6 7h-4z" }]],
  edit: [["path", { d: "M10.800 2.800l2.400 2.400L5.600 12.800 2.600 13.400l.600-3z" }]],
  right: [["path", { d: "M6.2 4L10 8l-3.8 4" }]],
  down: [["path", { d: "M4 6.2L8 10l4-3.8" }]],
  save: [["path", { d: "M8 2v8M4.600 7L8 10.400 11.400 7M2.600 13.400h10.800" }]],
  left: [["path", { d: "M9.800 4L6 8l3.800 4" }]],
  fold: [["path", { d: "M2 8h2.4l1.4-3.4 2.6 6.8L10 8h4" }]],
  minus: [["path", { d: "M3 8h10" }]],
  plus: [["path", { d: "M8 3v10M3 8h10" }]],
  help: [["circle", { cx: 8, cy: 8, r: 6.3 }], ["path", { d: "M6.300 6.400a1.800 1.800 0 1 1 2.600 1.600c-.600.300-.900.600-.900 1.200M8 11.300v.1" }]],
};
PATHS.waiting = PATHS.suspended;
PATHS.skipped = PATHS.suspended;
PATHS.rerun = PATHS.recover = PATHS.retry;
PATHS.attributes = PATHS.edit;

export function Icon({ name }) {
  return html`<svg viewBox="0 0 16 16" fill="none" stroke="currentColor" stroke-width="1.7" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">
    ${(PATHS[name] ?? PATHS.pending).map(([tag, given]) => html`<${tag} ...${given} />`)}
  </svg>`;
}

/** An icon as the data of one path, for drawings of many. */
export const drawing = (name) => (PATHS[name] ?? PATHS.pending).map(([tag, given]) => (tag === "circle" ? `M${given.cx - given.r} ${given.cy}a${given.r} ${given.r} 0 1 0 ${2 * given.r} 0a${given.r} ${given.r} 0 1 0 ${-2 * given.r} 0` : given.d)).join("");

export function Mark() {
  return html`<svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="1.7" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">
    <circle cx="12" cy="4.6" r="2.1" /><path d="M12 6.8v5.4M12 10.2c0 5-5.6 3.4-7.4 9.6M12 10.2c0 5 5.6 3.4 7.4 9.6M12 12.2c0 4.2-2.6 4.4-3 9.2M12 12.2c0 4.2 2.6 4.4 3 9.2" />
  </svg>`;
}
