// The view "Approvals": questions to people, with the exact call, and who answered.

import { Action, Chip, Code, Empty, Json, Text, Time, Until, html, oneLine, useEffect, useState } from "./parts.js";
import { InputForm } from "./forms.js";
import { ARM_MS, allowNotifications, canNotify, cardsOf, decide, forgetSettled, isArmed, notifying, pendingCount, questions, recent } from "./questions.js";
import { link, useStore } from "./state.js";

const DECISIONS = {
  __proto__: null,
  "allow-once": ["allowed", "Allowed once"],
  "allow-always": ["allowed", "Allowed always"],
  deny: ["denied", "Denied"],
  timeout: ["denied", "Nobody answered in time"],
  cancelled: ["done", "No longer needed"],
  answered: ["allowed", "Answered"],
  declined: ["denied", "Declined"],
};

export function usePendingCount() {
  return useStore(questions, pendingCount);
}

// True once the question was on the screen for a moment: a click that was meant for something else
// must not answer it.
function useArmed(members) {
  const armed = members.every((it) => isArmed(it, performance.now()));
  const [, again] = useState(0);
  useEffect(() => {
    if (armed) return undefined;
    const timer = setTimeout(() => again((count) => count + 1), ARM_MS);
    return () => clearTimeout(timer);
  }, [armed]);
  return armed;
}

function Settled({ question }) {
  const [state, text] = DECISIONS[question.decision] || ["done", question.decision ? oneLine(question.decision, 40) : "No longer pending"];
  return html`<span class="settled"><${Chip} state=${state}>${text}</${Chip}>${question.by && html` by <strong><${Text} value=${question.by} exact limit=${120} /></strong>`}</span>`;
}

// What exactly would happen: a command as it would run, or the arguments of the call.
function Call({ question }) {
  const { kind, input } = question;
  if (kind === "exec" && typeof input?.command === "string") {
    const { command, ...rest } = input;
    return html`<${Code} source=${command} label="Command" />${Object.keys(rest).length > 0 && html`<${Json} value=${rest} label="Other arguments" />`}`;
  }
  if (!input || Object.keys(input).length === 0) return html`<p class="quiet small">No arguments.</p>`;
  return html`<${Json} value=${input} label="Arguments" />`;
}

function About({ question, pending }) {
  return html`<p class="about small quiet">
    ${question.sessionKey && html`<a href=${link("sessions", question.sessionKey)}>${oneLine(question.sessionKey, 80)}</a> · `}
    ${question.sender && html`for <${Text} value=${question.sender} exact limit=${80} /> · `}
    ${question.askedAtMs && html`asked <${Time} at=${question.askedAtMs} />`}
    ${pending && html` · expires in <${Until} at=${question.expiresAtMs} />`}
  </p>`;
}

// The buttons. After the answer they keep their place invisibly: were the next card to move up, a
// second click would answer it.
function Answers({ card, armed, many }) {
  const [question] = card.members;
  const over = card.members.every((it) => it.settled);
  return html`<div class="answers">
    ${over && html`<div class="outcome">${many ? html`<span class="quiet">All are answered.</span>` : html`<${Settled} question=${question} />`}</div>`}
    <div class="buttons" inert=${over}>
      <${Action} kind="primary" disabled=${!armed} run=${() => decide(card, "allow-once")}>${many ? `Allow all ${many} once` : "Allow once"}</${Action}>
      <${Action} disabled=${!armed} run=${() => decide(card, "allow-always")}>${many ? "Allow all always" : "Allow always"}</${Action}>
      <${Action} kind="danger" disabled=${!armed} run=${() => decide(card, "deny")}>${many ? `Deny all ${many}` : "Deny"}</${Action}>
    </div>
    ${question.always && !many && html`<p class="hint">“Always” covers <${Text} value=${question.always} exact limit=${300} />.</p>`}
  </div>`;
}

