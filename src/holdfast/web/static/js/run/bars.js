// From facts of a history to rows of a timeline, and from instants to places on it. Nothing here touches the page.

const micros = (value) => (typeof value === "number" ? value / 1000 : Date.parse(value));

/** Who sent messages, by their ids, as the audit trail knows it. */
export const sendersOf = (acts) => new Map(acts.filter((each) => each.action === "send" && each.detail?.message).map((each) => [each.detail.message, each.actor]));

/** Facts with those that a retry or rerun cut away, as they came. */
export const together = (archived, entries) => (archived.length ? [...archived, ...entries].sort((a, b) => Date.parse(a.at) - Date.parse(b.at) || a.seq - b.seq) : entries);

/** Rows in the order of their first call, each with bars, waits and marks; times are milliseconds. Rows of which all was cut
 * away are `ghosts`, and so are bars and marks of others that were. */
export function rowsOf(entries, head = null, senders = new Map()) {
  const rows = new Map();
  const undos = [];
  const row = (path, kind, at) => {
    if (!rows.has(path)) rows.set(path, { path, kind, name: path.split("/").pop(), begun: at, status: "running", bars: [], backs: [], marks: [], attempts: 0, note: "", undoing: /(^|\/)undo#\d/.test(path) });
    return rows.get(path);
  };
  const close = (each, at, state, more = {}) => {
    const bar = each.bars.at(-1);
    if (bar && bar.to === null) Object.assign(bar, { to: at, state, ...more });
  };
  let before = 0;
  const again = (each) => {
    close(each, before, "lost"); // what came of it was cut away, and is not known here
    Object.assign(each, { status: "running", ended: undefined, next: null });
  };
  for (const { at: text, kind, path, data, seq, archived } of entries) {
    const at = Date.parse(text);
    const known = rows.get(path);
    const list = Array.isArray(data) ? data : [];
    if (kind === "step") {
      const each = row(path, "step", at);
      again(each);
      each.attempts = list[1] ?? 1;
      Object.assign(each, { arguments: list[2], argued: seq });
      each.bars.push({ from: at, to: null, state: "running", attempt: list[1] ?? 1 });
    } else if (kind === "attempt" && known) {
      again(known);
      known.attempts = list[0] ?? known.attempts + 1;
      for (const back of known.backs) if (back.to === null || back.to > at) back.to = at;
      known.bars.push({ from: at, to: null, state: "running", attempt: known.attempts });
    } else if (kind === "attempt failed" && known) {
      close(known, at, "failed", { error: list[1] });
      known.error = list[1];
      known.status = "waiting";
      known.next = list[2] === undefined ? null : micros(list[2]);
      known.backs.push({ from: at, to: known.next });
    } else if (kind === "attempt lost" && known) {
      close(known, at, "lost", { why: list[1] });
      known.status = "waiting";
      known.backs.push({ from: at, to: null });
    } else if (kind === "skipped" && known) {
      if (known.bars.at(-1)?.to === null) { known.bars.pop(); known.attempts--; } // it has not begun
      known.status = "skipped";
      known.note = list[0];
      known.next = list[1] === undefined ? null : micros(list[1]);
      known.backs.push({ from: at, to: known.next });
    } else if (kind === "step completed" && known) {
      close(known, at, "done");
      Object.assign(known, { status: "completed", ended: at, next: null });
    } else if (kind === "step failed" && known) {
      close(known, at, "failed", { error: list[1] });
      Object.assign(known, { status: "failed", ended: at, error: list[1], next: null });
    } else if (kind === "cancelled" && known) {
      close(known, at, "lost");
      Object.assign(known, { status: "cancelled", ended: at, next: null });
    } else if (kind === "sleep") {
      const each = row(path, "sleep", at);
      each.status = "waiting";
      each.next = list[0] === undefined ? null : micros(list[0]);
      each.bars.push({ from: at, to: null, state: "wait" });
    } else if (kind === "timer fired" && known) {
      close(known, at, "wait");
      Object.assign(known, { status: "completed", ended: at, next: null });
      if (known.kind === "message") known.note = "gave up";
    } else if (kind === "receive") {
      const each = row(path, "message", at);
      Object.assign(each, { status: "waiting", name: (list[0] ?? []).join(" or ") || each.name.replace(/^receive /, "") });
      each.bars.push({ from: at, to: null, state: "wait" });
    } else if (kind === "message" && known) {
      close(known, at, "wait");
      known.marks.push({ at, id: list[1], what: list[0], payload: list[2], seq, by: senders.get(list[1]) ?? (list[3] === "event" ? "an event" : undefined) });
      Object.assign(known, { status: "completed", ended: at });
    } else if (kind === "reply") {
      for (const each of rows.values()) for (const mark of each.marks) if (mark.id && mark.id === list[0]) mark.replied ??= at;
    } else if (kind === "child") {
      const each = row(path, "child", at);
      Object.assign(each, { name: list[0] ?? each.name, child: list[0], status: list[2] ? "failed" : "running" });
      if (!list[2]) each.bars.push({ from: at, to: null, state: "child" });
    } else if (kind === "child ended" && known) {
      close(known, at, "child");
      Object.assign(known, { status: list[0] ?? "completed", ended: at, error: list[2] });
    } else if (kind === "join" || kind === "race") {
      const each = row(path, kind, at);
      each.branches = list[0] ?? [];
      each.left = new Set(each.branches);
    } else if (kind === "branch ended") {
      const parent = rows.get(path.slice(0, path.lastIndexOf("/")));
      if (parent?.left) {
        parent.left.delete(path.split("/").pop());
        if (!parent.left.size) Object.assign(parent, { status: list[0] === "failed" ? "failed" : "completed", ended: at });
      }
    } else if (kind === "race won" && known) {
      Object.assign(known, { status: "completed", ended: at, note: "won by " + list[0] });
    } else if (kind === "loop") {
      row(path, "loop", at);
    } else if (kind === "loop state" && known) {
      known.note = `iteration ${list[0]}`;
    } else if (kind === "loop ended" && known) {
      Object.assign(known, { status: "completed", ended: at, note: `${list[0]} iterations` });
    } else if (kind === "send" || kind === "publish") {
      const each = row(path, kind, at);
      Object.assign(each, { status: "completed", ended: at, name: kind === "send" ? `${list[1]} to ${list[0]}` : list[0] });
      each.marks.push({ at, what: each.name });
    } else if (kind === "compensation" && !archived) {
      undos.push({ path, name: list[1], of: list[4], done: false });
    }
    const touched = rows.get(path);
    if (touched && !archived) touched.live = true;
    for (const each of touched && archived ? [touched.bars.at(-1), touched.marks.at(-1)] : []) if (each) each.ghost = true;
    before = at;
  }
  for (const undo of undos) undo.done = [...rows.keys()].some((path) => path.startsWith(undo.path + "/"));
  const all = [...rows.values()];
  // A loop that was left with `break`, and what a run left open when it ended, have no fact that says so.
  if (head?.ended_at) for (const each of all) if (each.ended === undefined && ["loop", "join", "race"].includes(each.kind)) Object.assign(each, { status: head.status === "completed" ? "completed" : "cancelled" });
  const ghosts = all.filter((each) => !each.live).map((each) => ({ ...each, ghost: true, depth: 0, next: null }));
  for (const each of ghosts) close(each, before, "lost");
  const live = all.filter((each) => each.live);
  return { rows: [...live.filter((each) => !each.undoing), ...live.filter((each) => each.undoing)], ghosts, undos: undos.filter((each) => !each.done).reverse() };
}

/** What happens at an instant, or lasts: outside of these nothing is going on. */
function busy(rows, now) {
  const spans = [];
  for (const each of rows) {
    for (const bar of each.bars) {
      if (bar.state === "wait" || bar.state === "child") spans.push([bar.from, bar.from], ...(bar.to === null ? [] : [[bar.to, bar.to]]));
      else spans.push([bar.from, bar.to ?? now]);
    }
    spans.push([each.begun, each.begun]);
    for (const mark of each.marks) spans.push([mark.at, mark.at]);
    if (each.next) spans.push([each.next, each.next]);
  }
  return spans;
}

const WIDTH = 92, LEFT = 1, FOLD = 6.8, SHARE = 0.05, AGAIN = 0.4;

/** A scale from instants to per cent, in which long idle stretches take a fixed width: {at, folds, pieces, end}. */
export function scaleOf(rows, { begin, now, open, fold = true }) {
  const spans = busy(rows, now);
  if (open) spans.push([now, now]);
  spans.push([begin, begin]);
  spans.sort((a, b) => a[0] - b[0]);
  const merged = [];
  for (const [from, to] of spans) {
    const last = merged.at(-1);
    if (last && from <= last[1]) last[1] = Math.max(last[1], to);
    else merged.push([from, to]);
  }
  const first = merged[0][0], last = Math.max(...merged.map((each) => each[1]), first + 1);
  const gaps = merged.slice(1).map(([from], i) => [merged[i][1], from]);
  let left = last - first;
  const folds = [];
  if (fold) {
    const whole = left;
    for (const gap of gaps) if (gap[1] - gap[0] > SHARE * whole && gap[1] - gap[0] > 2000) folds.push(gap);
    left -= folds.reduce((sum, gap) => sum + gap[1] - gap[0], 0);
    for (let again = true; again; ) {
      again = false;
      for (const gap of gaps) {
        const long = gap[1] - gap[0];
        if (!folds.includes(gap) && long > AGAIN * left && long > 2000 && gaps.length > 1) { folds.push(gap); left -= long; again = true; }
      }
    }
  }
  folds.sort((a, b) => a[0] - b[0]);
  const foldWidth = folds.length ? Math.min(FOLD, 40 / folds.length) : 0;
  const room = WIDTH - folds.length * foldWidth;
  const pieces = [];
  let from = first;
  for (const gap of [...folds, [last, last]]) { pieces.push({ from, to: gap[0] }); from = gap[1]; }
  // A piece that lasts but a moment still gets a little room.
  const least = Math.min(4, room / (2 * pieces.length));
  const lasting = pieces.reduce((sum, each) => sum + each.to - each.from, 0) || 1;
  const spare = room - least * pieces.length;
  let x = LEFT;
  for (const piece of pieces) {
    piece.x = x;
    piece.width = least + (spare * (piece.to - piece.from)) / lasting;
    x += piece.width + foldWidth;
  }
  const at = (instant) => {
    for (let i = 0; i < pieces.length; i++) {
      const piece = pieces[i];
      if (instant < piece.from) return i ? pieces[i - 1].x + pieces[i - 1].width + foldWidth * ((instant - pieces[i - 1].to) / (piece.from - pieces[i - 1].to)) : LEFT;
      if (instant <= piece.to) return piece.x + piece.width * (piece.to > piece.from ? (instant - piece.from) / (piece.to - piece.from) : 0);
    }
    return x - foldWidth;
  };
  return { at, pieces, first, last, folds: folds.map(([a, b], i) => ({ from: a, to: b, x: pieces[i].x + pieces[i].width, width: foldWidth })) };
}

/** The scale as it is between two places of it, in per cent. */
export function zoomed(scale, [from, to]) {
  const by = 100 / (to - from);
  const place = (x) => (x - from) * by;
  const part = (each) => ({ ...each, x: place(each.x), width: each.width * by });
  return { ...scale, at: (instant) => place(scale.at(instant)), pieces: scale.pieces.map(part), folds: scale.folds.map(part) };
}

const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10e3, 20e3, 30e3, 60e3, 120e3, 300e3, 600e3, 1800e3, 3600e3, 7200e3, 21600e3, 43200e3, 86400e3, 604800e3];

/** Where the axis is marked: {x, at, since} with `since` the milliseconds since the begin of its piece, 0 at it. */
export function ticksOf(scale) {
  const ticks = [];
  let last = -20;
  for (const piece of scale.pieces) {
    if (piece.x + piece.width < 0 || piece.x > 98) continue;
    if (piece.x >= 0 && piece.x - last > 8) { ticks.push({ x: piece.x, at: piece.from, since: 0 }); last = piece.x; }
    const long = piece.to - piece.from;
    const step = STEPS.find((each) => (each / long) * piece.width > 11);
    if (!step) continue;
    for (let t = step; t < long; t += step) {
      const x = piece.x + (piece.width * t) / long;
      if (x >= 0 && x - last > 9 && x < 92) { ticks.push({ x, at: piece.from + t, since: t }); last = x; }
    }
  }
  return ticks;
}
