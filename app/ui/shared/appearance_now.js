// Applies the theme and the text size that this browser keeps. A classic script in the head: it runs before the page is
// first drawn, so that nothing flashes or jumps. appearance.js changes what is kept.

(() => {
  const SIZES = { small: "87.5%", normal: "100%", large: "112.5%", larger: "125%" };
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");

  /** @param {string} key */
  const read = (key) => {
    try {
      return localStorage.getItem(key);
    } catch {
      return null; // storage is disabled
    }
  };

  /** @returns {"system" | "light" | "dark"} */
  const theme = () => {
    const kept = read("dm-theme");
    return kept === "light" || kept === "dark" ? kept : "system";
  };

  // Gradio's dark mode is a class of the body, which it sets by the system's theme, or by ?__theme of the address.
  const gradio = () => {
    if (!document.body?.querySelector(":scope > gradio-app")) return;
    const asked = new URLSearchParams(location.search).get("__theme");
    const system = asked === "light" || asked === "dark" ? asked : dark.matches ? "dark" : "light";
    const isDark = (theme() === "system" ? system : theme()) === "dark";
    if (document.body.classList.contains("dark") !== isDark) document.body.classList.toggle("dark", isDark);
  };

  const apply = () => {
    const size = /** @type {keyof typeof SIZES} */ (read("dm-text-size") ?? "normal");
    root.style.fontSize = size in SIZES && size !== "normal" ? SIZES[size] : "";
    if (theme() === "system") delete root.dataset["theme"];
    else root.dataset["theme"] = theme();
    root.style.colorScheme = theme() === "system" ? "" : theme(); // for the canvas, until the stylesheets are there
    gradio();
  };

  apply();
  addEventListener("dm-appearance", apply);
  addEventListener("storage", apply); // another tab changed it
  dark.addEventListener("change", gradio);
  const watchBody = () => {
    gradio();
    new MutationObserver(gradio).observe(document.body, { attributes: true, attributeFilter: ["class"] });
  };
  if (document.readyState === "loading") addEventListener("DOMContentLoaded", watchBody);
  else watchBody(); // Gradio puts scripts into the head only after its own
})();
