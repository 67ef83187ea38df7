// An editor that runs a program against the catalog of an agent.

import { Act, read, whyNot } from "./acts.js";
import { Cards } from "./approvals.js";
import { connection } from "./connection.js";
import { Live } from "./conversation.js";
import { tokens } from "./highlight.js";
import { Problem, Windowed, html, useEffect, useMemo, useReducer, useRef, useState } from "./parts.js";
import { questions } from "./questions.js";
import { useStore } from "./state.js";
import { NestedRow, ProgramResult, count } from "./transcript.js";

const FIRST = `// A program is the body of an async function: await and return work.
const found = await tools.search("");
return found.slice(0, 5).map(({ id }) => id);
`;
const KEPT = "program.source";
const TIMEOUT_MS = 20_000;
const STOP_MS = 100;
const ROW = 28;

export function ProgramEditor({ agentId }) {
  const [source, setSource] = useState(firstSource);
  const run = useProgram(agentId);
  const change = (text) => {
    setSource(text);
    sessionStorage.setItem(KEPT, text);
  };
  const start = () => run.start(source);
  return html`
    <div class="editor-pane">
      <p class="quiet">The program runs with the agent's tools, its policy and its approvals. Its calls are real.</p>
      <${Editor} source=${source} onChange=${change} onRun=${() => !whyNot("codemode.run") && !run.running && start()} />
      <div class="buttons">
        <${Act} method="codemode.run" kind="primary" why=${run.running ? "A program is running." : source.trim() ? "" : "There is no program."} run=${start}>Run<//>
        ${run.running && html`<${Act} method="codemode.abort" kind="danger" run=${run.stop}>Stop<//>`}
        <span class="quiet hint">Ctrl+Enter runs</span>
      </div>
      <${Outcome} run=${run} />
    </div>`;
}

function firstSource() {
  const inserted = sessionStorage.getItem("program.insert");
  if (!inserted) return sessionStorage.getItem(KEPT) ?? FIRST;
  sessionStorage.removeItem("program.insert");
  sessionStorage.setItem(KEPT, inserted);
  return inserted;
}

/** A field whose text is coloured by a copy of the text behind it. */
function Editor({ source, onChange, onRun }) {
  const back = useRef(null);
  const pieces = useMemo(() => tokens(source), [source]);
  const onKeyDown = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      onRun();
    }
  };
  const onScroll = ({ currentTarget: { scrollTop, scrollLeft } }) => {
    Object.assign(back.current, { scrollTop, scrollLeft });
  };
  const lines = Math.min(Math.max(source.split("\n").length + 1, 6), 24);
  return html`
    <div class="editor" style=${{ "--lines": lines }}>
      <pre class="behind" ref=${back} aria-hidden="true">${pieces.map(([kind, text], at) => html`<span key=${at} class=${kind && `t-${kind}`}>${text}</span>`)}${"\n"}</pre>
      <textarea aria-label="Program" spellcheck="false" autocapitalize="off" autocomplete="off" wrap="off"
        value=${source} onInput=${(event) => onChange(event.currentTarget.value)} onKeyDown=${onKeyDown} onScroll=${onScroll} />
    </div>`;
}

// ---- Running ----

function randomName() {
  return Array.from(crypto.getRandomValues(new Uint8Array(8)), (it) => it.toString(16).padStart(2, "0")).join("");
}

/** Runs programs one at a time, and follows their calls and questions. */
function useProgram(agentId) {
  const [, redraw] = useReducer((n) => n + 1, 0);
  const state = useMemo(
    () => ({ sessionKey: `agent:${agentId}:page-${randomName()}`, running: false, calls: new Map(), result: null, error: null }),
    [],
  );
  const mounted = useRef(true);
  const soon = useMemo(() => {
    let frame = 0;
    return () => {
      frame ||= requestAnimationFrame(() => ((frame = 0), mounted.current && redraw()));
    };
  }, []);

  useEffect(() => {
    // A key of its own tells the events and questions of this editor from all others.
    const sessionKeys = [state.sessionKey];
    const ends = [
      connection.keep("sessions.subscribe", { sessionKeys }, ["sessions.unsubscribe", { sessionKeys }]),
      connection.on("session.tool", (event) => {
        if (event.sessionKey !== state.sessionKey) return;
        Live.take(state.calls, event.callId, event, { callId: event.callId, toolId: event.name });
        soon();
      }),
    ];
    return () => {
      mounted.current = false;
      for (const end of ends) end();
    };
  }, []);

  async function start(code) {
    Object.assign(state, { running: true, result: null, error: null, calls: new Map() });
    state.began = performance.now();
    soon();
    try {
      const given = { agentId, sessionKey: state.sessionKey, code, timeoutMs: TIMEOUT_MS };
      let { result } = await connection.effect("codemode.run", given, { timeout: 2 * TIMEOUT_MS });
      while (mounted.current && result.status === "waiting") {
        state.result = result;
        soon();
        const again = { runId: result.runId, timeoutMs: TIMEOUT_MS };
        ({ result } = await read("codemode.wait", again, { timeout: 2 * TIMEOUT_MS }));
      }
      state.result = result;
    } catch (error) {
      state.error = error;
    }
    Object.assign(state, { running: false, took: performance.now() - state.began });
    soon();
  }

  // The gateway knows the program only a moment after it was sent there.
  async function stop() {
    while (state.running) {
      const { cells } = await read("codemode.runs", { sessionKey: state.sessionKey });
      if (cells.length) {
        await Promise.all(cells.map(({ cellId }) => connection.request("codemode.abort", { cellId })));
        return;
      }
      await new Promise((done) => setTimeout(done, STOP_MS));
    }
  }

  return { ...state, start, stop };
}

function Outcome({ run }) {
  const calls = [...run.calls.values()];
  const asked = useStore(questions).filter((question) => run.running && question.sessionKey === run.sessionKey && question.seenAt >= run.began);
  if (!run.running && !run.result && !run.error) return null;
  return html`
    <section class="program-outcome" aria-label="Result of the program" aria-live="polite">
      ${run.running && html`<p><span class="pulse" /> ${run.result?.status === "waiting" ? "The program waits." : "The program runs."}</p>`}
      <${Cards} list=${asked} />
      ${calls.length > 0 && html`<h3>${count(calls.length, "call")}</h3>
        <${Windowed} items=${calls} height=${ROW} label="Calls of the program" keyOf=${(call) => call.callId} row=${(call) => html`<${NestedRow} call=${call} />`} />`}
      ${run.error && html`<${Problem} error=${run.error} />`}
      ${!run.running && run.result && html`<${ProgramResult} result=${run.result} took=${run.took} />`}
    </section>`;
}
