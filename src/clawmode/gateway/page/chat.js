// The view "Chat": one conversation with an agent, while it happens.

import { Act } from "./acts.js";
import { Cards } from "./approvals.js";
import { Composer } from "./composer.js";
import { connection } from "./connection.js";
import { useConversation } from "./conversation.js";
import { Empty, Problem, html, oneLine } from "./parts.js";
import { questions } from "./questions.js";
import { Scroller } from "./sessions.js";
import { link, useRequest, useRoute, useStore } from "./state.js";
import { Entries, Failed } from "./transcript.js";

const RECENT = 30;

export function Chat() {
  const [given] = useRoute().path;
  const { data, error } = useRequest("sessions.list", { limit: RECENT });
  const recent = data?.sessions;
  const key = given || recent?.[0]?.key;
  const create = async () => {
    const { session } = await connection.effect("sessions.create", {});
    location.hash = link("chat", session.key);
  };
  const choose = (event) => {
    location.hash = link("chat", event.currentTarget.value);
  };
  const listed = (recent ?? []).filter((session) => session.key !== key);
  const chosen = (recent ?? []).find((session) => session.key === key) ?? (key && { key });
  return html`
    <div class="chat">
      <div class="pane-head bar">
        <h1>Chat</h1>
        ${chosen && html`<label class="grow"><span class="visually-hidden">Conversation</span>
          <select value=${key} onChange=${choose}>
            ${[chosen, ...listed].map((session) => html`
              <option key=${session.key} value=${session.key}>${oneLine(session.title || session.key, 100)}</option>`)}
          </select></label>`}
        <${Act} method="sessions.create" run=${create}>New chat<//>
        ${key && html`<a class="button" href=${link("sessions", key)}>Transcript</a>`}
      </div>
      ${error && html`<${Problem} error=${error} />`}
      ${recent && !key && html`<${Empty} title="There is no conversation yet">Start one with “New chat”.<//>`}
      ${key && html`<${Talk} key=${key} sessionKey=${key} />`}
    </div>`;
}

function Talk({ sessionKey }) {
  const conversation = useConversation(sessionKey);
  const { entries, error, loading, next, sent, runs } = conversation;
  // Answered questions stay until the turn has ended, so that no button moves under the pointer.
  const asked = useStore(questions).filter(
    (question) => question.sessionKey === sessionKey && (!question.settled || runs?.some((run) => run.runId === question.runId)),
  );
  const empty = !loading && !error && !entries.length && !sent.length && !runs?.length;
  return html`
    ${error && html`<${Problem} error=${error} />`}
    <${Scroller} watch=${entries.length + sent.length}>
      ${loading && html`<p class="quiet" role="status">Loading…</p>`}
      ${next && html`<${Act} method="sessions.transcript" run=${conversation.older}>Load older messages<//>`}
      ${empty && html`<${Empty} title="Nothing has been said yet">Write a message to the agent below.<//>`}
      <${Entries} conversation=${conversation} detail=${false} />
      <${Cards} list=${asked} />
      <${Failed} conversation=${conversation} />
    <//>
    <${Composer} conversation=${conversation} images />`;
}
