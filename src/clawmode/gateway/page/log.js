// The tail of the gateway's log, which follows what is written.

import { NotAllowed, read, whyNot } from "./acts.js";
import { Dialog, Empty, Json, Problem, Text, Windowed, html, oneLine, useEffect, useRef, useState } from "./parts.js";

const POLL_MS = 2000;
const FIRST = 500;
const MOST = 5000;
const ROW = 24;
const LEVELS = ["debug", "info", "warning", "error"];

export function Log() {
  const [lines, setLines] = useState(null);
  const [level, setLevel] = useState("info");
  const [follow, setFollow] = useState(true);
  const [chosen, setChosen] = useState(null);
  const [error, setError] = useState(null);
  const cursor = useRef(null);
  const box = useRef(null);

  useEffect(() => {
    let timer = 0;
    let over = false;
    cursor.current = null;
    const load = async () => {
      const after = cursor.current;
      try {
        const given = { level, limit: FIRST, ...(after !== null && { after }) };
        const page = await read("logs.tail", given);
        if (over) return;
        cursor.current = page.next ?? null;
        setError(null);
        // A lower number comes from a gateway that was started again: its log begins anew.
        if (after === null || page.next < after) setLines(page.lines);
        else if (page.lines.length) setLines((old) => [...(old ?? []), ...page.lines].slice(-MOST));
      } catch (failure) {
        if (!over) setError(failure);
      }
      if (!over && follow) timer = setTimeout(load, POLL_MS);
    };
    if (whyNot("logs.tail")) return undefined;
    load();
    return () => {
      over = true;
      clearTimeout(timer);
    };
  }, [level, follow]);

  useEffect(() => {
    const list = box.current?.querySelector(".windowed");
    if (list && follow) list.scrollTop = list.scrollHeight;
  }, [lines, follow]);

  if (whyNot("logs.tail")) return html`<${NotAllowed} method="logs.tail" what="The log" />`;
  return html`
    <div class="bar">
      <label>From level <select value=${level} onChange=${(event) => setLevel(event.currentTarget.value)}>
        ${LEVELS.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>
      <label class="check"><input type="checkbox" checked=${follow} onChange=${() => setFollow(!follow)} /> Follow</label>
      ${lines && html`<span class="quiet">${lines.length} lines</span>`}
    </div>
    ${error && html`<${Problem} error=${error} />`}
    ${!lines && !error && html`<p class="quiet" role="status">Loading…</p>`}
    ${lines && !lines.length && html`<${Empty} title="The log is empty">No line has this level.<//>`}
    ${lines?.length > 0 && html`<div class="fill" ref=${box}><${Windowed} items=${lines} height=${ROW} label="Log lines"
      keyOf=${(line) => line.n} onOpen=${setChosen} row=${(line) => html`<${Line} line=${line} />`} /></div>`}
    ${chosen && html`<${Whole} line=${chosen} onClose=${() => setChosen(null)} />`}`;
}

function Line({ line }) {
  return html`
    <div class=${`log-line ${LEVELS.includes(line.level) ? line.level : "error"}`}>
      <span class="quiet">${oneLine(line.at).slice(11, 19)}</span>
      <span class="level">${oneLine(line.level, 20)}</span>
      <span class="message">${oneLine(line.message, 400)}</span>
    </div>`;
}

function Whole({ line, onClose }) {
  const { at, level, logger, message, traceback, about } = line;
  return html`
    <${Dialog} title="Log line" onClose=${onClose}>
      <p class="facts quiet"><span>${oneLine(at)}</span><span>${oneLine(level)}</span><span class="mono">${oneLine(logger)}</span></p>
      <${Text} value=${message} block />
      ${traceback && html`<pre><${Text} value=${traceback} block /></pre>`}
      ${about && html`<${Json} value=${about} label="Fields" />`}
    <//>`;
}
