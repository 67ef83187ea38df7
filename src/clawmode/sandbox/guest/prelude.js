// Guest side: everything that a cell finds when it starts.
//
// This script runs once, before any guest code, to build the image that every cell starts from. It
// owns the bridge between guest and host (requests, replies, output, timers, the final value), and
// the value adapter, which converts the values of a guest to JSON.
//
// The state of the bridge lives in this closure, which guest code cannot reach. All intrinsics that
// the bridge calls are captured here, so a guest that redefines `Promise`, `JSON` or
// `Array.prototype` harms only itself. Two traps follow. Internal lists are null-prototype objects,
// because writing `array[i]` runs a setter that a guest may have put on `Array.prototype`. And no
// method is called on a value (`map.get(k)`), only captured functions are (`mapGet(map, k)`).
//
// The host calls the functions returned at the end, and reads and writes `mailbox` in place.
(function (emitText, emitJson, emitValue, emitFailure, emitOmitted, emitPrefix, askState, emitExit, emitImage, countBytes, web) {
  "use strict";

  // ---- Captured intrinsics ----

  const uncurry = Function.prototype.bind.bind(Function.prototype.call);
  const { apply, ownKeys } = Reflect;
  const { parse, stringify } = JSON;
  const { create, defineProperty, getPrototypeOf, hasOwn, keys: objectKeys } = Object;
  const { isArray } = Array;
  const arrayFrom = Array.from.bind(Array);
  const { isView } = ArrayBuffer;
  const { min, max } = Math;
  const NativePromise = Promise;
  const NativeError = Error;
  const NativeTypeError = TypeError;
  const NativeAggregateError = AggregateError;
  const NativeMap = Map;
  const NativeWeakMap = WeakMap;
  const NativeDate = Date;
  const NativeProxy = Proxy;
  const NativeString = String;
  const NativeNumber = Number;
  const ObjectPrototype = Object.prototype;
  const OutOfMemoryPrototype = InternalError.prototype;
  const now = Date.now;
  const then = uncurry(Promise.prototype.then);
  const mapGet = uncurry(Map.prototype.get);
  const mapSet = uncurry(Map.prototype.set);
  const mapDelete = uncurry(Map.prototype.delete);
  const mapForEach = uncurry(Map.prototype.forEach);
  const mapSize = uncurry(Object.getOwnPropertyDescriptor(Map.prototype, "size").get);
  const setForEach = uncurry(Set.prototype.forEach);
  const setSize = uncurry(Object.getOwnPropertyDescriptor(Set.prototype, "size").get);
  const weakGet = uncurry(WeakMap.prototype.get);
  const weakSet = uncurry(WeakMap.prototype.set);
  const wellFormed = uncurry(String.prototype.toWellFormed);
  const slice = uncurry(String.prototype.slice);
  const charCodeAt = uncurry(String.prototype.charCodeAt);
  const indexOf = uncurry(String.prototype.indexOf);
  const isoString = uncurry(Date.prototype.toISOString);
  const dateTime = uncurry(Date.prototype.getTime);
  const regexpSource = uncurry(Object.getOwnPropertyDescriptor(RegExp.prototype, "source").get);
  const regexpToString = uncurry(RegExp.prototype.toString);
  const bigintToString = uncurry(BigInt.prototype.toString);
  const symbolToString = uncurry(Symbol.prototype.toString);
  const functionToString = uncurry(Function.prototype.toString);
  const byteLength = uncurry(Object.getOwnPropertyDescriptor(ArrayBuffer.prototype, "byteLength").get);
  const sharedLength = uncurry(Object.getOwnPropertyDescriptor(SharedArrayBuffer.prototype, "byteLength").get);
  const stackOf = uncurry(Object.getOwnPropertyDescriptor(Error.prototype, "stack").get);
  const isErrorObject = Error.isError ?? ((value) => value instanceof NativeError);
  const boxed = [
    uncurry(Number.prototype.valueOf), uncurry(String.prototype.valueOf),
    uncurry(Boolean.prototype.valueOf), uncurry(BigInt.prototype.valueOf),
  ];
  const monotonic = uncurry(performance.now).bind(undefined, performance);

  // The globals that a body of Tool Search keeps: those of the language, none of a platform.
  const language = create(null);
  for (const name of ownKeys(globalThis)) language[name] = true;
  for (const name of ["performance", "queueMicrotask", "DOMException", "btoa", "atob"]) delete language[name];

  // `prepareStackTrace` gets call sites, through which a guest can reach every function on the
  // stack, ours included. And only the engine may say "out of memory": see `describeFailure`.
  defineProperty(Error, "prepareStackTrace", { value: undefined, writable: false, configurable: false });
  delete globalThis.InternalError;
  delete OutOfMemoryPrototype.constructor;

  // The engine's serializer copies the text of a raw value without checking it.
  delete JSON.rawJSON;
  delete JSON.isRawJSON;

  // ---- The mailbox: numbers that host and guest share, in linear memory ----

  const mailbox = new Float64Array(24);
  const SEED = 0; // 0 to 3: four 32-bit words of entropy, written by the host at start
  const OUTPUT_LIMIT = 4; // bytes that output and value may still take
  const MAX_CALLS = 5; // tool and namespace calls that the host gets at once; others wait
  const MAX_OTHERS = 6; // searches, descriptions and yields that the host gets at once; others wait
  const ARGUMENT = 7; // a number that the host passes with a call
  const MAIN_STATE = 8; // 0 pending, 1 fulfilled, 2 failed and described to the host
  const QUEUED = 9; // requests that the host has not collected
  const OPEN_CALLS = 10;
  const OPEN_OTHERS = 11;
  const TIMEOUTS = 12; // pending timeouts; intervals do not keep a cell from ending
  const NEXT_DUE = 13; // when the earliest timer is due, in milliseconds since 1970; 0 for none
  const OVERFLOW = 14; // 1 if the guest opened more requests than it may
  const STARTED = 15; // when the cell started, in milliseconds since 1970; only the host uses 16
  const MAX_WAITING = 17; // calls that may wait until the host has answered others
  const WAITING_CALLS = 18;
  const UNSEEN_CALLS = 19; // calls that the host has not collected

  // ---- The value adapter ----

  const MAX_DEPTH = 100;
  const QUICK_DEPTH = 32;

  function tag(text) {
    return stringify(wellFormed(text));
  }

  // Written in chunks, so that a value far over the limit costs its prefix and a count.
  function put(sink, text) {
    sink.text += text;
    if (sink.text.length > sink.limit) {
      if (sink.prefix === null) {
        const last = charCodeAt(sink.text, sink.limit - 1);
        const end = last >= 0xd800 && last < 0xdc00 ? sink.limit - 1 : sink.limit;
        sink.prefix = slice(sink.text, 0, end);
        sink.text = slice(sink.text, end);
        if (sink.counted) emitPrefix(sink.prefix);
      }
      if (sink.text.length >= 16384) leaveOut(sink);
    }
  }

  function leaveOut(sink) {
    if (sink.counted) emitOmitted(sink.text);
    sink.text = "";
  }

  // `text` precedes the value. Numbers and the like are returned with it and written with the next
  // piece: a call for each of them would be most of the work.
  function writeProperty(sink, text, holder, key, parents) {
    let value;
    try {
      value = holder[key];
    } catch (error) {
      put(sink, text + tag("[Getter threw: " + messageOf(error) + "]"));
      return "";
    }
    if (typeof value === "number") return text + (value - value === 0 ? value : "null");
    if (value === null || value === undefined) return text + "null";
    if (typeof value === "boolean") return text + (value ? "true" : "false");
    put(sink, text);
    write(sink, value, parents);
    return "";
  }

  function writeArray(sink, value, parents) {
    let text = "[";
    for (let i = 0, length = value.length; i < length; i++) {
      text = writeProperty(sink, i ? text + "," : text, value, i, parents);
      if (text.length > 4096) {
        put(sink, text);
        text = "";
      }
    }
    put(sink, text + "]");
  }

  function writeEntries(sink, text, keys, holder, parents, written) {
    for (let i = 0; i < keys.length; i++) {
      const key = keys[i];
      if (sink.dropUndefined) {
        let value = null; // stays null if the getter throws
        try {
          value = holder[key];
        } catch {}
        if (value === undefined) continue;
      }
      text = writeProperty(sink, text + (written++ ? "," : "") + tag(key) + ":", holder, key, parents);
      if (text.length > 4096) {
        put(sink, text);
        text = "";
      }
    }
    return text;
  }

  function writeObject(sink, value, parents) {
    put(sink, writeEntries(sink, "{", objectKeys(value), value, parents, 0) + "}");
  }

  function writeError(sink, error, parents) {
    const { name, message } = describeError(error);
    const text = '{"name":' + tag(name) + ',"message":' + tag(message);
    put(sink, writeEntries(sink, text, errorKeys(error), error, parents, 1) + "}");
  }

  // Members of an error besides its name and message. `cause` and `errors` are not enumerable.
  function errorKeys(error) {
    const keys = create(null);
    keys.length = 0;
    const own = objectKeys(error);
    for (let i = 0; i < own.length; i++) {
      const key = own[i];
      if (key === "name" || key === "message" || key === "stack") continue;
      if (key === "cause" || key === "errors") continue;
      keys[keys.length++] = key;
    }
    if (hasOwn(error, "cause")) keys[keys.length++] = "cause";
    if (hasOwn(error, "errors")) keys[keys.length++] = "errors";
    return keys;
  }

  // A Map whose keys are all strings becomes an object, any other a list of pairs.
  function writeMap(sink, map, parents) {
    let textual = true;
    mapForEach(map, (_, key) => { textual &&= typeof key === "string"; });
    let written = 0;
    put(sink, textual ? "{" : "[");
    mapForEach(map, (item, key) => {
      if (written++) put(sink, ",");
      if (textual) {
        put(sink, tag(key) + ":");
        write(sink, item, parents);
      } else {
        put(sink, "[");
        write(sink, key, parents);
        put(sink, ",");
        write(sink, item, parents);
        put(sink, "]");
      }
    });
    put(sink, textual ? "}" : "]");
  }

  function writeSet(sink, set, parents) {
    let written = 0;
    put(sink, "[");
    setForEach(set, (item) => {
      if (written++) put(sink, ",");
      write(sink, item, parents);
    });
    put(sink, "]");
  }

  function attempt(operation, value) {
    try {
      return operation(value);
    } catch {
      return undefined;
    }
  }

  // Objects with internal slots, recognized by the slot: names and tags can be forged.
  function writeExotic(sink, value, parents) {
    if (attempt(mapSize, value) !== undefined) return writeMap(sink, value, parents);
    if (attempt(setSize, value) !== undefined) return writeSet(sink, value, parents);
    if (isErrorObject(value)) return writeError(sink, value, parents);
    const time = attempt(dateTime, value);
    if (time !== undefined) return put(sink, time === time ? tag(isoString(new NativeDate(time))) : "null");
    const buffer = bufferText(value);
    if (buffer !== "") return put(sink, tag(buffer));
    if (value instanceof NativePromise) return put(sink, tag("[Promise: not awaited]"));
    if (attempt(regexpSource, value) !== undefined) return put(sink, tag(regexpToString(value)));
    for (let i = 0; i < 4; i++) {
      const primitive = attempt(boxed[i], value);
      if (primitive !== undefined) return write(sink, primitive, parents);
    }
    return writeObject(sink, value, parents);
  }

  function bufferText(value) {
    if (isView(value)) return "[" + className(value) + ": " + value.byteLength + " bytes]";
    const bytes = attempt(byteLength, value);
    if (bytes !== undefined) return "[ArrayBuffer: " + bytes + " bytes]";
    const shared = attempt(sharedLength, value);
    return shared === undefined ? "" : "[SharedArrayBuffer: " + shared + " bytes]";
  }

  function className(value) {
    const name = attempt((object) => object.constructor.name, value);
    return typeof name === "string" && name !== "" ? slice(name, 0, 64) : "Object";
  }

  // Returns the result of the value's `toJSON`, or the value itself if it has none.
  function converted(value) {
    const convert = value.toJSON;
    return typeof convert === "function" ? apply(convert, value, []) : value;
  }

  function writeReference(sink, value, parents, done) {
    for (let parent = parents; parent !== null; parent = parent.next) {
      if (parent.value === value) return put(sink, '"[Circular]"');
    }
    const depth = parents === null ? 0 : parents.depth + 1;
    if (depth >= MAX_DEPTH) return put(sink, '"[Nested too deeply]"');
    const chain = { __proto__: null, value, depth, next: parents };
    const mark = sink.prefix === null ? sink.text.length : -1;
    try {
      if (isArray(value)) return writeArray(sink, value, chain);
      const prototype = getPrototypeOf(value);
      const ordinary = prototype === ObjectPrototype || prototype === null;
      // A Date has a `toJSON`, which a guest may have replaced.
      const dated = !ordinary && attempt(dateTime, value) !== undefined;
      const plain = dated || done ? value : converted(value);
      if (plain !== value) return write(sink, plain, chain, true);
      return ordinary ? writeObject(sink, value, chain) : writeExotic(sink, value, chain);
    } catch (error) {
      // Drops the half-written value, unless a part of it has been emitted already.
      if (mark >= 0 && sink.prefix === null) sink.text = slice(sink.text, 0, mark);
      put(sink, tag("[Not serializable: " + messageOf(error) + "]"));
    }
  }

  // In pieces, so that a string over the limit is not copied as a whole.
  function writeLong(sink, value) {
    put(sink, '"');
    for (let start = 0; start < value.length; ) {
      let end = min(start + 16384, value.length);
      const last = charCodeAt(value, end - 1);
      if (end < value.length && last >= 0xd800 && last < 0xdc00) end--;
      put(sink, slice(tag(slice(value, start, end)), 1, -1));
      start = end;
    }
    put(sink, '"');
  }

  // `done`: the value comes from a `toJSON`, whose result is not asked for another.
  function write(sink, value, parents, done) {
    switch (typeof value) {
      case "string":
        return value.length <= 16384 ? put(sink, tag(value)) : writeLong(sink, value);
      case "number":
        return put(sink, value - value === 0 ? NativeString(value) : "null");
      case "boolean":
        return put(sink, value ? "true" : "false");
      case "undefined":
        return put(sink, "null");
      case "bigint":
        return put(sink, '"' + bigintToString(value) + '"');
      case "symbol":
        return put(sink, tag("[" + symbolToString(value) + "]"));
      case "function":
        return put(sink, tag("[Function: " + functionName(value) + "]"));
      default:
        return value === null ? put(sink, "null") : writeReference(sink, value, parents, done);
    }
  }

  function functionName(value) {
    const name = attempt((object) => object.name, value);
    return typeof name === "string" && name !== "" ? slice(name, 0, 64) : "anonymous";
  }

  const EMITTED = { __proto__: null, counted: true, dropUndefined: false };
  const SHORTENED = { __proto__: null, counted: false, dropUndefined: false };
  const ARGUMENTS = { __proto__: null, counted: false, dropUndefined: true };

  // The JSON value for an object with internal slots; the object itself, if it has no such slots.
  function plainOf(value) {
    if (attempt(mapSize, value) !== undefined) return plainMap(value);
    if (attempt(setSize, value) !== undefined) return plainSet(value);
    if (isErrorObject(value)) return plainError(value);
    const time = attempt(dateTime, value);
    if (time !== undefined) return time === time ? isoString(new NativeDate(time)) : null;
    const buffer = bufferText(value);
    if (buffer !== "") return buffer;
    if (value instanceof NativePromise) return "[Promise: not awaited]";
    if (attempt(regexpSource, value) !== undefined) return regexpToString(value);
    return value;
  }

  function own(holder, key, value) {
    defineProperty(holder, key, {
      __proto__: null, value, writable: true, configurable: true, enumerable: true,
    });
  }

  function plainMap(map) {
    let textual = true;
    mapForEach(map, (_, key) => { textual &&= typeof key === "string"; });
    const plain = textual ? create(null) : [];
    let size = 0;
    mapForEach(map, (item, key) => {
      if (textual) own(plain, key, item);
      else own(plain, size++, [key, item]);
    });
    return plain;
  }

  function plainSet(set) {
    const plain = [];
    let size = 0;
    setForEach(set, (item) => { own(plain, size++, item); });
    return plain;
  }

  function plainError(error) {
    const { name, message } = describeError(error);
    const plain = create(null);
    own(plain, "name", name);
    own(plain, "message", message);
    const keys = errorKeys(error);
    for (let i = 0; i < keys.length; i++) own(plain, keys[i], error[keys[i]]);
    return plain;
  }

  // Uses the engine's own serializer, which is ten times as fast as the walk above. It cannot cut a
  // value, and fails on a hostile one: the result is null then, and the walk is used.
  function quickJson(value, limit, dropUndefined) {
    const stack = create(null); // the objects around the current one
    let depth = 0;
    let size = 0;
    function replace(key, item) {
      size += 2;
      if (size > limit) throw null;
      switch (typeof item) {
        case "string":
          size += item.length;
          return wellFormed(item);
        case "number":
        case "boolean":
          return item;
        case "undefined":
          return dropUndefined ? undefined : null;
        case "bigint":
          return bigintToString(item);
        case "symbol":
          return "[" + symbolToString(item) + "]";
        case "function":
          return "[Function: " + functionName(item) + "]";
      }
      if (item === null) return null;
      while (depth > 0 && stack[depth - 1] !== this) depth--;
      for (let i = 0; i < depth; i++) if (stack[i] === item) return "[Circular]";
      if (depth >= QUICK_DEPTH) throw null;
      let plain = item;
      if (!isArray(item)) {
        const prototype = getPrototypeOf(item);
        if (prototype !== ObjectPrototype && prototype !== null) plain = plainOf(item);
      }
      if (typeof plain === "object" && plain !== null) {
        // A cycle leads to the Map or the Set itself, not to its replacement.
        if (plain !== item) stack[depth++] = item;
        stack[depth++] = plain;
      }
      return plain;
    }
    try {
      const text = stringify(value, replace);
      // `\\ud…` is half of a surrogate pair in a key, or looks like one.
      return text.length > limit || indexOf(text, "\\ud") >= 0 ? null : text;
    } catch {
      return null;
    }
  }

  function serialize(value, limit, options) {
    const quick = quickJson(value, limit, options.dropUndefined);
    if (quick !== null) return { __proto__: null, text: quick, prefix: null };
    const sink = { __proto__: null, text: "", prefix: null, limit, ...options };
    write(sink, value, null);
    return sink;
  }

  // The JSON text of an emitted value. Over the limit it is a prefix, and the host has counted the
  // rest.
  function toJson(value) {
    const sink = serialize(value, mailbox[OUTPUT_LIMIT], EMITTED);
    if (sink.prefix === null) return sink.text;
    leaveOut(sink);
    return sink.prefix;
  }

  // The same for a word in an error or in a tag: shortened, and the rest is not counted.
  function toShortJson(value) {
    const sink = serialize(value, 4096, SHORTENED);
    return sink.prefix ?? sink.text;
  }

  // ---- Failures ----

  function messageOf(error) {
    const { name, message } = describeError(error);
    return message === "" ? name : message;
  }

  function property(object, key) {
    const value = attempt((holder) => holder[key], object);
    return typeof value === "string" ? value : "";
  }

  // JSON cannot express `undefined` and `NaN`.
  function thrownText(value) {
    if (typeof value === "undefined" || typeof value === "number") return NativeString(value);
    return typeof value === "string" ? value : toShortJson(value);
  }

  function describeError(error) {
    if (typeof error !== "object" || error === null) {
      return { __proto__: null, name: "Error", message: thrownText(error) };
    }
    const name = property(error, "name") || (isErrorObject(error) ? "Error" : className(error));
    return { __proto__: null, name, message: property(error, "message") };
  }

  let program; // the function that the source is the body of
  let origin = ""; // of TypeScript: the map to the submitted source, and that source

  const nested = new NativeWeakMap(); // errors made from replies → the id of the tool that failed

  // The tool that caused a failure: that of the error, of its cause, or of all of an aggregate.
  function failedTool(error, depth) {
    if (typeof error !== "object" || error === null || depth > 8) return undefined;
    const tool = weakGet(nested, error);
    if (tool !== undefined) return tool;
    const cause = attempt((holder) => holder.cause, error);
    const found = failedTool(cause, depth + 1);
    if (found !== undefined || !(error instanceof NativeAggregateError)) return found;
    return failedTool(attempt((holder) => holder.errors[0], error), depth + 1);
  }

  const MAX_REASONS = 5;

  // The errors of an AggregateError, which its own message does not contain.
  function reasonsOf(error) {
    if (!(error instanceof NativeAggregateError)) return "";
    const errors = attempt((holder) => holder.errors, error);
    const length = isArray(errors) ? attempt((list) => list.length, errors) ?? 0 : 0;
    let text = "";
    for (let i = 0; i < length && i < MAX_REASONS; i++) {
      const { name, message } = describeError(attempt((list) => list[i], errors));
      text += (i ? "; " : "") + name + (message === "" ? "" : ": " + slice(message, 0, 1000));
    }
    if (length > MAX_REASONS) text += "; and " + (length - MAX_REASONS) + " more";
    if (text === "") return "";
    return (property(error, "message") === "" ? length + " errors: " : ": ") + text;
  }

  // The failed call that an error was made from, as `new Error("…", { cause })`.
  function causeOf(error) {
    const cause = attempt((holder) => holder.cause, error);
    if (failedTool(cause, 1) === undefined) return "";
    const { name, message } = describeError(cause);
    return " (caused by " + name + (message === "" ? "" : ": " + slice(message, 0, 1000)) + ")";
  }

  function describeFailure(error) {
    if (typeof error === "object" && error !== null) {
      if (attempt(getPrototypeOf, error) === OutOfMemoryPrototype) {
        return { __proto__: null, kind: "memory", name: "", message: "", stack: "" };
      }
      if (isErrorObject(error)) {
        const { name } = describeError(error);
        const message = property(error, "message") + reasonsOf(error) + causeOf(error);
        const tool = failedTool(error, 0);
        const kind = tool === undefined ? "error" : "tool";
        const pause = attempt((holder) => holder.retryAfterMs, error);
        return { __proto__: null, kind, name, message, stack: property(error, "stack"), tool, pause };
      }
    }
    // The engine throws null if it has no room for an error. The host knows whether it had room.
    const kind = error === null ? "null" : "error";
    return { __proto__: null, kind, name: "Uncaught", message: thrownText(error), stack: "" };
  }

  function fail(error) {
    if (mailbox[MAIN_STATE] === 2) return;
    mailbox[MAIN_STATE] = 2;
    const failure = describeFailure(error);
    const cut = (text, length) => tag(slice(text, 0, length));
    emitFailure(
      '{"kind":' + tag(failure.kind) +
      ',"name":' + cut(failure.name, 200) +
      ',"message":' + cut(failure.message, 16384) +
      ',"stack":' + cut(failure.stack, 16384) +
      ',"tool":' + (failure.tool === undefined ? "null" : cut(failure.tool, 1024)) +
      ',"missed":' + (missed === null ? "null" : cut(missed.name, 200)) +
      ',"missedAt":' + (missed === null ? '""' : tag(missed.stack)) +
      ',"pause":' + (typeof failure.pause === "number" ? toShortJson(failure.pause) : "null") +
      ',"origin":' + tag(origin) +
      ',"source":' + (failure.kind === "tool" && origin === "" ? tag(attempt(functionToString, program) ?? "") : '""') + "}",
    );
  }

  // Rejected promises that nobody handles yet. They are judged when the cell ends, so that
  // `const p = a(); await b(); await p` works whichever of the two fails first.
  const unhandled = new NativeMap();

  function track(promise, reason, handled) {
    if (handled) mapDelete(unhandled, promise);
    else mapSet(unhandled, promise, reason);
  }

  // ---- Requests and replies ----

  const waiting = new NativeMap(); // request id → how to settle it
  let outbox = ""; // a line for each request: id, method, JSON of the arguments
  let lastRequest = 0;
  // Requests that wait until others have been answered, in order.
  const calls = { __proto__: null, list: create(null), start: 0, end: 0, slot: OPEN_CALLS, most: MAX_CALLS };
  const others = { __proto__: null, list: create(null), start: 0, end: 0, slot: OPEN_OTHERS, most: MAX_OTHERS };

  const MAX_REQUEST = 1048576;
  const nothing = () => {};

  const toolIds = { __proto__: null }; // by the names that programs may use

  // True if the UTF-8 of a text is over a limit. One unit of UTF-16 takes up to three bytes.
  function isLongerThan(text, bytes) {
    return text.length * 3 > bytes && +countBytes(text) > bytes;
  }

  // The program's own frames of a stack.
  function guestFrames(stack) {
    let frames = "";
    for (let start = 0, end; start < stack.length; start = end) {
      end = indexOf(stack, "\n", start) + 1 || stack.length;
      const frame = slice(stack, start, end);
      if (indexOf(frame, "prelude.js:") < 0) frames += frame;
    }
    return frames;
  }

  function request(method, args) {
    if (mailbox[OVERFLOW]) return new NativePromise(nothing);
    const counted = method === "call" || method === "namespace";
    const stack = stackOf(new NativeError()); // kept, because a reply arrives without a stack
    const sink = serialize(args, MAX_REQUEST, ARGUMENTS);
    return new NativePromise((resolve, reject) => {
      if (sink.prefix !== null || isLongerThan(sink.text, MAX_REQUEST)) {
        const message = "The arguments are over 1 MiB: send less at a time.";
        const toolId = method === "call" ? toolIds[args[0]] ?? args[0] : undefined;
        reject(replyError({ __proto__: null, name: "ToolError", message, code: "invalid_input", toolId }, stack));
        return;
      }
      const queue = counted ? calls : others;
      const open = { __proto__: null, resolve, reject, slot: queue.slot, stack, method, text: sink.text };
      if (mailbox[queue.slot] < mailbox[queue.most]) {
        send(open);
      } else if (counted && mailbox[WAITING_CALLS] >= mailbox[MAX_WAITING]) {
        mailbox[OVERFLOW] = 1;
      } else {
        queue.list[queue.end] = open;
        queue.end++;
        if (counted) mailbox[WAITING_CALLS]++;
      }
    });
  }

  // Steps that can run out of memory come first, so that a request is opened completely or not.
  function send(open) {
    const id = lastRequest + 1;
    const longer = outbox + (id + " " + open.method + " " + open.text + "\n");
    mapSet(waiting, id, open);
    outbox = longer;
    open.text = "";
    lastRequest = id;
    mailbox[open.slot]++;
    mailbox[QUEUED]++;
    if (open.slot === OPEN_CALLS) mailbox[UNSEEN_CALLS]++;
  }

  function collect() {
    const requests = outbox;
    outbox = "";
    mailbox[QUEUED] = 0;
    mailbox[UNSEEN_CALLS] = 0;
    return requests;
  }

  function replyError(reply, stack) {
    const error = new NativeError(reply.message);
    const set = (key, value) => {
      if (value === undefined || value === null) return;
      defineProperty(error, key, {
        __proto__: null, value, writable: true, configurable: true, enumerable: key !== "name",
      });
    };
    set("name", reply.name);
    set("code", reply.code);
    set("toolId", reply.toolId);
    set("retryAfterMs", reply.retryAfterMs);
    // The error is made while no guest code runs, so its own stack would have only our frames.
    defineProperty(error, "stack", {
      __proto__: null, value: guestFrames(stack), writable: true, configurable: true,
    });
    weakSet(nested, error, NativeString(reply.toolId ?? ""));
    return error;
  }

  // `replies` is [[id, ok, value or error], …] in the order in which they settled.
  function deliver(replies) {
    const settled = parse(replies);
    for (let i = 0; i < settled.length; i++) {
      const reply = settled[i];
      const open = mapGet(waiting, reply[0]);
      if (open === undefined) continue;
      mapDelete(waiting, reply[0]);
      mailbox[open.slot]--;
      const { resolve, reject } = open;
      if (reply[1]) resolve(reply[2]);
      else reject(replyError(reply[2], open.stack));
    }
    sendMore(calls);
    sendMore(others);
    mailbox[WAITING_CALLS] = calls.end - calls.start;
  }

  function sendMore(queue) {
    while (queue.start < queue.end && mailbox[queue.slot] < mailbox[queue.most]) {
      send(queue.list[queue.start]);
      delete queue.list[queue.start++];
    }
  }

  // ---- State between programs ----

  // The worker keeps the values: a program has only those in its heap that it loads. It answers a
  // load with JSON, or nothing, and a store with nothing; both with "!" and a reason if it refuses.

  const MAX_STATE_VALUE = 1048576;

  function stateKey(name, key) {
    if (typeof key === "string" && key !== "") return tag(key);
    const example = name === "store" ? '("orders", value).' : '("orders").';
    throw new NativeTypeError(name + ": the key must be a string, such as " + name + example);
  }

  function refuseState(reason) {
    const error = new NativeError(reason);
    defineProperty(error, "code", {
      __proto__: null, value: "state_limit_exceeded", writable: true, configurable: true, enumerable: true,
    });
    throw error;
  }

  function store(key, value) {
    const name = stateKey("store", key);
    if (value instanceof NativePromise) {
      throw new NativeTypeError("store(" + name + "): the value is a promise: await it first.");
    }
    let text = "";
    if (value !== undefined) {
      const sink = serialize(value, MAX_STATE_VALUE, ARGUMENTS);
      if (sink.prefix !== null) {
        refuseState("store(" + name + "): the value is over 1 MiB: keep less of it, or split it over several keys.");
      }
      text = sink.text;
    }
    const answer = askState("s" + name + "\n" + text);
    if (answer !== undefined) refuseState(slice(answer, 1));
  }

  function load(key) {
    const answer = askState("l" + stateKey("load", key));
    if (answer === undefined) return undefined;
    if (answer[0] === "!") throw new NativeError(slice(answer, 1));
    return parse(answer);
  }

  // ---- Timers: a heap ordered by due time, then by age ----

  const timers = new NativeMap();
  const heap = create(null);
  let heapSize = 0;
  let lastTimer = 0;

  function earlier(a, b) {
    return a.due < b.due || (a.due === b.due && a.order < b.order);
  }

  // The last place must exist already, because creating it may run out of memory.
  function siftUp(timer) {
    let i = heapSize++;
    while (i > 0) {
      const parent = (i - 1) >> 1;
      if (!earlier(timer, heap[parent])) break;
      heap[i] = heap[parent];
      i = parent;
    }
    heap[i] = timer;
  }

  function popTimer() {
    const top = heap[0];
    const last = heap[--heapSize];
    delete heap[heapSize];
    let i = 0;
    while (heapSize > 0) {
      let child = 2 * i + 1;
      if (child >= heapSize) break;
      if (child + 1 < heapSize && earlier(heap[child + 1], heap[child])) child++;
      if (!earlier(heap[child], last)) break;
      heap[i] = heap[child];
      i = child;
    }
    if (heapSize > 0) heap[i] = last;
    return top;
  }

  function noteNextDue() {
    while (heapSize > 0 && heap[0].cleared) popTimer();
    mailbox[NEXT_DUE] = heapSize > 0 ? heap[0].due : 0;
  }

  function addTimer(name, callback, delay, args, repeats) {
    if (typeof callback !== "function") {
      throw new NativeTypeError(name + ": the first argument must be a function");
    }
    delay = NativeNumber(delay);
    delay = delay >= 1 ? min(delay, 2147483647) : 0;
    const id = ++lastTimer;
    const timer = {
      __proto__: null, id, order: id, due: now() + delay, callback, args,
      every: repeats ? max(delay, 1) : 0, cleared: false,
    };
    heap[heapSize] = timer;
    mapSet(timers, id, timer);
    siftUp(timer);
    if (!repeats) mailbox[TIMEOUTS]++;
    noteNextDue();
    return timer.id;
  }

  function clearTimer(id) {
    const timer = mapGet(timers, id);
    if (timer === undefined) return;
    timer.cleared = true;
    mapDelete(timers, id);
    if (timer.every === 0) mailbox[TIMEOUTS]--;
    noteNextDue();
  }

  // Runs the earliest due timer. Only one, because the host runs the pending jobs in between.
  function fire() {
    const time = mailbox[ARGUMENT];
    noteNextDue();
    if (heapSize === 0 || heap[0].due > time) return;
    const timer = popTimer();
    if (timer.every === 0) {
      mapDelete(timers, timer.id);
      mailbox[TIMEOUTS]--;
    } else {
      timer.due = max(time, timer.due) + timer.every;
      timer.order = ++lastTimer;
      heap[heapSize] = timer;
      siftUp(timer);
    }
    noteNextDue();
    try {
      apply(timer.callback, undefined, timer.args);
    } catch (error) {
      fail(error);
    }
  }

  // ---- Functions that the host calls ----

  // `Function.prototype.toString` returns the text between the wrapper's parentheses. For a cell
  // that closes the wrapper itself (`}); … (async function () {`) that is another text.
  function accept(main, submitted) {
    seedRandom();
    program = main;
    if (submitted !== undefined) origin = submitted;
    return typeof main === "function" && functionToString(main).length === mailbox[ARGUMENT];
  }

  // The host called the cell, so that no frame of ours is in the guest's stack traces.
  function begin(promise) {
    then(promise, finish, fail);
  }

  // The value is converted now and passed on when nothing is pending; until then it is frozen with
  // the cell. A value over the limit is emitted at once, and the host stops the cell.
  let result = "";

  function finish(value) {
    if (mailbox[MAIN_STATE] !== 0) return;
    const sink = serialize(value, mailbox[OUTPUT_LIMIT], EMITTED);
    if (sink.prefix !== null) {
      leaveOut(sink);
      emitValue(sink.prefix);
    }
    result = sink.text;
    mailbox[MAIN_STATE] = 1;
  }

  // Ends the cell with a value from anywhere. The host stops the guest inside of `emitExit`, so no
  // `catch` or `finally` of the program runs.
  function exit(value) {
    const sink = serialize(value, mailbox[OUTPUT_LIMIT], EMITTED);
    if (sink.prefix !== null) {
      leaveOut(sink);
      emitValue(sink.prefix);
    }
    emitExit(sink.text);
  }

  // Ends the cell: it fails with the first rejection that nobody handled, or the host gets its
  // value.
  function conclude() {
    let rejected = false;
    mapForEach(unhandled, (reason) => {
      if (!rejected) fail(reason);
      rejected = true;
    });
    if (!rejected && mailbox[MAIN_STATE] === 1) emitValue(result);
  }

  // ---- Random numbers and clocks ----

  // sfc32, seeded by the host for each cell: the engine's own generator is part of the image, so
  // all cells would draw the same numbers.
  let a = 0, b = 0, c = 0, d = 1;

  function nextRandom() {
    const t = (a + b + d) | 0;
    d = (d + 1) | 0;
    a = b ^ (b >>> 9);
    b = (c + (c << 3)) | 0;
    c = (c << 21) | (c >>> 11);
    c = (c + t) | 0;
    return t >>> 0;
  }

  function seedRandom() {
    a = mailbox[SEED] | 0;
    b = mailbox[SEED + 1] | 0;
    c = mailbox[SEED + 2] | 0;
    d = mailbox[SEED + 3] | 0;
    for (let i = 0; i < 12; i++) nextRandom();
  }

  const imageTime = performance.timeOrigin;

  // ---- Globals ----

  function expose(target, members) {
    const names = ownKeys(members);
    for (let i = 0; i < names.length; i++) {
      defineProperty(target, names[i], {
        __proto__: null, value: members[names[i]], writable: true, configurable: true, enumerable: false,
      });
    }
  }

  function textOf(value) {
    return typeof value === "string" ? value : toJson(value);
  }

  function text(value) {
    emitText(wellFormed(textOf(value)));
  }

  function json(value) {
    emitJson(toJson(value));
  }

  function log(...values) {
    let line = "";
    for (let i = 0; i < values.length; i++) {
      const value = values[i];
      const failure = typeof value === "object" && value !== null && isErrorObject(value);
      const text = failure ? describeError(value).name + ": " + messageOf(value) : textOf(value);
      line += (i ? " " : "") + text;
    }
    emitText(wellFormed(line));
  }

  // ---- Images ----

  // The host recognizes an image by its bytes, whatever type is claimed.
  const MAX_IMAGES = 8;
  const MAX_IMAGE_CHARS = 4194304; // 3 MiB in base64
  let imagesLeft = MAX_IMAGES;
  let imageCharsLeft = 2 * MAX_IMAGE_CHARS;

  function imageError(text) {
    throw new NativeTypeError("image: " + text);
  }

  function attach(data) {
    if (typeof data !== "string") {
      imageError("give an image block of MCP, {data, mimeType} with base64, or a data URL.");
    }
    if (slice(data, 0, 5) === "data:") {
      const start = indexOf(slice(data, 0, 200), ";base64,");
      if (start < 0) imageError("this data URL is not in base64.");
      data = slice(data, start + 8);
    }
    if (data.length > MAX_IMAGE_CHARS) imageError("this image is over 3 MiB: scale it down.");
    if (imagesLeft === 0) imageError("a program may attach 8 images.");
    if (data.length > imageCharsLeft) imageError("the images of this program are over 6 MiB together.");
    if (emitImage(data) !== undefined) imageError("this is no PNG, JPEG, GIF or WebP image in base64.");
    imagesLeft--;
    imageCharsLeft -= data.length;
  }

  // Returns the number of images. A whole result of MCP is searched for its images.
  function image(content) {
    if (typeof content !== "object" || content === null) {
      attach(content);
      return 1;
    }
    const blocks = content.content;
    if (!isArray(blocks)) {
      attach(content.data);
      return 1;
    }
    let count = 0;
    for (let i = 0, length = blocks.length; i < length; i++) {
      const block = blocks[i];
      if (typeof block === "object" && block !== null && block.type === "image") {
        attach(block.data);
        count++;
      }
    }
    if (count === 0) imageError("this result has no image.");
    return count;
  }

  const counts = new NativeMap();
  const clocks = new NativeMap();

  function logTime(label = "default", ...values) {
    const begun = mapGet(clocks, label);
    if (begun !== undefined) log(label + ": " + (monotonic() - begun).toFixed(1) + " ms", ...values);
  }

  // ---- Names that do not exist ----

  // The prototype of `tools`, `MCP` and its servers: it sees only names that they do not have. Of
  // MCP, the host knows more names than the guest: a server's own spelling, servers that are still
  // connecting, and the name nearest to a wrong one. `in` and `Object.keys` show existing members;
  // the names below stay undefined, because the language, or a program that tests for a feature,
  // reads them.
  const unasked = create(null);
  for (const name of ownKeys(ObjectPrototype)) unasked[name] = true;
  for (const name of ["then", "toJSON", "prototype", "resources", "prompts", "$search"]) unasked[name] = true;

  function missing(make) {
    const get = (target, key) => typeof key === "string" && unasked[key] !== true ? make(key) : undefined;
    return new NativeProxy({ __proto__: null }, { __proto__: null, get });
  }

  // The last such name, and the stack where it was read. The engine's own error says only "not a
  // function", and the host compares the two places.
  let missed = null;

  function noteMissing(name) {
    missed = { __proto__: null, name, stack: slice(guestFrames(stackOf(new NativeError())), 0, 200) };
  }

  // A tool may be named `toString`, and an unknown name must be undefined: the prototype has no
  // members, and notes which names were looked for in vain.
  const tools = {
    __proto__: missing((name) => codex && indexOf(name, "mcp__") === 0 ? callAt([name]) : noteMissing("tools." + name)),
    search(query, options) { return request("search", [query, options ?? {}]); },
    describe(id) { return request("describe", [id]); },
    call(id, input) { return request("call", [id, input === undefined ? {} : input]); },
  };
  const namespaces = { __proto__: null };
  let codex = false; // true if `tools.mcp__server__tool` calls a tool of an MCP server

  function scopeOf(node, namespace, path) {
    if (node.t === "f") {
      return (...args) => request("namespace", [namespace, path, args]);
    }
    if (node.t === "v") return node.v;
    const scope = node.t === "a" ? [] : {};
    const keys = objectKeys(node.v);
    for (let i = 0; i < keys.length; i++) {
      const member = scopeOf(node.v[keys[i]], namespace, [...path, keys[i]]);
      defineProperty(scope, keys[i], {
        __proto__: null, value: member, writable: true, configurable: true, enumerable: true,
      });
    }
    return scope;
  }

  // ---- MCP servers, and the files that describe them ----

  const MCP = { __proto__: missing((name) => name in ownNames ? MCP[ownNames[name]] : unknownServer(name)) };
  let ownNames = { __proto__: null }; // servers by their names in the configuration
  let files = { __proto__: null }; // by path: description, bytes, text

  function define(target, key, value) {
    defineProperty(target, key, {
      __proto__: null, value, writable: true, configurable: true, enumerable: true,
    });
  }

  function callOf(server, group, name) {
    return callAt(group === "" ? [server, name] : [server, group, name]);
  }

  function callAt(place) {
    // Passes all arguments on, because the host rejects a second one.
    const call = (...args) => {
      if (args.length !== 0 && args[0] === undefined) args[0] = {};
      return request("namespace", ["MCP", place, args.length === 0 ? [{}] : args]);
    };
    defineProperty(call, "name", { __proto__: null, value: place[place.length - 1] });
    return call;
  }

  // Null prototypes and defined properties: servers and their tools choose their names.
  function callsOf(target, server, group, names) {
    for (let i = 0; i < names.length; i++) define(target, names[i], callOf(server, group, names[i]));
    return target;
  }

  function emptyServer(name) {
    return { __proto__: missing((key) => callOf(name, "", key)) };
  }

  // A server that the guest does not know may have resources, prompts and tools of any name.
  function unknownServer(name) {
    noteMissing("MCP." + name);
    const server = emptyServer(name);
    expose(server, {
      $api: apiOf(name),
      $search: searchOf(name),
      resources: callsOf({ __proto__: null }, name, "resources", ["list", "read"]),
      prompts: callsOf({ __proto__: null }, name, "prompts", ["list", "get"]),
    });
    return server;
  }

  function apiOf(server) {
    return (tool, options) => request("api", [server, tool ?? null, options ?? {}]);
  }

  // Searches the tools of one server, or of all. A server's lists of resources and prompts are part
  // of the search once the server gave them, so they are asked for first, once in a program.
  const MAX_LISTED_SERVERS = 8;
  const listed = { __proto__: null };
  let groupsOf = { __proto__: null }; // names of the groups, by server

  async function listGroups(server) {
    if (listed[server] === true) return;
    listed[server] = true;
    const groups = groupsOf[server];
    const wait = create(null);
    for (let i = 0; i < groups.length; i++) {
      const call = request("namespace", ["MCP", [server, groups[i], "list"], [{}]]);
      wait[i] = then(call, nothing, nothing); // a list that cannot be had is not searched
    }
    for (let i = 0; i < groups.length; i++) await wait[i];
  }

  function searchOf(server) {
    return async (query, options) => {
      const servers = objectKeys(groupsOf);
      for (let i = 0; i < servers.length; i++) {
        if (server === servers[i] || (server === "" && servers.length <= MAX_LISTED_SERVERS)) {
          await listGroups(servers[i]);
        }
      }
      return request("search", [query, options ?? {}, server]);
    };
  }

  defineProperty(MCP, "$api", { __proto__: null, value: apiOf(null) });
  defineProperty(MCP, "$search", { __proto__: null, value: searchOf("") });

  function serverOf(name, described) {
    const server = callsOf(emptyServer(name), name, "", described.functions);
    define(server, "$api", apiOf(name));
    expose(server, { $search: searchOf(name) });
    const groups = objectKeys(described.groups);
    for (let i = 0; i < groups.length; i++) {
      const calls = described.groups[groups[i]];
      define(server, groups[i], callsOf({ __proto__: null }, name, groups[i], calls));
    }
    return server;
  }

  // A server's functions are made when it is first used: most programs use one of fifty.
  function addServer(name, described) {
    defineProperty(MCP, name, {
      __proto__: null, configurable: true, enumerable: true,
      get() {
        const server = serverOf(name, described);
        define(MCP, name, server);
        return server;
      },
      set(value) { define(MCP, name, value); },
    });
  }

  function pathOf(path) {
    if (typeof path !== "string") throw new NativeTypeError("API takes a path, a string.");
    const end = path.length > 1 && path[path.length - 1] === "/" ? path.length - 1 : path.length;
    let start = 0;
    for (let i = 0; i <= end; i++) {
      if (i < end && path[i] !== "/") continue;
      const segment = slice(path, start, i);
      if (segment === "" || segment === "." || segment === "..") {
        throw new NativeError("API paths have no empty, '.' or '..' segments.");
      }
      start = i + 1;
    }
    return slice(path, 0, end);
  }

  const API = {
    async list(prefix) {
      const wanted = prefix === undefined || prefix === "" ? "" : pathOf(prefix);
      const found = [];
      const paths = objectKeys(files);
      for (let i = 0; i < paths.length; i++) {
        const path = paths[i];
        const below = slice(path, 0, wanted.length + 1) === wanted + "/";
        if (wanted !== "" && path !== wanted && !below) continue;
        const { description, bytes } = files[path];
        define(found, found.length, { path, description, bytes });
      }
      return found;
    },
    async read(path) {
      const wanted = pathOf(path);
      const file = files[wanted];
      if (file !== undefined) return file.text;
      const middle = indexOf(wanted, "/", 4);
      const end = wanted.length - 5;
      if (middle > 4 && middle < end - 1 && slice(wanted, 0, 4) === "mcp/" && slice(wanted, end) === ".d.ts") {
        // Files of single tools are not in the heap of every program.
        const server = slice(wanted, 4, middle);
        return (await request("api", [server, slice(wanted, middle + 1, end), {}])).header;
      }
      throw new NativeError(
        "There is no file " + tag(slice(path, 0, 200)) + ": API.list() has all but those of single " +
        "tools, mcp/<server>/<tool>.d.ts.",
      );
    },
  };

  function installMcp(mcp) {
    ownNames = { __proto__: null };
    const own = objectKeys(mcp.names);
    for (let i = 0; i < own.length; i++) define(ownNames, own[i], mcp.names[own[i]]);
    files = { __proto__: null };
    for (let i = 0; i < mcp.files.length; i++) files[mcp.files[i].path] = mcp.files[i];
    const names = objectKeys(mcp.servers);
    for (let i = 0; i < names.length; i++) {
      const described = mcp.servers[names[i]];
      const groups = objectKeys(described.groups);
      const lists = create(null);
      lists.length = 0;
      for (let j = 0; j < groups.length; j++) {
        const calls = described.groups[groups[j]];
        for (let k = 0; k < calls.length; k++) if (calls[k] === "list") lists[lists.length++] = groups[j];
      }
      if (lists.length > 0) groupsOf[names[i]] = lists;
      addServer(names[i], described);
    }
  }

  // ---- Helpers: lists in pages, many items at once, and rate limits ----

  const MAX_LISTED = 10000;
  const MAX_PAGES = 1000;
  const LISTS = ["items", "results", "data", "records", "rows", "entries", "values", "nodes", "hits", "list"];
  const CURSORS = [
    "nextCursor", "next_cursor", "nextPageToken", "next_page_token", "nextToken", "next_token",
    "continuationToken", "continuation_token", "endCursor", "end_cursor", "next",
  ];
  const INSIDE = ["structuredContent", "meta", "metadata", "pagination", "paging", "pageInfo", "page_info", "data"];
  const MORE = ["hasMore", "has_more", "hasNext", "has_next", "hasNextPage", "has_next_page"];
  const PAGES = ["totalPages", "total_pages", "pageCount", "page_count"];
  const TOTALS = ["total", "totalCount", "total_count"];

  function requireFunction(name, work, example) {
    if (typeof work !== "function") throw new NativeTypeError(name + " takes a function: " + name + example);
  }

  function numberOf(options, key, otherwise) {
    const value = options?.[key];
    if (value === undefined) return otherwise;
    if (typeof value === "number" && value >= 1) return value;
    throw new NativeTypeError("helpers: " + key + " must be a number from 1 on.");
  }

  const isObject = (value) => typeof value === "object" && value !== null;

  function chosen(page, choice) {
    return typeof choice === "function" ? choice(page) : isObject(page) ? page[choice] : undefined;
  }

  // The list in a page: the page itself, a member with a usual name, or the only list among them.
  function listIn(page, depth) {
    if (isArray(page)) return page;
    if (!isObject(page) || depth > 2) return undefined;
    for (let i = 0; i < LISTS.length; i++) if (isArray(page[LISTS[i]])) return page[LISTS[i]];
    for (let i = 0; i < 2; i++) {
      const inner = listIn(page[i ? "data" : "structuredContent"], depth + 1);
      if (inner !== undefined) return inner;
    }
    let found;
    const keys = objectKeys(page);
    for (let i = 0; i < keys.length; i++) {
      if (keys[i] === "content" || !isArray(page[keys[i]])) continue;
      if (found !== undefined) return undefined;
      found = page[keys[i]];
    }
    return found;
  }

  function itemsOf(name, page, options) {
    const items = options?.items === undefined ? listIn(page, 0) : chosen(page, options.items);
    if (isArray(items)) return items;
    if (isObject(page) && page.isError === true) {
      throw new NativeError(name + ": the tool answered an error: " + slice(toShortJson(page.content ?? page), 0, 500));
    }
    const members = isObject(page) ? slice(toShortJson(objectKeys(page)), 0, 300) : typeof page;
    throw new NativeError(name + ": the page has no list that can be recognized. It has " + members +
      '. Pass {items: "member"} or {items: (page) => page.….list}.');
  }

  // The first of these members, in the page or in a part of it, that is not undefined.
  function memberIn(page, names, depth) {
    if (!isObject(page) || isArray(page) || depth > 2) return undefined;
    for (let i = 0; i < names.length; i++) if (page[names[i]] !== undefined) return page[names[i]];
    for (let i = 0; i < INSIDE.length; i++) {
      const value = memberIn(page[INSIDE[i]], names, depth + 1);
      if (value !== undefined) return value;
    }
    return undefined;
  }

  // Adds items to a list; true if it has as many as were asked for.
  function append(name, all, items, limit) {
    for (let i = 0; i < items.length; i++) {
      if (all.length >= (limit ?? MAX_LISTED)) {
        if (limit !== undefined) return true;
        throw new NativeError(name + ": over " + MAX_LISTED + " items: pass {limit} to stop earlier.");
      }
      define(all, all.length, items[i]);
    }
    return limit !== undefined && all.length >= limit;
  }

  async function byCursor(fetch, options) {
    requireFunction("helpers.byCursor", fetch, "((cursor) => tools.list({cursor})).");
    const limit = numberOf(options, "limit", undefined);
    const all = [];
    let cursor = options?.start;
    for (let number = 1; ; number++) {
      const page = await fetch(cursor);
      if (append("helpers.byCursor", all, itemsOf("helpers.byCursor", page, options), limit)) return all;
      const next = options?.next === undefined ? memberIn(page, CURSORS, 0) : chosen(page, options.next);
      if (next === undefined || next === null || next === "" || next === false) return all;
      if (memberIn(page, MORE, 0) === false) return all;
      if (number >= MAX_PAGES) throw new NativeError("helpers.byCursor: over " + MAX_PAGES + " pages.");
      if (next === cursor) {
        throw new NativeError("helpers.byCursor: the same cursor came twice: pass the argument of the function on to the call.");
      }
      cursor = next;
    }
  }

  async function byPage(fetch, options) {
    requireFunction("helpers.byPage", fetch, "((page) => tools.list({page})).");
    const limit = numberOf(options, "limit", undefined);
    const start = options?.start ?? 1;
    const all = [];
    let size = 0;
    let before = "";
    for (let number = start; ; number++) {
      const page = await fetch(number, all.length);
      const items = itemsOf("helpers.byPage", page, options);
      if (number - start >= MAX_PAGES) throw new NativeError("helpers.byPage: over " + MAX_PAGES + " pages.");
      const text = items.length === 0 ? "" : toShortJson(items);
      if (text !== "" && text === before) {
        throw new NativeError("helpers.byPage: page " + number + " is the same as the page before: pass the number on to the call.");
      }
      before = text;
      if (append("helpers.byPage", all, items, limit) || items.length === 0) return all;
      const more = memberIn(page, MORE, 0);
      const pages = memberIn(page, PAGES, 0);
      const total = memberIn(page, TOTALS, 0);
      if (more === false || number - start + 1 >= pages || all.length >= total) return all;
      // Without a word about the end, a page that is shorter than the first is the last.
      const silent = more === undefined && pages === undefined && total === undefined;
      if (silent && items.length < size) return all;
      size = size || items.length;
    }
  }

  async function map(items, work, options) {
    requireFunction("helpers.map", work, "(items, (item) => tools.get({id: item.id})).");
    if (items === undefined || items === null) throw new NativeTypeError("helpers.map: the items are " + items + ".");
    const list = arrayFrom(items);
    const most = numberOf(options, "concurrency", 8);
    const settled = options?.settled === true;
    const results = [];
    for (let i = 0; i < list.length; i++) define(results, i, undefined);
    let next = 0;
    let failed = false;
    let failure;
    async function serve() {
      while (!failed && next < list.length) {
        const index = next++;
        try {
          const value = await work(list[index], index);
          define(results, index, settled ? { status: "fulfilled", value } : value);
        } catch (reason) {
          if (settled) {
            define(results, index, { status: "rejected", reason });
          } else if (!failed) {
            failed = true;
            failure = reason;
          }
        }
      }
    }
    let workers;
    for (let i = 0; i < most && i < list.length; i++) {
      const worker = serve();
      const before = workers;
      workers = (async () => { await before; await worker; })();
    }
    await workers;
    if (failed) throw failure;
    return results;
  }

  // How long to wait before a call is made again; undefined if it was not refused by a rate limit.
  function pauseOf(outcome, attempt) {
    if (!isObject(outcome) || memberOf(outcome, "code") !== "rate_limited") return undefined;
    const told = memberOf(outcome, "retryAfterMs");
    const pause = typeof told === "number" && told >= 0 ? told : min(250 * 2 ** (attempt - 1), 8000);
    return pause * (1 + nextRandom() / 17179869184) + 1; // calls that were refused together part
  }

  const memberOf = (holder, key) => attempt((object) => object[key], holder);

  async function retry(work, options) {
    requireFunction("helpers.retry", work, "(() => tools.get({id})).");
    const attempts = numberOf(options, "attempts", 8);
    const until = now() + numberOf(options, "maxMs", 60000);
    for (let count = 1; ; count++) {
      let failed = false;
      let outcome;
      try {
        outcome = await work(count);
      } catch (error) {
        failed = true;
        outcome = error;
      }
      const limited = failed || (isObject(outcome) && memberOf(outcome, "isError") === true);
      const pause = limited ? pauseOf(outcome, count) : undefined;
      if (pause === undefined || count >= attempts || now() + pause > until) {
        if (failed) throw outcome;
        return outcome;
      }
      await new NativePromise((resolve) => { addTimer("helpers.retry", resolve, pause, [], false); });
    }
  }

  const helpers = { __proto__: null, byCursor, byPage, map, retry };

  // The globals of a body of Tool Search: the language, three functions, and three ways to log.
  function installSearch() {
    const names = ownKeys(globalThis);
    for (let i = 0; i < names.length; i++) {
      if (language[names[i]] !== true) delete globalThis[names[i]];
    }
    const { search, describe, call } = tools;
    expose(globalThis, {
      openclaw: { tools: { __proto__: null, search, describe, call } },
      console: { log, warn: log, error: log },
    });
  }

  // Adds a run's catalog and namespaces to the image. This is done once per catalog: the memory
  // afterwards is an image too, which the run's cells start from.
  function install(text) {
    const setup = parse(text);
    if (setup.search) return installSearch();
    expose(globalThis, { ALL_TOOLS: setup.tools });
    const names = objectKeys(setup.names);
    for (let i = 0; i < names.length; i++) {
      const id = setup.names[names[i]];
      toolIds[names[i]] = id;
      const call = (input) => request("call", [id, input === undefined ? {} : input]);
      defineProperty(call, "name", { __proto__: null, value: names[i] });
      defineProperty(tools, names[i], {
        __proto__: null, value: call, writable: true, configurable: true, enumerable: true,
      });
    }
    for (let i = 0; i < setup.namespaces.length; i++) {
      const { id, global, scope } = setup.namespaces[i];
      const made = scopeOf(scope, id, []);
      expose(globalThis, { [global]: made });
      namespaces[global] = made;
    }
    if (setup.mcp) installMcp(setup.mcp);
    codex = setup.dialect === "codex";
  }

  expose(globalThis, web);
  expose(globalThis, {
    text(value) { text(value); },
    json(value) { json(value); },
    store(key, value) { store(key, value); },
    load(key) { return load(key); },
    helpers,
    yield_control(reason) {
      const text = typeof reason === "string" ? reason : toShortJson(reason);
      return request("yield", reason === undefined ? null : slice(text, 0, 1000));
    },
    exit(value) { exit(value); },
    image(content) { return image(content); },
    notify(value) {
      const text = typeof value === "string" ? value : toShortJson(value);
      return request("notify", [slice(text, 0, 1000)]);
    },
    setTimeout(callback, delay, ...args) { return addTimer("setTimeout", callback, delay, args, false); },
    setInterval(callback, delay, ...args) { return addTimer("setInterval", callback, delay, args, true); },
    clearTimeout(id) { clearTimer(id); },
    clearInterval(id) { clearTimer(id); },
    console: {
      log, info: log, debug: log, warn: log, error: log, trace: log, dir: log, table: log,
      group: log, groupCollapsed: log, groupEnd: nothing, clear: nothing,
      assert(condition, ...values) { if (!condition) log("Assertion failed:", ...values); },
      count(label = "default") {
        const count = (mapGet(counts, label) ?? 0) + 1;
        mapSet(counts, label, count);
        log(label + ": " + count);
      },
      countReset(label = "default") { mapDelete(counts, label); },
      time(label = "default") { mapSet(clocks, label, monotonic()); },
      timeLog: logTime,
      timeEnd(label = "default") {
        logTime(label);
        mapDelete(clocks, label);
      },
    },
    tools,
    performance: {
      now() { return monotonic() + imageTime - mailbox[STARTED]; },
      get timeOrigin() { return mailbox[STARTED]; },
    },
    ALL_TOOLS: [],
    MCP,
    API,
    namespaces,
  });
  expose(Math, { random() { return nextRandom() / 4294967296; } });

  return [mailbox, accept, begin, deliver, collect, fire, track, conclude, fail, install];
})
