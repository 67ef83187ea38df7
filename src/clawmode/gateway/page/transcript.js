// The entries of a conversation: messages, programs with their calls, results, tokens.

import { read } from "./acts.js";
import { Action, Code, Json, Problem, Text, Time, Windowed, duration, html, oneLine, useState } from "./parts.js";

const FEW_CALLS = 12;
const ROW = 28;
const MORE_CALLS = 200;
const IMAGES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);
const STATES = {
  __proto__: null,
  started: ["…", "running"],
  completed: ["✓", "completed"],
  failed: ["✕", "failed"],
  cancelled: ["–", "cancelled"],
};

export function count(number, word) {
  return `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;
}

export function tokensIn(usage) {
  return (usage.input ?? 0) + (usage.cacheRead ?? 0) + (usage.cacheWrite ?? 0);
}

export function Tokens({ usage }) {
  if (!usage || (!tokensIn(usage) && !usage.output)) return null;
  const cached = usage.cacheRead ? `, ${usage.cacheRead.toLocaleString("en")} of them cached` : "";
  return html`<span class="tokens" title=${`${count(tokensIn(usage), "token")} read${cached}, ${usage.output ?? 0} written`}>
    ${tokensIn(usage).toLocaleString("en")} in · ${(usage.output ?? 0).toLocaleString("en")} out
  </span>`;
}

/** The entries of a transcript, then what the current runs do. */
export function Entries({ conversation, detail }) {
  const { entries, whole, live, sent, runs = [] } = conversation;
  const shown = new Set();
  for (const entry of entries) {
    for (const part of entry.content ?? []) {
      if (part.type === "toolCall") shown.add(`${entry.runId} ${part.id}`);
    }
  }
  return html`
    <ol class="entries" aria-label="Conversation">
      ${entries.map((entry) => html`
        <${Entry} key=${entry.id} entry=${whole.get(entry.id) ?? entry} ...${{ conversation, detail }} />`)}
      ${sent.map((message) => html`
        <li class="entry user pending" key=${`sent ${message.at}`}>
          <${Who} name="You" at=${message.at} />
          <${Text} value=${message.text} block />
          ${message.images.map((image) => html`<${Picture} ...${image} />`)}
        </li>`)}
      ${[...live.runs.values()].map((run) => html`
        <${LiveRun} key=${run.id} ...${{ run, shown, conversation, detail }} />`)}
      ${runs.length > 0 && html`<li class="entry working" key="working"><span class="pulse" /> Working…</li>`}
    </ol>`;
}

function Who({ name, at, children }) {
  return html`<div class="who"><strong>${oneLine(name)}</strong> ${at && html`<${Time} at=${at} />`} ${children}</div>`;
}

function Entry({ entry, conversation, detail }) {
  if (entry.type === "run") return html`<${RunMark} entry=${entry} detail=${detail} />`;
  if (entry.type === "compaction") {
    return html`<li class="entry divider">
      <details><summary>Earlier messages were summarized for the model</summary><${Text} value=${entry.summary ?? ""} block /></details>
    </li>`;
  }
  if (entry.type !== "message") return null;
  const mine = entry.role === "user";
  const name = mine ? "You" : conversation.session?.agentId || "Agent";
  return html`
    <li class=${`entry ${mine ? "user" : "assistant"}`}>
      <${Who} name=${name} at=${entry.at}>
        ${detail && entry.model && html`<span class="quiet">${oneLine(entry.model)}</span>`}
        ${detail && html`<${Tokens} usage=${entry.usage} />`}
      <//>
      ${(entry.content ?? []).map((part, at) => html`
        <${Part} key=${part.id ?? at} ...${{ part, entry, conversation, detail }} />`)}
      <${Rest} entry=${entry} conversation=${conversation} />
      ${entry.error && html`<p class="bad"><${Text} value=${entry.error} limit=${1000} /></p>`}
    </li>`;
}

/** Offers what was left out of an entry: long texts and images. */
function Rest({ entry, conversation }) {
  const parts = entry.content ?? [];
  const length = Math.max(0, ...parts.map((part) => part.cut ?? 0));
  const image = parts.some((part) => part.type === "image" && !part.data);
  if ((!length && !image) || conversation.whole.has(entry.id)) return null;
  const words = length ? `Load the whole text (${length.toLocaleString("en")} characters)` : "Show the image";
  return html`<${Action} kind="link" run=${() => conversation.readWhole(entry.id)}>${words}<//>`;
}

function Part({ part, entry, conversation, detail }) {
  switch (part.type) {
    case "text":
      return part.text ? html`<${Text} value=${part.text} block />` : null;
    case "thinking":
      return part.text
        ? html`<details class="thinking"><summary>Thinking</summary><${Text} value=${part.text} block /></details>`
        : null;
    case "image":
      return html`<${Picture} ...${part} />`;
    case "toolCall": {
      const live = conversation.live.runs.get(entry.runId);
      const now = live?.calls.get(part.id);
      const nested = withLive(part.nested ?? [], live?.nested.get(part.id));
      const call = { ...part, ...(part.result ? { ms: now?.ms } : now), nested, runId: entry.runId };
      return html`<${ToolCall} ...${{ call, conversation, detail }} />`;
    }
    default:
      return null;
  }
}

