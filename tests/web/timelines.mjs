// Lays out the timelines of runs with the modules that the page has: `node timelines.mjs FOLDER < runs.json`.
import { readFileSync } from "node:fs";

const folder = process.argv[2];
const { rowsOf, scaleOf, ticksOf } = await import(`${folder}/bars.js`);
const { foldedRows } = await import(`${folder}/folds.js`);

const laid = ({ head, facts, now }) => {
  const begin = Date.parse(head.created_at), open = !head.ended_at;
  const instant = open ? Date.parse(now) : Date.parse(head.ended_at);
  const { rows, undos } = rowsOf(facts, head);
  const scales = [true, false].map((fold) => scaleOf(rows, { begin, now: instant, open, fold }));
  const bar = (each) => ({ state: each.state, from: each.from - begin, to: each.to === null ? null : each.to - begin, at: scales.map((scale) => [scale.at(each.from), scale.at(each.to ?? instant)].map((x) => +x.toFixed(2))) });
  return {
    rows: rows.map((row) => ({ path: row.path, kind: row.kind, name: row.name, status: row.status, attempts: row.attempts, undoing: row.undoing, begun: row.begun - begin, ended: row.ended === undefined ? null : row.ended - begin, bars: row.bars.map(bar), marks: row.marks.map((mark) => mark.at - begin) })),
    shown: foldedRows(rows, new Set(), null).map((row) => "  ".repeat(row.depth) + (row.kind === "more" ? row.name + "…" : row.name)),
    undos: undos.map((undo) => undo.name),
    folds: scales[0].folds.map((fold) => ({ from: fold.from - begin, to: fold.to - begin, x: +fold.x.toFixed(2) })),
    pieces: scales[0].pieces.map((piece) => ({ from: piece.from - begin, to: piece.to - begin, x: +piece.x.toFixed(2), width: +piece.width.toFixed(2) })),
    ticks: ticksOf(scales[0]).map((tick) => tick.at - begin),
  };
};
const runs = JSON.parse(readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify(Object.fromEntries(Object.entries(runs).map(([id, run]) => [id, laid(run)]))));
