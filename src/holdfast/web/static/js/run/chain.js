// Checking a chain of rows in the browser, by the rule of the audit trail: each hash is of the one before it and the row.
import { get, Problem } from "../api.js";

const K = new Uint32Array(64), H = new Uint32Array(8);
{
  // The first bits of the fractions of the roots of the first primes: cube roots for the rounds, square roots to begin.
  let found = 0;
  for (let n = 2; found < 64; n++) {
    let prime = true;
    for (let i = 2; i * i <= n; i++) if (n % i === 0) { prime = false; break; }
    if (!prime) continue;
    if (found < 8) H[found] = (n ** (1 / 2) % 1) * 2 ** 32;
    K[found++] = (n ** (1 / 3) % 1) * 2 ** 32;
  }
}

/** The SHA-256 of a text as UTF-8, in hexadecimal. Written out here, for browsers have their own only for https. */
export function sha256(text) {
  const bytes = new TextEncoder().encode(text);
  const padded = new Uint8Array(((bytes.length + 8) >> 6) * 64 + 64);
  padded.set(bytes);
  padded[bytes.length] = 0x80;
  const view = new DataView(padded.buffer);
  view.setUint32(padded.length - 8, Math.floor(bytes.length / 2 ** 29));
  view.setUint32(padded.length - 4, (bytes.length << 3) >>> 0);
  const state = Uint32Array.from(H), w = new Uint32Array(64);
  const turn = (x, n) => (x >>> n) | (x << (32 - n));
  for (let at = 0; at < padded.length; at += 64) {
    for (let i = 0; i < 16; i++) w[i] = view.getUint32(at + 4 * i);
    for (let i = 16; i < 64; i++) {
      const a = w[i - 15], b = w[i - 2];
      w[i] = w[i - 16] + (turn(a, 7) ^ turn(a, 18) ^ (a >>> 3)) + w[i - 7] + (turn(b, 17) ^ turn(b, 19) ^ (b >>> 10));
    }
    let [a, b, c, d, e, f, g, h] = state;
    for (let i = 0; i < 64; i++) {
      const one = (h + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g)) + K[i] + w[i]) | 0;
      const two = ((turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      h = g; g = f; f = e; e = (d + one) | 0;
      d = c; c = b; b = a; a = (one + two) | 0;
    }
    [a, b, c, d, e, f, g, h].forEach((value, i) => { state[i] += value; });
  }
  return [...state].map((value) => value.toString(16).padStart(8, "0")).join("");
}

/** Check rows that follow `last`, the hash and number of the row before: {ok, checked, broken_at, last}. */
export function follows(rows, verdict, place) {
  let { checked, last } = verdict;
  for (const row of rows) {
    const whole = row.n === checked + 1 && row.fields[place] === row.n && row.previous === last && row.hash === sha256(JSON.stringify([last, ...row.fields]));
    if (!whole) return { ok: false, checked, broken_at: row.n, last };
    checked++;
    last = row.hash;
  }
  return { ok: true, checked, broken_at: null, last };
}

/** Read some rows of a chain; a long one is asked for faster than a server may answer, which then says to wait. */
async function page(params, signal) {
  for (let wait = 500; ; wait *= 2) {
    try {
      return await get("/audit/chain", { params, signal });
    } catch (error) {
      if (!(error instanceof Problem) || !error.passing || wait > 16_000) throw error;
    }
    await new Promise((done) => setTimeout(done, wait));
    signal?.throwIfAborted();
  }
}

/** Read a whole chain and check it here: of what a run put on record, or of all that was done. */
export async function checkedHere(run, signal, told) {
  let verdict = { ok: true, checked: 0, broken_at: null, last: "" };
  for (let after = 0; after !== null; ) {
    const rows = await page({ run, after, limit: 1000 }, signal);
    verdict = follows(rows.items, verdict, run ? 1 : 0);
    told?.(verdict);
    if (!verdict.ok) return verdict;
    after = rows.next;
  }
  return verdict;
}

/** What a chain comes to: checked here where we may read its rows, else as the server says. */
export async function verdictOf(run, signal) {
  try {
    return { ...(await checkedHere(run, signal)), here: true };
  } catch (error) {
    if (!(error instanceof Problem) || error.status !== 403) throw error;
    return { ...(await get("/audit/verify", { params: { run }, signal })), here: false };
  }
}
