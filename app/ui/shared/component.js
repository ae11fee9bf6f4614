// What the scripts of the Gradio components share.

const mounted = new Map(); // name -> promise of the component
const waiting = new Map(); // name -> functions to call once that promise is there

// A module could not be loaded, for example because the network changed: reloading the page helps.
export class LoadError extends Error {
  name = "LoadError";
}

// Called by the Python class: loads a component's module and mounts it in its element.
export function load(name, url, context) {
  const failed = (cause) => {
    throw new LoadError(`${url} failed to load`, { cause });
  };
  const component = import(url).then(({ mount }) => mount(context), failed);
  mounted.set(name, component);
  for (const resolve of waiting.get(name) ?? []) resolve(component);
  waiting.delete(name);
}

// Resolves to the component of this name, once Gradio has rendered it; rejects if its module fails to load.
export const whenMounted = (name) =>
  mounted.get(name) ?? new Promise((resolve) => waiting.set(name, [...(waiting.get(name) ?? []), resolve]));

// A component whose events go to Gradio's listeners, or to the scripts of a page that handles them itself.
export class Component {
  #handlers = {};

  // `context`: what Gradio gives to js_on_load.
  constructor({ element, trigger, props, watch }) {
    this.element = element;
    this.trigger = trigger;
    this.props = props;
    this.watch = watch;
  }

  // Handles events here instead of in Gradio: {event: (detail) => result}.
  handle(handlers) {
    Object.assign(this.#handlers, handlers);
  }

  // Raises an event. Returns the result of the page's handler; undefined where Gradio gets the event.
  emit(event, detail = {}) {
    const handler = this.#handlers[event];
    if (handler) return handler(detail);
    this.trigger(event, detail);
    return undefined;
  }
}
