// The view "Now": what runs and what it waits for, and the load of the gateway.

import { connection } from "./connection.js";
import { Action, Chip, Code, Dialog, Duration, Empty, Text, Time, Until, Windowed, bytes, duration, html, oneLine, useEffect, useMemo, useState } from "./parts.js";
import { link, useRequest, useStore } from "./state.js";
import { OVER, followTree, rowsOf, tree } from "./tree.js";

const ROW = 36;
const POLL_MS = 2000;

const WAITS = {
  place: "waits for a free place",
  approval: "waits for approval",
  input: "waits for input",
  calls: "waits for its calls",
  timer: "sleeps",
  yield: "waits for the model",
};
const STATES = { completed: "done", parked: "parked" };

// ---- Figures ----

function Figure({ label, value, detail }) {
  return html`<div class="figure"><dt>${label}</dt><dd class="num">${value}${detail && html` <span class="quiet small">${detail}</span>`}</dd></div>`;
}

function Figures({ data }) {
  if (!data) return html`<dl class="figures" aria-busy="true"></dl>`;
  const { queue, workers } = data;
  const busy = workers.filter((worker) => worker.state === "busy").length;
  const queued = queue.cells + queue.runs + queue.messages;
  return html`<dl class="figures">
    <${Figure} label="Turns" value=${data.running} />
    <${Figure} label="Parked programs" value=${data.parked ?? "?"} />
    <${Figure} label="Questions" value=${data.questions} />
    <${Figure} label="Queue" value=${queued} detail=${queued > 0 && `${queue.runs} turns, ${queue.cells} programs, ${queue.messages} messages`} />
    <${Figure} label="Workers" value=${`${workers.length} of ${data.workersMax}`} detail=${busy > 0 && `${busy} busy`} />
    <${Figure} label="Memory" value=${bytes(data.memoryBytes)} />
    <${Figure} label="Clients" value=${data.clients} />
    <${Figure} label="Up" value=${duration(data.uptimeMs, true)} />
  </dl>`;
}

function Workers({ data }) {
  const found = useStore(tree);
  if (!data || !data.workers.length) return null;
  const programs = new Map([...found.nodes.values()].filter((node) => node.cellId).map((node) => [node.cellId, node]));
  return html`<h2>Workers</h2>
    <div class="scroll-x"><table class="workers">
      <thead><tr><th>Process</th><th>State</th><th class="num">Memory</th><th class="wide">Program</th></tr></thead>
      <tbody>${data.workers.map(({ id, state, memoryBytes, cellId }) => {
        const node = cellId && programs.get(cellId);
        return html`<tr key=${id}>
          <td class="num left">${id || "–"}</td>
          <td><${Chip} state=${state} /></td>
          <td class="num">${bytes(memoryBytes)}</td>
          <td class="wide mono cut">${node ? oneLine(node.inputPreview || node.title, 120) : cellId ? oneLine(cellId, 40) : html`<span class="quiet">–</span>`}</td>
        </tr>`;
      })}</tbody>
    </table></div>
    <p class="hint">Workers share memory with the process that they are forked from, so their sum is larger than what they take.</p>`;
}

// ---- The tree ----

function Waits({ node }) {
  if (!node.waitsFor) return null;
  const text = WAITS[node.waitsFor] || oneLine(node.waitsFor, 40);
  return html`<span class="waits">${text}${node.until && html` · <${Until} at=${node.until} />`}</span>`;
}

function NodeRow({ row, onFold }) {
  const { node, depth, count, open } = row;
  const name = node.kind === "turn" ? node.title || "turn" : node.kind === "program" ? "exec" : node.title;
  const fold = (event) => {
    event.stopPropagation();
    onFold(row, !open);
  };
  return html`
    <span class="indent" style=${{ width: `${Math.min(depth, 8) * 1.1}rem` }}></span>
    <span class=${`caret ${count ? "" : "none"} ${open ? "open" : ""}`} aria-hidden="true" onClick=${count ? fold : undefined}></span>
    <span class=${`name is-${node.kind}`}>${oneLine(name, 120)}${count > 0 && !open && html` <span class="quiet small">${count.toLocaleString()}</span>`}</span>
    <span class="preview">${node.kind !== "turn" && oneLine(node.inputPreview || "", 160)}</span>
    <${Waits} node=${node} />
    <${Chip} state=${node.state}>${STATES[node.state] || node.state}</${Chip}>
    <span class="took">${node.startedAt ? html`<${Duration} from=${node.startedAt} to=${node.endedAt} />` : ""}</span>
  `;
}

