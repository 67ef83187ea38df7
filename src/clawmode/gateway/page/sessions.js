// The view "Sessions": all conversations, and the whole record of one of them.

import { Act, read } from "./acts.js";
import { Composer } from "./composer.js";
import { connection } from "./connection.js";
import { useConversation } from "./conversation.js";
import { Chip, Dialog, Empty, Problem, Time, Windowed, html, oneLine, useCallback, useEffect, useRef, useState } from "./parts.js";
import { link, useEvents, useRequest, useRoute } from "./state.js";
import { Entries, Failed, Tokens, count } from "./transcript.js";

const PAGE = 100;
const ROW = 64;
const TYPING_MS = 200;
const CHANGED_MS = 1000;

export function Sessions() {
  const [key] = useRoute().path;
  const [creating, setCreating] = useState(false);
  return html`
    <div class=${`two-panes ${key ? "has-detail" : ""}`}>
      <section class="pane list-pane" aria-label="All sessions">
        <div class="pane-head">
          <h1>Sessions</h1>
          <${Act} method="sessions.create" run=${() => setCreating(true)}>New session<//>
        </div>
        <${SessionList} selected=${key} />
      </section>
      <section class="pane detail-pane" aria-label="Session">
        ${key
          ? html`<${Transcript} key=${key} sessionKey=${key} />`
          : html`<${Empty} title="No session is selected">Choose a session to read its transcript.<//>`}
      </section>
      ${creating && html`<${NewSession} onClose=${() => setCreating(false)} />`}
    </div>`;
}

/** The sessions that match a query, newest first, in pages. */
function useSessions(query) {
  const [state, setState] = useState({ sessions: null, next: null, error: null });
  const asked = useRef(0);
  const load = useCallback(async (before) => {
    const number = (asked.current += 1);
    const given = { limit: PAGE, previews: true, ...(query && { query }), ...(before && { before }) };
    try {
      const [page, { runs }] = await Promise.all([read("sessions.list", given), read("status")]);
      if (number !== asked.current) return;
      setState((old) => ({
        sessions: before ? [...old.sessions, ...page.sessions] : page.sessions,
        next: page.next ?? null,
        busy: new Set(runs.map((run) => run.sessionKey)),
        error: null,
      }));
    } catch (error) {
      if (number === asked.current) setState((old) => ({ ...old, error }));
    }
  }, [query]);
  useEffect(() => {
    const timer = setTimeout(load, query ? TYPING_MS : 0);
    return () => clearTimeout(timer);
  }, [load]);
  const timer = useRef(0);
  const later = () => {
    timer.current ||= setTimeout(() => ((timer.current = 0), load()), CHANGED_MS);
  };
  useEvents("sessions.changed", later, [load]);
  useEffect(() => connection.onReset(later), [load]);
  useEffect(() => () => clearTimeout(timer.current), []);
  return { ...state, more: () => load(state.next) };
}

function SessionList({ selected }) {
  const [query, setQuery] = useState("");
  const { sessions, next, busy, error, more } = useSessions(query.trim());
  return html`
    <label class="search">
      <span class="visually-hidden">Search sessions</span>
      <input type="search" placeholder="Search titles and messages" value=${query}
        onInput=${(event) => setQuery(event.currentTarget.value)} />
    </label>
    ${error && html`<${Problem} error=${error} />`}
    ${sessions && !sessions.length && (query
      ? html`<${Empty} title="No session matches">No title, key or last message contains “${oneLine(query, 80)}”.<//>`
      : html`<${Empty} title="There are no sessions yet">A session appears here after its first message.<//>`)}
    ${!sessions && !error && html`<p class="quiet" role="status">Loading…</p>`}
    ${sessions?.length > 0 && html`
      <${Windowed} items=${sessions} height=${ROW} label="Sessions" keyOf=${(session) => session.key + session.sessionId}
        onOpen=${(session) => (location.hash = link("sessions", session.key))} row=${(session) => html`<${SessionRow} session=${session} current=${session.key === selected} busy=${session.current && busy.has(session.key)} />`} />`}
    ${next && html`<button class="link" onClick=${more}>Load older sessions</button>`}`;
}

function SessionRow({ session, current, busy }) {
  const title = session.title || session.key;
  return html`
    <a class="session-row" tabindex="-1" href=${link("sessions", session.key)} aria-current=${current ? "page" : undefined}>
      <span class="row-line">
        <span class="title">${oneLine(title)}</span>
        <${Time} at=${session.updatedAt} />
      </span>
      <span class="row-line quiet">
        ${busy ? html`<${Chip} state="running" />` : session.lastStatus && session.lastStatus !== "ok" && html`<${Chip} state="failed">${oneLine(session.lastStatus, 20)}<//>`}
        <span class="words">${oneLine(session.lastMessage?.text || session.key)}</span>
      </span>
    </a>`;
}

function NewSession({ onClose }) {
  const [title, setTitle] = useState("");
  const [agentId, setAgent] = useState("");
  const { data } = useRequest("agents.list");
  const agents = data?.agents ?? [];
  const create = async () => {
    const given = { ...(title.trim() && { title: title.trim() }), ...(agentId && { agentId }) };
    const { session } = await connection.effect("sessions.create", given);
    onClose();
    location.hash = link("chat", session.key);
  };
  return html`
    <${Dialog} title="New session" onClose=${onClose}>
      <form class="fields" onSubmit=${(event) => event.preventDefault()}>
        <label>Title (optional)
          <input value=${title} maxlength="200" onInput=${(event) => setTitle(event.currentTarget.value)} />
        </label>
        ${agents.length > 1 && html`<label>Agent
          <select value=${agentId || data.defaultId} onChange=${(event) => setAgent(event.currentTarget.value)}>
            ${agents.map((agent) => html`<option key=${agent.id} value=${agent.id}>${oneLine(agent.name)}</option>`)}
          </select>
        </label>`}
        <div class="buttons">
          <${Act} method="sessions.create" kind="primary" run=${create}>Create<//>
          <button type="button" onClick=${onClose}>Cancel</button>
        </div>
      </form>
    <//>`;
}

