// Questions to people: those that wait, and those that were answered while the page is open.

import { connection } from "./connection.js";
import { oneLine } from "./parts.js";
import { createStore, link } from "./state.js";

const MAX_SETTLED = 200;
const SEEN_MS = 600; // a card that has just appeared may have moved under the pointer

// A list of questions, oldest first: {id, kind: "exec" | "plugin" | "input", ..., settled, decision,
// by, seenAt}. Answered ones keep their place, so that no button moves under the pointer.
export const questions = createStore([]);

const pendingOf = (list) => list.filter((it) => !it.settled);
export const pendingCount = (list) => pendingOf(list).length;
export const isArmed = (question, time) => time - question.seenAt >= SEEN_MS;
export const ARM_MS = SEEN_MS;

function put(found) {
  const known = new Map(questions.get().map((it) => [it.id, it]));
  const fresh = [];
  for (const question of found) {
    const old = known.get(question.id);
    if (!old && !question.settled) fresh.push(question);
    if (!old || !old.settled) known.set(question.id, { seenAt: performance.now(), ...old, ...question });
  }
  let list = [...known.values()];
  const over = list.filter((it) => it.settled).length - MAX_SETTLED;
  let dropped = 0;
  if (over > 0) list = list.filter((it) => !it.settled || ++dropped > over);
  questions.set(list);
  return fresh;
}

let reads = 0; // those under way
const late = new Map(); // answers that arrive during a read, to questions that are not known yet

async function read() {
  // Only these: a question that is asked during the read may be missing in its answer.
  const before = pendingOf(questions.get());
  reads++;
  try {
    const [exec, plugin, input] = await Promise.all(
      ["exec.approval.list", "plugin.approval.list", "input.list"].map((method) => connection.read(method)),
    );
    const pending = [
      ...exec.approvals.map((it) => ({ ...it, kind: "exec" })),
      ...plugin.approvals.map((it) => ({ ...it, kind: "plugin" })),
      ...input.inputs.map((it) => ({ ...it, kind: "input" })),
    ].sort((one, other) => (one.askedAtMs || 0) - (other.askedAtMs || 0));
    const settled = [
      ...(exec.settled || []).map((it) => ({ ...it, kind: "exec" })),
      ...(plugin.settled || []).map((it) => ({ ...it, kind: "plugin" })),
      ...(input.settled || []).map((it) => ({ ...it, kind: "input", settled: true })),
    ];
    const answers = new Map(settled.map((it) => [it.id, it]));
    // What this page shows as pending and the gateway no longer does was settled meanwhile.
    const waiting = new Set(pending.map((it) => it.id));
    const gone = before
      .filter((it) => !waiting.has(it.id))
      .map((it) => ({ ...(answers.get(it.id) || {}), id: it.id, input: it.input, settled: true }));
    put([...gone, ...pending]);
    for (const [id, answer] of late) settle(id, answer);
    recent.set(settled.filter((it) => !questions.get().some((shown) => shown.id === it.id)));
  } catch {
    // The connection is gone for good.
  }
  if (--reads === 0) late.clear();
}

// Questions that were answered before this page was opened, the latest first.
export const recent = createStore([]);

for (const kind of ["exec", "plugin"]) {
  connection.on(`${kind}.approval.requested`, (question) => put([{ ...question, kind }]).forEach(notify));
  connection.on(`${kind}.approval.resolved`, ({ id, decision, by }) => settle(id, { decision, by }));
}
connection.on("input.requested", (question) => put([{ ...question, kind: "input", askedAtMs: Date.now() }]).forEach(notify));
connection.on("input.resolved", ({ id, answered, by }) => settle(id, { decision: answered ? "answered" : "declined", by }));
connection.onReset(() => connection.may("operator.approvals") && read());

function settle(id, answer) {
  if (questions.get().some((it) => it.id === id)) put([{ id, settled: true, ...answer }]);
  else if (reads > 0) late.set(id, answer);
}

export function forgetSettled() {
  questions.set(pendingOf(questions.get()));
}

// Returns the questions as cards: siblings of one program are one card.
export function cardsOf(list) {
  const cards = [];
  const groups = new Map();
  for (const question of list) {
    const group = question.groupId && groups.get(question.groupId);
    if (group) group.members.push(question);
    else {
      const card = { id: question.groupId || question.id, members: [question] };
      if (question.groupId) groups.set(question.groupId, card);
      cards.push(card);
    }
  }
  return cards;
}

// Answers the questions that were shown. The first answer to a question counts.
export async function decide(card, decision) {
  const waiting = pendingOf(card.members);
  if (card.members.length > 1) {
    const decisions = Object.fromEntries(waiting.map(({ id }) => [id, decision]));
    await connection.request("approval.group.resolve", { id: card.id, decisions });
  } else {
    const [{ id, kind }] = waiting;
    await connection.request(`${kind}.approval.resolve`, { id, decision });
  }
}

// ---- Notifications of the browser ----

export const canNotify = () => "Notification" in globalThis && isSecureContext;
export const notifying = createStore(canNotify() && Notification.permission === "granted");

export async function allowNotifications() {
  notifying.set((await Notification.requestPermission()) === "granted");
}

// Says only that there is a question, and about which tool: the screen may be locked.
function notify(question) {
  if (!notifying.get() || (!document.hidden && document.hasFocus())) return;
  const notification = new Notification("A program waits for your answer", {
    body: oneLine(question.toolId, 80),
    tag: question.groupId || question.id,
  });
  notification.onclick = () => {
    window.focus();
    location.hash = link("approvals");
    notification.close();
  };
}
