// Values of strangers that are valid JSON, and that code does not expect.
async (odd) => {
  const { src } = document.querySelector("script");
  const load = (name) => import(src.replace("app.js", name));
  const { connection } = await load("connection.js");
  const { questions } = await load("questions.js");
  const { html, render } = await load("parts.js");
  const { ProgramResult, ToolCall } = await load("transcript.js");
  window.answers = [];
  connection.request = async (method, given) => (answers.push(JSON.stringify([method, given])), {});
  const schema = JSON.parse(`{"type": "object", "required": ["__proto__"], "properties": {
    "__proto__": {"type": "string", "title": "Proto"},
    "constructor": {"type": "string", "format": "constructor", "title": ${odd}, "description": ${odd}, "default": ${odd}},
    "choice": {"enum": [${odd}, "b"], "enumNames": ${odd}},
    "named": {"oneOf": [{"const": ${odd}, "title": ${odd}}]}}}`);
  const until = Date.now() + 60000;
  questions.set([
    { id: "1", kind: "input", toolId: "t", message: "odd", url: "javascript:alert(1)", schema, expiresAtMs: until, seenAt: 0 },
    { id: "2", kind: "exec", toolId: "t", title: "other", input: {}, expiresAtMs: until, seenAt: 0 },
  ]);
  // The result of a tool that looks like that of a program.
  const box = document.body.appendChild(document.createElement("div"));
  for (const status of [JSON.parse(odd), "constructor", "visually-hidden"]) {
    const details = { status, output: 1, notes: "n", attachments: {} };
    const call = { name: "t", nested: [], state: "completed", result: { details } };
    render(html`<div class="odd"><${ToolCall} call=${call} conversation=${{}} /></div>`, box);
  }
  return box.querySelectorAll(".visually-hidden .state, .call.visually-hidden").length;
}
