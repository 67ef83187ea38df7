// The configuration file with its errors at their lines, and an editor for it.

import { Act, NotAllowed, read, whyNot } from "./acts.js";
import { tokens } from "./highlight.js";
import { Chip, Empty, Problem, Text, html, oneLine, useMemo, useState, visible } from "./parts.js";
import { useRequest } from "./state.js";
import { count } from "./transcript.js";

const MOST_LINES = 5000;

export function Configuration() {
  const request = useRequest("config.get", {}, { when: !whyNot("config.get") });
  const [applied, setApplied] = useState(null);
  const { data, error } = request;
  if (whyNot("config.get")) return html`<${NotAllowed} method="config.get" what="The configuration" />`;
  if (error && !data) return html`<${Problem} error=${error} />`;
  if (!data) return html`<p class="quiet" role="status">Loading…</p>`;
  if (!data.path) {
    return html`<${Empty} title="There is no configuration file">Start the gateway with <code>--config FILE</code>.<//>`;
  }
  const reload = async () => {
    setApplied(await read("config.reload", {}));
    request.reload();
  };
  const issues = data.issues ?? [];
  const warnings = data.warnings ?? [];
  return html`
    <p class="facts"><span class="mono">${oneLine(data.path, 300)}</span>
      <${Chip} state=${data.valid ? "ok" : "failed"}>${data.valid ? "valid" : count(issues.length, "error")}<//></p>
    <div class="buttons">
      <${Act} method="config.reload" why=${data.valid ? "" : "The file has errors."} run=${reload}>Apply the file now<//>
      <${Act} method="config.get" run=${request.reload}>Read again<//>
    </div>
    ${applied && html`<p class="good" role="status">${reloaded(applied)}</p>`}
    ${warnings.length > 0 && html`<details><summary>${count(warnings.length, "warning")}</summary><ul>${warnings.map((warning, at) => html`
      <li key=${at}>${warning.line ? `Line ${warning.line}: ` : ""}<${Text} value=${wordsOf(warning)} limit=${400} /></li>`)}</ul></details>`}
    ${issues.length > 0 && html`<ul class="issues" aria-label="Errors">${issues.map((issue, at) => html`<li key=${at}>
      ${issue.line ? html`<button type="button" class="link" onClick=${() => show(issue.line)}>Line ${issue.line}</button>${": "}` : null}
      <${Text} value=${wordsOf(issue)} limit=${400} /></li>`)}</ul>`}
    ${typeof data.raw === "string"
      ? html`<${Source} raw=${data.raw} issues=${issues} />`
      : html`<p class="quiet">The file cannot be shown.</p>`}
    <p class="quiet">Secrets are replaced. To change the file, edit it on the host, then apply it.</p>`;
}

function wordsOf({ path, message, expected }) {
  return `${path ? `${path}: ` : ""}${message ?? ""}${expected ? `, expected ${expected}` : ""}`;
}

function show(line) {
  const found = document.getElementById(`line-${line}`);
  found?.scrollIntoView({ block: "center" });
  found?.focus();
}

function reloaded({ applied = [], restart = [], waiting = restart }) {
  const parts = [];
  parts.push(applied.length ? `Applied: ${applied.map((each) => oneLine(each)).join(", ")}.` : "Nothing has changed.");
  if (waiting.length) parts.push(`These need a restart: ${waiting.map((each) => oneLine(each)).join(", ")}.`);
  return parts.join(" ");
}

/** The text with numbered lines; a line with an error shows the error below it. */
function Source({ raw, issues }) {
  const lines = useMemo(() => coloured(raw), [raw]);
  const byLine = Map.groupBy ? Map.groupBy(issues, (issue) => issue.line) : new Map();
  return html`
    <div class="source" tabindex="0" role="region" aria-label="Configuration file">
      ${lines.slice(0, MOST_LINES).map((pieces, at) => {
        const found = byLine.get(at + 1) ?? [];
        return html`
          <div key=${at} id=${`line-${at + 1}`} tabindex="-1" class=${`source-line ${found.length ? "wrong" : ""}`}>
            <span class="number" aria-hidden="true">${at + 1}</span>
            <code>${pieces.map(([kind, text], n) => html`<span key=${n} class=${kind && `t-${kind}`}>${visible(text.slice(0, 2000))}</span>`)}</code>
          </div>
          ${found.map((issue, n) => html`<div key=${`${at} ${n}`} class="source-issue">${oneLine(wordsOf(issue), 400)}</div>`)}`;
      })}
      ${lines.length > MOST_LINES && html`<p class="quiet">${lines.length - MOST_LINES} more lines are not shown.</p>`}
    </div>`;
}

/** Splits coloured pieces into lines. */
function coloured(raw) {
  const lines = [[]];
  for (const [kind, text] of tokens(raw)) {
    const parts = text.split("\n");
    parts.forEach((part, at) => {
      if (at) lines.push([]);
      if (part) lines[lines.length - 1].push([kind, part]);
    });
  }
  return lines;
}
