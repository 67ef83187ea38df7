// The frame of the page: navigation, the state of the connection, and the view of the address.

import { connection } from "./connection.js";
import { Now } from "./now.js";
import { Approvals, usePendingCount } from "./approvals.js";
import { Action, Problem, Until, html, oneLine, render, useEffect, useRef, useShown, useState } from "./parts.js";
import { useErrorBoundary } from "./preact.js";
import { link, route, useRoute, useStatus } from "./state.js";

// A view whose modules are loaded when it is shown first: the page must be usable at once.
function later(load, name) {
  let view = null;
  function Later() {
    const [, again] = useState(0);
    const [error, fail] = useState(null);
    useEffect(() => {
      if (view !== null) return;
      load().then((module) => {
        view = module[name];
        again((count) => count + 1);
      }, fail);
    }, []);
    if (error) return html`<${Problem} error=${error} retry=${() => location.reload()} />`;
    return view === null ? html`<p class="quiet" role="status">Loading…</p>` : html`<${view} />`;
  }
  return Object.assign(Later, { load });
}

// The views in the order of the navigation; `scope` is what the token needs for the view.
const VIEWS = {
  __proto__: null,
  now: { title: "Now", view: Now, scope: "operator.read" },
  approvals: { title: "Approvals", view: Approvals, scope: "operator.approvals" },
  sessions: { title: "Sessions", view: later(() => import("./sessions.js"), "Sessions"), scope: "operator.read" },
  chat: { title: "Chat", view: later(() => import("./chat.js"), "Chat"), scope: "operator.read" },
  tools: { title: "Tools", view: later(() => import("./tools.js"), "Tools"), scope: "operator.read" },
  operation: { title: "Operation", view: later(() => import("./operation.js"), "Operation"), scope: "operator.read" },
};

function Navigation({ current, pending }) {
  const nav = useRef(null);
  useShown(nav, current);
  return html`<nav ref=${nav} aria-label="Views">
    ${Object.entries(VIEWS).map(
      ([name, { title }]) => html`<a key=${name} href=${link(name)} aria-current=${name === current ? "page" : undefined}>
        ${title}${name === "approvals" && pending > 0 && html` <span class="badge" aria-label=${`${pending} pending`}>${pending}</span>`}
      </a>`,
    )}
  </nav>`;
}

const OWN_VERSION = new URL(import.meta.url).pathname.split("/")[2];

// Returns whether the gateway was restarted meanwhile, and has another page now. Asks at the first
// connection too, which may come before or after this is mounted.
function useUpdate() {
  const [updated, set] = useState(false);
  useEffect(() => connection.onReset(async () => {
    const answer = await fetch("/session", { method: "POST" }).then((response) => response.json(), () => null);
    if (answer) set(answer.page !== OWN_VERSION);
  }), []);
  return updated;
}

// Says that the connection was lost, and when the next attempt is made; or that the page is old.
function Banner({ status }) {
  const updated = useUpdate();
  if (status.phase === "online" && updated) {
    return html`<div class="banner" role="status">
      <span>The gateway was updated, and has another page now.</span>
      <button type="button" onClick=${() => location.reload()}>Load it</button>
    </div>`;
  }
  if (status.phase === "online" || (status.phase === "connecting" && !status.lostAt)) return null;
  const text = status.phase === "waiting" ? html`The connection was lost. The next attempt is in <${Until} at=${status.retryAt - connection.skew} />.` : "Connecting again …";
  return html`<div class="banner" role="status">
    <span>${text}</span>
    ${status.phase === "waiting" && html`<button type="button" onClick=${() => connection.retryNow()}>Connect now</button>`}
  </div>`;
}

function View({ name, status }) {
  const [error, forget] = useErrorBoundary();
  const entry = VIEWS[name];
  if (error) return html`<${Problem} error=${error} retry=${forget} />`;
  if (!entry) return html`<p>There is no view of this name. <a href=${link("now")}>Show what runs now</a></p>`;
  if (status.hello === null) return html`<p class="quiet">Connecting …</p>`;
  if (!connection.may(entry.scope)) {
    return html`<p>The token of this session has no scope <code>${entry.scope}</code>, which this view needs.</p>`;
  }
  return html`<${entry.view} />`;
}

function App() {
  const { view } = useRoute();
  const status = useStatus();
  const pending = usePendingCount();
  const main = useRef(null);
  const title = VIEWS[view] ? VIEWS[view].title : "Not found";
  useEffect(() => {
    document.title = `${pending ? `(${pending}) ` : ""}${title} · clawmode`;
  }, [title, pending]);
  useEffect(() => {
    scrollTo(0, 0);
  }, [view]);
  const skip = (event) => {
    event.preventDefault();
    main.current.focus();
  };
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <header class="top">
      <span class="brand"><span class="mark" aria-hidden="true"></span>clawmode</span>
      <${Navigation} current=${view} pending=${pending} />
      ${status.hello && html`<span class="principal" title=${`Logged in as “${oneLine(status.hello.auth.principal, 200)}”`}><span class="visually-hidden">Logged in as </span>${oneLine(status.hello.auth.principal, 200)}</span>`}
      <${Action} kind="plain logout" run=${() => connection.logOut()}>Log out<//>
    </header>
    <${Banner} status=${status} />
    <main ref=${main} tabindex="-1" id="main" aria-label=${title}><${View} key=${view} name=${view} status=${status} /></main>
    <div class="visually-hidden" aria-live="assertive">${pending > 0 ? `${pending} ${pending === 1 ? "question waits" : "questions wait"} for an answer` : ""}</div>
  `;
}

connection.start();
VIEWS[route.get().view]?.view.load?.().catch(() => {}); // while the connection is made
// The other views are loaded a moment later, so that they are there when they are wanted.
setTimeout(() => Object.values(VIEWS).forEach(({ view }) => view.load?.().catch(() => {})), 1500);
render(html`<${App} />`, document.getElementById("app"));
