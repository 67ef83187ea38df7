// Drives `clawmode mcp` with the official TypeScript SDK and prints what it saw, as JSON.
//
// `node ts_client.mjs SETTINGS` takes {sdk, era, scene} with either {command, args} for stdio or
// {url, token} for HTTP. `sdk` is a package, `era` what the newer of them negotiates.

const settings = JSON.parse(process.argv[2]);
const isFirst = settings.sdk === "@modelcontextprotocol/sdk";
const seen = {};

// ---- What differs between the two lines of the SDK ----

async function load() {
  const paths = isFirst
    ? ["/client/index.js", "/client/stdio.js", "/client/streamableHttp.js", "/types.js"]
    : ["", "/stdio"];
  const modules = await Promise.all(paths.map((path) => import(settings.sdk + path)));
  return Object.assign({}, ...modules);
}

function callTool(client, name, given, options) {
  const params = { name, arguments: given };
  return isFirst ? client.callTool(params, undefined, options) : client.callTool(params, options);
}

function noteVersion(transport) {
  const pass = transport.setProtocolVersion?.bind(transport);
  transport.setProtocolVersion = (version) => {
    seen.protocol = version;
    pass?.(version);
  };
}

// ---- A client ----

async function connect(answer) {
  const library = await load();
  const client = new library.Client(
    { name: "clawmode-tests", version: "1" },
    {
      capabilities: answer ? { elicitation: { form: {} } } : {},
      ...(isFirst ? {} : { versionNegotiation: { mode: settings.era } }),
    },
  );
  if (answer) {
    client.setRequestHandler(isFirst ? library.ElicitRequestSchema : "elicitation/create", answer);
  }
  const transport = makeTransport(library);
  noteVersion(transport);
  await client.connect(transport);
  // From here on the client checks results against the schemas that the tools declare.
  seen.tools = (await client.listTools()).tools.map((tool) => tool.name);
  return client;
}

function makeTransport(library) {
  if (!settings.url) {
    return new library.StdioClientTransport({ command: settings.command, args: settings.args });
  }
  const headers = { authorization: `Bearer ${settings.token}` };
  return new library.StreamableHTTPClientTransport(new URL(settings.url), {
    requestInit: { headers },
  });
}

// The first line is JSON, and the output of the program follows.
function read(result) {
  const [line, ...output] = result.content[0].text.split("\n");
  return { ...JSON.parse(line), ...(output.length ? { output: output.join("\n") } : {}) };
}

async function exec(client, code, options) {
  return read(await callTool(client, "exec", { code }, options));
}

async function wait(client, { runId }) {
  return read(await callTool(client, "wait", { runId }));
}

// ---- Scenes ----

// The program ends only after the client was told of the calls: the SDK drops progress that it
// reads together with the result.
async function fanOut() {
  const client = await connect();
  const code = `
    const [left, right, echo, sum] = await Promise.all([
      tools.meet({ name: "left" }),
      tools.meet({ name: "right" }),
      MCP.every.echo({ message: "hi" }),
      MCP.every.getSum({ a: 2, b: 3 }),
    ]);
    await tools.parked();
    return { left, right, echo: echo.content[0].text, sum: sum.content[0].text };`;
  seen.progress = [];
  let release;
  const onprogress = (progress) => {
    seen.progress.push(progress);
    const completed = seen.progress.filter(({ message }) => message.endsWith(" completed"));
    if (completed.length === 4) release ??= exec(client, "return tools.release()");
  };
  seen.result = await exec(client, code, { onprogress });
  seen.release = await release;
  return client;
}

async function waiting() {
  const client = await connect();
  seen.first = await exec(client, `text("begun"); return tools.parked()`);
  seen.release = await exec(client, "return tools.release()");
  do seen.last = await wait(client, seen.first);
  while (seen.last.status === "waiting");
  seen.unasked = await exec(client, `return tools.write({ text: "x" })`);
  return client;
}

async function asked() {
  seen.questions = [];
  const client = await connect(({ params }) => {
    seen.questions.push(params.message);
    return params.message.includes("good")
      ? { action: "accept", content: { decision: "allow-once" } }
      : { action: "decline" };
  });
  const code = `
    const written = [];
    for (const text of ["good", "bad"]) {
      written.push(await tools.write({ text }).catch((error) => error.code));
    }
    return written;`;
  seen.result = await exec(client, code);
  return client;
}

async function cancelled() {
  const client = await connect();
  const abort = new AbortController();
  const onprogress = ({ message }) => message.endsWith("hang start") && abort.abort("unwanted");
  seen.call = await exec(client, "return tools.hang()", { onprogress, signal: abort.signal }).catch(
    (error) => ({ error: error.message }),
  );
  seen.next = await exec(client, "return tools.after_hang()");
  return client;
}

const client = await { fanOut, waiting, asked, cancelled }[settings.scene]();
await client.close();
process.stdout.write(JSON.stringify(seen));
