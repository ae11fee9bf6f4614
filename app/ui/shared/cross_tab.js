// Messages between the tabs of this browser. Without BroadcastChannel each tab works alone.

const channel = "BroadcastChannel" in window ? new BroadcastChannel("deskmate") : null;
const listeners = new Map();

if (channel) {
  channel.onmessage = ({ data }) => {
    for (const listener of listeners.get(data.type) ?? []) listener(data);
  };
}

export const crossTab = {
  isAvailable: channel !== null,
  broadcast: (type, content = {}) => channel?.postMessage({ type, ...content }),
  on: (type, listener) => listeners.set(type, [...(listeners.get(type) ?? []), listener]),
};
