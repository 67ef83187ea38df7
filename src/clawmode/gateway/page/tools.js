// The view "Tools": the catalog of an agent as its model sees it, and an editor for programs.

import { read } from "./acts.js";
import { Chip, Code, Empty, Json, Problem, Text, Windowed, html, oneLine, useEffect, useRef, useShown, useState } from "./parts.js";
import { ProgramEditor } from "./program.js";
import { link, useRequest, useRoute } from "./state.js";
import { count } from "./transcript.js";

const TABS = [["catalog", "Catalog"], ["prompt", "What the model reads"], ["run", "Run a program"]];
const ROW = 60;
const PAGE = 500;
const HITS = 50;
const TYPING_MS = 200;

export function Tools() {
  const [part, chosen] = useRoute().path;
  const [tab] = TABS.find(([id]) => id === part) ?? TABS[0];
  const agents = useRequest("agents.list");
  const [picked, setPicked] = useState("");
  const agentId = picked || agents.data?.defaultId || "";
  return html`
    <div class="page tools">
      <div class="pane-head bar">
        <h1>Tools</h1>
        ${agents.data?.agents.length > 1 && html`<label>Agent
          <select value=${agentId} onChange=${(event) => setPicked(event.currentTarget.value)}>
            ${agents.data.agents.map((agent) => html`<option key=${agent.id} value=${agent.id}>${oneLine(agent.name)}</option>`)}
          </select></label>`}
        <${Tabs} base="tools" tabs=${TABS} current=${tab} />
      </div>
      ${!agents.data && !agents.error && html`<p class="quiet" role="status">Loading…</p>`}
      ${agents.error && html`<${Problem} error=${agents.error} />`}
      ${agentId && tab === "catalog" && html`<${Catalog} key=${agentId} ...${{ agentId, chosen }} />`}
      ${agentId && tab === "prompt" && html`<${Prompt} key=${agentId} agentId=${agentId} />`}
      ${agentId && tab === "run" && html`<${ProgramEditor} key=${agentId} agentId=${agentId} />`}
    </div>`;
}

/** Links to the parts of a view. */
export function Tabs({ base, tabs, current }) {
  const nav = useRef(null);
  useShown(nav, current);
  return html`<nav class="tabs" ref=${nav} aria-label="Parts of this view">${tabs.map(([id, name]) => html`
    <a key=${id} href=${link(base, id)} aria-current=${id === current ? "page" : undefined}>${name}</a>`)}</nav>`;
}

// ---- The catalog ----

/** The index of an agent's catalog, page after page. */
function useIndex(agentId) {
  const [state, setState] = useState({ tools: null, next: null, total: 0, error: null });
  const load = async (after) => {
    try {
      const page = await read("tools.surface", { agentId, limit: PAGE, ...(after && { after }) });
      setState((old) => ({
        about: page,
        tools: [...(after ? old.tools : []), ...page.tools],
        next: page.next ?? null,
        total: page.total,
        error: null,
      }));
    } catch (error) {
      setState((old) => ({ ...old, error }));
    }
  };
  useEffect(() => {
    load();
  }, [agentId]);
  return { ...state, more: () => load(state.next) };
}

