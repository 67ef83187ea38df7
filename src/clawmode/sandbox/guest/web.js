// Guest side: the web globals that the bare engine lacks.
//
// This file owns TextEncoder, TextDecoder, URL, URLSearchParams and structuredClone, and nothing
// else.  It is one function expression: the prelude calls it once, before any guest code, and
// puts what it returns on globalThis.  The VM image is taken after that, so all state here is
// plain JS objects: no host handles, no clocks, nothing that a snapshot would lose.
//
// Security does not depend on it.  A guest that patches a prototype used here harms only itself,
// and the host must never trust a URL object of a guest.  The intrinsics are captured so that an
// innocent patch (a polyfilled String.prototype method, a replaced Map) does not break URL
// parsing, not to keep a hostile guest out.
//
// It follows the WHATWG URL and Encoding standards and HTML's structured clone, except:
// * Hosts have no IDNA tables.  A non-ASCII host is mapped with NFKC and lowercasing and then
//   punycoded; Unicode categories replace the validity tables; joiners are rejected; the bidi
//   rule is not applied; and "xn--" labels are accepted without decoding them.
// * TextDecoder knows utf-8, utf-16le, utf-16be and windows-1252 (which is what "latin1" and
//   "ascii" mean on the web).
// * structuredClone cannot tell a Proxy or an arguments object from a plain object, and clones
//   its visible properties.  A SharedArrayBuffer is not copied; `transfer` reads getters twice.
(function () {
  "use strict";

  // ---- Intrinsics -----------------------------------------------------------------------------

  const {
    Array, ArrayBuffer, BigInt, Boolean, DataView, Date, Error, Function, Map, Number, Object,
    Promise, RangeError, Reflect, RegExp, Set, SharedArrayBuffer, String, Symbol, TypeError,
    Uint8Array, Uint16Array, DOMException, atob, btoa, decodeURIComponent, encodeURIComponent,
    escape, unescape, parseInt,
  } = globalThis;
  const { apply, defineProperty, getPrototypeOf, ownKeys, setPrototypeOf } = Reflect;
  const { keys: enumerableKeys, getOwnPropertyDescriptor } = Object;
  const { fromCharCode, fromCodePoint } = String;
  const { fromBase64, fromHex } = Uint8Array;
  const { isArray } = Array;
  const { isView } = ArrayBuffer;
  const TypedArray = getPrototypeOf(Uint8Array);

  // The methods and getters of a class as functions of (self, ...args) that no longer depend on
  // its prototype.
  const uncurry = Function.prototype.bind.bind(Function.prototype.call);
  const methods = ({ prototype } = { prototype: {} }) => {
    const found = { __proto__: null };
    for (const name of ownKeys(prototype)) {
      const { get, value = get } = getOwnPropertyDescriptor(prototype, name);
      if (typeof value === "function") found[name] = uncurry(value);
    }
    return found;
  };
  const {
    charCodeAt, codePointAt, indexOf, isWellFormed, lastIndexOf, normalize, slice, split, trim,
    toLowerCase: lower, toWellFormed: wellFormed,
  } = methods(String);
  const { join, pop, push, slice: copyArray, sort } = methods(Array);
  const { exec, source: regexpSource } = methods(RegExp);
  const { isPrototypeOf, toString: tagOf } = methods(Object);
  const {
    forEach: mapForEach, get: mapGet, has: mapHas, set: mapSet, size: mapSize,
  } = methods(Map);
  const { add: setAdd, forEach: setForEach, size: setSize } = methods(Set);
  const { byteLength: bufferLength, transfer: transferBuffer } = methods(ArrayBuffer);
  const { byteLength: sharedLength } = methods(SharedArrayBuffer);
  const {
    set: setBytes, slice: copyBytes, subarray, [Symbol.toStringTag]: viewName,
  } = methods(TypedArray);
  const { toBase64 } = methods(Uint8Array);
  const { getTime } = methods(Date);
  const { toString: numberToString } = methods(Number);

  // True if `read`, a method that needs an internal slot, accepts the value: instanceof and
  // toStringTag can both be forged, a slot cannot.
  const accepts = (read, value) => {
    try {
      read(value);
      return true;
    } catch {
      return false;
    }
  };

  // No template literals in this file: the engine compiles them to calls of "".concat, which the
  // guest may have replaced.
  const toText = (value) => {
    if (typeof value === "symbol") throw new TypeError("Cannot convert a symbol to a string");
    return String(value);
  };
  const usv = (value) => wellFormed(toText(value));

  const needArguments = (given, wanted) => {
    if (given >= wanted) return;
    throw new TypeError(wanted + " argument(s) required, but only " + given + " present");
  };

  // Like text.replace(pattern, change), without the lookups of exec and Symbol.replace on
  // prototypes.  The pattern must have the g flag.
  function rewrite(text, pattern, change) {
    let out = "";
    let from = 0;
    pattern.lastIndex = 0;
    for (let found; (found = exec(pattern, text)) !== null; from = pattern.lastIndex) {
      out += slice(text, from, found.index) + change(found[0]);
    }
    return from === 0 ? text : out + slice(text, from);
  }

  // ---- UTF-8 ----------------------------------------------------------------------------------
  //
  // An interpreted loop costs some hundred nanoseconds per byte, so native functions do the bulk of
  // the work on a "binary string" (one character per byte): escape and decodeURIComponent are a
  // strict UTF-8 decoder, encodeURIComponent and unescape an encoder, and base64 converts between
  // binary strings and bytes.  Chunks bound the escaped text, which is up to nine times as long.

  const CHUNK = 16384;
  const NO_BYTES = new Uint8Array(0);
  const NON_ASCII = /[^\0-\x7f]/;

  function utf8Encode(text) {
    let binary = "";
    for (let from = 0, end; from < text.length; from = end) {
      end = from + CHUNK;
      if (end < text.length && (charCodeAt(text, end - 1) & 0xfc00) === 0xd800) end++;
      binary += unescape(encodeURIComponent(slice(text, from, end)));
    }
    return fromBase64(btoa(binary));
  }

  function utf8Decode(bytes, fatal = false) {
    let out = "";
    for (let from = 0, end; from < bytes.length; from = end) {
      end = from + CHUNK;
      // Cut before a byte that starts a character.  The last of four continuation bytes in a row
      // belongs to no character, so the cut can stay where it is.
      for (let back = 0; back < 4; back++) {
        if ((bytes[end - back] & 0xc0) !== 0x80) {
          end -= back;
          break;
        }
      }
      const part = subarray(bytes, from, end);
      const binary = atob(toBase64(part));
      if (exec(NON_ASCII, binary) === null) {
        out += binary;
        continue;
      }
      try {
        out += decodeURIComponent(escape(binary));
      } catch {
        if (fatal) throw new TypeError("The encoded data was not valid for encoding utf-8");
        out += utf8Repair(part);
      }
    }
    return out;
  }

  // The number of continuation bytes after a lead byte; 0 for other bytes.
  const utf8Trail = (lead) =>
    lead < 0xc2 || lead > 0xf4 ? 0 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;

  // True if a byte can follow.  The first byte after some leads has a narrower range, which
  // excludes overlong forms, surrogates and code points beyond U+10FFFF.
  function utf8Follows(lead, index, byte) {
    const low = index > 0 ? 0x80 : lead === 0xe0 ? 0xa0 : lead === 0xf0 ? 0x90 : 0x80;
    const high = index > 0 ? 0xbf : lead === 0xed ? 0x9f : lead === 0xf4 ? 0x8f : 0xbf;
    return byte >= low && byte <= high;
  }

  // Decodes bytes that are not valid UTF-8: one U+FFFD for each maximal part of a character.
  function utf8Repair(bytes) {
    let out = "";
    for (let i = 0; i < bytes.length;) {
      const lead = bytes[i++];
      if (lead < 0x80) {
        out += fromCharCode(lead);
        continue;
      }
      const trail = utf8Trail(lead);
      let point = lead & (0x3f >> trail);
      let seen = 0;
      for (; seen < trail && utf8Follows(lead, seen, bytes[i]); seen++) {
        point = (point << 6) | (bytes[i++] & 0x3f);
      }
      out += trail > 0 && seen === trail ? fromCodePoint(point) : "\ufffd";
    }
    return out;
  }

  // The number of bytes at the end that may yet become a character when more bytes arrive.
  function utf8Tail(bytes) {
    for (let count = 1; count <= 3 && count <= bytes.length; count++) {
      const lead = bytes[bytes.length - count];
      if ((lead & 0xc0) === 0x80) continue;
      const started = count === 1 || utf8Follows(lead, 0, bytes[bytes.length - count + 1]);
      return utf8Trail(lead) >= count && started ? count : 0;
    }
    return 0;
  }

  // ---- TextEncoder, TextDecoder ---------------------------------------------------------------

  class TextEncoder {
    get encoding() { return "utf-8"; }

    encode(input = "") {
      return utf8Encode(usv(input));
    }

    encodeInto(source, destination) {
      needArguments(arguments.length, 2);
      if (!isView(destination) || viewName(destination) !== "Uint8Array") {
        throw new TypeError("The destination must be a Uint8Array");
      }
      const room = destination.length;
      // Every code unit takes a byte at least, so more of the source than this cannot fit.  If
      // the cut goes through a pair, its half becomes U+FFFD, whose three bytes cannot fit either.
      const text = usv(slice(toText(source), 0, room));
      let bytes = utf8Encode(text);
      if (bytes.length <= room) {
        setBytes(destination, bytes);
        return { read: text.length, written: bytes.length };
      }
      let end = room;
      while ((bytes[end] & 0xc0) === 0x80) end--;
      bytes = subarray(bytes, 0, end);
      setBytes(destination, bytes);
      return { read: utf8Decode(bytes).length, written: end };
    }
  }

  // The characters of windows-1252 in 0x80-0x9F; other bytes are the code points of that number.
  const CP1252 = "\u20ac\x81\u201a\u0192\u201e\u2026\u2020\u2021\u02c6\u2030\u0160\u2039\u0152" +
    "\x8d\u017d\x8f\x90\u2018\u2019\u201c\u201d\u2022\u2013\u2014\u02dc\u2122\u0161\u203a\u0153" +
    "\x9d\u017e\u0178";

  function utf16Codec(name, high, low) {
    const unitAt = (bytes, i) => (bytes[i + high] << 8) | bytes[i + low];
    return {
      tail(bytes) {
        const odd = bytes.length & 1;
        const last = bytes.length - odd - 2;
        return last >= 0 && (unitAt(bytes, last) & 0xfc00) === 0xd800 ? odd + 2 : odd;
      },
      decode(bytes, fatal) {
        const odd = bytes.length & 1;
        let out = "";
        for (let from = 0; from < bytes.length - odd; from += CHUNK) {
          const count = (bytes.length - odd - from) >> 1;
          const units = new Uint16Array(count < CHUNK / 2 ? count : CHUNK / 2);
          for (let i = 0; i < units.length; i++) units[i] = unitAt(bytes, from + 2 * i);
          out += apply(fromCharCode, undefined, units);
        }
        // A high surrogate and an odd byte at the end are one error together.
        const halfPair = out !== "" && (charCodeAt(out, out.length - 1) & 0xfc00) === 0xd800;
        if (fatal && (odd === 1 || !isWellFormed(out))) {
          throw new TypeError("The encoded data was not valid for encoding " + name);
        }
        return odd === 1 && !halfPair ? wellFormed(out) + "\ufffd" : wellFormed(out);
      },
    };
  }

  const CODECS = {
    __proto__: null,
    "utf-8": { tail: utf8Tail, decode: utf8Decode },
    "utf-16le": utf16Codec("utf-16le", 1, 0),
    "utf-16be": utf16Codec("utf-16be", 0, 1),
    "windows-1252": {
      tail: () => 0,
      decode: (bytes) => rewrite(
        atob(toBase64(bytes)), /[\x80-\x9f]/g, (found) => CP1252[charCodeAt(found, 0) - 0x80],
      ),
    },
  };

  const LABELS = { __proto__: null };
  for (const [name, labels] of [
    ["utf-8", "unicode-1-1-utf-8 unicode11utf8 unicode20utf8 utf-8 utf8 x-unicode20utf8"],
    ["utf-16le", "csunicode iso-10646-ucs-2 ucs-2 unicode unicodefeff utf-16 utf-16le"],
    ["utf-16be", "unicodefffe utf-16be"],
    ["windows-1252", "ansi_x3.4-1968 ascii cp1252 cp819 csisolatin1 ibm819 iso-8859-1 " +
      "iso-ir-100 iso8859-1 iso88591 iso_8859-1 iso_8859-1:1987 l1 latin1 us-ascii " +
      "windows-1252 x-cp1252"],
  ]) {
    for (const label of split(labels, " ")) LABELS[label] = name;
  }

  const isBuffer = (value) => accepts(bufferLength, value);
  const isShared = (value) => accepts(sharedLength, value);

  class TextDecoder {
    #encoding;
    #fatal;
    #ignoreBOM;
    #rest = NO_BYTES;     // Bytes of a character that the last streamed chunk left unfinished.
    #started = false;     // True after the first character: only the first one can be a BOM.

    constructor(label = "utf-8", options = undefined) {
      const text = toText(label);
      const name = LABELS[lower(trim(text))];
      if (name === undefined) throw new RangeError('The "' + text + '" encoding is not supported');
      this.#encoding = name;
      this.#fatal = !!options?.fatal;
      this.#ignoreBOM = !!options?.ignoreBOM;
    }

    get encoding() { return this.#encoding; }
    get fatal() { return this.#fatal; }
    get ignoreBOM() { return this.#ignoreBOM; }

    decode(input = undefined, options = undefined) {
      let bytes = NO_BYTES;
      if (isView(input)) {
        bytes = new Uint8Array(input.buffer, input.byteOffset, input.byteLength);
      } else if (isBuffer(input) || isShared(input)) {
        bytes = new Uint8Array(input);
      } else if (input !== undefined) {
        throw new TypeError("The input must be an ArrayBuffer or a view of one");
      }
      const rest = this.#rest;
      if (rest.length > 0) {
        const both = new Uint8Array(rest.length + bytes.length);
        setBytes(both, rest);
        setBytes(both, bytes, rest.length);
        bytes = both;
      }
      const codec = CODECS[this.#encoding];
      const stream = !!options?.stream;
      const end = bytes.length - (stream ? codec.tail(bytes) : 0);
      const started = this.#started;
      this.#rest = NO_BYTES;
      this.#started = false;
      const text = codec.decode(subarray(bytes, 0, end), this.#fatal);
      if (stream) {
        this.#rest = copyBytes(bytes, end);
        this.#started = started || text !== "";
      }
      return !started && !this.#ignoreBOM && text[0] === "\ufeff" ? slice(text, 1) : text;
    }
  }

  // ---- Percent-encoding -----------------------------------------------------------------------

  // The percent-encode sets, as patterns of a run of characters to encode.
  const C0_SET = /[^ -~]+/g;
  const FRAGMENT_SET = /[^!#-;=?-_a-~]+/g;
  const QUERY_SET = /[^!$-;=?-~]+/g;
  const SPECIAL_QUERY_SET = /[^!$-&(-;=?-~]+/g;
  const PATH_SET = /[^!$-;=@-\]_a-z|~]+/g;
  const USERINFO_SET = /[^!$-.0-9A-Z_a-z~]+/g;
  const FORM_SET = /[^*\-.0-9A-Z_a-z]+/g;

  const ESCAPES = [];
  for (let i = 0; i < 0x80; i++) {
    push(ESCAPES, "%" + "0123456789ABCDEF"[i >> 4] + "0123456789ABCDEF"[i & 15]);
  }

  function escapeRun(run) {
    let out = "";
    for (let i = 0; i < run.length;) {
      const code = charCodeAt(run, i);
      const end = i + ((code & 0xfc00) === 0xd800 ? 2 : 1);
      out += code < 0x80 ? ESCAPES[code] : encodeURIComponent(slice(run, i, end));
      i = end;
    }
    return out;
  }

  // The text must be well-formed: encodeURIComponent throws on a lone surrogate.
  const percentEncode = (text, set) => rewrite(text, set, escapeRun);
  const formEncode = (text) => join(split(percentEncode(text, FORM_SET), "%20"), "+");

  // Percent-decodes and reads the bytes as UTF-8; malformed escapes stay, bad bytes are replaced.
  // A run of escapes stands alone: the literal character after it never continues its bytes.
  const percentDecode = (text) => rewrite(text, /(?:%[0-9a-f]{2})+/gi, (run) => {
    try {
      return decodeURIComponent(run);
    } catch {
      return utf8Decode(fromHex(join(split(run, "%"), "")));
    }
  });

  // ---- Hosts ----------------------------------------------------------------------------------
  //
  // A parsed host is kept as it is written in a URL.  These functions return null for failure.

  const FORBIDDEN_HOST = /[\0\t\n\r #/:<>?@[\\\]^|]/;
  const FORBIDDEN_DOMAIN = /[\0-\x20#%/:<>?@[\\\]^|\x7f]/;
  const ENDS_IN_NUMBER = /(?:^|\.)(?:[0-9]+|0x[0-9a-f]*)\.?$/i;
  // Characters that IDNA removes, and (roughly) those that it forbids after the mapping.
  const IGNORED = /[\xad\u034f\u180b-\u180d\u180f\u200b\u2060\u2064\ufe00-\ufe0f\ufeff]/g;
  const DISALLOWED = /[\p{C}\p{Z}\ufffd]|(?:^|\.)\p{M}/u;

  function parseHost(text, special) {
    if (text[0] === "[") {
      return text[text.length - 1] === "]" ? parseIPv6(slice(text, 1, -1)) : null;
    }
    if (!special) return exec(FORBIDDEN_HOST, text) === null ? percentEncode(text, C0_SET) : null;
    const domain = domainToASCII(percentDecode(text));
    if (domain === null || domain === "" || exec(FORBIDDEN_DOMAIN, domain) !== null) return null;
    return exec(ENDS_IN_NUMBER, domain) === null ? domain : parseIPv4(domain);
  }

  function domainToASCII(domain) {
    if (exec(NON_ASCII, domain) === null) return lower(domain);
    // Sigma first: lowercasing whole words would give it its final form.
    const plain = rewrite(rewrite(domain, IGNORED, () => ""), /\u03a3/g, () => "\u03c3");
    const mapped = normalize(lower(normalize(lower(plain), "NFKC")), "NFC");
    const labels = split(rewrite(mapped, /\u3002/g, () => "."), ".");
    if (exec(DISALLOWED, join(labels, ".")) !== null) return null;
    for (let i = 0; i < labels.length; i++) {
      if (exec(NON_ASCII, labels[i]) !== null) labels[i] = "xn--" + punycode(labels[i]);
    }
    return join(labels, ".");
  }

  // RFC 3492, encoding only.
  function punycode(label) {
    const digits = "abcdefghijklmnopqrstuvwxyz0123456789";
    const points = [];
    let out = "";
    for (let i = 0; i < label.length; i += points[points.length - 1] > 0xffff ? 2 : 1) {
      push(points, codePointAt(label, i));
      if (points[points.length - 1] < 0x80) out += label[i];
    }
    const basic = out.length;
    if (basic > 0) out += "-";
    let bias = 72;
    let delta = 0;
    for (let done = basic, floor = 0x80; done < points.length; delta++, floor++) {
      let next = 0x110000;
      for (let i = 0; i < points.length; i++) {
        if (points[i] >= floor && points[i] < next) next = points[i];
      }
      delta += (next - floor) * (done + 1);
      floor = next;
      for (let i = 0; i < points.length; i++) {
        if (points[i] < floor) delta++;
        if (points[i] !== floor) continue;
        let left = delta;
        for (let k = 36; ; k += 36) {
          const limit = k <= bias ? 1 : k >= bias + 26 ? 26 : k - bias;
          if (left < limit) break;
          const over = left - limit;
          out += digits[limit + over % (36 - limit)];
          left = (over - over % (36 - limit)) / (36 - limit);
        }
        out += digits[left];
        done++;
        delta = done - 1 === basic ? (delta / 700) | 0 : delta >> 1;
        delta += (delta / done) | 0;
        bias = 0;
        for (; delta > 455; bias += 36) delta = (delta / 35) | 0;
        bias += (36 * delta / (delta + 38)) | 0;
        delta = 0;
      }
    }
    return out;
  }

  function parseIPv4(domain) {
    const parts = split(domain, ".");
    if (parts[parts.length - 1] === "") pop(parts);
    if (parts.length > 4) return null;
    let address = 0;
    for (let i = 0; i < parts.length; i++) {
      const part = parts[i];
      const value = part === "0x" ? 0
        : exec(/^0[0-7]*$/, part) !== null ? parseInt(part, 8)
          : exec(/^(?:0x[0-9a-f]+|[1-9][0-9]*)$/, part) !== null ? +part : NaN;
      const last = i === parts.length - 1;
      // The last part fills all bytes that are left.  Not "value >= limit": NaN must fail.
      if (!(value < (last ? 256 ** (5 - parts.length) : 256))) return null;
      address += last ? value : value * 256 ** (3 - i);
    }
    const bytes = [address >>> 24, (address >>> 16) & 255, (address >>> 8) & 255, address & 255];
    return join(bytes, ".");
  }

  // The 16-bit groups of one side of "::"; a dotted IPv4 address can only end the whole address.
  function parseGroups(text, atEnd) {
    const groups = [];
    if (text === "") return groups;
    const parts = split(text, ":");
    for (let i = 0; i < parts.length; i++) {
      if (exec(/^[0-9a-f]{1,4}$/i, parts[i]) !== null) {
        push(groups, parseInt(parts[i], 16));
        continue;
      }
      const octets = split(parts[i], ".");
      if (!atEnd || i < parts.length - 1 || octets.length !== 4) return null;
      for (let j = 0; j < 4; j++) {
        if (exec(/^(?:0|[1-9][0-9]{0,2})$/, octets[j]) === null || +octets[j] > 255) return null;
      }
      push(groups, octets[0] * 256 + +octets[1], octets[2] * 256 + +octets[3]);
    }
    return groups;
  }

  function parseIPv6(text) {
    const gap = indexOf(text, "::");
    const left = parseGroups(gap < 0 ? text : slice(text, 0, gap), gap < 0);
    const right = gap < 0 ? [] : parseGroups(slice(text, gap + 2), true);
    if (left === null || right === null) return null;
    const missing = 8 - left.length - right.length;
    if (gap < 0 ? missing !== 0 : missing < 1) return null;
    for (let i = 0; i < missing; i++) push(left, 0);
    for (let i = 0; i < right.length; i++) push(left, right[i]);
    return serializeIPv6(left);
  }

  function serializeIPv6(groups) {
    // The first of the longest runs of zeros, if longer than one, is written as "::".
    let best = -1;
    let bestSize = 1;
    for (let i = 0; i < 8; i++) {
      let size = 0;
      while (i + size < 8 && groups[i + size] === 0) size++;
      if (size > bestSize) {
        best = i;
        bestSize = size;
      }
      i += size;
    }
    let out = "[";
    for (let i = 0; i < 8; i++) {
      if (i === best) {
        out += i === 0 ? "::" : ":";
        i += bestSize - 1;
      } else {
        out += numberToString(groups[i], 16) + (i < 7 ? ":" : "");
      }
    }
    return out + "]";
  }

  // ---- URL records ----------------------------------------------------------------------------
  //
  // The standard describes one state machine, which setters enter in the middle.  Here the text is
  // split instead: "#" and then "?" end the part before them in every state, so they are found
  // first, and each setter calls the functions for its own part.  path is a list of segments, or a
  // string if it is opaque; host, port, query and fragment are null when absent.

  const DEFAULT_PORTS = {
    __proto__: null, "http": 80, "https": 443, "ws": 80, "wss": 443, "ftp": 21, "file": null,
  };
  const SCHEME = /^([a-z][a-z0-9+.-]*):/i;
  const isSpecial = (scheme) => DEFAULT_PORTS[scheme] !== undefined;
  const isOpaque = (url) => typeof url.path === "string";
  const isNormalDrive = (text) => exec(/^[a-z]:$/i, text) !== null;
  const isDrive = (text) => exec(/^[a-z][:|]$/i, text) !== null;
  const startsWithDrive = (text) => exec(/^[a-z][:|](?:[/\\]|$)/i, text) !== null;
  const isSlash = (character, special) => character === "/" || (special && character === "\\");
  const hasCredentials = (url) => url.username !== "" || url.password !== "";
  const cannotHaveCredentials = (url) =>
    url.host === null || url.host === "" || url.scheme === "file";
  const withoutBreaks = (text) => rewrite(text, /[\t\n\r]+/g, () => "");

  function trimControls(text) {
    let from = 0;
    let end = text.length;
    while (from < end && charCodeAt(text, from) <= 32) from++;
    while (end > from && charCodeAt(text, end - 1) <= 32) end--;
    return slice(text, from, end);
  }

  // Returns a URL record, or null if the text is not a URL.
  function parse(input, base) {
    let rest = withoutBreaks(trimControls(input));
    const url = {
      scheme: "", username: "", password: "", host: null, port: null,
      path: [], query: null, fragment: null,
    };
    const hash = indexOf(rest, "#");
    if (hash >= 0) {
      url.fragment = percentEncode(slice(rest, hash + 1), FRAGMENT_SET);
      rest = slice(rest, 0, hash);
    }
    const mark = indexOf(rest, "?");
    const query = mark < 0 ? null : slice(rest, mark + 1);
    if (mark >= 0) rest = slice(rest, 0, mark);

    const scheme = exec(SCHEME, rest);
    if (scheme !== null) {
      url.scheme = lower(scheme[1]);
      rest = slice(rest, scheme[0].length);
    } else if (base === null) {
      return null;
    } else if (isOpaque(base)) {
      // Only a lone fragment can be resolved against an opaque path.
      const fragment = url.fragment;
      return rest === "" && query === null && fragment !== null ? { ...base, fragment } : null;
    } else {
      url.scheme = base.scheme;
    }
    const special = isSpecial(url.scheme);
    if (query !== null) url.query = percentEncode(query, special ? SPECIAL_QUERY_SET : QUERY_SET);

    // A special URL is relative to a base of its own scheme even if it names the scheme.
    const relative = scheme === null || (special && base !== null && base.scheme === url.scheme);
    const slashes = !isSlash(rest[0], special) ? 0 : isSlash(rest[1], special) ? 2 : 1;
    if (url.scheme === "file") {
      url.host = "";
      if (slashes < 2) return resolve(url, rest, relative ? base : null);
      return parseFileHost(url, slice(rest, 2)) ? url : null;
    }
    if (relative && slashes < 2) return resolve(url, rest, base);
    if (special) {
      let start = 0;
      while (isSlash(rest[start], true)) start++;
      return parseAuthority(url, slice(rest, start)) ? url : null;
    }
    if (slashes === 2) return parseAuthority(url, slice(rest, 2)) ? url : null;
    if (slashes === 1) appendPath(url, slice(rest, 1));
    else url.path = percentEncode(rest, C0_SET);
    return url;
  }

  // Fills in the path, and the parts that a relative reference inherits from its base, if any.
  function resolve(url, rest, base) {
    const isFile = url.scheme === "file";
    if (base !== null) {
      url.username = base.username;
      url.password = base.password;
      url.host = base.host;
      url.port = base.port;
    }
    if (isSlash(rest[0], isSpecial(url.scheme))) {
      rest = slice(rest, 1);
      const drive = isFile && base !== null && base.path.length > 0 ? base.path[0] : "";
      if (isNormalDrive(drive) && !startsWithDrive(rest)) push(url.path, drive);
      appendPath(url, rest);
      return url;
    }
    if (base !== null) {
      if (!(isFile && startsWithDrive(rest))) url.path = copyArray(base.path);
      if (rest === "") {
        if (url.query === null) url.query = base.query;
        return url;
      }
      shortenPath(url);
    }
    appendPath(url, rest);
    return url;
  }

  function authorityEnd(text, special) {
    const slash = exec(special ? /[/\\]/ : /\//, text);
    return slash === null ? text.length : slash.index;
  }

  function parseAuthority(url, text) {
    const special = isSpecial(url.scheme);
    const end = authorityEnd(text, special);
    let host = slice(text, 0, end);
    const at = lastIndexOf(host, "@");
    if (at >= 0) {
      const credentials = slice(host, 0, at);
      const colon = indexOf(credentials, ":");
      const name = colon < 0 ? credentials : slice(credentials, 0, colon);
      url.username = percentEncode(name, USERINFO_SET);
      if (colon >= 0) url.password = percentEncode(slice(credentials, colon + 1), USERINFO_SET);
      host = slice(host, at + 1);
      if (host === "") return false;
    }
    const colon = portColon(host);
    if (colon >= 0) {
      const port = slice(host, colon + 1);
      host = slice(host, 0, colon);
      if (host === "" || exec(/^[0-9]*$/, port) === null) return false;
      if (port !== "" && !setPort(url, port)) return false;
    }
    if (special && host === "") return false;
    url.host = parseHost(host, special);
    if (url.host === null) return false;
    if (special || end < text.length) appendPath(url, slice(text, end + 1));
    return true;
  }

  // The colon that starts the port: the first one that is not inside an IPv6 address.
  function portColon(host) {
    const end = exec(/^(?:\[[^\]]*\]?|[^[:])*/, host)[0].length;
    return end < host.length ? end : -1;
  }

  // Reads the digits at the start; returns whether they are a port.
  function setPort(url, text) {
    const digits = exec(/^[0-9]+/, text);
    if (digits === null || +digits[0] > 0xffff) return false;
    const port = +digits[0];
    url.port = port === DEFAULT_PORTS[url.scheme] ? null : port;
    return true;
  }

  function parseFileHost(url, text) {
    const end = authorityEnd(text, true);
    const host = slice(text, 0, end);
    const drive = isDrive(host);      // file://c:/x: this is the first segment of the path.
    if (!drive && !setFileHost(url, host)) return false;
    appendPath(url, drive ? text : slice(text, end + 1));
    return true;
  }

  function setFileHost(url, text) {
    const host = text === "" ? "" : parseHost(text, true);
    if (host !== null) url.host = host === "localhost" ? "" : host;
    return host !== null;
  }

  function shortenPath(url) {
    const { path } = url;
    if (!(url.scheme === "file" && path.length === 1 && isNormalDrive(path[0]))) pop(path);
  }

  // Adds the segments of a text without its leading slash: "" adds one empty segment.
  function appendPath(url, text) {
    let encoded = percentEncode(text, PATH_SET);
    if (isSpecial(url.scheme)) encoded = join(split(encoded, "\\"), "/");
    const segments = split(encoded, "/");
    for (let i = 0; i < segments.length; i++) {
      let segment = segments[i];
      const last = i === segments.length - 1;
      if (exec(/^(?:\.|%2e){1,2}$/i, segment) !== null) {
        // "." or "%2e" if the length is odd; else two of these.
        if (segment.length % 2 === 0) shortenPath(url);
        if (last) push(url.path, "");
      } else {
        if (url.scheme === "file" && url.path.length === 0 && isDrive(segment)) {
          segment = segment[0] + ":";
        }
        push(url.path, segment);
      }
    }
  }

  // Once nothing follows an opaque path its trailing spaces would not survive another parse.
  function trimOpaquePath(url) {
    if (!isOpaque(url) || url.query !== null || url.fragment !== null) return;
    let end = url.path.length;
    while (end > 0 && url.path[end - 1] === " ") end--;
    url.path = slice(url.path, 0, end);
  }

  const serializeHost = (url) => url.port === null ? url.host : url.host + ":" + url.port;
  const serializePath = (url) =>
    isOpaque(url) ? url.path : url.path.length === 0 ? "" : "/" + join(url.path, "/");

  function serialize(url) {
    let out = url.scheme + ":";
    if (url.host !== null) {
      out += "//";
      if (hasCredentials(url)) {
        out += url.username + (url.password === "" ? "" : ":" + url.password) + "@";
      }
      out += serializeHost(url);
    } else if (!isOpaque(url) && url.path.length > 1 && url.path[0] === "") {
      out += "/.";    // Else the path would be parsed as an authority.
    }
    out += serializePath(url);
    if (url.query !== null) out += "?" + url.query;
    if (url.fragment !== null) out += "#" + url.fragment;
    return out;
  }

  function origin(url) {
    if (url.scheme === "blob") {
      const inner = isOpaque(url) ? parse(url.path, null) : null;
      return inner !== null && (inner.scheme === "http" || inner.scheme === "https")
        ? origin(inner) : "null";
    }
    if (!isSpecial(url.scheme) || url.scheme === "file") return "null";
    return url.scheme + "://" + serializeHost(url);
  }

  function setHost(url, value, withPort) {
    if (isOpaque(url)) return;
    const special = isSpecial(url.scheme);
    const end = exec(special ? /[/\\?#]/ : /[/?#]/, value);
    const text = end === null ? value : slice(value, 0, end.index);
    if (url.scheme === "file") {
      setFileHost(url, text);
      return;
    }
    const colon = portColon(text);
    if (colon === 0 || (colon > 0 && !withPort)) return;
    const name = colon < 0 ? text : slice(text, 0, colon);
    if (name === "" && (special || hasCredentials(url) || url.port !== null)) return;
    const host = parseHost(name, special);
    if (host === null) return;
    url.host = host;
    if (colon > 0) setPort(url, slice(text, colon + 1));
  }

  // ---- URLSearchParams ------------------------------------------------------------------------

  function parseForm(text) {
    const list = [];
    const fields = split(text, "&");
    for (let i = 0; i < fields.length; i++) {
      if (fields[i] === "") continue;
      const field = join(split(fields[i], "+"), " ");
      const equals = indexOf(field, "=");
      const name = equals < 0 ? field : slice(field, 0, equals);
      const value = equals < 0 ? "" : slice(field, equals + 1);
      push(list, [percentDecode(name), percentDecode(value)]);
    }
    return list;
  }

  function serializeForm(list) {
    let out = "";
    for (let i = 0; i < list.length; i++) {
      out += (i > 0 ? "&" : "") + formEncode(list[i][0]) + "=" + formEncode(list[i][1]);
    }
    return out;
  }

  function listFrom(init) {
    if (init === null || (typeof init !== "object" && typeof init !== "function")) {
      const text = usv(init);
      return parseForm(text[0] === "?" ? slice(text, 1) : text);
    }
    const list = [];
    const iterate = init[Symbol.iterator];
    if (iterate === undefined || iterate === null) {
      const names = enumerableKeys(init);
      for (let i = 0; i < names.length; i++) push(list, [usv(names[i]), usv(init[names[i]])]);
      return list;
    }
    for (const item of init) {
      const pair = typeof item === "object" && item !== null ? [...item] : [];
      if (pair.length !== 2) {
        throw new TypeError("Each query pair must be an iterable [name, value] tuple");
      }
      push(list, [usv(pair[0]), usv(pair[1])]);
    }
    return list;
  }

  let listOf;       // The live list of a URLSearchParams object.
  let link;         // Ties a URLSearchParams object to a URL record and reads the record's query.

  class URLSearchParams {
    #list;
    #url = null;    // The record of the URL that this is the query of.

    static {
      listOf = (params) => params.#list;
      link = (params, url) => {
        params.#url = url;
        params.#list = parseForm(url.query ?? "");
      };
    }

    constructor(init = "") {
      this.#list = listFrom(init);
    }

    #update() {
      if (this.#url === null) return;
      const query = serializeForm(this.#list);
      this.#url.query = query === "" ? null : query;
      trimOpaquePath(this.#url);
    }

    // The pairs of that name (and that value, unless undefined), or all the others.
    #select(wanted, name, value = undefined) {
      const text = usv(name);
      const same = value === undefined ? undefined : usv(value);
      const found = [];
      for (let i = 0; i < this.#list.length; i++) {
        const pair = this.#list[i];
        const matches = pair[0] === text && (same === undefined || pair[1] === same);
        if (matches === wanted) push(found, pair);
      }
      return found;
    }

    get size() { return this.#list.length; }

    append(name, value) {
      needArguments(arguments.length, 2);
      push(this.#list, [usv(name), usv(value)]);
      this.#update();
    }

    delete(name, value = undefined) {
      needArguments(arguments.length, 1);
      this.#list = this.#select(false, name, value);
      this.#update();
    }

    get(name) {
      needArguments(arguments.length, 1);
      const found = this.#select(true, name);
      return found.length > 0 ? found[0][1] : null;
    }

    getAll(name) {
      needArguments(arguments.length, 1);
      const found = this.#select(true, name);
      for (let i = 0; i < found.length; i++) found[i] = found[i][1];
      return found;
    }

    has(name, value = undefined) {
      needArguments(arguments.length, 1);
      return this.#select(true, name, value).length > 0;
    }

    set(name, value) {
      needArguments(arguments.length, 2);
      const pair = [usv(name), usv(value)];
      const kept = [];
      let placed = false;
      for (let i = 0; i < this.#list.length; i++) {
        const same = this.#list[i][0] === pair[0];
        if (!same || !placed) push(kept, same ? pair : this.#list[i]);
        placed ||= same;
      }
      if (!placed) push(kept, pair);
      this.#list = kept;
      this.#update();
    }

    sort() {
      // Comparing strings compares code units, as the standard demands.
      sort(this.#list, (a, b) => (a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : 0));
      this.#update();
    }

    entries() { return new ParamsIterator(this, (pair) => [pair[0], pair[1]]); }
    keys() { return new ParamsIterator(this, (pair) => pair[0]); }
    values() { return new ParamsIterator(this, (pair) => pair[1]); }

    forEach(callback, thisArg = undefined) {
      if (typeof callback !== "function") throw new TypeError("The callback must be a function");
      for (let i = 0; i < this.#list.length; i++) {
        apply(callback, thisArg, [this.#list[i][1], this.#list[i][0], this]);
      }
    }

    toString() { return serializeForm(this.#list); }
  }

  // Live: it sees parameters that are added or removed during the iteration.
  class ParamsIterator {
    #params;
    #pick;
    #index = 0;

    constructor(params, pick) {
      listOf(params);     // Throws if the caller's `this` was not a URLSearchParams.
      this.#params = params;
      this.#pick = pick;
    }

    next() {
      const list = listOf(this.#params);
      if (this.#index >= list.length) return { value: undefined, done: true };
      return { value: this.#pick(list[this.#index++]), done: false };
    }
  }

  // ---- URL ------------------------------------------------------------------------------------

  function parseWithBase(url, base) {
    const text = usv(url);
    const from = base === undefined ? null : parse(usv(base), null);
    return base !== undefined && from === null ? null : parse(text, from);
  }

  const invalidURL = (url, base) => new TypeError(
    "Invalid URL: " + slice(toText(url), 0, 200) +
    (base === undefined ? "" : " (base: " + slice(toText(base), 0, 200) + ")"),
  );

  class URL {
    #url;
    #params = null;     // Created at first use; from then on the same object.

    constructor(url, base = undefined) {
      needArguments(arguments.length, 1);
      this.#url = parseWithBase(url, base);
      if (this.#url === null) throw invalidURL(url, base);
    }

    static canParse(url, base = undefined) {
      needArguments(arguments.length, 1);
      return parseWithBase(url, base) !== null;
    }

    static parse(url, base = undefined) {
      needArguments(arguments.length, 1);
      const record = parseWithBase(url, base);
      if (record === null) return null;
      const made = new URL("about:blank");
      made.#url = record;
      return made;
    }

    #relink() {
      if (this.#params !== null) link(this.#params, this.#url);
    }

    get href() { return serialize(this.#url); }
    set href(value) {
      const record = parse(usv(value), null);
      if (record === null) throw invalidURL(value);
      this.#url = record;
      this.#relink();
    }

    get origin() { return origin(this.#url); }

    get protocol() { return this.#url.scheme + ":"; }
    set protocol(value) {
      const url = this.#url;
      const found = exec(SCHEME, withoutBreaks(usv(value)) + ":");
      if (found === null) return;
      const scheme = lower(found[1]);
      if (isSpecial(scheme) !== isSpecial(url.scheme)) return;
      if (scheme === "file" && (hasCredentials(url) || url.port !== null)) return;
      if (url.scheme === "file" && url.host === "") return;
      url.scheme = scheme;
      if (url.port === DEFAULT_PORTS[scheme]) url.port = null;
    }

    get username() { return this.#url.username; }
    set username(value) {
      const text = percentEncode(usv(value), USERINFO_SET);
      if (!cannotHaveCredentials(this.#url)) this.#url.username = text;
    }

    get password() { return this.#url.password; }
    set password(value) {
      const text = percentEncode(usv(value), USERINFO_SET);
      if (!cannotHaveCredentials(this.#url)) this.#url.password = text;
    }

    get host() { return this.#url.host === null ? "" : serializeHost(this.#url); }
    set host(value) { setHost(this.#url, withoutBreaks(usv(value)), true); }

    get hostname() { return this.#url.host ?? ""; }
    set hostname(value) { setHost(this.#url, withoutBreaks(usv(value)), false); }

    get port() { return this.#url.port === null ? "" : String(this.#url.port); }
    set port(value) {
      const text = usv(value);
      if (cannotHaveCredentials(this.#url)) return;
      if (text === "") this.#url.port = null;
      else setPort(this.#url, withoutBreaks(text));
    }

    get pathname() { return serializePath(this.#url); }
    set pathname(value) {
      const url = this.#url;
      const special = isSpecial(url.scheme);
      const text = withoutBreaks(usv(value));
      if (isOpaque(url)) return;
      url.path = [];
      if (special || text !== "") appendPath(url, slice(text, isSlash(text[0], special) ? 1 : 0));
      else if (url.host === null) push(url.path, "");
    }

    get search() { return this.#url.query ? "?" + this.#url.query : ""; }
    set search(value) {
      const url = this.#url;
      const text = usv(value);
      const query = withoutBreaks(slice(text, text[0] === "?" ? 1 : 0));
      const set = isSpecial(url.scheme) ? SPECIAL_QUERY_SET : QUERY_SET;
      url.query = text === "" ? null : percentEncode(query, set);
      trimOpaquePath(url);
      this.#relink();
    }

    get hash() { return this.#url.fragment ? "#" + this.#url.fragment : ""; }
    set hash(value) {
      const text = usv(value);
      const fragment = withoutBreaks(slice(text, text[0] === "#" ? 1 : 0));
      this.#url.fragment = text === "" ? null : percentEncode(fragment, FRAGMENT_SET);
      trimOpaquePath(this.#url);
    }

    get searchParams() {
      if (this.#params === null) {
        this.#params = new URLSearchParams();
        this.#relink();
      }
      return this.#params;
    }

    toString() { return serialize(this.#url); }
    toJSON() { return serialize(this.#url); }
  }

  // ---- structuredClone ------------------------------------------------------------------------

  function uncloneable(value) {
    const what = typeof value === "symbol" ? String(value)
      : typeof value === "function" ? "A function" : "#<" + slice(tagOf(value), 8, -1) + ">";
    const message = what + " could not be cloned.";
    if (DOMException !== undefined) return new DOMException(message, "DataCloneError");
    const error = new Error(message);
    error.name = "DataCloneError";
    return error;
  }

  const define = (object, name, value, enumerable) => defineProperty(
    object, name, { __proto__: null, value, enumerable, writable: true, configurable: true },
  );

  const byName = (names) => {
    const table = { __proto__: null };
    for (const name of split(names, " ")) table[name] = globalThis[name];
    return table;
  };
  const VIEWS = byName("Int8Array Uint8Array Uint8ClampedArray Int16Array Uint16Array Int32Array " +
    "Uint32Array BigInt64Array BigUint64Array Float16Array Float32Array Float64Array");
  const ERRORS = byName("Error EvalError RangeError ReferenceError SyntaxError TypeError URIError");

  function cloneBuffer(buffer) {
    const options = buffer.resizable ? { maxByteLength: buffer.maxByteLength } : undefined;
    let bytes;
    try {
      bytes = new Uint8Array(buffer);
    } catch {
      throw uncloneable(buffer);      // It is detached.
    }
    const copy = new ArrayBuffer(bytes.length, options);
    setBytes(new Uint8Array(copy), bytes);
    return copy;
  }

  // A view of `buffer` that covers the same part as `view` covers of its own buffer.
  function sameView(view, buffer) {
    const name = viewName(view);
    return name === undefined
      ? new DataView(buffer, view.byteOffset, view.byteLength)
      : new VIEWS[name](buffer, view.byteOffset, view.length);
  }

  // A cloner returns at once and leaves the content of the object to later(), which is called when
  // the clone is known, so that cycles close and deep structures need no deep stack.

  function cloneError(error, again, later) {
    const message = getOwnPropertyDescriptor(error, "message");
    const cause = getOwnPropertyDescriptor(error, "cause");
    const Type = ERRORS[toText(error.name)] ?? Error;
    const hasMessage = message !== undefined && "value" in message;
    const copy = hasMessage ? new Type(toText(message.value)) : new Type();
    const { stack } = error;
    if (typeof stack === "string") define(copy, "stack", stack, false);
    if (cause !== undefined && "value" in cause) {
      later(() => define(copy, "cause", again(cause.value), false));
    }
    return copy;
  }

  function cloneMap(map, again, later) {
    const copy = new Map();
    later(() => mapForEach(map, (value, key) => mapSet(copy, again(key), again(value))));
    return copy;
  }

  function cloneSet(set, again, later) {
    const copy = new Set();
    later(() => setForEach(set, (value) => setAdd(copy, again(value))));
    return copy;
  }

  function cloneProperties(object, again, later) {
    const copy = isArray(object) ? [] : {};
    later(() => {
      const names = enumerableKeys(object);
      for (let i = 0; i < names.length; i++) {
        const name = names[i];
        const inner = again(object[name]);
        if (name === "__proto__") define(copy, name, inner, true);
        else copy[name] = inner;
      }
      // An array can end in holes.
      if (isArray(object) && copy.length !== object.length) copy.length = object.length;
    });
    return copy;
  }

  // A prototype, a test of the internal slot, a cloner.  The prototype alone is not enough, since
  // Object.create(Map.prototype) is an ordinary object; it spares most objects the slow tests.
  const CLONERS = [];
  const cloner = (Type, test, clone) => {
    if (Type !== undefined) push(CLONERS, { proto: Type.prototype, test, clone });
  };
  cloner(Date, (value) => accepts(getTime, value), (date) => new Date(getTime(date)));
  cloner(RegExp, (value) => accepts(regexpSource, value),
    (regexp) => new RegExp(regexpSource(regexp), regexp.flags));
  cloner(Map, (value) => accepts(mapSize, value), cloneMap);
  cloner(Set, (value) => accepts(setSize, value), cloneSet);
  cloner(ArrayBuffer, isBuffer, cloneBuffer);
  cloner(SharedArrayBuffer, isShared, (buffer) => buffer);
  for (const View of [TypedArray, DataView]) {
    cloner(View, isView, (view, again) => sameView(view, again(view.buffer)));
  }
  for (const Wrapper of [Boolean, Number, String, BigInt]) {
    const { valueOf } = methods(Wrapper);
    cloner(Wrapper, (value) => accepts(valueOf, value), (wrapper) => Object(valueOf(wrapper)));
  }
  cloner(DOMException, () => true, (error) => new DOMException(error.message, error.name));
  cloner(Error, Error.isError, cloneError);
  const refuse = (value) => {
    throw uncloneable(value);
  };
  const IteratorPrototype = getPrototypeOf(getPrototypeOf([][Symbol.iterator]()));
  const AsyncGenerator = getPrototypeOf(async function* () {}).prototype;
  for (const Type of [
    Promise, Symbol, globalThis.WeakMap, globalThis.WeakSet, globalThis.WeakRef,
    globalThis.FinalizationRegistry, { prototype: IteratorPrototype },
    { prototype: AsyncGenerator }, TextEncoder, TextDecoder, URL, URLSearchParams,
  ]) {
    cloner(Type, () => true, refuse);
  }

  function clonerOf(value) {
    if (isArray(value)) return cloneProperties;
    const proto = getPrototypeOf(value);
    if (proto === null || proto === Object.prototype) return cloneProperties;
    for (let i = 0; i < CLONERS.length; i++) {
      const kind = CLONERS[i];
      if (isPrototypeOf(kind.proto, value) && kind.test(value)) return kind.clone;
    }
    return cloneProperties;
  }

  // `memory` maps every object seen so far to its clone, for cycles and shared references.
  function clone(value, memory) {
    const todo = [];
    const later = (task) => push(todo, task);
    const again = (inner) => {
      if (typeof inner === "function" || typeof inner === "symbol") throw uncloneable(inner);
      if (typeof inner !== "object" || inner === null) return inner;
      let copy = mapGet(memory, inner);
      if (copy === undefined) {
        copy = clonerOf(inner)(inner, again, later);
        mapSet(memory, inner, copy);
      }
      return copy;
    };
    const root = again(value);
    while (todo.length > 0) pop(todo)();
    return root;
  }

  function structuredClone(value, options = undefined) {
    needArguments(arguments.length, 1);
    const buffers = [...options?.transfer ?? []];
    const memory = new Map();
    if (buffers.length === 0) return clone(value, memory);

    for (let i = 0; i < buffers.length; i++) {
      const buffer = buffers[i];
      if (!isBuffer(buffer) || buffer.detached || mapHas(memory, buffer)) throw uncloneable(buffer);
      mapSet(memory, buffer, buffer);
    }
    // A first clone makes sure that nothing fails once the buffers are detached, and its views keep
    // the ranges that the originals lose with their buffers.
    const trial = new Map();
    clone(value, trial);
    for (let i = 0; i < buffers.length; i++) {
      mapSet(memory, buffers[i], transferBuffer(buffers[i]));
    }
    mapForEach(trial, (copy, source) => {
      const moved = isView(source) ? mapGet(memory, source.buffer) : undefined;
      if (moved !== undefined) mapSet(memory, source, sameView(copy, moved));
    });
    return clone(value, memory);
  }

  // ---- Property attributes --------------------------------------------------------------------

  // As in Web IDL: members are enumerable, and Object.prototype.toString returns the name.
  const dress = (Type, name) => {
    for (const key of ownKeys(Type.prototype)) {
      if (typeof key === "symbol" || key === "constructor") continue;
      defineProperty(Type.prototype, key, { __proto__: null, enumerable: true });
    }
    const tag = { __proto__: null, value: name, configurable: true };
    defineProperty(Type.prototype, Symbol.toStringTag, tag);
  };
  const { entries } = URLSearchParams.prototype;
  define(URLSearchParams.prototype, Symbol.iterator, entries, false);
  for (const Type of [TextEncoder, TextDecoder, URL, URLSearchParams]) dress(Type, Type.name);
  dress(ParamsIterator, "URLSearchParams Iterator");
  delete ParamsIterator.prototype.constructor;
  setPrototypeOf(ParamsIterator.prototype, IteratorPrototype);

  return { TextEncoder, TextDecoder, URL, URLSearchParams, structuredClone };
})
