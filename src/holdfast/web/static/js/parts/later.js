// Components that are loaded when they are first shown.
import { html, useEffect, useState } from "../base.js";

/** A component of a module that is not loaded yet; `meanwhile` is shown until it is. */
export function later(load, name, meanwhile = null) {
  let found = null;
  return (props) => {
    const [Found, set] = useState(() => found);
    useEffect(() => { if (!found) load().then((module) => { found = module[name]; set(() => found); }); }, []);
    return Found ? html`<${Found} ...${props} />` : meanwhile;
  };
}