function Catalog({ agentId, chosen }) {
  const [query, setQuery] = useState("");
  const { tools, next, total, error, more } = useIndex(agentId);
  const hits = useSearch(agentId, query.trim());
  const shown = hits.data ?? tools;
  return html`
    <div class=${`two-panes ${chosen ? "has-detail" : ""}`}>
      <section class="pane list-pane" aria-label="Catalog">
        <label class="search"><span class="visually-hidden">Search the catalog</span>
          <input type="search" placeholder="Search as a program does: tools.search(…)" value=${query}
            onInput=${(event) => setQuery(event.currentTarget.value)} /></label>
        ${(error || hits.error) && html`<${Problem} error=${error || hits.error} />`}
        <p class="quiet" role="status">
          ${!shown ? (error || hits.error ? "" : "Loading…") : hits.data ? `${count(hits.data.length, "hit")}, best first` : count(total, "tool")}
          ${hits.unmatched?.length > 0 && html`. No tool mentions: ${oneLine(hits.unmatched.join(", "), 80)}`}
        </p>
        ${tools && !tools.length && html`<${Empty} title="This agent has no tools">Add tools, plugins or MCP servers to its configuration.<//>`}
        ${hits.data && !hits.data.length && html`<${Empty} title="Nothing was found">A program that searches for these words finds nothing either.<//>`}
        ${shown?.length > 0 && html`<${Windowed} items=${shown} height=${ROW} label="Tools" keyOf=${(tool) => tool.id}
          onOpen=${(tool) => (location.hash = link("tools", "catalog", tool.id))} row=${(tool) => html`<${ToolRow} ...${{ tool, current: tool.id === chosen }} />`} />`}
        ${!hits.data && next && html`<button class="link" onClick=${more}>Load more tools</button>`}
      </section>
      <section class="pane detail-pane" aria-label="Tool">
        ${chosen
          ? html`<${ToolDetail} key=${chosen} ...${{ agentId, id: chosen, known: tools?.find((tool) => tool.id === chosen) }} />`
          : html`<${Empty} title="No tool is selected">Choose a tool to read its declaration.<//>`}
      </section>
    </div>`;
}

/** The hits of the ranker that programs use; `data` is null without a query. */
function useSearch(agentId, query) {
  const [state, setState] = useState({ data: null, error: null });
  const asked = useRef(0);
  useEffect(() => {
    const number = (asked.current += 1);
    if (!query) {
      setState({ data: null, error: null });
      return undefined;
    }
    const timer = setTimeout(async () => {
      try {
        const { hits, unmatched } = await read("tools.search", { agentId, query, limit: HITS });
        if (number === asked.current) setState({ data: hits, unmatched, error: null });
      } catch (error) {
        if (number === asked.current) setState({ data: null, error });
      }
    }, TYPING_MS);
    return () => clearTimeout(timer);
  }, [agentId, query]);
  return state;
}

/** The expression that calls a tool, without its arguments: `tools.price`, `MCP.github.search`. */
function pathOf(tool) {
  const [path] = (tool.call ?? tool.signature ?? "").split("(");
  return path.replace(/^await /, "") || tool.id;
}

function ToolRow({ tool, current }) {
  return html`
    <a class="tool-row" tabindex="-1" href=${link("tools", "catalog", tool.id)} aria-current=${current ? "page" : undefined}>
      <span class="row-line">
        <span class="mono title">${oneLine(pathOf(tool))}</span>
        ${tool.effect && tool.effect !== "read" && html`<${Chip} state="effect">${oneLine(tool.effect, 20)}<//>`}
        ${tool.weak && html`<${Chip} state="weak">weak<//>`}
        ${tool.rank && html`<span class="num quiet small" title="Rank">${tool.rank}</span>`}
      </span>
      <span class="words quiet">${oneLine(tool.description ?? "", 240)}</span>
    </a>`;
}

function ToolDetail({ agentId, id, known }) {
  const { data, error, loading } = useRequest("tools.declaration", { agentId, id });
  const tool = { ...known, ...data };
  const isLong = data?.declaration && data.declaration !== tool.call;
  return html`
    <div class="pane-head">
      <a class="back" href="#/tools/catalog">All tools</a>
      <h2 class="mono">${oneLine(pathOf({ ...tool, id }))}</h2>
      <p class="facts quiet"><span class="mono">${oneLine(id)}</span>
        ${tool.effect && html`<span>effect: ${oneLine(tool.effect)}</span>`}
        ${tool.source && html`<span>source: ${oneLine(tool.source)}</span>`}
        ${tool.asks && html`<span>a person is asked before each call</span>`}</p>
    </div>
    <div class="pane-body">
      ${error && html`<${Problem} error=${error} />`}
      ${loading && html`<p class="quiet" role="status">Loading…</p>`}
      ${(tool.call || tool.signature) && html`<h3>How programs call it</h3>
        <${Code} source=${tool.call || tool.signature} label=${isLong ? "Call" : "Declaration"} />`}
      ${isLong && html`<h3>Declaration</h3><${Code} source=${data.declaration} label="Declaration" />`}
      ${tool.description && html`<h3>Description</h3><${Text} value=${tool.description} block />`}
      ${data?.parameters && html`<details><summary>Schema of the input</summary><${Json} value=${data.parameters} label="Schema" /></details>`}
      <p><a class="button" href=${link("tools", "run")} onClick=${() => sessionStorage.setItem("program.insert", `return await ${pathOf({ ...tool, id })}({ });`)}>Use in a program</a></p>
    </div>`;
}

function Prompt({ agentId }) {
  const { about, error } = useIndex(agentId);
  if (error) return html`<${Problem} error=${error} />`;
  if (!about) return html`<p class="quiet" role="status">Loading…</p>`;
  const { visible = [], codeMode, files = [] } = about;
  return html`
    <div class="pane-body prompt">
      <p>${codeMode
        ? "Code mode is on: the model gets these tools, and its programs call all others."
        : "Code mode is off: the model gets each tool directly."}</p>
      ${visible.map((tool) => html`<section key=${tool.name} aria-label=${oneLine(tool.name, 80)}>
        <h2 class="mono">${oneLine(tool.name)}</h2>
        <div class="reading" tabindex="0" role="region" aria-label=${`Description of ${oneLine(tool.name, 80)}`}>
          <${Text} value=${tool.description ?? ""} limit=${40000} block /></div>
        <p class="quiet small">${count((tool.description ?? "").length, "character")}</p>
        <details><summary>Schema of the input</summary><${Json} value=${tool.parameters} label="Schema" /></details>
      </section>`)}
      ${files.length > 0 && html`<h2>Files that programs can read</h2>
        ${files.slice(0, 200).map((file) => html`<${DeclarationFile} key=${file} agentId=${agentId} file=${file} />`)}`}
    </div>`;
}

function DeclarationFile({ agentId, file }) {
  const [open, setOpen] = useState(false);
  const { data, error } = useRequest("tools.declaration", { agentId, file }, { when: open });
  return html`<details onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary class="mono">${oneLine(file, 120)}</summary>
    ${error && html`<${Problem} error=${error} />`}
    ${data && html`<${Code} source=${data.declaration} label=${oneLine(file, 80)} />`}
  </details>`;
}
