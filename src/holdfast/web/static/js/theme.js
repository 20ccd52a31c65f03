// The theme is set before anything is painted: what was chosen here, else what the system prefers.
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("holdfast-theme"); } catch { /* storage is refused: the system's theme */ }
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const set = () => { document.documentElement.dataset.theme = chosen || (dark.matches ? "dark" : "light"); };
  try { document.documentElement.dataset.density = localStorage.getItem("holdfast-density") ?? ""; } catch { /* the usual one */ }
  set();
  dark.addEventListener("change", set);
})();
