// What the scripts of the Gradio components share.

/**
 * What Gradio gives to js_on_load.
 * @typedef {object} Context
 * @property {HTMLElement} element
 * @property {(event: string, detail?: unknown) => void} trigger
 * @property {Record<string, any>} props
 * @property {(names: string | string[], changed: () => void) => void} watch
 */

/** @type {Map<string, Promise<any>>} promise of each component */
const mounted = new Map();
/** @type {Map<string, ((component: Promise<any>) => void)[]>} functions to call once that promise is there */
const waiting = new Map();

// A module could not be loaded, for example because the network changed: reloading the page helps.
export class LoadError extends Error {
  /** @override */
  name = "LoadError";
}

/**
 * Called by the Python class: mounts a component in its element, once its module and its styles are there.
 * @param {string} name
 * @param {Promise<{mount: (context: Context) => unknown}>} module
 * @param {string[]} styles  URLs of its stylesheets, in cascade order
 * @param {Context} context
 */
export function load(name, module, styles, context) {
  /** @param {unknown} cause */
  const failed = (cause) => {
    throw new LoadError(`The script of ${name} failed to load`, { cause });
  };
  const styled = Promise.all(styles.map(loadStyle));
  const component = module.then(async ({ mount }) => {
    await styled;
    return mount(context);
  }, failed);
  component.catch((error) => console.error(error)); // in an app without a script that waits for it, nothing else says so
  mounted.set(name, component);
  for (const resolve of waiting.get(name) ?? []) resolve(component);
  waiting.delete(name);
}

// Adds a stylesheet to the page, unless it is there. Resolves once it is loaded, or has failed: the page works without.
/** @param {string} url */
export function loadStyle(url) {
  if ([...document.querySelectorAll("link")].some((link) => link.href === url)) return undefined;
  const link = document.createElement("link");
  const loaded = new Promise((resolve) => {
    link.onload = link.onerror = resolve;
  });
  Object.assign(link, { rel: "stylesheet", href: url });
  document.head.append(link);
  return loaded;
}

/**
 * Resolves to the component of this name, once Gradio has rendered it; rejects if its module fails to load. Of several,
 * it is the last one.
 * @param {string} name
 * @returns {Promise<any>}
 */
export const whenMounted = (name) =>
  mounted.get(name) ?? new Promise((resolve) => waiting.set(name, [...(waiting.get(name) ?? []), resolve]));

// A component whose events go to Gradio's listeners, or to the scripts of a page that handles them itself.
export class Component {
  /** @type {Record<string, (detail: any) => unknown>} */
  #handlers = {};

  /** @param {Context} context */
  constructor({ element, trigger, props, watch }) {
    this.element = element;
    this.trigger = trigger;
    this.props = props;
    this.watch = watch;
  }

  /**
   * The part of the component that matches `selector`, which its template has.
   * @template {HTMLElement} [Part=HTMLElement]
   * @param {string} selector
   * @returns {Part}
   */
  find(selector) {
    return /** @type {Part} */ (this.element.querySelector(selector));
  }

  /**
   * Handles events here instead of in Gradio.
   * @param {Record<string, (detail: any) => unknown>} handlers
   */
  handle(handlers) {
    Object.assign(this.#handlers, handlers);
  }

  /**
   * Raises an event. Returns the result of the page's handler; undefined where Gradio gets the event.
   * @param {string} event
   * @param {unknown} detail
   * @returns {unknown}
   */
  emit(event, detail = {}) {
    const handler = this.#handlers[event];
    if (handler) return handler(detail);
    this.trigger(event, detail);
    return undefined;
  }
}

// ---- What Gradio's listeners call: the `js` that client_events.py gives them.

/** @type {Map<string, any>} scripts that are no components, by name */
const registered = new Map();

/** @type {() => Promise<unknown>} rejects if the server cannot be reached */
let reach = async () => undefined;

/**
 * Makes a script of the page known to Gradio's listeners by a name.
 * @param {string} name
 * @param {object} script
 */
export const register = (name, script) => registered.set(name, script);

/**
 * Calls a method of a script or component. Does nothing in an app in which none has this name.
 * @param {string} name
 * @param {string} method
 * @param {unknown[]} values
 * @returns {Promise<any>}
 */
export async function call(name, method, ...values) {
  const script = registered.get(name) ?? (await mounted.get(name));
  return script?.[method](...values);
}

/**
 * Sets what is awaited before a listener in Python runs. It should reject if the server cannot be reached: an event that
 * Gradio itself fails to deliver ends all of its listeners, the browser's too, and reloads the page once the server is
 * back, unless gradio_requests.js prevents it.
 * @param {() => Promise<unknown>} check
 */
export function beforeServerListeners(check) {
  reach = check;
}

export const reachServer = () => reach();
