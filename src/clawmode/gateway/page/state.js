// What the page knows: stores that components read, and hooks over them and over the connection.

import { useEffect, useState } from "./preact.js";
import { connection } from "./connection.js";

// ---- Stores ----

export function createStore(value) {
  const readers = new Set();
  return {
    get: () => value,
    set(next) {
      if (next === value) return;
      value = next;
      for (const reader of [...readers]) reader();
    },
    subscribe(reader) {
      readers.add(reader);
      return () => readers.delete(reader);
    },
  };
}

// Returns what `select` makes of the content of a store, and renders again when that changes.
export function useStore(store, select = (value) => value) {
  const [, render] = useState(0);
  const selected = select(store.get());
  useEffect(() => {
    let last = select(store.get());
    if (last !== selected) render((count) => count + 1);
    return store.subscribe(() => {
      const next = select(store.get());
      if (next === last) return;
      last = next;
      render((count) => count + 1);
    });
  }, [store, selected]);
  return selected;
}

// ---- The connection ----

// Returns the status of the connection: {phase, retryAt, attempt, hello, lostAt}.
export function useStatus() {
  const [status, set] = useState(connection.status);
  useEffect(() => connection.watch(set), []);
  return status;
}

// Calls `listener` with each event of these names (separated by spaces) while the component lives.
export function useEvents(names, listener, inputs = []) {
  useEffect(() => {
    const stops = names.split(" ").map((name) => connection.on(name, listener));
    return () => stops.forEach((stop) => stop());
  }, [names, ...inputs]);
}

// Sends a request when its parameters change, after missed events, and every `every` ms while the
// page is visible. Returns {data, error, loading, reload}; `data` stays while it is read anew.
export function useRequest(method, params = {}, { every = 0, when = true } = {}) {
  const [state, set] = useState({ data: null, error: null, loading: true });
  const key = JSON.stringify(params);
  const [count, again] = useState(0);
  useEffect(() => {
    if (!when) return undefined;
    let alive = true;
    const read = async () => {
      try {
        const data = await connection.read(method, JSON.parse(key));
        if (alive) set({ data, error: null, loading: false });
      } catch (error) {
        // The page is being left if the connection is gone for good.
        if (alive && error.code !== "DISCONNECTED") set((old) => ({ ...old, error, loading: false }));
      }
    };
    read();
    const stopResets = connection.onReset(read);
    const timer = every && setInterval(() => document.hidden || connection.status.phase !== "online" || read(), every);
    return () => {
      alive = false;
      stopResets();
      clearInterval(timer);
    };
  }, [method, key, every, when, count]);
  return { ...state, reload: () => again((value) => value + 1) };
}

// ---- The address ----

// "#/sessions/agent%3Amain?q=x" is {view: "sessions", path: ["agent:main"], query: URLSearchParams}.
export function parseRoute(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const decode = (part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  };
  const [view, ...rest] = path.split("/").map(decode);
  return { view: view || "now", path: rest, query: new URLSearchParams(query) };
}

// Returns the address of a view: link("sessions", key) or link("sessions", {q: "x"}).
export function link(view, ...parts) {
  const last = parts.at(-1);
  const query = typeof last === "object" ? new URLSearchParams(parts.pop()).toString() : "";
  const path = [view, ...parts.map(encodeURIComponent)].join("/");
  return `#/${path}${query && `?${query}`}`;
}

export const route = createStore(parseRoute(location.hash));
addEventListener("hashchange", () => route.set(parseRoute(location.hash)));
export const useRoute = () => useStore(route);
