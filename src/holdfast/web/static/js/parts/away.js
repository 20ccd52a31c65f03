// A database or server that is away: the last picture stays, greyed, and says how old it is.
import { html } from "../base.js";
import { coarse, now } from "../format.js";

/** The first of some pictures that cannot be read again for now. */
export const away = (pictures) => pictures.find((each) => each.problem?.passing && each.data);

/** What is wrong, and of when the picture is; by the clock of this machine alone, which the server's may differ from. */
export function Away({ of, tag = "p" }) {
  now.value;
  return of ? html`<${tag} class="lost" role="status">${of.problem.message} This is the picture of ${coarse(Date.now() - of.at)} ago.<//>` : null;
}
