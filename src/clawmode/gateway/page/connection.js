// The connection to the gateway: requests, events, reconnection, and the events that were missed.

const BACKOFF_MS = [250, 500, 1000, 2000, 4000, 8000, 15000];
const REQUEST_MS = 30000;
const LOGOUT_MS = 10000;
const SILENCE_TICKS = 2.5; // the gateway sends a tick regularly: silence means a dead connection
const TRIES = 20;
const LOGGED_OUT = 4001;

export class RequestError extends Error {
  constructor(code, message, details = {}, retryAfterMs = null) {
    super(message);
    this.code = code;
    this.details = details;
    this.retryAfterMs = retryAfterMs;
  }
}

const lost = () => new RequestError("DISCONNECTED", "the connection to the gateway was lost");

class Connection {
  constructor() {
    // phase: "connecting", "online", "waiting" (until `retryAt`), or "ended".
    this.status = { phase: "connecting", retryAt: 0, attempt: 0, hello: null, lostAt: 0 };
    this.watchers = new Set(); // of the status
    this.listeners = new Map(); // by the name of an event
    this.resets = new Set();
    this.kept = new Map(); // subscriptions, which are made again after a reconnection
    this.pending = new Map(); // requests by their id
    this.nextId = 1;
    this.position = null; // {epoch, at}: the last event that was handled
    this.early = null; // events that arrive while missed ones are fetched
    this.socket = null;
    this.leaving = false; // while this tab logs out
    this.skew = 0;
  }

  start() {
    addEventListener("online", () => this.retryNow());
    document.addEventListener("visibilitychange", () => document.hidden || this.retryNow());
    this.open();
  }

  // ---- Requests ----

