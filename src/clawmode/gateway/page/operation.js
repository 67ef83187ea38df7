// The view "Operation": what the gateway consists of, and how well each part works.

import { Act, NotAllowed, read, whyNot } from "./acts.js";
import { Configuration } from "./configuration.js";
import { connection } from "./connection.js";
import { Log } from "./log.js";
import { Chip, Dialog, Empty, Problem, Text, Time, html, oneLine, useState } from "./parts.js";
import { useEvents, useRequest, useRoute } from "./state.js";
import { Tabs } from "./tools.js";
import { count } from "./transcript.js";

const PARTS = [
  ["servers", "MCP servers", Servers],
  ["jobs", "Jobs", Jobs],
  ["plugins", "Plugins", Plugins],
  ["log", "Log", Log],
  ["configuration", "Configuration", Configuration],
  ["tokens", "Tokens", Tokens],
  ["doctor", "Doctor", Doctor],
];
const POLL_MS = 5000;
const EXAMINE_MS = 190_000;
const SCOPES = [
  ["operator.read", "read everything but secrets and the log"],
  ["operator.write", "read, start turns, stop them"],
  ["operator.approvals", "answer questions"],
  ["operator.admin", "everything, and change the configuration and tokens"],
];

export function Operation() {
  const { path } = useRoute();
  const [part, , View] = PARTS.find(([id]) => id === path[0]) ?? PARTS[0];
  return html`
    <div class="page operation">
      <div class="pane-head bar">
        <h1>Operation</h1>
        <${Tabs} base="operation" tabs=${PARTS} current=${part} />
      </div>
      <${View} />
    </div>`;
}

/** Shows what a request returned: its error, that it is loading, or the view of its answer. */
export function Loaded({ request, children }) {
  if (request.error && !request.data) return html`<${Problem} error=${request.error} />`;
  if (!request.data) return html`<p class="quiet" role="status">Loading…</p>`;
  return html`${request.error && html`<${Problem} error=${request.error} />`}${children(request.data)}`;
}

// ---- MCP servers ----

function Servers() {
  const request = useRequest("mcp.servers", {}, { every: POLL_MS });
  return html`<${Loaded} request=${request}>${({ servers }) => servers.length
    ? html`<ul class="cards">${servers.map((server) => html`
        <li key=${server.name} class="card">
          <div class="row-line">
            <strong class="title">${oneLine(server.name)}</strong>
            <${Chip} state=${server.state} />
          </div>
          <p class="facts quiet">
            <span>${count(server.toolCount, "tool")}</span>
            ${server.since > 0 && html`<span>since <${Time} at=${server.since} /></span>`}
          </p>
          ${server.error && html`<div class="bad"><${Text} value=${server.error} limit=${400} /></div>`}
          ${server.notes.map((note, at) => html`<p key=${at} class="quiet small"><${Text} value=${note} limit=${300} /></p>`)}
          ${server.tools.length > 0 && html`<details><summary>Tools</summary>
            <p class="mono small"><${Text} value=${server.tools.join(", ")} limit=${2000} /></p></details>`}
        </li>`)}</ul>`
    : html`<${Empty} title="No MCP servers are configured">Add them under <code>mcp.servers</code> in the configuration.<//>`}<//>`;
}

// ---- Jobs ----

function Jobs() {
  const request = useRequest("cron.list");
  useEvents("cron", request.reload);
  const [started, setStarted] = useState(null);
  const run = (id) => async () => {
    const { runId } = await connection.effect("cron.run", { id });
    setStarted({ id, runId });
    request.reload();
  };
  const remove = (id) => async () => {
    await connection.effect("cron.remove", { id });
    request.reload();
  };
  return html`<${Loaded} request=${request}>${({ jobs }) => html`
    ${started && html`<p class="good" role="status">The job ${oneLine(started.id)} has started.</p>`}
    ${jobs.length
      ? html`<ul class="cards">${jobs.map((job) => html`
          <li key=${job.id} class="card">
            <div class="row-line">
              <strong class="title">${oneLine(job.id)}</strong>
              <${Chip} state=${job.running ? "running" : job.enabled === false ? "disabled" : "enabled"} />
            </div>
            <p class="facts quiet">
              <span class="mono">${oneLine(scheduleOf(job))}</span>
              ${job.nextAt && html`<span>next <${Time} at=${job.nextAt} /></span>`}
              ${job.lastAt && html`<span>last <${Time} at=${job.lastAt} />${job.lastStatus ? `: ${oneLine(job.lastStatus)}` : ""}</span>`}
            </p>
            <${Text} value=${job.message ?? ""} limit=${300} />
            ${job.lastError && html`<div class="bad"><${Text} value=${job.lastError} limit=${300} /></div>`}
            <div class="buttons">
              <${Act} method="cron.run" run=${run(job.id)}>Run now<//>
              ${job.source !== "config" && html`<${Act} method="cron.remove" kind="danger" confirm=${`Remove the job ${oneLine(job.id)}?`} run=${remove(job.id)}>Remove<//>`}
            </div>
          </li>`)}</ul>`
      : html`<${Empty} title="There are no jobs">Add jobs under <code>cron.jobs</code> in the configuration, or with <code>clawmode cron add</code>.<//>`}`}<//>`;
}

function scheduleOf(job) {
  const zone = job.tz ? ` (${job.tz})` : "";
  if (job.cron) return `${job.cron}${zone}`;
  return job.every ? `every ${job.every}` : job.at ? `at ${job.at}${zone}` : "";
}

// ---- Plugins ----

