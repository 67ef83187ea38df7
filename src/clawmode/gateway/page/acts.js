// What the views need to act on the gateway: requests that survive a reconnection, and buttons that
// know which scope their method needs.

import { connection } from "./connection.js";
import { Action, Dialog, Empty, html, useState } from "./parts.js";

const SCOPES = {
  "operator.admin": [
    "sessions.patch", "sessions.delete", "trajectory.read", "trajectory.export", "codemode.run", "codemode.wait", "cron.run",
    "cron.remove", "logs.tail", "config.get", "config.reload", "tokens.list", "tokens.create", "tokens.revoke", "doctor.run",
  ],
  "operator.write": [
    "chat.send", "chat.abort", "sessions.create", "sessions.abort", "sessions.reset", "codemode.abort",
  ],
  "operator.approvals": ["exec.approval.resolve"],
};

/** Sends a request that changes nothing; after a lost connection it is sent again. */
export const read = (...given) => connection.read(...given);

/** Returns why this page may not call a method; empty if it may. */
export function whyNot(method) {
  if (connection.can(method)) return "";
  const [scope = "operator.read"] = Object.entries(SCOPES).find(([, methods]) => methods.includes(method)) ?? [];
  return connection.may(scope) ? "This gateway does not offer it." : `Your token needs the scope ${scope}.`;
}

/**
 * A button for a method of the gateway. If the method may not be called, or `why` says that it
 * makes no sense now, the button can still be reached with the keyboard, and says so.
 */
export function Act({ method, run, children, kind = "", why = "", confirm = "" }) {
  const [asking, setAsking] = useState(false);
  const reason = whyNot(method) || why;
  if (reason) {
    return html`<span class="action"><button type="button" class=${kind} aria-disabled="true" title=${reason}
      onClick=${(event) => event.preventDefault()}>${children}<span class="visually-hidden"> (${reason})</span></button></span>`;
  }
  if (!confirm) return html`<${Action} ...${{ run, kind }}>${children}<//>`;
  return html`
    <button type="button" class=${kind} onClick=${() => setAsking(true)}>${children}</button>
    ${asking && html`<${Dialog} title=${children} onClose=${() => setAsking(false)}>
      <p>${confirm}</p>
      <div class="buttons">
        <${Action} kind=${kind || "primary"} run=${async () => (await run(), setAsking(false))}>${children}<//>
        <button type="button" onClick=${() => setAsking(false)}>Cancel</button>
      </div>
    <//>`}`;
}

/** Stands for a part of a view that the token may not see. */
export function NotAllowed({ method, what }) {
  return html`<${Empty} title=${`${what} is not shown`}>${whyNot(method)}<//>`;
}