/** Joins the calls that the transcript has with those that events reported since. */
function withLive(recorded, live) {
  if (!live) return recorded;
  const byId = new Map(recorded.map((call) => [call.callId, call]));
  for (const [id, call] of live) byId.set(id, { ...byId.get(id), ...call });
  return [...byId.values()];
}

function LiveRun({ run, shown, conversation, detail }) {
  const calls = [...run.calls.values()].filter((call) => !shown.has(`${run.id} ${call.id}`));
  if (!run.text && !run.said.length && !calls.length && !run.error && !run.thinking) return null;
  return html`
    <li class="entry assistant live">
      <${Who} name=${conversation.session?.agentId || "Agent"} />
      ${run.said.map((text, at) => html`<${Text} key=${at} value=${text} block />`)}
      ${calls.map((call) => {
        const nested = withLive([], run.nested.get(call.id));
        return html`<${ToolCall} key=${call.id} call=${{ ...call, nested, runId: run.id }} ...${{ conversation, detail }} />`;
      })}
      ${run.thinking && html`<details class="thinking"><summary>Thinking</summary><${Text} value=${run.thinking} block /></details>`}
      ${run.text && html`<div class="streaming" aria-live="polite"><${Text} value=${run.text} block /></div>`}
      ${run.error && html`<p class="bad">${oneLine(run.error)}</p>`}
    </li>`;
}

function RunMark({ entry, detail }) {
  const failed = entry.phase === "end" && entry.status !== "ok";
  if (!detail && !failed) return null;
  const words = { start: "Turn started", resume: "Turn continued", end: `Turn ended: ${entry.status ?? ""}` };
  return html`
    <li class=${`entry divider ${failed ? "failed" : ""}`}>
      <span>${words[entry.phase] ?? entry.phase}</span>
      <${Time} at=${entry.at} />
      ${entry.trigger && html`<span>by ${oneLine(entry.trigger)}</span>`}
      ${entry.phase === "end" && html`<${Tokens} usage=${entry.usage} />`}
      ${entry.error && html`<${Text} value=${entry.error} limit=${400} />`}
    </li>`;
}

function Picture({ mediaType, data }) {
  if (!data || !IMAGES.has(mediaType)) {
    return html`<p class="quiet">An image (${oneLine(mediaType ?? "unknown type")}).</p>`;
  }
  return html`<img class="picture" alt="Image in the conversation" src=${`data:${mediaType};base64,${data}`} />`;
}

// ---- Calls ----

export function ToolCall({ call, conversation, detail }) {
  const program = call.name === "exec" && typeof (call.input?.code ?? call.input) === "string";
  const state = call.state ?? "started";
  const total = call.nestedTotal ?? call.nested.length;
  const result = call.result?.details?.status ? call.result.details : null;
  return html`
    <section class=${`call ${styleOf(result?.status ?? state)}`} aria-label=${`Call of ${oneLine(call.name)}`}>
      <header>
        <${StateMark} state=${result?.status ?? state} />
        <strong class="mono">${oneLine(call.name)}</strong>
        ${total > 0 && html`<span class="quiet">${count(total, "call")}</span>`}
        ${call.ms !== undefined && html`<span class="quiet">${duration(call.ms)}</span>`}
      </header>
      ${program
        ? html`<details class="program" open=${detail}>
            <summary>Program</summary>
            <${Code} source=${call.input.code ?? call.input} label="Program" />
          </details>`
        : hasMembers(call.input) && html`<details class="program" open=${detail}>
            <summary>Input</summary><${Value} value=${call.input} />
          </details>`}
      ${call.update !== undefined && state === "started" && html`<${Text} value=${wordsOf(call.update)} limit=${300} />`}
      ${call.nested.length > 0 && html`<${Nested} ...${{ call, total, conversation }} />`}
      ${result
        ? html`<${ProgramResult} result=${result} open=${detail} />`
        : call.result && html`<details class="result" open=${detail}>
            <summary>${call.result.isError ? "Error" : "Result"}</summary>
            <${Text} value=${call.result.text ?? ""} block />
          </details>`}
    </section>`;
}

function hasMembers(input) {
  return input !== undefined && input !== null && (typeof input !== "object" || Object.keys(input).length > 0);
}

function wordsOf(value) {
  return typeof value === "string" ? value : value?.text ?? value?.message ?? JSON.stringify(value) ?? "";
}

const RESULTS = { __proto__: null, completed: ["✓", "completed"], waiting: ["…", "waiting"], failed: ["✕", "failed"] };

