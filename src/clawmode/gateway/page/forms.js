// Forms from JSON Schema, for the input that a tool asks for. The schema is a stranger's.

import { connection } from "./connection.js";
import { Action, Problem, Text, asText, html, oneLine, useState } from "./parts.js";

const MAX_FIELDS = 50;
const MAX_CHOICES = 200;
const TYPES = { __proto__: null, email: "email", uri: "url", date: "date" };

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

// Returns [{value, label}] if the schema lists its values.
function choicesOf(schema) {
  const where = schema.type === "array" && isObject(schema.items) ? schema.items : schema;
  const named = [where.oneOf, where.anyOf].find(Array.isArray);
  if (named) {
    return named.filter((it) => isObject(it) && "const" in it).map((it) => ({ value: it.const, label: asText(it.title ?? it.const) }));
  }
  if (!Array.isArray(where.enum)) return [];
  const labels = Array.isArray(where.enumNames) ? where.enumNames : [];
  return where.enum.map((value, index) => ({ value, label: asText(labels[index] ?? value) }));
}

function fieldsOf(schema) {
  const properties = isObject(schema) && isObject(schema.properties) ? schema.properties : {};
  const required = isObject(schema) && Array.isArray(schema.required) ? schema.required : [];
  return Object.entries(properties)
    .slice(0, MAX_FIELDS)
    .filter(([, field]) => isObject(field))
    .map(([name, field]) => {
      const choices = choicesOf(field).slice(0, MAX_CHOICES);
      const kind = choices.length ? (field.type === "array" ? "several" : "choice") : ["boolean", "number", "integer", "string"].includes(field.type) ? field.type : "json";
      return { name, field, choices, kind, required: required.includes(name) };
    });
}

function initialOf({ field, kind, choices }) {
  const given = field.default;
  if (kind === "boolean") return given === true;
  if (kind === "several") return choices.map(({ value }) => Array.isArray(given) && given.includes(value));
  if (kind === "choice") return String(choices.findIndex(({ value }) => value === given));
  if (given === undefined) return "";
  return kind === "json" ? JSON.stringify(given) : asText(given);
}

// Returns the value of a field, or undefined if it was left empty.
function valueOf({ name, field, kind, choices }, text) {
  if (kind === "boolean") return text;
  if (kind === "several") return choices.filter((_, index) => text[index]).map(({ value }) => value);
  if (kind === "choice") return choices[Number(text)]?.value;
  if (text === "") return undefined;
  const label = asText(field.title ?? name);
  if (kind === "number" || kind === "integer") {
    const number = Number(text);
    if (!Number.isFinite(number) || (kind === "integer" && !Number.isInteger(number))) throw new Error(`${label} must be ${kind === "integer" ? "an integer" : "a number"}`);
    return number;
  }
  if (kind === "json") {
    try {
      return JSON.parse(text);
    } catch {
      throw new Error(`${label} must be JSON`);
    }
  }
  return text;
}

function Field({ id, entry, value, onChange }) {
  const { name, field, kind, choices, required } = entry;
  const label = html`<${Text} value=${field.title ?? name} exact limit=${200} />${!required && kind !== "boolean" && html` <span class="quiet small">optional</span>`}`;
  const about = field.description && html`<p class="hint" id=${`${id}-about`}><${Text} value=${field.description} limit=${600} /></p>`;
  const shared = { id, "aria-describedby": field.description ? `${id}-about` : undefined };
  if (kind === "boolean") {
    return html`<div class="field"><label><input type="checkbox" ...${shared} checked=${value} onChange=${(event) => onChange(event.target.checked)} /> ${label}</label>${about}</div>`;
  }
  if (kind === "several") {
    const toggle = (index) => onChange(value.map((it, at) => (at === index ? !it : it)));
    return html`<fieldset class="field" aria-describedby=${shared["aria-describedby"]}><legend>${label}</legend>
      ${choices.map((choice, index) => html`<label key=${index}><input type="checkbox" checked=${value[index]} onChange=${() => toggle(index)} /> ${oneLine(choice.label, 120)}</label>`)}
      ${about}</fieldset>`;
  }
  const type = kind === "number" || kind === "integer" ? "number" : TYPES[field.format] || "text";
  const set = (event) => onChange(event.target.value);
  const control =
    kind === "choice"
      ? html`<select ...${shared} required=${required} value=${value} onChange=${set}>
          <option value="-1"></option>
          ${choices.map((choice, index) => html`<option key=${index} value=${String(index)}>${oneLine(choice.label, 120)}</option>`)}
        </select>`
      : kind === "json"
        ? html`<textarea ...${shared} class="mono" spellcheck="false" required=${required} value=${value} onInput=${set}></textarea>`
        : html`<input ...${shared} type=${type} step=${kind === "integer" ? 1 : "any"} autocomplete="off" required=${required}
            minlength=${field.minLength} maxlength=${field.maxLength} min=${field.minimum} max=${field.maximum} value=${value} onInput=${set} />`;
  return html`<div class="field"><label for=${id}>${label}</label>${control}${about}</div>`;
}

// The form of a question, with a button to decline. A question may have an address instead.
// `outcome` says who answered; the form then keeps its place.
export function InputForm({ question, disabled, outcome }) {
  const fields = fieldsOf(question.schema);
  const [values, set] = useState(() => fields.map(initialOf));
  const [error, setError] = useState(null);
  const answer = (content) => connection.request("input.answer", { id: question.id, content });
  const submit = async () => {
    setError(null);
    const content = Object.create(null); // a field may be called "__proto__"
    fields.forEach((entry, index) => {
      const value = valueOf(entry, values[index]);
      if (value === undefined && entry.required) throw new Error(`${asText(entry.field.title ?? entry.name)} is required`);
      if (value !== undefined) content[entry.name] = value;
    });
    await answer(content);
  };
  const onSubmit = async (event) => {
    event.preventDefault();
    try {
      await submit();
    } catch (problem) {
      setError(problem);
    }
  };
  const isWeb = question.url && /^https?:\/\//i.test(question.url);
  return html`<form class="input-form" onSubmit=${onSubmit} novalidate><fieldset class="plain" disabled=${disabled}>
    ${question.url &&
    html`<p>The tool wants you to open this address. Look at it first: it may be a stranger's.</p>
      <p class="mono"><${Text} value=${question.url} exact /></p>
      ${isWeb && html`<p><a href=${question.url} target="_blank" rel="noopener noreferrer external">Open the address in a new tab</a></p>`}`}
    ${fields.map((entry, index) => html`<${Field} key=${entry.name} id=${`${question.id}-${index}`} entry=${entry} value=${values[index]}
        onChange=${(value) => set(values.map((it, at) => (at === index ? value : it)))} />`)}
    ${error && html`<${Problem} error=${error} />`}
    <div class="buttons">
      <button type="submit" class="primary">${question.url ? "Done" : "Send"}</button>
      <${Action} run=${() => answer(null)}>Decline</${Action}>
      ${outcome}
    </div>
  </fieldset></form>`;
}
