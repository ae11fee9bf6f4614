// The launcher on a customer's website:
//   <script src="https://desk.example.com/widget/INBOX.js" async></script>
// Its only global is `deskmateWidget`: open(), close(), identify(token). The chat itself is a frame of the script's own
// origin, made on the first opening. The website's Content-Security-Policy has to allow that origin in script-src and
// frame-src, and nothing else: styles are constructed sheets in a shadow root, and the icons are elements.
(() => {
  // Written by scripts/texts.py from app/cases/locale.
  const TEXTS = /* texts */ {"de": {"Close chat": "Chat schließen", "Chat with us": "Chat mit uns", "Open chat": "Chat öffnen", "New messages:": "Neue Nachrichten:"}} /* end of texts */;
  const WIDGET = "deskmate-widget";
  const script = /** @type {HTMLScriptElement | null} */ (document.currentScript);
  const address = script && /^(https?:\/\/[^/]+)(.*\/widget\/[\w-]+)\.js(?:[?#].*)?$/.exec(script.src);
  if (!address || "deskmateWidget" in window) return;
  const [, origin, path] = address;
  const language = script.dataset.language || document.documentElement.lang || navigator.language || "en";
  /** @param {string} text @returns {string} */
  const t = (text) => /** @type {Record<string, Record<string, string>>} */ (TEXTS)[language.split(/[-_]/)[0].toLowerCase()]?.[text] ?? text;

  const STYLE = `
    :host { all: initial !important; --accent: #0f6e66; --on-accent: #fff; --paper: #fff; --line: #cfcbc3; }
    @media (prefers-color-scheme: dark) { :host { --accent: #5cc5b8; --on-accent: #0c2320; --paper: #1b1b1a; --line: #4a4945; } }
    * { box-sizing: border-box; }
    .launcher, .panel { position: fixed; z-index: 2147483000; inset-inline-end: max(20px, env(safe-area-inset-right)); }
    .launcher { bottom: calc(20px + env(safe-area-inset-bottom)); display: grid; place-items: center; width: 56px; height: 56px;
      margin: 0; padding: 0; border: 0; border-radius: 50%; background: var(--accent); color: var(--on-accent); cursor: pointer;
      box-shadow: 0 2px 6px rgb(0 0 0 / 20%), 0 8px 24px rgb(0 0 0 / 18%); transition: transform 120ms; }
    .launcher:hover { transform: scale(1.05); }
    .launcher:focus-visible { outline: 3px solid var(--accent); outline-offset: 3px; }
    svg { width: 28px; height: 28px; fill: none; stroke: currentColor; stroke-width: 2; stroke-linecap: round; stroke-linejoin: round; }
    .badge { position: absolute; top: -4px; inset-inline-end: -4px; min-width: 22px; padding: 0 6px; border-radius: 11px;
      background: #b3261e; color: #fff; font: 600 13px/22px system-ui, sans-serif; text-align: center; }
    .panel { bottom: calc(88px + env(safe-area-inset-bottom)); width: 400px; height: min(680px, 100dvh - 112px); overflow: hidden;
      border: 1px solid var(--line); border-radius: 16px; background: var(--paper); animation: rise 160ms ease-out;
      box-shadow: 0 4px 12px rgb(0 0 0 / 14%), 0 16px 48px rgb(0 0 0 / 22%); }
    iframe { display: block; width: 100%; height: 100%; border: 0; }
    [hidden] { display: none; }
    @keyframes rise { from { opacity: 0; transform: translateY(12px); } }
    @media (max-width: 480px), (max-height: 420px) {
      .panel { inset: 0; width: auto; height: 100dvh; border: 0; border-radius: 0; }
      .panel:not([hidden]) ~ .launcher { display: none; }
    }
    @media (prefers-reduced-motion: reduce) { .launcher, .panel { animation: none; transition: none; } .launcher:hover { transform: none; } }
    @media print { .launcher, .panel { display: none; } }`;

  /** @param {string} name @param {Record<string, string>} attributes @param {Node[]} children */
  const svg = (name, attributes, ...children) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const each in attributes) element.setAttribute(each, attributes[each]);
    element.append(...children);
    return element;
  };
  const stroke = svg("path", {});
  const picture = svg("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, stroke);
  const badge = document.createElement("span");
  badge.className = "badge";
  const launcher = document.createElement("button");
  launcher.type = "button";
  launcher.className = "launcher";
  launcher.append(picture, badge);
  const panel = document.createElement("div");
  panel.className = "panel";
  panel.hidden = true;
  const host = document.createElement(WIDGET);
  const shadow = host.attachShadow({ mode: "open" });
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(STYLE);
  shadow.adoptedStyleSheets = [sheet];
  shadow.append(panel, launcher); // the panel first: Tab leads from the page into the chat, and then to the button that closes it

  /** @type {HTMLIFrameElement | null} */
  let frame = null;
  let isReady = false; // the frame has loaded, and listens
  let unread = 0;
  /** @type {object[]} what the frame is told once it listens */
  let waiting = [];

  /** @param {object} message  for the frame, and for no other page that may have come into it */
  function tell(message) {
    if (isReady) frame?.contentWindow?.postMessage({ deskmate: 1, ...message }, origin);
    else waiting.push(message);
  }

  function load() {
    if (frame) return;
    frame = document.createElement("iframe");
    frame.title = t("Chat with us");
    frame.src = `${origin}${path}?lang=${encodeURIComponent(language)}`;
    frame.addEventListener("load", () => {
      isReady = true;
      const messages = [...waiting, { type: "hello" }]; // the last: who the visitor is comes before the talk begins
      waiting = [];
      messages.forEach(tell);
    });
    panel.append(frame);
  }

  function draw() {
    launcher.setAttribute("aria-expanded", String(!panel.hidden));
    const label = panel.hidden ? t("Open chat") : t("Close chat");
    launcher.setAttribute("aria-label", unread > 0 ? `${label} (${t("New messages:")} ${unread})` : label);
    stroke.setAttribute("d", panel.hidden ? "M5 5h14v11h-8l-4 4v-4H5zM9 9h6M9 12h4" : "M6 9.5l6 6 6-6");
    badge.textContent = String(unread);
    badge.hidden = unread === 0;
  }

  function open() {
    panel.hidden = false;
    load();
    draw();
    frame?.focus();
    tell({ type: "opened" });
  }

  function close() {
    if (panel.hidden) return;
    const hadFocus = shadow.activeElement !== null;
    panel.hidden = true;
    draw();
    tell({ type: "closed" });
    if (hadFocus) launcher.focus();
  }

  addEventListener("message", ({ source, origin: from, data }) => {
    if (!frame || source !== frame.contentWindow || from !== origin || data?.deskmate !== 1) return;
    if (data.type === "close") close();
    if (data.type === "unread" && Number.isInteger(data.count)) {
      unread = Math.max(0, data.count);
      draw();
    }
  });
  shadow.addEventListener("keydown", (event) => {
    if (/** @type {KeyboardEvent} */ (event).key === "Escape") close();
  });
  launcher.addEventListener("click", () => (panel.hidden ? open() : close()));

  /**
   * Says who the visitor is: a token that the website's server signs, an hour valid at most. `null` forgets the visitor
   * and the talk on this device: call it when a customer signs out.
   * @param {string | null} token
   */
  function identify(token) {
    if (token !== null && typeof token !== "string") throw new TypeError("deskmateWidget.identify takes a token, or null");
    if (token === null) load(); // what is stored is the frame's, which alone can remove it
    tell({ type: "identify", token });
  }

  Object.defineProperty(window, "deskmateWidget", { value: Object.freeze({ open, close, identify }), enumerable: true });
  draw();
  const attach = () => {
    document.body.append(host);
    dispatchEvent(new Event("deskmate:ready"));
  };
  if (document.body) attach();
  else document.addEventListener("DOMContentLoaded", attach, { once: true });
})();