// Returns a state that the style sheet knows: the result of a tool may have any status.
function styleOf(state) {
  return typeof state === "string" && (state in STATES || state in RESULTS) ? state : "other";
}

export function StateMark({ state }) {
  const style = styleOf(state);
  const [mark, word] = STATES[style] ?? RESULTS[style] ?? ["·", oneLine(state, 40)];
  return html`<span class=${`state ${style}`} title=${word}><span aria-hidden="true">${mark}</span><span class="visually-hidden">${word}</span></span>`;
}

/** The calls of a program. A long list is windowed, and its rest is fetched when asked for. */
function Nested({ call, total, conversation }) {
  const [all, setAll] = useState(null);
  const [error, setError] = useState(null);
  const calls = all && all.length > call.nested.length ? all : call.nested;
  const more = async () => {
    try {
      const found = [...calls];
      while (found.length < total) {
        const page = await read("sessions.nested", {
          sessionKey: conversation.key, callId: call.id, runId: call.runId, after: found.length, limit: MORE_CALLS,
        });
        if (!page.calls.length) break;
        found.push(...page.calls);
      }
      setAll(found);
    } catch (failure) {
      setError(failure);
    }
  };
  const windowed = calls.length > FEW_CALLS;
  return html`
    <div class="nested">
      ${windowed
        ? html`<${Windowed} items=${calls} height=${ROW} label="Calls of the program" keyOf=${(each) => each.callId} row=${(each) => html`<${NestedRow} call=${each} />`} />`
        : html`<ul aria-label="Calls of the program">${calls.map((each) => html`<li key=${each.callId}><${NestedRow} call=${each} /></li>`)}</ul>`}
      ${calls.length < total && html`<button class="link" onClick=${more}>Show all ${count(total, "call")}</button>`}
      ${error && html`<${Problem} error=${error} />`}
    </div>`;
}

export function NestedRow({ call }) {
  const name = oneLine(shortId(call.toolId ?? call.name ?? ""));
  return html`
    <div class="nested-row">
      <${StateMark} state=${call.state} />
      <span class="mono name" title=${oneLine(call.toolId ?? "")}>${name}</span>
      ${call.inputPreview !== undefined && html`<span class="mono quiet words">${oneLine(wordsOf(call.inputPreview))}</span>`}
      ${call.code && html`<span class="bad">${oneLine(call.code)}</span>`}
      <span class="quiet ms">${call.ms === undefined || call.ms === null ? "" : duration(call.ms)}</span>
    </div>`;
}

/** A tool's id without the parts that say nothing: `mcp:orders:get` becomes `orders.get`. */
export function shortId(id) {
  const parts = id.slice(0, 400).split(":");
  if (parts[0] === "openclaw") return parts.slice(2).join(":") || id;
  return parts.length > 2 ? parts.slice(1).join(".") : id;
}

/** The result of `exec` or `wait` as the gateway has it: status, value, output, error. */
export function ProgramResult({ result, took, open = true }) {
  const hasValue = result.value !== undefined && result.value !== null;
  // The result of a tool may have the same members with other types.
  const [output, attachments, notes] = [result.output, result.attachments, result.notes].map((it) => (Array.isArray(it) ? it : []));
  return html`
    <details class="result" open=${open || result.status !== "completed"}>
      <summary><${StateMark} state=${result.status} /> Result: ${oneLine(result.status)}${took === undefined ? "" : `, ${duration(took)}`}</summary>
      ${result.error && html`<p class="bad"><strong>${oneLine(result.code ?? "error")}</strong> <${Text} value=${result.error} limit=${1200} /></p>`}
      ${output.length > 0 && html`<div class="output"><h4>Output</h4>
        ${output.slice(0, 200).map((item, at) => html`<${Value} key=${at} value=${item?.text ?? item?.value ?? item} />`)}
        ${output.length > 200 && html`<p class="quiet">${output.length - 200} more items are not shown.</p>`}</div>`}
      ${hasValue && html`<div><h4>Value</h4><${Value} value=${result.value} /></div>`}
      ${attachments.map((image, at) => html`<${Picture} key=${at} mediaType=${image?.mimeType} data=${image?.data} />`)}
      ${notes.map((note, at) => html`<p key=${at} class="quiet">${oneLine(note)}</p>`)}
      ${!hasValue && !output.length && !result.error && result.status === "completed" && html`<p class="quiet">The program returned nothing.</p>`}
    </details>`;
}

/** A value of a program: text as text, everything else as JSON. */
export function Value({ value }) {
  if (typeof value === "string") return html`<div class="value"><${Text} value=${value} limit=${2000} /></div>`;
  return html`<${Json} value=${value} label="Value" />`;
}

/** Why the last turn failed, if it did. */
export function Failed({ conversation }) {
  if (!conversation.failed) return null;
  return html`<div class="problem" role="alert"><${Text} value=${conversation.failed} limit=${1000} />
    <button type="button" class="plain" onClick=${() => conversation.forget("failed")}>Dismiss</button></div>`;
}
