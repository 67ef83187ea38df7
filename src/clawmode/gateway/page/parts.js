// Parts that all views share: text of strangers, code, times, long lists, dialogs.
//
// Text from strangers becomes text nodes only. Nothing here or in a view sets HTML.

import { html, useEffect, useLayoutEffect, useRef, useState } from "./preact.js";
import { connection } from "./connection.js";
import { tokens } from "./highlight.js";

export { html };
export { Component, createContext, render, useCallback, useContext, useEffect, useLayoutEffect, useMemo, useReducer, useRef, useState } from "./preact.js";

// ---- Text of strangers ----

// The same characters as in `clawmode.text`: what a screen acts on or does not show.
const INVISIBLE =
  /[\x00-\x1f\x7f-\xa0\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f\u205f-\u206f\u2800\u3000\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\u{110bd}\u{110cd}\u{13430}-\u{1345f}\u{1bca0}-\u{1bca3}\u{1d159}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]/gu;
const IN_PROSE = "\n\t\xa0\u2002\u2003\u2007\u2009\u200a\u200c\u200d\u202f\u3000\ufe0e\ufe0f";
const IN_CODE = "\n\t";

const escaped = (char) => {
  const code = char.codePointAt(0);
  return code < 0x10000 ? `\\u${code.toString(16).padStart(4, "0")}` : `\\u{${code.toString(16)}}`;
};

// Returns a value of a stranger as text. Not every object can become a string: {"toString": 1}.
export function asText(value) {
  return typeof value === "object" && value !== null ? JSON.stringify(value) : String(value ?? "");
}

// Returns the text with every character written out that would be invisible or move others.
export function visible(text, keep = "") {
  return asText(text).replace(INVISIBLE, (char) => (keep.includes(char) ? char : escaped(char)));
}

// Returns the text on one line, at most `limit` characters long.
export function oneLine(text, limit = 200) {
  const whole = asText(text);
  const start = whole.slice(0, limit * 4);
  const line = visible(start.replace(/\s+/g, " ").trim());
  return line.length > limit || start.length < whole.length ? `${line.slice(0, limit - 1)}…` : line;
}

// Cuts at `limit` characters, not inside of a surrogate pair.
function cut(text, limit) {
  return /[\ud800-\udbff]/.test(text[limit - 1] || "") ? text.slice(0, limit - 1) : text.slice(0, limit);
}

const FIRST = 4000;

function More({ shown, total, onMore }) {
  const rest = total - shown;
  return html`<button class="more" type="button" onClick=${onMore}>
    Show ${Math.min(rest, shown * 4).toLocaleString()} more of ${rest.toLocaleString()} characters
  </button>`;
}

// Text of a stranger: invisible characters are written out, a long text is cut.
// `exact` also writes out spaces that look like others, for what a person has to judge.
export function Text({ value, exact = false, limit = FIRST, block = false }) {
  const text = asText(value);
  const [shown, setShown] = useState(limit);
  const part = visible(cut(text, shown), exact ? IN_CODE : IN_PROSE);
  const more = text.length > shown && html`<${More} shown=${shown} total=${text.length} onMore=${() => setShown(shown * 5)} />`;
  return html`<${block ? "div" : "bdi"} class="said">${part}${more}<//>`;
}

// ---- Code ----

function highlight(source) {
  return tokens(source).map(([kind, text]) => (kind ? html`<span class=${`t-${kind}`}>${text}</span>` : text));
}

// A program or other code, highlighted, with every invisible character written out.
export function Code({ source, label = "Code", limit = FIRST * 2 }) {
  const text = asText(source);
  const [shown, setShown] = useState(limit);
  const part = visible(cut(text, shown), IN_CODE);
  return html`<div class="code">
    <pre tabindex="0" aria-label=${label}><code>${highlight(part)}</code></pre>
    ${text.length > shown && html`<${More} shown=${shown} total=${text.length} onMore=${() => setShown(shown * 5)} />`}
  </div>`;
}

