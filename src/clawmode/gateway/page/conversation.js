// What the page knows of one session: the pages of its transcript, and what its current runs do.
// `Live` is plain state without a browser, so that it can be tested alone; `useConversation` joins
// it to the connection.

import { read } from "./acts.js";
import { connection } from "./connection.js";
import { useEffect, useMemo, useReducer, useRef } from "./preact.js";

const PAGE = 40;
const FEW = 8;
const REFRESH_MS = 200;
const ENDED = new Set(["final", "error", "aborted"]);

/** What runs do that is not yet in the transcript. */
export class Live {
  constructor() {
    this.runs = new Map();
  }

  run(id) {
    if (!this.runs.has(id)) {
      this.runs.set(id, { id, text: "", thinking: "", said: [], calls: new Map(), nested: new Map() });
    }
    return this.runs.get(id);
  }

  /** Takes an event `chat`, which has the text so far. Returns whether the run has ended. */
  chat({ runId, state, text, reasoning, error }) {
    const run = this.run(runId);
    if (state === "delta") {
      run.text = text;
      run.thinking = reasoning ?? run.thinking;
      return false;
    }
    if (state === "error") run.error = error || text || "The run failed.";
    return ENDED.has(state);
  }

  /** Takes an event `agent`. Returns whether the transcript has something new. */
  agent({ runId, stream, data }) {
    const run = this.run(runId);
    if (stream === "lifecycle") return true;
    if (stream === "compaction") return true;
    if (stream === "assistant") {
      if (data.reset) run.text = run.thinking = "";
      if (!("message" in data)) return false;
      if (data.message) run.said.push(data.message);
      run.text = run.thinking = "";
      return true;
    }
    if (stream !== "tool") return false;
    const { parentId, callId } = data;
    if (!parentId) {
      Live.take(run.calls, callId, data, { id: callId, name: data.name, input: data.args });
      return data.phase !== "update";
    }
    if (!run.nested.has(parentId)) run.nested.set(parentId, new Map());
    Live.take(run.nested.get(parentId), callId, data, { callId, toolId: data.name });
    return false;
  }

  /** Takes an event of a call into a map of calls by id. */
  static take(calls, id, data, first) {
    const call = calls.get(id) ?? { ...first, state: "started" };
    if (data.args !== undefined) call.input = data.args;
    if (data.phase === "update") call.update = data.update;
    if (data.phase === "end") {
      call.state = data.state ?? (data.isError ? "failed" : "completed");
      call.ms = data.ms;
      call.code = data.code;
      if (data.result) call.result = { text: textOf({ content: data.result }), isError: data.isError, details: data.details };
    }
    // A new object, so that a component sees that something has changed.
    calls.set(id, { ...call });
  }

  /** Forgets what a page of the transcript has by now. */
  settle(entries) {
    for (const entry of entries) {
      const run = this.runs.get(entry.runId);
      if (!run || entry.role !== "assistant") continue;
      // What was said is a whole message, or one of several texts in it.
      const texts = new Set([textOf(entry), ...textsOf(entry)].map((text) => text.trim()));
      run.said = run.said.filter((said) => !texts.has(said.trim()));
    }
  }

  end(runId) {
    this.runs.delete(runId);
  }
}

/** Returns an entry of the gateway with the calls of a message as parts of its content. */
export function normal(entry) {
  if (!entry.calls?.length) return entry;
  const parts = entry.calls.map((call) => ({
    type: "toolCall",
    id: call.callId,
    name: call.name,
    input: { program: { code: call.code, language: call.language }, wait: { runId: call.cellId } }[call.kind] ?? call.input,
    nested: call.nested,
    nestedTotal: call.nestedCount,
    cut: call.cut,
    state: call.state === "open" ? "started" : call.state,
    result: call.state === "open" ? undefined : { text: call.text, isError: call.state === "failed", details: call.result },
  }));
  return { ...entry, content: [...entry.content, ...parts] };
}

function textsOf(entry) {
  return (entry.content ?? []).filter((part) => part.type === "text").map((part) => part.text);
}

export function textOf(entry) {
  return textsOf(entry).join("");
}

/**
 * Returns the known entries with the newest page joined to them, all oldest first; null if entries
 * between them are missing.
 */
export function joined(known, page) {
  if (!known.length || !page.length) return known.length ? known : page;
  const at = known.findIndex((entry) => entry.id === page[0].id);
  return at < 0 ? null : [...known.slice(0, at), ...page];
}

/** Returns everything about a session, and functions that act on it. `key` may be empty. */
export function useConversation(key) {
  const [, redraw] = useReducer((n) => n + 1, 0);
  const state = useMemo(
    () => ({ key, entries: [], whole: new Map(), next: null, live: new Live(), loading: Boolean(key), sent: [], runs: [] }),
    [key],
  );
  const timers = useRef({});

  const soon = useMemo(() => {
    let frame = 0;
    return () => {
      // At most one drawing per frame, however many events a program with many calls causes.
      if (!frame) frame = requestAnimationFrame(() => ((frame = 0), redraw()));
    };
  }, [key]);

  const actions = useMemo(() => makeActions(state, soon, timers), [state]);

  useEffect(() => {
    if (!key) return undefined;
    const own = (event) => event.sessionKey === state.sessionKey || event.sessionKey === key;
    const ends = [
      connection.keep("sessions.subscribe", { sessionKeys: [key] }, ["sessions.unsubscribe", { sessionKeys: [key] }]),
      connection.on("chat", (event) => {
        if (!own(event)) return;
        if (state.live.chat(event)) actions.ended(event.runId);
        soon();
      }),
      connection.on("agent", (event) => {
        if (!own(event)) return;
        if (state.live.agent(event)) actions.refreshSoon();
        soon();
      }),
      connection.on("session.message", (event) => own(event) && actions.refreshSoon()),
      connection.on("sessions.changed", (event) => own(event) && actions.refreshSoon()),
      connection.onReset(() => {
        state.live.runs.clear();
        actions.refresh();
      }),
    ];
    actions.refresh();
    return () => {
      clearTimeout(timers.current.refresh);
      for (const end of ends) end();
    };
  }, [key]);

  return { ...state, ...actions };
}

