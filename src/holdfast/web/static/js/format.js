// Instants, durations and numbers as people read them, in the zone that was chosen.
import { signal, kept, keep } from "./base.js";

/** "local", "UTC" or the name of a zone. */
export const zone = signal(kept("zone", "local"));
export const now = signal(Date.now());

/** Whether the server has said what time it is. */
export const told = signal(false);

let apart = 0;
setInterval(() => { now.value = Date.now() + apart; }, 1000);

/** The server said what time it is: durations are counted by its clock. */
export function heard(text) {
  const at = Date.parse(text);
  if (!Number.isNaN(at)) {
    const difference = at - Date.now();
    if (Math.abs(difference - apart) > 1500) {
      apart = difference;
      now.value = at;
    }
    told.value = true;
  }
}

/** When the server answered, by its own clock, where nothing has said it better: the clock of this machine may be wrong. */
export function answered(date) {
  const at = Date.parse(date);
  if (told.peek() || Number.isNaN(at) || Math.abs(at - Date.now() - apart) < 5_000) return;
  apart = at - Date.now();
  now.value = at;
}

export function setZone(name) {
  zone.value = name;
  keep("zone", name);
}

export const zoneName = () => (zone.value === "local" ? localZone() : zone.value);

let local = "", asked = 0;
/** The zone of this machine: asked once a minute, for each question makes an object that is dear to collect. */
function localZone() {
  if (Math.abs(Date.now() - asked) > 60e3) {
    local = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
    asked = Date.now();
  }
  return local;
}

const formats = new Map();
function parts(at, seconds) {
  const name = zoneName();
  const key = name + seconds;
  if (!formats.has(key)) {
    formats.set(key, new Intl.DateTimeFormat("en-GB", {
      timeZone: name, weekday: "short", year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23",
    }));
  }
  const found = {};
  for (const part of formats.get(key).formatToParts(at)) found[part.type] = part.value;
  return found;
}

const day = (at) => { const p = parts(at, 1); return p.year + "-" + p.month + "-" + p.day; };

/** A time of the clock; with the weekday if it is another day, with the date if it is another week. */
export function clock(at, { millis = false } = {}) {
  const instant = new Date(at);
  if (Number.isNaN(+instant)) return String(at);
  const p = parts(instant, 1);
  const time = p.hour + ":" + p.minute + ":" + p.second + (millis ? "." + String(instant.getUTCMilliseconds()).padStart(3, "0") : "");
  if (day(instant) === day(now.peek())) return time;
  if (Math.abs(+instant - now.peek()) < 6 * 86400e3) return p.weekday + " " + (millis ? time : p.hour + ":" + p.minute);
  return p.year + "-" + p.month + "-" + p.day + " " + p.hour + ":" + p.minute;
}

/** The whole instant with its zone. */
export function absolute(at) {
  const p = parts(new Date(at), 1);
  return `${p.weekday} ${p.year}-${p.month}-${p.day} ${p.hour}:${p.minute}:${p.second} ${zoneName()}`;
}

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

/** A duration with two units. @param {number} millis */
export function span(millis) {
  const seconds = Math.max(millis, 0) / 1000;
  if (seconds < 0.001) return "0 s";
  if (seconds < 1) return seconds.toFixed(seconds < 0.1 ? 3 : 2) + " s";
  if (seconds < 10) return seconds.toFixed(2) + " s";
  if (seconds < 60) return seconds.toFixed(1) + " s";
  return coarse(millis);
}

/** The same in whole seconds, for what changes while it is looked at. */
export function coarse(millis) {
  let left = Math.floor(Math.max(millis, 0) / 1000);
  if (left < 60) return left + " s";
  const said = [];
  for (const [size, unit] of UNITS) {
    if (left >= size || said.length) {
      const many = Math.floor(left / size);
      said.push((said.length && unit !== "d" ? String(many).padStart(2, "0") : many) + " " + unit);
      left %= size;
    }
    if (said.length === 2) break;
  }
  return said.join(" ").replace(/ 00 \w+$/, "");
}

/** How long ago, in one unit. */
export function ago(at) {
  const seconds = Math.round((now.value - Date.parse(at)) / 1000);
  const far = Math.abs(seconds);
  const [size, unit] = UNITS.find(([each]) => far >= each) ?? [1, "s"];
  const said = Math.floor(far / size) + " " + unit;
  return seconds >= 0 ? said + " ago" : "in " + said;
}

export const number = (n) => Number(n).toLocaleString("en-US");

/** How many there are, or at least so many. @param {{n: number, exact: boolean} | undefined} count */
export const counted = (count) => (count === undefined ? "" : number(count.n) + (count.exact ? "" : "+"));

export const plural = (n, one, many = one + "s") => number(n) + " " + (n === 1 ? one : many);

export function bytes(n) {
  if (n < 1024) return n + " B";
  if (n < 1 << 20) return (n / 1024).toFixed(1) + " KiB";
  if (n < 2 ** 30) return (n / (1 << 20)).toFixed(1) + " MiB";
  return n < 2 ** 40 ? (n / 2 ** 30).toFixed(1) + " GiB" : (n / 2 ** 40).toFixed(1) + " TiB";
}

const LENGTH = /^P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:([\d.]+)S)?)?$/;

/** A duration of the server in milliseconds. */
export const millisOf = (text) => { const [, d = 0, h = 0, m = 0, s = 0] = text.match(LENGTH) ?? []; return 1000 * (86400 * d + 3600 * h + 60 * m + +s); };