// A JSON value, as code.
export function Json({ value, label = "JSON" }) {
  return html`<${Code} source=${JSON.stringify(value, null, 2)} label=${label} />`;
}

// ---- Times ----

// The time of the gateway, in ms: its clock may differ from that of the browser.
export const now = () => Date.now() - connection.skew;

const tickers = new Set();
setInterval(() => document.hidden || tickers.forEach((tick) => tick()), 1000);
document.addEventListener("visibilitychange", () => document.hidden || tickers.forEach((tick) => tick()));

// Renders the component every second while the page is visible, and returns the time in ms.
export function useNow(active = true) {
  const [, tick] = useState(0);
  useEffect(() => {
    if (!active) return undefined;
    const ticker = () => tick((count) => count + 1);
    tickers.add(ticker);
    return () => tickers.delete(ticker);
  }, [active]);
  return now();
}

// Returns a duration in words; `whole` leaves out what is shorter than a second, for times that tick.
export function duration(ms, whole = false) {
  const seconds = Math.max(ms, 0) / 1000;
  if (seconds < 1 && !whole) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10 && !whole) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${String(Math.floor(seconds % 60)).padStart(2, "0")} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${String(minutes % 60).padStart(2, "0")} min`;
  return `${Math.floor(hours / 24)} days`;
}

export function bytes(count) {
  if (count < 1024) return `${count} B`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let value = count / 1024;
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) [value, unit] = [value / 1024, unit + 1];
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

// A duration that ticks until `to` is known.
export function Duration({ from, to }) {
  const time = useNow(!to);
  const ms = (to || time) - from;
  return html`<span class="num">${duration(ms, !to)}</span>`;
}

// The time until `at`, which ticks.
export function Until({ at }) {
  const left = at - useNow();
  return html`<span class="num">${left > 0 ? duration(Math.ceil(left / 1000) * 1000, true) : "now"}</span>`;
}

// A point in time: "14:03:22" today, else with the date; the whole time in the tooltip.
export function Time({ at }) {
  const date = new Date(at);
  if (!at || Number.isNaN(date.getTime())) return html`<span class="quiet">–</span>`;
  const today = date.toDateString() === new Date().toDateString();
  const text = today ? date.toLocaleTimeString() : date.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
  return html`<time class="num" datetime=${date.toISOString()} title=${date.toLocaleString()}>${text}</time>`;
}

// ---- Small parts ----

// A state in words with a coloured dot: "running", "waiting", "ok", "failed", "queued", …
export function Chip({ state, children }) {
  return html`<span class=${`chip is-${String(state).replace(/[^a-z-]/gi, "")}`}>${children || oneLine(state, 40)}</span>`;
}

// A button that shows that its action is under way, and what went wrong.
export function Action({ run, children, kind = "", disabled = false, title }) {
  const [state, set] = useState({ busy: false, error: null });
  const act = async () => {
    set({ busy: true, error: null });
    try {
      await run();
      set({ busy: false, error: null });
    } catch (error) {
      set({ busy: false, error });
    }
  };
  return html`<span class="action">
    <button type="button" class=${kind} title=${title} disabled=${disabled || state.busy} aria-busy=${state.busy} onClick=${act}>${children}</button>
    ${state.error && html`<${Problem} error=${state.error} />`}
  </span>`;
}

// Scrolls a navigation that is wider than the screen to its current link.
export function useShown(nav, current) {
  useEffect(() => nav.current.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" }), [current]);
}

export function Problem({ error, retry }) {
  return html`<div class="problem" role="alert">
    <${Text} value=${error.message} limit=${600} />
    ${retry && html` <button type="button" onClick=${retry}>Try again</button>`}
  </div>`;
}

export function Empty({ title, children }) {
  return html`<div class="empty"><p class="empty-title">${title}</p>${children && html`<p>${children}</p>`}</div>`;
}

// A modal dialog. The browser keeps the focus inside, and Escape closes it.
export function Dialog({ title, onClose, children }) {
  const ref = useRef(null);
  useEffect(() => {
    const dialog = ref.current;
    const before = document.activeElement;
    dialog.showModal();
    return () => {
      dialog.close();
      if (before && before.isConnected) before.focus();
    };
  }, []);
  return html`<dialog ref=${ref} aria-label=${title} onCancel=${(event) => (event.preventDefault(), onClose())}>
    <header><h2>${title}</h2><button type="button" class="plain" aria-label="Close" onClick=${onClose}>✕</button></header>
    <div class="dialog-body">${children}</div>
  </dialog>`;
}

// ---- Long lists ----

const OVERSCAN = 8;
let lists = 0;

// A list of rows of the same height, of which only the visible ones are in the document.
//
// `row(item, index)` renders a row; `keyOf(item)` identifies it; `rowProps(item)` gives attributes.
// The list itself has the focus: arrows, Page Up/Down, Home and End move the active row, Enter and
// Space call `onOpen(item)`, Left and Right call `onFold(item, open)`.
export function Windowed({ items, height = 34, row, keyOf, rowProps = () => ({}), label, role = "list", rowRole = "listitem", onOpen, onFold }) {
  const ref = useRef(null);
  const [id] = useState(() => `list-${++lists}`);
  const [view, setView] = useState({ top: 0, size: 800 });
  const [activeKey, setActive] = useState(null);
  const index = items.findIndex((item) => keyOf(item) === activeKey);

  const measure = () => {
    const { scrollTop, clientHeight } = ref.current;
    setView((old) => (old.top === scrollTop && old.size === clientHeight ? old : { top: scrollTop, size: clientHeight }));
  };
  useLayoutEffect(() => {
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);

  const moveTo = (wanted) => {
    const next = Math.max(0, Math.min(items.length - 1, wanted));
    if (!items[next]) return;
    setActive(keyOf(items[next]));
    const list = ref.current;
    if (next * height < list.scrollTop) list.scrollTop = next * height;
    else if ((next + 1) * height > list.scrollTop + list.clientHeight) list.scrollTop = (next + 1) * height - list.clientHeight;
  };
  const onKeyDown = (event) => {
    if (event.target !== ref.current || event.altKey || event.ctrlKey || event.metaKey) return;
    const page = Math.max(1, Math.floor(view.size / height) - 1);
    const moves = { ArrowDown: index + 1, ArrowUp: index - 1, PageDown: index + page, PageUp: index - page, Home: 0, End: items.length - 1 };
    const item = items[index];
    if (event.key in moves) moveTo(moves[event.key]);
    else if (item && onOpen && (event.key === "Enter" || event.key === " ")) onOpen(item);
    else if (item && onFold && event.key === "ArrowRight") onFold(item, true);
    else if (item && onFold && event.key === "ArrowLeft") onFold(item, false);
    else return;
    event.preventDefault();
  };

  const first = Math.max(0, Math.floor(view.top / height) - OVERSCAN);
  const last = Math.min(items.length, Math.ceil((view.top + view.size) / height) + OVERSCAN);
  return html`<div class="windowed" ref=${ref} role=${role} aria-label=${label} tabindex="0" onScroll=${measure} onKeyDown=${onKeyDown}
      aria-activedescendant=${index >= first && index < last ? `${id}-${index}` : undefined}>
    <div class="windowed-all" role="presentation" style=${{ height: `${items.length * height}px` }}>
      ${items.slice(first, last).map((item, offset) => {
        const at = first + offset;
        return html`<div key=${keyOf(item)} id=${`${id}-${at}`} role=${rowRole} aria-setsize=${items.length} aria-posinset=${at + 1}
            class=${`row ${at === index ? "active" : ""}`} style=${{ top: `${at * height}px`, height: `${height}px` }}
            onClick=${() => (setActive(keyOf(item)), onOpen && onOpen(item))} ...${rowProps(item)}>${row(item, at)}</div>`;
      })}
    </div>
  </div>`;
}