function Plugins() {
  const request = useRequest("plugins.list");
  return html`<${Loaded} request=${request}>${({ plugins }) => plugins.length
    ? html`<ul class="cards">${plugins.map((plugin) => html`
        <li key=${plugin.id} class="card">
          <div class="row-line">
            <strong class="title">${oneLine(plugin.id)}</strong>
            <span class="quiet">${oneLine(plugin.version ?? "")}</span>
            <${Chip} state=${plugin.problem ? "failed" : plugin.loaded ? "ok" : "off"}>${plugin.problem ? "not loaded" : plugin.loaded ? "loaded" : "disabled"}<//>
          </div>
          ${plugin.description && html`<${Text} value=${plugin.description} limit=${300} />`}
          ${plugin.problem && html`<div class="bad"><${Text} value=${plugin.problem} limit=${400} /></div>`}
          <p class="facts quiet">
            ${["tools", "hooks", "namespaces", "skills"].filter((kind) => plugin[kind]?.length).map((kind) => html`
              <span key=${kind}>${kind}: ${oneLine(plugin[kind].slice(0, 20).join(", "))}</span>`)}
          </p>
        </li>`)}</ul>`
    : html`<${Empty} title="No plugins are installed">Install one with <code>clawmode plugins install</code>.<//>`}<//>`;
}

// ---- Tokens ----

function Tokens() {
  const request = useRequest("tokens.list", {}, { when: !whyNot("tokens.list") });
  const [creating, setCreating] = useState(false);
  const revoke = (name) => async () => {
    await connection.effect("tokens.revoke", { name });
    request.reload();
  };
  if (whyNot("tokens.list")) return html`<${NotAllowed} method="tokens.list" what="The list of tokens" />`;
  return html`
    <div class="buttons"><${Act} method="tokens.create" kind="primary" run=${() => setCreating(true)}>New token<//></div>
    <${Loaded} request=${request}>${({ tokens }) => tokens.length
      ? html`<ul class="cards">${tokens.map((token) => html`
          <li key=${token.name} class="card">
            <div class="row-line">
              <strong class="title">${oneLine(token.name)}</strong>
              ${token.clients > 0 && html`<${Chip} state="connected">${count(token.clients, "connection")}<//>`}
            </div>
            <p class="facts quiet"><span>${(token.scopes ?? []).map((scope) => oneLine(scope)).join(", ")}</span>
              ${token.createdAt ? html`<span>created <${Time} at=${token.createdAt} /></span>` : null}</p>
            <div class="buttons"><${Act} method="tokens.revoke" kind="danger"
              confirm=${`Revoke the token ${oneLine(token.name)}? Its open connections end.`} run=${revoke(token.name)}>Revoke<//></div>
          </li>`)}</ul>`
      : html`<${Empty} title="There are no tokens">Clients on other machines need a token. This page uses the gateway's own.<//>`}<//>
    ${creating && html`<${NewToken} onClose=${() => (setCreating(false), request.reload())} />`}`;
}

function NewToken({ onClose }) {
  const [name, setName] = useState("");
  const [scopes, setScopes] = useState(["operator.read"]);
  const [made, setMade] = useState(null);
  const toggle = (scope) => () =>
    setScopes(scopes.includes(scope) ? scopes.filter((each) => each !== scope) : [...scopes, scope]);
  const create = async () => setMade(await connection.request("tokens.create", { name: name.trim(), scopes }));
  if (made) {
    return html`<${Dialog} title="The token was created" onClose=${onClose}>
      <p>Copy the token of <strong>${oneLine(made.name)}</strong> now: it is not shown again.</p>
      <p><code class="secret" tabindex="0">${made.token}</code></p>
      <div class="buttons">
        <${Act} method="tokens.create" kind="primary" run=${() => navigator.clipboard.writeText(made.token)}>Copy<//>
        <button onClick=${onClose}>Close</button>
      </div>
    <//>`;
  }
  return html`<${Dialog} title="New token" onClose=${onClose}>
    <form class="fields" onSubmit=${(event) => event.preventDefault()}>
      <label>Name of its owner
        <input required maxlength="64" value=${name} onInput=${(event) => setName(event.currentTarget.value)} />
      </label>
      <fieldset><legend>What it may do</legend>
        ${SCOPES.map(([scope, words]) => html`<label key=${scope} class="check">
          <input type="checkbox" checked=${scopes.includes(scope)} onChange=${toggle(scope)} />
          <span><span class="mono">${scope}</span> <span class="quiet">${words}</span></span></label>`)}
      </fieldset>
      <div class="buttons">
        <${Act} method="tokens.create" kind="primary" why=${name.trim() && scopes.length ? "" : "A name and a scope are needed."} run=${create}>Create<//>
        <button type="button" onClick=${onClose}>Cancel</button>
      </div>
    </form>
  <//>`;
}

// ---- Doctor ----

const HEALTH = { ok: "ok", note: "warning", problem: "failed" };

function Doctor() {
  const [findings, setFindings] = useState(null);
  const examine = async () => setFindings((await read("doctor.run", {}, { timeout: EXAMINE_MS })).findings);
  const problems = findings?.filter(({ health }) => health === "problem").length;
  return html`
    <p>The doctor checks everything that programs need: the sandbox, the models, the store, the configuration.</p>
    <div class="buttons"><${Act} method="doctor.run" kind="primary" run=${examine}>Examine<//></div>
    ${findings && html`
      <p role="status">${problems ? count(problems, "problem") : "No problems were found."}</p>
      <ul class="findings">${findings.map(({ what, health, detail }, at) => html`<li key=${at}>
        <${Chip} state=${HEALTH[health] ?? "note"}>${oneLine(health, 20)}<//>
        <strong>${oneLine(what)}</strong>
        <span class="quiet"><${Text} value=${detail} limit=${600} /></span>
      </li>`)}</ul>`}`;
}