// ---- One session ----

function Transcript({ sessionKey }) {
  const conversation = useConversation(sessionKey);
  const { session, entries, error, loading, next, runs } = conversation;
  const title = session?.title || sessionKey;
  return html`
    <div class="pane-head">
      <a class="back" href="#/sessions">All sessions</a>
      <h2>${oneLine(title)}</h2>
      ${session && html`<p class="facts quiet">
        <span class="mono">${oneLine(session.key)}</span>
        ${session.model && html`<span>${oneLine(session.model)}</span>`}
        <${Tokens} usage=${session.usage} />
        <span>last change <${Time} at=${session.updatedAt} /></span>
      </p>`}
      <${SessionActions} conversation=${conversation} />
    </div>
    ${error && html`<${Problem} error=${error} />`}
    ${loading && html`<p class="quiet" role="status">Loading…</p>`}
    <${Scroller} watch=${entries.length}>
      ${next && html`<${Act} method="sessions.transcript" run=${conversation.older}>Load older messages<//>`}
      ${!loading && !error && !entries.length && !runs?.length && html`
        <${Empty} title="This session is empty">Send the first message below.<//>`}
      <${Entries} conversation=${conversation} detail=${true} />
      <${Failed} conversation=${conversation} />
    <//>
    <${Composer} conversation=${conversation} />`;
}

/** Keeps its end in view while something is added to it, unless the reader has scrolled up. */
export function Scroller({ watch, children }) {
  const box = useRef(null);
  const atEnd = useRef(true);
  useEffect(() => {
    const { current } = box;
    if (!current) return undefined;
    const down = () => {
      if (atEnd.current) current.scrollTop = current.scrollHeight;
    };
    const observer = new ResizeObserver(down);
    observer.observe(current.firstElementChild);
    down();
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    if (box.current && atEnd.current) box.current.scrollTop = box.current.scrollHeight;
  }, [watch]);
  const onScroll = ({ currentTarget: at }) => {
    atEnd.current = at.scrollHeight - at.scrollTop - at.clientHeight < 40;
  };
  return html`<div class="scroller" ref=${box} onScroll=${onScroll} tabindex="0" role="region" aria-label="History"><div>${children}</div></div>`;
}

function SessionActions({ conversation }) {
  const { key, session, runs } = conversation;
  const [exported, setExported] = useState(null);
  if (!session) return null;
  const download = (file) => async () => {
    const pieces = [];
    for (let after = 0; after !== null; ) {
      const part = await read("trajectory.read", { sessionKey: key, name: exported.name, file, after });
      pieces.push(Uint8Array.from(atob(part.data), (char) => char.charCodeAt(0)));
      after = part.next;
    }
    save(`${exported.name}-${file}`.replace(/[^a-z0-9.-]+/gi, "-"), new Blob(pieces));
  };
  const write = async () => setExported(await connection.effect("trajectory.export", { sessionKey: key }));
  const renew = async () => {
    await connection.effect("sessions.reset", { sessionKey: key, reason: "new" });
    await conversation.refresh();
  };
  return html`
    <div class="buttons" role="group" aria-label="Actions">
      <a class="button" href=${link("chat", key)}>Open chat</a>
      <${Act} method="sessions.abort" kind="danger" why=${runs?.length ? "" : "Nothing runs."} run=${conversation.stop}>Stop<//>
      <${Act} method="sessions.reset" confirm="Begin a new conversation? The transcript so far stays on disk, and the agent forgets it." run=${renew}>New conversation<//>
      <${Act} method="trajectory.export" run=${write}>Export<//>
    </div>
    ${exported && html`<div class="exported" role="status">
      <p>Exported ${count(exported.events ?? 0, "event")} without secrets to <span class="mono">${oneLine(exported.folder, 300)}</span> on the host.</p>
      <div class="buttons">${exported.files.map((file) => html`
        <${Act} key=${file} method="trajectory.read" run=${download(file)}>Save ${oneLine(file, 60)}<//>`)}</div>
    </div>`}`;
}

function save(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
