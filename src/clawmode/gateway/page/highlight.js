// Splits JavaScript, TypeScript and JSON into coloured pieces. It returns data, never markup: the
// caller turns each piece into an element whose content is a text node.

const KEYWORDS = new Set((
  "abstract as async await break case catch class const continue debugger declare default delete " +
  "do else enum export extends finally for from function get if implements import in infer " +
  "instanceof interface is keyof let namespace new of private protected public readonly return " +
  "satisfies set static super switch this throw try type typeof var void while with yield"
).split(" "));
const CONSTANTS = new Set("true false null undefined NaN Infinity".split(" "));
const TYPES = new Set((
  "any bigint boolean never number object string symbol unknown Array Date Map Promise Record Set"
).split(" "));
// The globals of a program: what the sandbox gives it.
const GLOBALS = new Set((
  "tools MCP ALL_TOOLS API image json load namespaces store text yield_control console"
).split(" "));

// A slash after one of these starts a regular expression; after anything else it divides.
const BEFORE_REGEX = /[=([{,;:!&|?+\-*%~^<>]$/;
const WORDS_BEFORE_REGEX = new Set("return typeof case in of do else void throw await yield".split(" "));

const SPACE = /\s+/y;
const COMMENT = /\/\/[^\n]*|\/\*[^]*?(?:\*\/|$)/y;
const STRING = /"(?:[^"\\\n]|\\[^])*"?|'(?:[^'\\\n]|\\[^])*'?/y;
const NUMBER = /(?:0[xob][\da-f_]+|\d[\d_]*(?:\.[\d_]*)?(?:e[+-]?\d+)?)n?/iy;
const WORD = /[\p{L}_$][\p{L}\p{N}_$]*/uy;
// Bounded, so that many slashes without a partner cost no quadratic time.
const REGEX = /\/(?:[^/\\\n[]|\\.|\[(?:[^\]\\\n]|\\.){0,100}\]){1,200}\/[a-z]{0,9}/y;
const TEMPLATE = /(?:[^`\\$]|\\[^]|\$(?!\{))+/y;
const ARROW_OR_DOTS = /=>|\.\.\./y;

// A longer source is shown without colours: the time must not depend on a stranger's text.
export const MAX_HIGHLIGHTED = 100_000;

/** Returns the pieces of a source as [kind, text]; together the texts are the source. */
export function tokens(source) {
  if (source.length > MAX_HIGHLIGHTED) return [["", source]];
  const found = [];
  // For each open template the number of braces that are open in its ${…}.
  const templates = [];
  let at = 0;
  let before = "";

  const match = (pattern) => {
    pattern.lastIndex = at;
    return pattern.exec(source)?.[0] ?? "";
  };
  const add = (kind, text) => {
    const last = found[found.length - 1];
    if (last && last[0] === kind && kind !== "property") last[1] += text;
    else found.push([kind, text]);
    at += text.length;
    if (kind !== "comment" && text.trim()) before = text.trimEnd();
  };
  const template = () => {
    const text = match(TEMPLATE);
    if (text) add("string", text);
    if (source[at] === "`") {
      add("string", "`");
      templates.pop();
    } else if (source.startsWith("${", at)) {
      add("mark", "${");
      templates[templates.length - 1] = 1;
    }
  };

  while (at < source.length) {
    if (templates.length && templates[templates.length - 1] === 0) {
      const start = at;
      template();
      if (at === start) add("string", source[at]);
      continue;
    }
    const char = source[at];
    let text;
    if ((text = match(SPACE))) add("", text);
    else if ((text = match(COMMENT))) add("comment", text);
    else if ((text = match(STRING))) add(isKey(source, at + text.length) ? "property" : "string", text);
    else if (char === "`") {
      add("string", "`");
      templates.push(0);
    } else if (/\d/.test(char)) add("number", match(NUMBER));
    else if ((text = match(WORD))) add(wordKind(text, before, source, at + text.length), text);
    else if (char === "/" && startsRegex(before) && (text = match(REGEX))) add("regex", text);
    else if ((text = match(ARROW_OR_DOTS))) add("mark", text);
    else {
      const open = templates.length - 1;
      if (open >= 0 && char === "{") templates[open] += 1;
      if (open >= 0 && char === "}") templates[open] -= 1;
      add(open >= 0 && templates[open] === 0 ? "mark" : "", char);
    }
  }
  return found;
}

function startsRegex(before) {
  return before === "" || BEFORE_REGEX.test(before) || WORDS_BEFORE_REGEX.has(before);
}

function next(source, at) {
  while (at < source.length && /\s/.test(source[at])) at += 1;
  return source[at] ?? "";
}

function isKey(source, end) {
  return next(source, end) === ":";
}

function wordKind(word, before, source, end) {
  const afterDot = before.endsWith(".") && !before.endsWith("...");
  if (!afterDot) {
    if (CONSTANTS.has(word)) return "constant";
    if (next(source, end) === ":" && !before.endsWith("?")) return "property";
    if (KEYWORDS.has(word)) return "keyword";
    if (TYPES.has(word)) return "type";
    if (GLOBALS.has(word)) return "global";
  }
  if (next(source, end) === "(") return "call";
  return afterDot ? "property" : "";
}
