// The field in which people write to an agent: send, steer, attach images, stop.

import { Act, whyNot } from "./acts.js";
import { Problem, Text, html, oneLine, useRef, useState } from "./parts.js";

const MAX_IMAGES = 20;
const MAX_BYTES = 12 << 20;
const ACCEPTED = "image/png,image/jpeg,image/gif,image/webp";

export function Composer({ conversation, images = false }) {
  const [text, setText] = useState("");
  const [attached, setAttached] = useState([]);
  const [error, setError] = useState(null);
  const field = useRef(null);
  const busy = conversation.runs?.length > 0;
  const reason = whyNot("chat.send");
  const allowed = !reason;

  const send = async () => {
    const message = text.trim();
    if (!message && !attached.length) return;
    setText("");
    setAttached([]);
    setError(null);
    try {
      await conversation.send(message, attached.map(({ data, mediaType }) => ({ data, mediaType })));
    } catch (failure) {
      // The words are not lost, whatever went wrong.
      setText((now) => now || message);
      setAttached(attached);
      setError(failure);
    }
    field.current?.focus();
  };
  const onKeyDown = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  const attach = async ({ currentTarget }) => {
    const files = [...currentTarget.files].slice(0, MAX_IMAGES - attached.length);
    currentTarget.value = "";
    const large = files.find((file) => file.size > MAX_BYTES);
    if (large) return setError(new Error(`${large.name} is larger than 12 MB.`));
    setAttached([...attached, ...(await Promise.all(files.map(read)))]);
  };

  return html`
    <form class="composer" onSubmit=${(event) => (event.preventDefault(), send())}>
      ${conversation.note && html`<p class="quiet" role="status"><${Text} value=${conversation.note} />
        <button type="button" class="link" onClick=${() => conversation.forget("note")}>Dismiss</button></p>`}
      ${error && html`<${Problem} error=${error} />`}
      ${attached.length > 0 && html`<ul class="attached">${attached.map((image, at) => html`
        <li key=${at}><img alt=${oneLine(image.name)} src=${`data:${image.mediaType};base64,${image.data}`} />
          <button type="button" class="link" onClick=${() => setAttached(attached.filter((_, each) => each !== at))}>Remove</button></li>`)}</ul>`}
      <label class="visually-hidden" for="message">Message</label>
      <textarea id="message" ref=${field} rows="2" value=${text} disabled=${!allowed}
        placeholder=${allowed ? (busy ? "Steer the running turn" : "Write a message") : `You cannot write here. ${reason}`}
        onInput=${(event) => setText(event.currentTarget.value)} onKeyDown=${onKeyDown} />
      <div class="buttons">
        ${images && html`<label class=${`button attach ${allowed ? "" : "off"}`}>Add image<input type="file" class="visually-hidden" accept=${ACCEPTED} multiple disabled=${!allowed} onChange=${attach} /></label>`}
        <span class="quiet hint">Enter sends, Shift+Enter starts a line</span>
        ${busy && html`<${Act} method="chat.abort" kind="danger" run=${conversation.stop}>Stop<//>`}
        <button class="primary" disabled=${!allowed || (!text.trim() && !attached.length)}>${busy ? "Steer" : "Send"}</button>
      </div>
    </form>`;
}

function read(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve({ name: file.name, mediaType: file.type, data: reader.result.split(",")[1] });
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
