// Which rows of a timeline are shown: iterations are rows of their own, and long series are folded to their last ones.

const LAST = 5, MANY = 8;
const above = (path) => path.slice(0, Math.max(0, path.lastIndexOf("/")));
const ITERATION = /^(.*)\/~(\d+)$/s;

/** Rows with one for each iteration of a loop, which has the bars of what was called in it. */
export function withIterations(rows) {
  const out = [], made = new Map();
  for (const row of rows) {
    const parts = row.path.split("/");
    for (let i = 1; i < parts.length; i++) {
      if (!/^~\d+$/.test(parts[i])) continue;
      const path = parts.slice(0, i + 1).join("/");
      if (!made.has(path)) {
        const each = { path, kind: "iteration", name: "iteration " + parts[i].slice(1), begun: row.begun, status: "completed", bars: [], backs: [], marks: [], attempts: 0, note: "", undoing: row.undoing, inner: [] };
        made.set(path, each);
        out.push(each);
      }
      made.get(path).inner.push(row);
    }
    out.push(row);
  }
  for (const each of made.values()) {
    const open = each.inner.filter((row) => row.ended === undefined && row.status !== "failed");
    each.status = each.inner.some((row) => row.status === "failed") ? "failed" : open.length ? open.at(-1).status : "completed";
    if (!open.length) each.ended = Math.max(...each.inner.map((row) => row.ended ?? row.begun));
    for (const name of ["bars", "backs", "marks"]) each[name] = each.inner.flatMap((row) => row[name]);
    each.attempts = each.inner.length;
  }
  const paths = new Set(out.map((row) => row.path));
  for (const row of out) {
    const parts = row.path.split("/");
    let depth = 0;
    for (let i = 1; i < parts.length; i++) if (paths.has(parts.slice(0, i).join("/"))) depth++;
    row.depth = depth;
  }
  return out;
}

/** What a row is one of many of: iterations of a loop, or calls of one name beside each other. */
function seriesOf(row) {
  const iteration = row.path.match(ITERATION);
  if (iteration && row.kind === "iteration") return iteration[1] + "/~";
  return row.kind === "more" || row.undoing ? null : row.path.replace(/#\d+$/, "");
}

/** The rows that are shown, with `folds` (it can be folded), `folded`, and rows of kind `more` for what is left out.
 *
 * `flipped` are the paths that were folded or unfolded by hand; of the rest what leads to `selected` is shown. */
export function foldedRows(all, flipped, selected) {
  const rows = withIterations(all);
  const parents = new Set(rows.map((row) => above(row.path)));
  const series = new Map();
  for (const row of rows) {
    const key = seriesOf(row);
    if (key !== null) series.set(key, [...(series.get(key) ?? []), row.path]);
  }
  const leads = (path) => selected !== null && (selected === path || selected.startsWith(path + "/"));
  const hidden = new Set(), more = new Map();
  for (const [key, paths] of series) {
    const many = paths.length > (key.endsWith("/~") ? LAST : MANY);
    if (!many || flipped.has(key)) continue;
    const left = paths.slice(0, -LAST).filter((path) => !leads(path));
    if (left.length < 2) continue;
    for (const path of left) hidden.add(path);
    more.set(left[0], { key, left: left.length });
  }
  const lastOf = new Map([...series].filter(([key]) => key.endsWith("/~")).map(([, paths]) => [paths.at(-1), true]));
  const out = [];
  const away = [];
  for (const row of rows) {
    while (away.length && !row.path.startsWith(away.at(-1) + "/")) away.pop();
    if (away.length) continue;
    const fold = more.get(row.path);
    if (fold) out.push({ path: fold.key + "…", kind: "more", key: fold.key, name: `${fold.left} earlier`, depth: row.depth, begun: row.begun, status: "pending", bars: [], backs: [], marks: [], attempts: 0, note: "", undoing: row.undoing });
    if (hidden.has(row.path)) { away.push(row.path); continue; }
    const folds = parents.has(row.path);
    const usually = row.kind === "iteration" && !lastOf.has(row.path);
    const folded = folds && (flipped.has(row.path) ? !usually : usually && !leads(row.path));
    out.push({ ...row, folds, folded });
    if (folded) away.push(row.path);
  }
  return out;
}