  // Resolves with the payload of the response; rejects with a RequestError.
  request(method, params = {}, { timeout = REQUEST_MS } = {}) {
    if (this.status.phase !== "online" && method !== "connect") {
      return Promise.reject(lost());
    }
    const id = String(this.nextId++);
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.pending.delete(id);
        reject(new RequestError("TIMEOUT", `the gateway did not answer ${method} in time`));
      }, timeout);
      this.pending.set(id, { resolve, reject, timer });
      this.socket.send(JSON.stringify({ type: "req", id, method, params }));
    });
  }

  // A request with an effect. After a lost connection it is sent again, and takes effect once.
  async effect(method, params = {}, options = {}) {
    const keyed = { ...params, idempotencyKey: crypto.randomUUID ? crypto.randomUUID() : randomKey() };
    for (let attempt = 1; ; attempt++) {
      try {
        await this.online();
        return await this.request(method, keyed, options);
      } catch (error) {
        if (error.code !== "DISCONNECTED" || attempt === TRIES) throw error;
      }
    }
  }

  // A request that changes nothing; after a lost connection it is sent again.
  async read(method, params = {}, options = {}) {
    for (let attempt = 1; ; attempt++) {
      await this.online();
      try {
        return await this.request(method, params, options);
      } catch (error) {
        if (error.code !== "DISCONNECTED" || attempt === TRIES) throw error;
      }
    }
  }

  // Resolves when the connection is open.
  online() {
    return new Promise((resolve, reject) => {
      const stop = this.watch(({ phase }) => {
        if (phase === "connecting" || phase === "waiting") return;
        queueMicrotask(() => stop());
        if (phase === "online") resolve();
        else reject(lost());
      });
    });
  }

  can(method) {
    const { hello } = this.status;
    return hello !== null && hello.features.methods.includes(method);
  }

  may(scope) {
    const { hello } = this.status;
    return hello !== null && hello.auth.scopes.includes(scope);
  }

  // ---- Listening ----

  // Calls `listener` with the payload, the name and the number of each event; "*" means all events.
  on(name, listener) {
    if (!this.listeners.has(name)) this.listeners.set(name, new Set());
    this.listeners.get(name).add(listener);
    return () => this.listeners.get(name).delete(listener);
  }

  // Calls `listener` when events were lost for good, and at the first connection: read anew.
  onReset(listener) {
    this.resets.add(listener);
    return () => this.resets.delete(listener);
  }

  // Calls `listener` with the status, now and at each change.
  watch(listener) {
    this.watchers.add(listener);
    listener(this.status);
    return () => this.watchers.delete(listener);
  }

  // Makes a subscription now and after each reconnection, until the returned function is called.
  // A second subscription with the same parameters shares the first one.
  keep(method, params, undo) {
    const key = JSON.stringify([method, params]);
    const entry = this.kept.get(key) || { method, params, undo, users: 0 };
    this.kept.set(key, entry);
    if (entry.users++ === 0 && this.status.phase === "online") {
      this.request(method, params).catch(() => {});
    }
    let used = true;
    return () => {
      if (!used) return;
      used = false;
      if (--entry.users > 0) return;
      this.kept.delete(key);
      if (undo && this.status.phase === "online") this.request(...undo).catch(() => {});
    };
  }

  // ---- The socket ----

  open() {
    clearTimeout(this.retryTimer);
    this.change({ phase: "connecting" });
    const address = `${location.protocol === "https:" ? "wss:" : "ws:"}//${location.host}/ws`;
    const socket = new WebSocket(address);
    this.socket = socket;
    socket.onmessage = ({ data }) => this.socket === socket && this.receive(JSON.parse(data));
    socket.onclose = ({ code }) => this.socket === socket && this.closed(code);
    this.heard();
  }

  retryNow() {
    if (this.status.phase === "waiting") this.open();
  }

  receive(frame) {
    this.heard();
    if (frame.type === "res") {
      const waiting = this.pending.get(frame.id);
      if (!waiting) return;
      this.pending.delete(frame.id);
      clearTimeout(waiting.timer);
      if (frame.ok) waiting.resolve(frame.payload);
      else {
        const { code, message, details, retryAfterMs } = frame.error;
        waiting.reject(new RequestError(code, message, details, retryAfterMs ?? null));
      }
    } else if (frame.event === "connect.challenge") {
      this.skew = Date.now() - frame.payload.ts; // between the clocks of browser and gateway
      this.greet();
    } else if (this.early !== null) {
      this.early.push(frame);
    } else {
      this.handle(frame);
    }
  }

  async greet() {
    const client = { id: "clawmode-page", version: "1", platform: "browser", mode: "page" };
    try {
      const params = { minProtocol: 4, maxProtocol: 4, client };
      const hello = await this.request("connect", params);
      this.early = [];
      const first = this.position === null;
      this.change({ phase: "online", attempt: 0, hello });
      await Promise.all(
        [...this.kept.values()].map((entry) => this.request(entry.method, entry.params).catch(() => {})),
      );
      await this.catchUp(hello, first);
    } catch (error) {
      if (error.code === "UNAUTHORIZED" || error.code === "FORBIDDEN") this.end();
      else this.socket.close();
    }
  }

  // Handles the events since the last one that was handled, then those that came meanwhile.
  async catchUp(hello, first) {
    let isWhole = false;
    if (!first && this.can("events.since")) {
      let answer;
      do {
        answer = await this.request("events.since", this.position);
        if (answer.reset) break;
        for (const event of answer.events) this.handle(event);
        this.position.at = Math.max(this.position.at, answer.at);
      } while (answer.more);
      isWhole = !answer.reset;
    }
    if (!isWhole) {
      const { epoch = "", at = 0 } = hello.events || {};
      this.position = { epoch, at };
      for (const listener of [...this.resets]) listener();
    }
    const early = this.early;
    this.early = null;
    for (const frame of early) this.handle(frame);
    this.change({ lostAt: 0 });
  }

  handle({ event, payload, at }) {
    if (at !== undefined && this.position !== null) {
      if (at <= this.position.at) return; // already handled
      this.position.at = at;
    }
    for (const name of [event, "*"]) {
      for (const listener of [...(this.listeners.get(name) || [])]) listener(payload, event, at);
    }
  }

  closed(code) {
    clearTimeout(this.silence);
    this.early = null;
    for (const { reject, timer } of this.pending.values()) {
      clearTimeout(timer);
      reject(lost());
    }
    this.pending.clear();
    if (this.status.phase === "ended") return;
    if (code === LOGGED_OUT) {
      // The gateway closes the connection before it answers a logout of this tab.
      if (!this.leaving) this.end();
      return;
    }
    const attempt = this.status.attempt + 1;
    const wait = BACKOFF_MS[Math.min(attempt, BACKOFF_MS.length) - 1] * (0.7 + Math.random() * 0.6);
    const lostAt = this.status.lostAt || Date.now();
    this.change({ phase: "waiting", attempt, retryAt: Date.now() + wait, lostAt });
    this.retryTimer = setTimeout(() => this.open(), wait);
  }

  // The session has ended: only a login helps.
  end(reason = "ended") {
    if (this.status.phase === "ended") return;
    this.change({ phase: "ended" });
    this.socket.close();
    location.replace(`/login?reason=${reason}${reason === "ended" ? location.hash : ""}`);
  }

  // Rejects if the gateway did not confirm it: this browser may still be logged in.
  async logOut() {
    this.leaving = true;
    const headers = { "content-type": "application/json" };
    const control = new AbortController(); // a gateway that hangs accepts requests, and answers none
    const timer = setTimeout(() => control.abort(), LOGOUT_MS);
    const response = await fetch("/logout", { method: "POST", headers, body: "{}", signal: control.signal }).catch(() => null);
    clearTimeout(timer);
    this.leaving = false;
    if (!response?.ok) {
      if (this.status.phase === "online" && this.socket.readyState === WebSocket.CLOSED) this.closed(0);
      throw new RequestError("UNAVAILABLE", "The gateway did not confirm the logout, so you are probably still logged in. Try again.");
    }
    clearTimeout(this.retryTimer);
    this.end("out");
  }

  heard() {
    clearTimeout(this.silence);
    const { hello } = this.status;
    const tick = hello ? hello.policy.tickIntervalMs : 15000;
    const socket = this.socket;
    this.silence = setTimeout(() => {
      socket.onclose = null; // a dead connection may take minutes to close
      socket.close();
      this.closed(0);
    }, tick * SILENCE_TICKS);
  }

  change(part) {
    this.status = { ...this.status, ...part };
    for (const watcher of [...this.watchers]) watcher(this.status);
  }
}

// For pages without TLS on other machines, where browsers have no randomUUID.
function randomKey() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (it) => it.toString(16).padStart(2, "0")).join("");
}

export const connection = new Connection();