function SingleCard({ card }) {
  const [question] = card.members;
  const armed = useArmed(card.members);
  const heading = question.kind === "input" ? "A tool asks for input" : question.title;
  return html`<article class=${`card question ${question.settled ? "is-over" : ""}`} aria-label=${oneLine(heading, 80)}>
    <header>
      <h2><${Text} value=${heading} exact limit=${200} /></h2>
      ${question.severity === "critical" && !question.settled && html`<${Chip} state="critical" />`}
    </header>
    <p class="mono tool"><${Text} value=${question.toolId} exact limit=${200} /></p>
    <${About} question=${question} pending=${!question.settled} />
    ${question.description && html`<${Text} block value=${question.description} limit=${2000} />`}
    ${question.message && html`<${Text} block value=${question.message} limit=${2000} />`}
    ${question.kind !== "input" && html`<${Call} question=${question} />`}
    ${question.kind === "input"
      ? html`<${InputForm} question=${question} disabled=${!armed || question.settled} outcome=${question.settled && html`<${Settled} question=${question} />`} />`
      : html`<${Answers} card=${card} armed=${armed} />`}
  </article>`;
}

function Member({ question }) {
  const armed = useArmed([question]);
  const alone = { id: question.id, members: [question] };
  const preview = question.kind === "exec" ? question.input?.command : JSON.stringify(question.input);
  return html`<li class=${question.settled ? "is-over" : ""}>
    <details>
      <summary><span class="mono tool">${oneLine(question.toolId, 80)}</span> <span class="mono preview">${oneLine(preview, 140)}</span></summary>
      <${Call} question=${question} />
      ${question.always && html`<p class="hint">“Always” covers <${Text} value=${question.always} exact limit=${300} />.</p>`}
    </details>
    ${question.settled
      ? html`<${Settled} question=${question} />`
      : html`<div class="buttons">
          <${Action} disabled=${!armed} title="Allow this call once" run=${() => decide(alone, "allow-once")}>Allow</${Action}>
          <${Action} kind="danger" disabled=${!armed} title="Deny this call" run=${() => decide(alone, "deny")}>Deny</${Action}>
        </div>`}
  </li>`;
}

// Calls that one program makes at the same time.
function GroupCard({ card }) {
  const armed = useArmed(card.members);
  const waiting = card.members.filter((it) => !it.settled);
  const [first] = card.members;
  const heading = `${card.members.length} calls of one program`;
  return html`<article class=${`card question ${waiting.length ? "" : "is-over"}`} aria-label=${heading}>
    <header><h2>${heading}</h2>${waiting.length < card.members.length && html`<span class="quiet small">${waiting.length} of ${card.members.length} wait</span>`}</header>
    <${About} question=${first} pending=${waiting.length > 0} />
    <ul class="members">${card.members.map((question) => html`<${Member} key=${question.id} question=${question} />`)}</ul>
    <${Answers} card=${card} armed=${armed} many=${waiting.length || card.members.length} />
  </article>`;
}

function Notify() {
  const on = useStore(notifying);
  if (!canNotify() || on) return null;
  if (Notification.permission === "denied") return html`<p class="hint">This browser does not allow notifications of this page.</p>`;
  return html`<p><button type="button" onClick=${allowNotifications}>Notify me in this browser</button></p>`;
}

function Recent({ list }) {
  if (!list.length) return null;
  return html`<h2>Answered lately</h2>
    <div class="scroll-x"><table><thead><tr><th>Time</th><th>Call</th><th>Answer</th></tr></thead>
      <tbody>${list.map(
        (question) => html`<tr key=${question.id}>
          <td><${Time} at=${question.settledAtMs} /></td>
          <td class="mono">${oneLine(question.toolId, 60)} <span class="quiet">${oneLine(JSON.stringify(question.input ?? ""), 80)}</span></td>
          <td><${Settled} question=${question} /></td>
        </tr>`,
      )}</tbody></table></div>`;
}

// Questions as cards: all of them, or those of one program or conversation.
export function Cards({ list }) {
  return cardsOf(list).map((card) => html`<${card.members.length > 1 ? GroupCard : SingleCard} key=${card.id} card=${card} />`);
}

export function Approvals() {
  const list = useStore(questions);
  const before = useStore(recent);
  const settled = list.length - pendingCount(list);
  return html`<div class="head"><h1>Approvals</h1>${settled > 0 && html`<button type="button" class="plain" onClick=${forgetSettled}>Hide the answered ones</button>`}</div>
    <${Notify} />
    ${list.length === 0 && html`<${Empty} title="No question waits.">Calls that need your approval, and input that tools ask for, appear here at once.</${Empty}>`}
    <${Cards} list=${list} />
    <${Recent} list=${before} />`;
}