function makeActions(state, soon, timers) {
  const reference = { sessionKey: state.key };

  async function refresh() {
    clearTimeout(timers.current.refresh);
    timers.current.refresh = 0;
    const began = Date.now();
    try {
      const [about, newest] = await Promise.all([
        read("sessions.get", reference),
        page({ limit: state.entries.length ? FEW : PAGE }),
      ]);
      Object.assign(state, { session: about.session, runs: about.runs, waiting: about.waiting });
      Object.assign(state, { error: null, sessionKey: newest.sessionKey });
      if (state.sessionId !== newest.sessionId) {
        // The key names another session now: somebody began a new conversation.
        if (state.sessionId) state.live.runs.clear();
        Object.assign(state, { entries: [], sessionId: newest.sessionId });
      }
      let found = newest;
      let entries = joined(state.entries, found.entries);
      if (!entries) {
        found = await page({ limit: PAGE });
        entries = joined(state.entries, found.entries);
      }
      if (state.loading && about.runs.length) await recall(about.runs);
      if (!entries || !state.entries.length) state.next = found.next;
      state.entries = entries ?? found.entries;
      settle(found.entries);
    } catch (error) {
      state.error = error;
    }
    state.loading = false;
    state.took = Date.now() - began;
    soon();
  }

  /** Reads a page, and turns it round: the oldest entry first. */
  async function page(given) {
    const found = await read("sessions.transcript", { ...reference, ...given });
    return { ...found, entries: found.entries.map(normal).reverse() };
  }

  /** Finds the words of answers that had begun before this page followed the session. */
  async function recall(runs) {
    const { epoch } = connection.position ?? {};
    for (let at = 0, more = Boolean(epoch); more; ) {
      const answer = await read("events.since", { epoch, at });
      if (answer.reset) return;
      for (const { event, payload } of answer.events) {
        if (!runs.some(({ runId }) => runId === payload.runId)) continue;
        if (event === "chat") state.live.chat(payload);
        else if (event === "agent" && payload.stream === "assistant") state.live.agent(payload);
      }
      ({ at, more } = answer);
    }
    // The transcript has the messages that are complete.
    for (const run of state.live.runs.values()) run.said = [];
  }

  function settle(entries) {
    state.live.settle(entries);
    const said = entries.filter((entry) => entry.role === "user");
    const idle = !state.runs.length && !state.waiting?.length;
    state.sent = state.sent.filter(
      (sent) => (sent.sending || !idle) && !said.some((entry) => !sent.known.has(entry.id) && textOf(entry) === sent.text),
    );
  }

  return {
    refresh,
    refreshSoon() {
      if (timers.current.refresh) return;
      // A long transcript takes the gateway longer to read: then it is read less often.
      const wait = Math.max(REFRESH_MS, 4 * (state.took ?? 0));
      timers.current.refresh = setTimeout(refresh, wait);
    },
    async ended(runId) {
      const { error } = state.live.run(runId);
      await refresh();
      state.live.end(runId);
      if (error) state.failed = error;
      soon();
    },
    async older() {
      if (!state.next) return;
      const older = await page({ limit: PAGE, before: state.next });
      state.next = older.next;
      state.entries = [...older.entries, ...state.entries];
      soon();
    },
    async readWhole(id) {
      const { entry } = await read("sessions.entry", { ...reference, id });
      state.whole.set(id, normal(entry));
      soon();
    },
    async send(message, images) {
      const known = new Set(state.entries.map((entry) => entry.id));
      const shown = { text: message, images: images ?? [], at: Date.now(), known, sending: true };
      const forget = () => (state.sent = state.sent.filter((sent) => sent !== shown));
      state.failed = null;
      state.sent = [...state.sent, shown];
      soon(); // the answer may take long: without a connection, the message waits for the next one
      const given = images?.length ? { ...reference, message, images } : { ...reference, message };
      const answer = await connection.effect("chat.send", given).catch((error) => {
        forget();
        throw error;
      });
      shown.sending = false;
      if (answer.status === "command" || answer.status === "dropped") forget();
      if (answer.status === "command") state.note = answer.text || "Done.";
      else if (answer.status === "dropped") state.note = "The queue is full: the message was dropped.";
      else {
        state.note = { steered: "Passed to the running turn.", queued: "Waits for the running turn." }[answer.status];
      }
      await refresh();
      return answer;
    },
    stop() {
      return connection.request("sessions.abort", reference);
    },
    forget(name) {
      state[name] = null;
      soon();
    },
  };
}
