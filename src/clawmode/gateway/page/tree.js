// The tree of what runs now, as the gateway reports it: read once, then changed by events.

import { connection } from "./connection.js";
import { createStore } from "./state.js";

const PAGE = 2000;
export const OVER = new Set(["completed", "failed", "cancelled"]);

// {nodes, children, roots, leftOut, loaded}: a new object after each change, over the same maps.
const empty = () => ({ nodes: new Map(), children: new Map(), roots: [], leftOut: 0, loaded: false });
export const tree = createStore(empty());

let held = null; // changes that arrive while the tree is read

function place(found, node) {
  const known = found.nodes.has(node.id);
  found.nodes.set(node.id, node);
  if (known) return;
  if (node.parent && found.nodes.has(node.parent)) {
    if (!found.children.has(node.parent)) found.children.set(node.parent, []);
    found.children.get(node.parent).push(node.id);
  } else {
    found.roots.push(node.id);
  }
}

function remove(found, ids) {
  const gone = new Set(ids.filter((id) => found.nodes.has(id)));
  if (!gone.size) return;
  const parents = new Set();
  for (const id of gone) {
    parents.add(found.nodes.get(id).parent);
    found.nodes.delete(id);
    found.children.delete(id);
  }
  for (const parent of parents) {
    const list = found.children.get(parent);
    if (list) found.children.set(parent, list.filter((id) => !gone.has(id)));
  }
  found.roots = found.roots.filter((id) => !gone.has(id));
}

function change(found, { nodes, removed }) {
  for (const node of nodes) place(found, node);
  remove(found, removed);
}

async function read() {
  if (held !== null) return;
  held = [];
  let again = false;
  try {
    const found = empty();
    let after = 0;
    let at = 0;
    do {
      const page = await connection.request("runs.tree", { limit: PAGE, after });
      at = at || page.at; // the changes since the first page are applied below
      for (const node of page.nodes) place(found, node);
      found.leftOut = page.leftOut;
      after = page.next;
    } while (after !== null);
    for (const each of held) if (each.at > at && !each.payload.reset) change(found, each.payload);
    tree.set({ ...found, loaded: true });
    again = held.some((each) => each.at > at && each.payload.reset);
  } catch {
    // The connection was lost: the next one reads again.
  } finally {
    held = null;
  }
  if (again) read(); // the gateway has left out changes since the first page
}

function onChange(payload, _, at) {
  if (held !== null) held.push({ payload, at });
  else if (payload.reset) read();
  else {
    const found = { ...tree.get() };
    change(found, payload);
    tree.set(found);
  }
}

// Follows the tree until the returned function is called. The gateway keeps no changes for clients
// that were away, so the tree is read after every connection.
export function followTree() {
  const stopKeeping = connection.keep("runs.follow", { on: true }, ["runs.follow", { on: false }]);
  const stopListening = connection.on("runs.changed", onChange);
  let ready = false;
  const stopWatching = connection.watch(({ phase, lostAt }) => {
    const before = ready;
    // After missed events were fetched: those that arrive meanwhile count as fetched, and the
    // gateway keeps no changes of the tree.
    ready = phase === "online" && !lostAt;
    if (ready && !before) connection.request("runs.follow", { on: true }).then(read, () => {});
  });
  return () => {
    stopWatching();
    stopListening();
    stopKeeping();
  };
}

// Returns the rows of the tree in the order of the screen: {node, depth, count, open}.
// `filter` is "all", "active" (what has not ended) or "waiting"; ancestors of a match are shown too.
export function rowsOf(found, filter, folded) {
  const matches = {
    all: () => true,
    active: (node) => !OVER.has(node.state),
    waiting: (node) => node.state === "waiting" || node.state === "parked" || node.state === "queued",
  }[filter];
  let shown = null;
  if (filter !== "all") {
    shown = new Set();
    for (const node of found.nodes.values()) {
      if (!matches(node)) continue;
      for (let each = node; each && !shown.has(each.id); each = found.nodes.get(each.parent)) shown.add(each.id);
    }
  }
  const rows = [];
  const visit = (id, depth) => {
    if (shown !== null && !shown.has(id)) return;
    const children = found.children.get(id) || [];
    const open = !folded.has(id);
    rows.push({ node: found.nodes.get(id), depth, count: children.length, open });
    if (open) for (const child of children) visit(child, depth + 1);
  };
  const rank = (id) => (OVER.has(found.nodes.get(id).state) ? 1 : 0);
  const start = (id) => found.nodes.get(id).startedAt;
  const roots = [...found.roots].sort((one, other) => rank(one) - rank(other) || start(other) - start(one));
  for (const id of roots) visit(id, 0);
  return rows;
}
