// What happens while the page reads: with answers of the gateway in an order that a test chooses.
async () => {
  const { src } = document.querySelector("script");
  const load = (name) => import(src.replace("app.js", name));
  const { connection } = await load("connection.js");
  const { questions } = await load("questions.js");
  const { tree } = await load("tree.js");
  const moment = () => new Promise((resolve) => setTimeout(resolve, 20));
  const real = connection.request;
  const answers = [];
  connection.request = (method) => new Promise((resolve, reject) => answers.push({ method, resolve, reject }));
  const answer = (wanted, payload) => {
    const at = answers.findIndex(({ method }) => method === wanted);
    answers.splice(at, 1)[0].resolve(payload);
  };
  const happens = (event, payload, at) => connection.handle({ event, payload, at });
  const found = {};

  // While the three lists are read, one question is asked and another one is answered.
  const asked = (id) => ({ id, kind: "exec", toolId: "t", title: id, input: {}, sessionKey: "", expiresAtMs: Date.now() + 60000 });
  for (const listener of [...connection.resets]) listener();
  await moment();
  answer("exec.approval.list", { approvals: [asked("old")], settled: [] });
  happens("exec.approval.requested", asked("new"));
  happens("exec.approval.resolved", { id: "old", decision: "deny", by: "bob" });
  answer("plugin.approval.list", { approvals: [], settled: [] });
  answer("input.list", { inputs: [], settled: [] });
  await moment();
  found.questions = Object.fromEntries(questions.get().map(({ id, settled, by }) => [id, settled ? by : "waits"]));

  // The connection is lost during a read: the page reads again.
  answers.length = 0;
  for (const listener of [...connection.resets]) listener();
  await moment();
  for (const { reject } of answers.splice(0)) reject({ code: "DISCONNECTED", message: "lost" });
  await moment();
  found.again = answers.map(({ method }) => method).sort();

  // While the pages of the tree are read, the gateway says that changes were left out.
  answers.length = 0;
  const node = (id, state) => ({ id, parent: null, kind: "turn", title: id, state, sessionKey: "s", runId: id, startedAt: 1 });
  happens("runs.changed", { reset: true }, 1e9);
  await moment();
  answer("runs.tree", { nodes: [node("a", "running")], next: 1, leftOut: 0, at: 1e9 });
  await moment();
  happens("runs.changed", { reset: true }, 1e9 + 1);
  answer("runs.tree", { nodes: [], next: null, leftOut: 0, at: 1e9 + 2 });
  await moment();
  if (answers.some(({ method }) => method === "runs.tree")) {
    answer("runs.tree", { nodes: [node("a", "completed")], next: null, leftOut: 0, at: 1e9 + 3 });
  }
  await moment();
  found.tree = [...tree.get().nodes.values()].map(({ state }) => state);

  // The tree is read when the missed events were fetched, and not before.
  answers.length = 0;
  connection.change({ phase: "waiting", lostAt: 1 });
  connection.change({ phase: "online" });
  await moment();
  found.early = answers.filter(({ method }) => method.startsWith("runs.")).length;
  connection.change({ lostAt: 0 });
  await moment();
  found.late = answers.filter(({ method }) => method.startsWith("runs.")).length;
  connection.request = real;
  return found;
}