function Details({ node, onClose }) {
  const canStop = !OVER.has(node.state) && connection.may("operator.write");
  const stop = async () => {
    if (node.kind === "turn") await connection.request("sessions.abort", { runId: node.runId });
    else await connection.request("codemode.abort", { cellId: node.cellId });
    onClose();
  };
  const stoppable = canStop && (node.kind === "turn" || (node.kind === "program" && node.cellId));
  const title = { turn: "Turn", program: "Program", call: "Call" }[node.kind];
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <p><${Text} value=${node.title} exact=${node.kind !== "turn"} /></p>
    <dl class="facts">
      <dt>State</dt><dd><${Chip} state=${node.state} /> <${Waits} node=${node} />${node.code && html` <code>${oneLine(node.code, 60)}</code>`}</dd>
      <dt>Began</dt><dd><${Time} at=${node.startedAt} /></dd>
      <dt>${node.endedAt ? "Took" : "Runs for"}</dt><dd><${Duration} from=${node.startedAt} to=${node.endedAt} /></dd>
      ${node.until && html`<dt>Waits until</dt><dd><${Time} at=${node.until} /></dd>`}
      ${node.expiresAt && html`<dt>Kept until</dt><dd><${Time} at=${node.expiresAt} /></dd>`}
      ${node.toolId && html`<dt>Tool</dt><dd><code>${oneLine(node.toolId, 200)}</code></dd>`}
      <dt>Session</dt><dd><a href=${link("sessions", node.sessionKey)} onClick=${onClose}>${oneLine(node.sessionKey, 120)}</a></dd>
      ${node.queued && html`<dt>Queued calls</dt><dd class="num">${node.queued.toLocaleString()}</dd>`}
      ${node.leftOut && html`<dt>Calls not shown</dt><dd class="num">${node.leftOut.toLocaleString()}</dd>`}
    </dl>
    ${node.inputPreview && html`<h3>${node.kind === "program" ? "Begins with" : "Input"}</h3><${Code} source=${node.inputPreview} label="Input" />`}
    <div class="buttons">
      ${node.questionId && html`<a class="button" href=${link("approvals")} onClick=${onClose}>Show the question</a>`}
      ${stoppable && html`<${Action} kind="danger" run=${stop}>Stop this ${node.kind}</${Action}>`}
    </div>
  </${Dialog}>`;
}

const FILTERS = { all: "All", active: "Running", waiting: "Waiting" };

function Tree() {
  const found = useStore(tree);
  const [filter, setFilter] = useState("all");
  const [folded, setFolded] = useState(() => new Set());
  const [chosen, setChosen] = useState("");
  const rows = useMemo(() => rowsOf(found, filter, folded), [found, filter, folded]);
  const fold = ({ node, count }, open) => {
    if (!count) return;
    const next = new Set(folded);
    if (open) next.delete(node.id);
    else next.add(node.id);
    setFolded(next);
  };
  const node = chosen && found.nodes.get(chosen);
  const rowProps = ({ node: { state }, depth, count, open }) => ({
    "aria-level": depth + 1,
    "aria-expanded": count ? String(open) : undefined,
    "data-state": state,
  });
  return html`
    <div class="bar">
      <fieldset class="choice"><legend class="visually-hidden">Show</legend>
        ${Object.entries(FILTERS).map(
          ([value, text]) => html`<label key=${value}><input type="radio" name="filter" checked=${filter === value} onChange=${() => setFilter(value)} />${text}</label>`,
        )}
      </fieldset>
      <span class="quiet small num" role="status">${found.nodes.size.toLocaleString()} ${found.nodes.size === 1 ? "entry" : "entries"}${found.leftOut > 0 && `, ${found.leftOut.toLocaleString()} more not shown`}</span>
    </div>
    ${!found.loaded
      ? html`<p class="quiet">Reading …</p>`
      : rows.length === 0
        ? html`<${Empty} title=${filter === "all" ? "Nothing runs." : "Nothing of this kind."}>Turns, their programs and calls appear here while they run, and for a minute afterwards.</${Empty}>`
        : html`<${Windowed} items=${rows} height=${ROW} keyOf=${(row) => row.node.id} label="What runs now" role="tree" rowRole="treeitem" rowProps=${rowProps}
            row=${(row) => html`<${NodeRow} row=${row} onFold=${fold} />`} onOpen=${(row) => setChosen(row.node.id)} onFold=${fold} />`}
    ${node && html`<${Details} node=${node} onClose=${() => setChosen("")} />`}
  `;
}

export function Now() {
  useEffect(followTree, []);
  const figures = useRequest("system.figures", {}, { every: POLL_MS });
  return html`<h1>Now</h1>
    <${Figures} data=${figures.data} />
    <${Tree} />
    <${Workers} data=${figures.data} />`;
}
