// Masked values: who may sees one, for a reason and on record, until the page of its run is left.
import { html, quoted, signal, useEffect, useState } from "../base.js";
import { may, post, session } from "../api.js";
import { addKind, close, Command, Frame, open, Reason, reasonKept, useAct, Wrong } from "./sheet.js";

const shown = signal(new Map());
const keyOf = ({ id, field, step = "", n = 0 }, pointer) => JSON.stringify([id, field, step, n, pointer]);

/** What the payload of a run needs to show masked values, `at` being where it stands: {found(pointer), ask(pointer)}; null for who may not. */
export function revealing({ at = "", ...of }) {
  if (!may("operator") || !session.value.features?.includes("reveal")) return null;
  return { found: (pointer) => shown.value.get(keyOf(of, at + pointer)), ask: (pointer) => open({ kind: "reveal", ...of, pointer: at + pointer }) };
}

/** Nothing that was revealed stays when the page of its run is left. */
export const useForgetting = (id) => useEffect(() => () => { shown.value = new Map(); }, [id]);

function Reveal({ id, field, step, n, pointer }) {
  const [reason, setReason] = useState(reasonKept());
  const { act, busy, problem } = useAct();
  const confirm = () => act(async () => {
    const found = await post(`/runs/${encodeURIComponent(id)}/reveal`, { field, step: step ?? "", n: n ?? 0, pointer, reason });
    shown.value = new Map([...shown.value, [keyOf({ id, field, step, n }, pointer), { value: found.value }]]);
    close();
  }, reason);
  const command = ["holdfast reveal", quoted(id), field, quoted(pointer), ...(step ? ["--step", quoted(step)] : []), ...(n ? ["--number", n] : []), "--reason", quoted(reason || "...")].join(" ");
  return html`<${Frame} title=${html`Reveal <code>${pointer}</code>`} confirm=${confirm} confirmWord="Reveal" busy=${busy} disabled=${!reason.trim()}>
    <p>You see this value of the ${field} of <code>${step || id}</code> until you leave the page. That you saw it, and why, is put on record first.</p>
    <${Wrong} problem=${problem} />
    <${Reason} value=${reason} set=${setReason} required=${true} />
    <${Command} spellings=${{ cli: command }} />
  <//>`;
}
addKind("reveal", Reveal);
