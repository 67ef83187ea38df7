// Guest side, in a VM of its own with acorn: finds the first use of a module in a cell.
//
// Returns "line column what", or "" if there is none or if acorn cannot parse the text (the engine
// reports the error then). The walk keeps its own stack: the tree of a hostile text is deep.
(function (source) {
  "use strict";
  let tree;
  try {
    tree = acorn.parse(source, {
      ecmaVersion: "latest",
      sourceType: "script",
      allowImportExportEverywhere: true,
    });
  } catch {
    return "";
  }

  // `(0, require)(x)`, `require?.(x)` and `(require)(x)` are calls of `require` too.
  function callee(node) {
    for (;;) {
      if (node.type === "SequenceExpression") node = node.expressions[node.expressions.length - 1];
      else if (node.type === "ChainExpression") node = node.expression;
      else return node;
    }
  }

  function forbidden(node) {
    switch (node.type) {
      case "ImportDeclaration":
        return "import";
      case "ImportExpression":
        return "import()";
      case "MetaProperty":
        return node.meta.name === "import" ? "import.meta" : "";
      case "CallExpression":
      case "NewExpression": {
        const target = callee(node.callee);
        return target.type === "Identifier" && target.name === "require" ? "require()" : "";
      }
      default:
        return "";
    }
  }

  let found = "";
  let position = Infinity;
  const pending = [tree];
  while (pending.length > 0) {
    const node = pending.pop();
    if (node === null || typeof node !== "object") continue;
    if (typeof node.type === "string") {
      const what = forbidden(node);
      if (what !== "" && node.start < position) {
        position = node.start;
        found = what;
      }
    }
    for (const key in node) {
      if (key !== "regex" && typeof node[key] === "object") pending.push(node[key]);
    }
  }
  if (found === "") return "";
  const before = source.slice(0, position).split(/\r\n|[\n\r\u2028\u2029]/);
  return before.length + " " + (before[before.length - 1].length + 1) + " " + found;
})
