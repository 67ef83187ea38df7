"""Owns the list of what is demanded: every requirement of the three pages and of behaviours.md.

Data only. A test names the ids that it proves, `@pytest.mark.covers("EX-3", "OU-1")`;
`test_coverage.py` compares those marks with this list, and `missing.py` records what no test
covers yet. The sentences say what to look for; the page or behaviours.md decides.

Ids are stable. CF to ER and AD are those of behaviours.md (ER has one per error code); CM is
code-mode.md, with CM-V its validation checklist, CM-N its namespace checklist and CM-E its
end-to-end plan; TS is tool-search.md; AL is agent-loop.md. The lists of code-mode.md are here in
full; otherwise what behaviours.md says already is not repeated for a page. PY is the Python
interface, SU `clawmode setup`, CP is the control page, GP what the gateway's protocol offers to it,
and MX is MCP with others' clients and servers. N, S, B and P are
what outsiders ran into: `findings.py`. FL is a fleet: several nodes on one store.
"""

import runpy
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Requirement:
    """One demand: its id, where it is made, and what it asks in one sentence."""

    id: str
    place: str
    text: str


def _at(place: str, *rows: tuple[str, str]) -> tuple[Requirement, ...]:
    """Turns `(id, text)` rows of one place into requirements."""
    return tuple(Requirement(id=id_, place=place, text=text) for id_, text in rows)


_ALL: tuple[Requirement, ...] = (
    *_at(
        "behaviours.md: Configuration",
        (
            "CF-1",
            "Code mode is on for `true` and for `enabled: true` only; no other field can switch "
            "it on.",
        ),
        (
            "CF-2",
            "A fractional, zero or negative number is replaced by the default of the field, "
            "which is then clamped to the range.",
        ),
        (
            "CF-3",
            "The default search limit is lowered to `maxSearchLimit`, and so is a larger limit "
            "that a program requests.",
        ),
        (
            "CF-4",
            "An agent's own `codeMode` overrides the global one field by field, so its `false` "
            "wins and unset limits are inherited.",
        ),
        (
            "CF-5",
            "Loading rejects an unknown `runtime`, `mode` or language as `invalid_config` with "
            "path and choices. Unknown keys are warnings with the most similar known key, and "
            "every defaulted or clamped value is a warning.",
        ),
        (
            "CF-6",
            "A value of the wrong type is `invalid_config` and never leads to direct tools. The "
            "error for a file that does not parse names line and column.",
        ),
    ),
    *_at(
        "behaviours.md: Activation and the model's surface",
        ("SF-1", "Activation performs its eight steps in the order that the page prescribes."),
        (
            "SF-2",
            "An active run shows only `exec` and `wait`. An agent run without any tool does not "
            "activate code mode; a `CodeMode` object is always active.",
        ),
        (
            "SF-3",
            "The control tool `exec` is recognized by identity, so a shell tool with the same "
            "name is `openclaw:core:exec` in the catalog.",
        ),
        (
            "SF-4",
            "The schema of `exec` has a required `code`, and `language` as one plain string "
            "enum, without unions and without `command`. `wait` accepts `runId` or `run_id`.",
        ),
        (
            "SF-5",
            "The description of `exec` explains `return`, `await`, concurrent calls, the "
            "catalog helpers, namespaces, the time limit and what is forbidden. It mentions MCP "
            "only if there are MCP tools, and has at most 2,400 characters of fixed text.",
        ),
        (
            "SF-6",
            "The index of callable signatures is sorted, byte-stable and limited by "
            "`indexMaxChars`. It counts the omitted tools, and contains no descriptions and no "
            "MCP or client tools. A tool without room for its signature is named (MS-2).",
        ),
        (
            "SF-7",
            "A request with the tools of the run is sent only if its payload names `exec` and "
            "`wait` exactly once each. Otherwise the run fails and reports what the payload "
            "contains.",
        ),
        (
            "SF-8",
            "The model reads a result as JSON without whitespace; telemetry of a result is the "
            "small object of TR-3, which AD-1 keeps from models.",
        ),
    ),
    *_at(
        "behaviours.md: exec input and source",
        (
            "IN-1",
            "A `code` or `command` that consists of whitespace counts as missing, and two "
            "different values are `invalid_input`.",
        ),
        (
            "IN-1b",
            "A `code` that is not a string or exceeds 1 MiB is `invalid_input`. Extra keys are "
            "ignored, and a null language means the default.",
        ),
        (
            "IN-2",
            "A language that is unknown or disabled in the configuration is "
            "`unsupported_language`.",
        ),
        (
            "IN-3",
            "Imports, `import.meta` and calls of `require` in any form are "
            "`module_access_denied`. A parser decides, so the same words in strings, comments, "
            "patterns or member names are allowed.",
        ),
        (
            "IN-4",
            "An unmistakable shell command that is not JavaScript is `invalid_input`, and the "
            "error names the right tool of the catalog.",
        ),
        (
            "IN-5",
            "A cell is an async function body, so `await` and `return` work at its top level.",
        ),
        (
            "IN-6",
            "TypeScript is stripped or transformed with the submitted line numbers. Its "
            "diagnostics are `typescript_transform_failed` with line, column and excerpt. Only "
            "TypeScript cells load the transformer.",
        ),
        (
            "IN-7",
            "An error consists of name and message, followed by stack frames with submitted "
            "lines, without frames of the prelude or the host.",
        ),
    ),
    *_at(
        "behaviours.md: Running",
        (
            "EX-1",
            "One `exec` or `wait` processes every bridge call that it can within its time. It "
            "parks only for a yield, for work that takes longer than the deadline, or if only "
            "people can continue the cell.",
        ),
        (
            "EX-2",
            "One monotonic deadline covers a whole call and does not pause for a person. A cell "
            "that only people can continue is parked at once, and unanswered questions reject "
            "before the snapshot expires.",
        ),
        (
            "EX-3",
            "The guest runs until it is idle, and its whole batch of calls is checked first, so "
            "no call of a rejected batch is made.",
        ),
        (
            "EX-4",
            "`maxPendingToolCalls` limits the running tool and namespace calls. 128 more, or 64 "
            "for each that may run, wait in order. One more call fails the cell before any call "
            "of its batch runs, even if the guest catches the error.",
        ),
        (
            "EX-5",
            "Replies reach the guest in the order in which they settle, so a race has the true "
            "winner, and the losers continue.",
        ),
        (
            "EX-6",
            "Open calls and timeouts delay `completed` after the main promise has settled; an "
            "interval does not.",
        ),
        (
            "EX-7",
            "A main promise that nothing can settle fails at once as `internal_error`, with a "
            "message that explains the reason.",
        ),
        (
            "EX-8",
            "A rejected call is a guest `Error` of plain data with name, message, code and tool "
            "id. If nobody catches it, the cell fails with `nested_tool_failed`.",
        ),
        (
            "EX-9",
            "A rejection that stays unhandled fails its cell, and the error names the cause. A "
            "rejection that is handled late does not.",
        ),
        ("EX-10", "A guest error with the message `interrupted` is not mistaken for a timeout."),
        (
            "EX-11",
            "Any way to use up guest time ends in `timeout`, including regular expressions, "
            "callbacks, getters and JSON, and cancels the open calls.",
        ),
        (
            "EX-12",
            "Uncaught heap exhaustion is `memory_limit_exceeded` and discards the VM. Caught "
            "exhaustion and deep nesting stay guest errors, and no trap ends a worker that "
            "others use.",
        ),
        (
            "EX-13",
            "Common globals such as timers, `console`, URL and encoding classes exist and "
            "survive a snapshot.",
        ),
        ("EX-14", "Clock and randomness work and differ between cells, and the time zone is UTC."),
        (
            "EX-15",
            "Output is sent to the host at once, so a trap, a timeout or a dead VM loses none "
            "of it.",
        ),
    ),
    *_at(
        "behaviours.md: Values and output",
        (
            "OU-1",
            "`text` and `json` copy their argument at the time of the call, and items keep the "
            "order of the calls.",
        ),
        (
            "OU-2",
            "Every value has a JSON form (null, decimal, error object, tag or documented "
            "shape), and the conversion never throws.",
        ),
        (
            "OU-3",
            "Output and value share one limit in UTF-8 bytes of JSON, for every status and "
            "summed over all waits.",
        ),
        (
            "OU-4",
            "Output over the limit is `output_limit_exceeded`. The result keeps the longest "
            "prefix that ends on a whole character, with the number of dropped bytes.",
        ),
        (
            "OU-5",
            "A failed result keeps the output before the failure, and a `wait` returns only new "
            "output.",
        ),
    ),
    *_at(
        "behaviours.md: wait, suspension, snapshots",
        (
            "WA-1",
            "Run ids cannot be guessed. A foreign, finished or unknown id is `invalid_input`, "
            "with the reason for its owner only. Expired and aborted cells have their own "
            "codes.",
        ),
        (
            "WA-2",
            "If two waits for one cell run at the same time, the later one is rejected and the "
            "earlier one is not affected.",
        ),
        (
            "WA-3",
            "A wait that times out returns `waiting` with the same id and only the unsettled "
            "calls, and restarts the TTL.",
        ),
        ("WA-4", "The reason is `yield` only if nothing but a yield is pending."),
        (
            "WA-5",
            "While the guest is parked, calls settle into a bounded inbox. Oversized arguments, "
            "replies or inboxes become errors that the guest can catch and that suggest paging.",
        ),
        ("WA-6", "Calls made after a resume are still children of the first `exec` call."),
        (
            "WA-7",
            "An abort frees a running or parked cell at once and does not park it. Late results "
            "are dropped.",
        ),
        (
            "WA-8",
            "An oversized snapshot is `snapshot_limit_exceeded`, and its batch of calls is not "
            "made. A damaged or foreign snapshot is `snapshot_restore_failed`, and the guest "
            "does not run.",
        ),
        (
            "WA-9",
            "`maxSuspendedRuns` limits the parked cells per process before a batch has effects. "
            "Running cells pass a queue whose time counts against the deadline, and resumed "
            "cells keep their place.",
        ),
        (
            "WA-10",
            "A final state, `end_run()` and the end of the session delete snapshot and inbox; "
            "`close()` keeps durable cells.",
        ),
        (
            "WA-11",
            "With a durable store, another process can resume a cell in the same scope. Leased "
            "calls are not made twice, and orphaned calls are repeated only if they are "
            "idempotent or were waiting for a person.",
        ),
        (
            "WA-12",
            "A restore compares the length of the memory with the current limit before it "
            "decompresses, and `maxSnapshotBytes` measures stored bytes.",
        ),
    ),
    *_at(
        "fleet.md: 3.1, 3.4, 7 and the three defects",
        (
            "DU-1",
            "A cell whose process dies while it runs continues from its last checkpoint in the "
            "next process that waits; without a checkpoint it is lost.",
        ),
        (
            "DU-2",
            "Every claim and every checkpoint of a cell raises its fence. A write with an old "
            "fence, or by an owner whose call was adopted, changes nothing.",
        ),
        (
            "DU-3",
            "Every write to a store can be repeated: the same call says the same, and changes "
            "nothing more.",
        ),
        (
            "DU-4",
            "With `durability: effects`, a cell is stored before a batch with a call that is not "
            "known to only read, and no such call is made without its stored intent. After a "
            "crash, reading and idempotent calls are repeated; the outcome of others is told as "
            "unknown unless their answer was stored.",
        ),
        (
            "DU-5",
            "The list of calls of an ended cell is kept, sealed, with its tombstone, however the "
            "cell ended.",
        ),
        (
            "DU-6",
            "In a store that several builds share, a program of another build is kept, and "
            "reported as waiting elsewhere.",
        ),
        (
            "DU-7",
            "The timers of a stored cell go by the clock of the store, as durations.",
        ),
        (
            "DU-9",
            "While the store is unavailable, calls with effects are refused with "
            "`store_unavailable`, and calls that only read are made. A write whose answer was "
            "lost is repeated before the next one.",
        ),
        (
            "DU-10",
            "The end of a program that cannot be stored is stored as soon as that is possible. "
            "While the process lives, nobody continues the program from its checkpoint.",
        ),
        (
            "DU-12",
            "The number of parked programs is known without listing them, and lists are bounded: "
            "neither the figures of the gateway nor its start read all programs.",
        ),
        (
            "DU-11",
            "A program that has to wait while the store is unavailable is held by its process, and "
            "stored as soon as that is possible. Its caller is told so.",
        ),
        (
            "DU-13",
            "Nobody is told that a program was aborted, or how it ended, by a process from which "
            "another has taken it over. A program is aborted only if somebody has asked for that.",
        ),
        (
            "DU-15",
            "On stores with leases, the end of a stored program is told once it is stored: until "
            "then, another node may take the program over.",
        ),
        (
            "DU-14",
            "A claim whose answer was lost, or that could not be ended, is ended as soon as the "
            "store is available: it keeps no other process away.",
        ),
        (
            "DU-8",
            "A store of an earlier version is upgraded when it is opened, and its cells can be "
            "claimed.",
        ),
    ),
    *_at(
        "behaviours.md: Catalog and names",
        (
            "CA-1",
            "Ids follow the four source patterns, are sorted, and are the same for the same tools.",
        ),
        (
            "CA-2",
            "`tools.call` accepts an exact id or a unique name. The error lists the ids of an "
            "ambiguous name, and suggests the most similar ids for an unknown one.",
        ),
        (
            "CA-3",
            "A call resolves to structured details, or otherwise to text. `describe` adds the "
            "parameters and any output schema.",
        ),
        (
            "CA-4",
            "Calls are dispatched by whole id, so a tool whose name equals the id of another "
            "tool gets none of its calls.",
        ),
        (
            "CA-5",
            "A convenience function exists only for a normalized identifier of exactly one "
            "visible tool that is not a helper. Hostile names break nothing, and a duplicate id "
            "is a configuration error that names both tools.",
        ),
        (
            "CA-6",
            "The control tools are not in the catalog: `exec` and `wait` are excluded by "
            "identity, and those of Tool Search by name.",
        ),
        ("CA-7", "A denied tool is not listed, not found, and not callable by its id."),
        ("CA-8", "A catalog belongs to its run, and no other run can read it."),
        (
            "CA-8b",
            "A query must be a string and an input an object. An invalid limit means the default.",
        ),
        (
            "CA-9",
            "Search returns exact matches first, ranks the rest deterministically with "
            "stemming, drops poor matches, and reports words without a match in the telemetry.",
        ),
    ),
    *_at(
        "behaviours.md: MCP",
        (
            "MC-1",
            "MCP tools cannot be reached through `ALL_TOOLS` or `tools`, by id or by name.",
        ),
        (
            "MC-2",
            "Identifiers of servers and tools are in camelCase. Reserved, forbidden or repeated "
            "identifiers get a number, starting with 2.",
        ),
        (
            "MC-3",
            "A call takes one object, fills in defaults of the schema except those that the "
            "schema itself rejects, reports missing keys before it reaches the server, and "
            "treats `__proto__` as ordinary data.",
        ),
        (
            "MC-4",
            "A result resolves with its content fields even if `isError` is set; only transport "
            "and protocol errors reject.",
        ),
        ("MC-5", "Resource and prompt methods exist for the servers that offer them."),
        (
            "MC-6",
            "`$api` describes all tools, one tool, or one tool with its schema, for a server "
            "and for `MCP` itself.",
        ),
        (
            "MC-7",
            "`API.list` and `API.read` work without the bridge and reject invalid or unknown "
            "paths. The three globals exist even if they are empty.",
        ),
        (
            "MC-8",
            "Every JSON Schema seen in practice produces valid TypeScript. Comments cannot be "
            "escaped from, and parameters with defaults are optional.",
        ),
        (
            "MC-9",
            "An MCP server may die, hang, restart or change its tools. The run then gets an "
            "error or a new list, and the gateway keeps running.",
        ),
    ),
    *_at(
        "clawmode: the MCP server",
        (
            "MF-1",
            "`clawmode mcp` answers `initialize` within 1 s and the first `tools/list` within 2 s, "
            "whatever servers are behind it. A server that connects later appears without a "
            "restart.",
        ),
        (
            "MF-2",
            "If nobody can approve a call, the first result says so, and how to allow the call.",
        ),
        (
            "MF-3",
            "The two tools have titles, hints and `_meta` that let clients load them and keep "
            "their results whole. A result is sent once, without counters. Progress has the "
            "server's words and numbers, and nested calls are logged at the client's level.",
        ),
        (
            "MF-4",
            "An unknown tool, a changed `requestState` and a message that cannot be parsed are "
            "JSON-RPC errors.",
        ),
        (
            "MF-5",
            "Programs and their questions belong to the token of a client, over stdio to the "
            "state folder and the configuration. They survive the connection and the process.",
        ),
        (
            "MF-6",
            "No run, question, value or permission of one token reaches another. The id of a "
            "session opens nothing.",
        ),
        (
            "MF-7",
            "Over HTTP, access tokens of an external identity provider are accepted: for this "
            "server, by its keys, not expired, with the scope. Clients learn where to log in.",
        ),
        (
            "MF-8",
            "For clients that declare the Tasks extension, a program that waits is a task: they "
            "poll it, answer its questions, cancel it and get its result.",
        ),
        (
            "MF-9",
            "SIGTERM, SIGHUP, Ctrl-C and a client that closes its pipes end `clawmode mcp` "
            "cleanly, with all child processes. An address that cannot be used is one line "
            "and status 2.",
        ),
        (
            "MF-10",
            "Hosts and origins are checked on every address. Half requests, many requests and many "
            "sessions of one client lock nobody else out.",
        ),
        (
            "MF-11",
            'A server with `credentials: "user"` gets a connection and a login for each client of '
            "`clawmode mcp --http`. No call uses those of another; a missing login is an error "
            "with the command that logs in.",
        ),
    ),
    *_at(
        "behaviours.md: Namespaces",
        (
            "NS-1",
            "An invalid registration raises at once. An invalid scope fails its cell before "
            "guest code runs, as `internal_error` with the path.",
        ),
        ("NS-2", "A scope may contain the same object twice, but no cycle."),
        ("NS-3", "A forged bridge message is rejected, and the cell continues."),
    ),
    *_at(
        "behaviours.md: Hooks, approvals, policy",
        (
            "HK-1",
            "Direct and nested calls pass the same executor in the same order: policy, hooks, "
            "approval, tool, after-hooks, record.",
        ),
        (
            "HK-2",
            "For the outer `exec`, hooks see its kind, its language and both source fields, and "
            "may rewrite either. Nested calls do not have these fields.",
        ),
        (
            "HK-3",
            "A block ends the chain of hooks, `block: false` decides nothing, and the guest "
            "gets a rejection with the reason.",
        ),
        (
            "HK-4",
            "An approval applies to exactly the arguments that were shown, so changed arguments "
            "need a new approval.",
        ),
        (
            "HK-5",
            "A deny rule wins over an allow rule. Names match without case, by wildcard, group "
            "and profile.",
        ),
        (
            "HK-6",
            "A tool must pass each policy level that is set, from the profile down to sender "
            "and sandbox.",
        ),
        (
            "HK-7",
            "`allow-always` is stored per agent and tool id. The question says so, and the "
            "permission can be listed and revoked.",
        ),
    ),
    *_at(
        "behaviours.md: Additions of ours",
        (
            "AD-1",
            "What a model reads of a result (`compact`) has no telemetry; `to_json()` has it. The "
            "output follows a line of JSON as it is, calls that need no attention are counted, and "
            "output over the limit is cut to its beginning.",
        ),
        (
            "AD-2",
            "`tools.<unknown>()` and a bare name of a tool fail with an error that names the call "
            "that was meant, the nearest one, or the ids that share the name; `tools` and `MCP` "
            "behave like plain objects for `Object.keys`, `in`, spread and `typeof`.",
        ),
        (
            "AD-21",
            "A program that fails with a TypeError or a SyntaxError after calls shows the shapes "
            "of what the last two tools have answered; an input that is no object shows the call.",
        ),
        (
            "AD-3",
            "`store(key, value)` and `load(key)` keep bounded JSON values within a run, or a "
            "session if it is so configured. They are written before calls are made, are sealed, "
            "last as long as the store and the run, and no other run finds them.",
        ),
        (
            "AD-5",
            "`tools.describe`, search hits and `$api` show the shape of what a tool without an "
            "output schema has answered in this session: bounded, without values, and never in "
            "the prompt.",
        ),
        (
            "AD-8",
            "A call that a rate limit refused has the code `rate_limited`, and `retryAfterMs` if "
            "the tool says how long to wait.",
        ),
        (
            "AD-10",
            "`helpers` reads lists by cursor and by page, calls a function for many items with "
            "bounded concurrency, and repeats what a rate limit refused, within bounds.",
        ),
        (
            "AD-4",
            "`MCP.$search` and `MCP.<server>.$search` find tools, resources and prompts of MCP "
            "servers. Every hit of a search has the exact call. A search without a good match says "
            "so in the result, and says what was not searched.",
        ),
        (
            "AD-7",
            "`notify` tells whoever watches at once, within a rate and a size, and is not part of "
            "the result. `exit` ends a program from anywhere with its value. `image` attaches real "
            "images, within a number and a size, which reach the model beside the result.",
        ),
        (
            "AD-9",
            "A guard that matches no tool of the run is a warning with the most similar name.",
        ),
    ),
    *_at(
        "behaviours.md: Transcript, trajectory, telemetry",
        (
            "TR-1",
            "Nested calls are recorded in the order of their start, below their parent, with "
            "status and duration. The model never sees them as turns.",
        ),
        ("TR-2", "A transcript survives a crash, and an incomplete last line is repaired."),
        (
            "TR-3",
            "The documented counters survive the catalog and contain no inputs, secrets or "
            "environment variables. Pending calls have a fixed shape with four states.",
        ),
        ("TR-4", "An exported trajectory nests calls below their parent."),
        (
            "TR-5",
            "A failed result lists its nested calls in the order of their start, with state and "
            "effect. The list is bounded, and the rest is counted.",
        ),
    ),
    *_at(
        "behaviours.md: Workers",
        (
            "WK-1",
            "Guest code does not run in the serving process. A dead or stuck worker, or one "
            "that sends invalid messages, affects only its own cell and is replaced.",
        ),
        (
            "WK-2",
            "A missing or altered wasm, or a worker that does not start, is "
            "`runtime_unavailable` and exposes no tools.",
        ),
        (
            "WK-3",
            "A worker has no inherited descriptors, no environment variables and hard limits, "
            "and gives up files and network if the kernel allows it.",
        ),
    ),
    *_at(
        "behaviours.md: Error codes",
        (
            "ER-runtime_unavailable",
            "This code is given for an absent or altered wasm, a missing worker, or one that died.",
        ),
        (
            "ER-invalid_config",
            "This code is given for a configured value that is unknown or of the wrong type.",
        ),
        (
            "ER-invalid_input",
            "This code is given for unusable arguments, JavaScript syntax errors, and refused "
            "waits.",
        ),
        (
            "ER-unsupported_language",
            "This code is given for a language that is unknown or not configured.",
        ),
        (
            "ER-typescript_transform_failed",
            "This code is given for TypeScript that the transformer cannot read.",
        ),
        ("ER-module_access_denied", "This code is given for source that tries to load a module."),
        ("ER-timeout", "This code is given for guest code that uses up its wall-clock time."),
        (
            "ER-memory_limit_exceeded",
            "This code is given for a heap that outgrows its cap uncaught.",
        ),
        (
            "ER-output_limit_exceeded",
            "This code is given for output and value beyond their byte budget.",
        ),
        (
            "ER-snapshot_limit_exceeded",
            "This code is given for too many parked cells, too large a snapshot, or a restore "
            "over the limits.",
        ),
        ("ER-snapshot_expired", "This code is given for a wait that comes after the TTL."),
        (
            "ER-snapshot_restore_failed",
            "This code is given for a snapshot that is damaged, forged, another build's or sealed "
            "with a lost key.",
        ),
        (
            "ER-too_many_pending_tool_calls",
            "This code is given for more nested calls than the queue can hold.",
        ),
        (
            "ER-nested_tool_failed",
            "This code is given for an uncaught failure whose cause is a nested call.",
        ),
        ("ER-aborted", "This code is given for a cell whose run or session was cancelled."),
        (
            "ER-internal_error",
            "This code is given for uncaught guest errors, failing scope factories, and promises "
            "that wait for nothing.",
        ),
    ),
    *_at(
        "code-mode.md: Validation checklist",
        ("CM-V1", "With code mode off, the model gets the same tools as without code mode."),
        ("CM-V2", "An object without `enabled: true` keeps code mode off."),
        (
            "CM-V3",
            "With code mode on, a run that has tools shows the model only `exec` and `wait`.",
        ),
        (
            "CM-V4",
            "Raw calls, `disableTools` and an empty allowlist are not subject to the payload "
            "guard.",
        ),
        ("CM-V5", "`ALL_TOOLS` lists each effective tool that is not from MCP."),
        ("CM-V6", "`ALL_TOOLS` lists no tool that policy denies."),
        ("CM-V7", "An OpenClaw tool can be searched, described and called from a cell."),
        (
            "CM-V8",
            "The `API` files show TypeScript-like declarations of MCP tools and cost no bridge "
            "call.",
        ),
        (
            "CM-V9",
            "`$api()` of an MCP namespace returns schemas inline, for programs that did not "
            "read the files.",
        ),
        (
            "CM-V10",
            "A visible MCP tool is called through its namespace with a single object and is not "
            "found under `tools`.",
        ),
        (
            "CM-V11",
            "The control tools of Tool Search are seen neither by the model nor in the catalog.",
        ),
        ("CM-V12", "Approvals and hooks treat a nested call like any other."),
        (
            "CM-V13",
            "The model does not see the shell tool `exec`, but a cell can call it by id if the "
            "policy allows it.",
        ),
        ("CM-V14", "A cell cannot reach the code-mode `exec` or `wait`."),
        (
            "CM-V15",
            "A TypeScript cell runs. Nothing of TypeScript is loaded while code mode is off, or "
            "for JavaScript.",
        ),
        (
            "CM-V16",
            "A cell that tries to use modules, files, network or environment variables fails.",
        ),
        ("CM-V17", "An endless loop ends in a timeout, and the gateway keeps answering meanwhile."),
        ("CM-V18", "Exceeding the memory limit ends the guest VM."),
        ("CM-V19", "The limits of output and snapshots apply to finished and to parked cells."),
        ("CM-V20", "`wait` resumes a parked cell and returns its value."),
        (
            "CM-V21",
            "A `wait` fails if the run id is unknown, expired, aborted, or belongs to another "
            "session.",
        ),
        ("CM-V22", "Calls of `exec` and `wait` survive when a transcript is saved and replayed."),
        ("CM-V23", "A reader can recognize nested calls in the transcript and in the telemetry."),
    ),
    *_at(
        "code-mode.md: namespace Test checklist",
        (
            "CM-N1",
            "The text of a namespace is in the prompt only while its tools are visible.",
        ),
        (
            "CM-N2",
            "A tool with the right name but another `sourceName` does not make the namespace "
            "visible.",
        ),
        ("CM-N3", "A scope that contains a bare host function is rejected."),
        ("CM-N4", "Invented namespace ids and invented paths are rejected."),
        ("CM-N5", "A callable member cannot reach a tool that was not declared."),
        ("CM-N6", "Nested objects and references used twice arrive intact in the guest."),
        ("CM-N7", "A namespace call runs a catalog tool and returns JSON-safe details."),
        ("CM-N8", "The guest can catch the failure of a namespace call."),
        ("CM-N9", "`wait` resumes a namespace call that was parked."),
        ("CM-N10", "Rolling a plugin back removes the namespaces it had registered."),
    ),
    *_at(
        "code-mode.md: E2E test plan",
        ("CM-E1", "A gateway starts with code mode switched off."),
        ("CM-E2", "That gateway accepts an agent turn with a few direct tools."),
        ("CM-E3", "The model of that turn sees the direct tools, as without code mode."),
        ("CM-E4", "The gateway starts again with code mode switched on."),
        ("CM-E5", "It accepts an agent turn with test tools of all four sources."),
        ("CM-E6", "The model of that turn sees two tools, `exec` and `wait`."),
        ("CM-E7", "A cell finds the effective test tools in `ALL_TOOLS`."),
        ("CM-E8", "A cell searches, describes and calls the core, plugin and client tools."),
        ("CM-E9", "A cell lists and reads declaration files that describe the visible MCP tools."),
        (
            "CM-E10",
            "A cell calls MCP tools by namespace and finds none in `ALL_TOOLS` or under `tools`.",
        ),
        ("CM-E11", "Denied tools are missing, and a guessed id does not reach them."),
        ("CM-E12", "A nested call starts that finishes only after `exec` has returned `waiting`."),
        ("CM-E13", "The next `wait` restores the VM and delivers the result of the tool."),
        ("CM-E14", "Output after the restore is in the final result."),
        ("CM-E15", "A timeout, an abort or an expiry leaves no runtime state behind."),
        (
            "CM-E16",
            "The exported trajectory shows nested calls below the `exec` call that made them.",
        ),
    ),
    *_at(
        "code-mode.md: Configuration",
        ("CM-config-languages", "Both languages are available when `languages` is not set."),
        (
            "CM-config-fixed",
            "`runtime` accepts `quickjs-wasi`, `mode` accepts `only`, and both are optional.",
        ),
        ("CM-config-timeoutMs", "`timeoutMs` is 10000 by default and kept within 100 and 60000."),
        (
            "CM-config-memoryLimitBytes",
            "`memoryLimitBytes` is 67108864 by default and kept within 1048576 and 1073741824.",
        ),
        (
            "CM-config-maxOutputBytes",
            "`maxOutputBytes` is 65536 by default and kept within 1024 and 10485760.",
        ),
        (
            "CM-config-maxSnapshotBytes",
            "`maxSnapshotBytes` is 10485760 by default and kept within 1024 and 268435456.",
        ),
        (
            "CM-config-maxPendingToolCalls",
            "`maxPendingToolCalls` is 16 by default and kept within 1 and 128.",
        ),
        (
            "CM-config-snapshotTtlSeconds",
            "`snapshotTtlSeconds` is 900 by default and kept within 1 and 86400.",
        ),
        ("CM-config-searchDefaultLimit", "`searchDefaultLimit` is 8 by default."),
        ("CM-config-maxSearchLimit", "`maxSearchLimit` is 50 by default and kept within 1 and 50."),
    ),
    *_at(
        "code-mode.md: How to enable it",
        (
            "CM-config-bundle-mcp",
            "A sandboxed agent gets configured MCP tools only if its sandbox policy allows "
            "`bundle-mcp`.",
        ),
    ),
    *_at(
        "code-mode.md: Scope",
        (
            "CM-scope",
            "Switching code mode on changes neither model, channel, auth and policy nor the tools "
            "themselves.",
        ),
    ),
    *_at(
        "code-mode.md: exec",
        (
            "CM-exec-empty",
            "With neither `code` nor `command` given, `exec` fails as `invalid_input`.",
        ),
        ("CM-exec-command", "If only `command` is given, it is the source of the cell."),
        ("CM-exec-language", "A cell without `language` is JavaScript."),
        (
            "CM-result-completed",
            "A completed result has `value` and `telemetry`, and `output` if there was any.",
        ),
        (
            "CM-result-waiting",
            "A waiting result has `runId`, `reason` and `telemetry`, and may list "
            "`pendingToolCalls` and `output`.",
        ),
        (
            "CM-result-failed",
            "A failed result has the text `error`, a known `code` if there is one, `telemetry`, "
            "and the output so far.",
        ),
    ),
    *_at(
        "code-mode.md: wait",
        ("CM-wait-result", "`wait` returns the same three kinds of result as `exec`."),
        (
            "CM-wait-again",
            "A resumed cell can be parked again and waited for under a run id.",
        ),
        (
            "CM-wait-failures",
            "Each of the six reasons on the page to reject a `wait` is returned as a failed "
            "result and not raised.",
        ),
        (
            "CM-wait-callbacks",
            "After a restore, the host functions are bound again by stable names, so references "
            "of the guest still work.",
        ),
        (
            "CM-wait-description",
            "The description of `wait` tells the model to use it only for a `waiting` result.",
        ),
        (
            "CM-snapshot-private",
            "A snapshot is never stored among users' files or offered as a file.",
        ),
    ),
    *_at(
        "code-mode.md: Guest runtime API",
        (
            "CM-guest-globals",
            "A cell has `ALL_TOOLS`, `tools`, `MCP`, `namespaces`, `text`, `json` and "
            "`yield_control`.",
        ),
        (
            "CM-guest-entries",
            "An `ALL_TOOLS` entry has id, name, description and source, optionally label and "
            "`sourceName`, and no schema.",
        ),
        (
            "CM-guest-search",
            "`tools.search` resolves to compact entries without schemas.",
        ),
        ("CM-guest-call-input", "`tools.call` without input calls the tool with an empty object."),
        (
            "CM-guest-yield",
            "`yield_control` parks the cell and resolves when `wait` continues it, with or "
            "without a reason.",
        ),
        (
            "CM-mcp-files",
            "`mcp/index.d.ts` exists, and one declaration file for each visible server.",
        ),
        (
            "CM-mcp-virtual",
            "Declaration files exist only in the guest and are never written to disk.",
        ),
        ("CM-mcp-readonly", "Guest code cannot change the table that `API` serves."),
        (
            "CM-mcp-declaration",
            "A declaration names the server's namespace, `$api`, documented functions with one "
            "input object, and the result type.",
        ),
        (
            "CM-mcp-denied",
            "An MCP tool that policy hides is in neither the `MCP` namespace nor its declarations.",
        ),
    ),
    *_at(
        "code-mode.md: Internal namespaces",
        ("CM-ns-globals", "A namespace is the same under its global name and under `namespaces`."),
        ("CM-ns-surface", "Registering namespaces adds no tool to what the model sees."),
        (
            "CM-ns-required",
            "A namespace is hidden unless all its required tools are in the catalog and belong "
            "to its plugin.",
        ),
        (
            "CM-ns-scope-context",
            "`createScope` runs once per run and gets the agent, session, run, config and abort "
            "state.",
        ),
        ("CM-ns-data", "Plain values of a scope can be read in the guest without a call."),
        (
            "CM-ns-input-mapper",
            "A mapper turns guest arguments into the input of the tool. Without a mapper, the "
            "input is the first argument or an empty object.",
        ),
        (
            "CM-ns-same-path",
            "A namespace call passes the same hooks, approvals, aborts, telemetry and "
            "transcript as `tools.call`.",
        ),
        (
            "CM-ns-unsafe-keys",
            "A scope key that is empty, is a prototype name or contains the path separator is "
            "rejected.",
        ),
        ("CM-ns-identifier", "A `globalName` that is not a JavaScript identifier is rejected."),
        (
            "CM-ns-collision",
            "A `globalName` that is a built-in global or begins with `__openclaw` is rejected.",
        ),
        (
            "CM-ns-fallback",
            "A scope value that JSON cannot represent is replaced by a safe placeholder.",
        ),
        (
            "CM-ns-unregister",
            "Unregistering one namespace id does not affect the other namespaces of the plugin.",
        ),
        ("CM-ns-clear-tests", "A test can clear all registrations at once."),
    ),
    *_at(
        "code-mode.md: Output API",
        (
            "CM-output-items",
            "`text` makes items of type and text, and `json` makes items of type and value.",
        ),
        ("CM-output-value", "The return value of the cell is the `value` of its completed result."),
        ("CM-output-logs", "Console lines count against `maxOutputBytes` like other output."),
    ),
    *_at(
        "code-mode.md: Tool catalog",
        (
            "CM-catalog-sources",
            "Core, bundled plugin, external plugin, MCP and client tools enter the catalog "
            "after the policy has filtered them.",
        ),
        (
            "CM-catalog-mcp",
            "An MCP namespace call becomes a call of the one matching catalog id on the "
            "executor's usual path.",
        ),
    ),
    *_at(
        "code-mode.md: Tool names and collisions",
        (
            "CM-names-shell-exec",
            "`tools.exec` calls the shell tool, if it is allowed and no other tool normalizes "
            "to that name.",
        ),
    ),
    *_at(
        "code-mode.md: Nested tool execution",
        (
            "CM-nested-context",
            "A nested tool runs with the agent, session id and key, sender, channel and sandbox "
            "policy of its run.",
        ),
        ("CM-nested-abort", "Aborting the run reaches a nested tool through its abort signal."),
        ("CM-nested-updates", "Progress updates of a nested tool are streamed."),
    ),
    *_at(
        "code-mode.md: Runtime state",
        (
            "CM-state-machine",
            "A cell is always in one of six states, and it cannot leave any of the four final "
            "states.",
        ),
        (
            "CM-state-scope",
            "State belongs to run, session and tool call, so two cells of one run do not mix.",
        ),
        ("CM-snapshot-ttl", "A parked cell that nobody resumes is removed after its TTL."),
    ),
    *_at(
        "code-mode.md: QuickJS-WASI runtime",
        (
            "CM-runtime-dependency",
            "The engine is the declared dependency of this package and never another copy that "
            "is installed.",
        ),
        (
            "CM-runtime-isolated",
            "Each cell or resume has its own VM, and no state of a cell reaches another one.",
        ),
        ("CM-runtime-dispose", "VM handles are released after every final state."),
    ),
    *_at(
        "code-mode.md: TypeScript",
        (
            "CM-typescript-unchecked",
            "A type error does not stop a cell if the source can be transformed.",
        ),
    ),
    *_at(
        "code-mode.md: Security boundary",
        (
            "CM-security-ambient",
            "A cell finds no process, subprocess, file, network, environment or host global "
            "object.",
        ),
        (
            "CM-security-json",
            "Only JSON copies cross the bridge, so no host object, prototype or function is "
            "reachable from a cell.",
        ),
    ),
    *_at(
        "code-mode.md: Debugging",
        ("CM-debug-off", "Without the debug variables no payload or stream content is logged."),
        ("CM-debug-code-mode", "`OPENCLAW_DEBUG_CODE_MODE=1` logs how code mode was activated."),
        (
            "CM-debug-transport",
            "`OPENCLAW_DEBUG_MODEL_TRANSPORT=1` logs the requests to the model.",
        ),
        (
            "CM-debug-payload-tools",
            "`OPENCLAW_DEBUG_MODEL_PAYLOAD=tools` logs the names of the tools sent, `exec` and "
            "`wait` when active.",
        ),
        (
            "CM-debug-payload-full",
            "`OPENCLAW_DEBUG_MODEL_PAYLOAD=full-redacted` logs the request as truncated and "
            "redacted JSON.",
        ),
        (
            "CM-debug-sse-events",
            "`OPENCLAW_DEBUG_SSE=events` logs the events of the provider's stream.",
        ),
        (
            "CM-debug-sse-peek",
            "`OPENCLAW_DEBUG_SSE=peek` logs only the first five stream events, redacted.",
        ),
    ),
    *_at(
        "tool-search.md: A turn",
        (
            "TS-1",
            "A run with code mode has no Tool Search tools, whatever `tools.toolSearch` says.",
        ),
        ("TS-2", "A run without Tool Search keeps its direct tools."),
        (
            "TS-3",
            "Planning resolves policy, gathers core, plugin, MCP and client tools, indexes them, "
            "and then exposes one surface.",
        ),
        (
            "TS-4",
            "A call of the body returns to the gateway and passes its policies, restrictions, "
            "approvals, hooks, session identity and logs.",
        ),
    ),
    *_at(
        "tool-search.md: Modes",
        ("TS-5", "Mode `code` shows the model `tool_search_code`."),
        ("TS-6", "Mode `tools` shows the model `tool_search`, `tool_describe` and `tool_call`."),
        (
            "TS-7",
            "Mode `directory` adds a bounded list of tool names and descriptions to the three "
            "controls.",
        ),
        (
            "TS-8",
            "The schemas that mode `directory` shows directly are a small bounded selection of "
            "likely or required ones.",
        ),
        (
            "TS-9",
            "If `code` is not available, the run uses `tools`; this is decided before compaction.",
        ),
        ("TS-10", "Client tools stay directly visible in mode `directory`."),
        (
            "TS-11",
            "Calling a hidden directory tool by its exact name works and loads it from the "
            "authorized catalog.",
        ),
        ("TS-12", "If a directory omits names, it tells the model to use `tool_search`."),
        (
            "TS-13",
            "The catalog has eligible tools of every source after the policy, and no setting "
            "selects sources.",
        ),
    ),
    *_at(
        "tool-search.md: Configuration",
        ("TS-14", "`true`, or an object without `mode`, means `code`."),
        ("TS-15", "`codeTimeoutMs` is 10000 by default and kept within 1000 and 60000."),
        ("TS-16", "`searchDefaultLimit` is 8 by default."),
        ("TS-17", "`maxSearchLimit` is 20 by default and kept within 1 and 50."),
        ("TS-18", "MCP tools are found and called by id, like all other tools."),
    ),
    *_at(
        "tool-search.md: API",
        ("TS-19", "`openclaw.tools.search` returns compact entries of this run's catalog."),
        (
            "TS-20",
            "`openclaw.tools.describe` returns the complete metadata of one entry and its exact "
            "input schema.",
        ),
        ("TS-21", "`openclaw.tools.call` runs the chosen tool and resolves to its result."),
        (
            "TS-22",
            "The structured controls do the same as the three functions, in modes `tools` and "
            "`directory`.",
        ),
        (
            "TS-23",
            "A client tool in mode `directory` may not share its name with a core, plugin or MCP "
            "tool.",
        ),
    ),
    *_at(
        "tool-search.md: Runtime boundary",
        ("TS-24", "The body has no environment, files, network, child processes or workers."),
        (
            "TS-25",
            "The parent kills the body at the timeout, even if it has reached async continuations.",
        ),
        (
            "TS-26",
            "The body sees three `console` methods, three `openclaw.tools` methods, and no "
            "other host function.",
        ),
        (
            "TS-27",
            "The isolated runtime contains no plugin code, no MCP clients and no secrets.",
        ),
        (
            "TS-28",
            "The body runs in the QuickJS-WASI worker of code mode and not in another sandbox.",
        ),
    ),
    *_at(
        "tool-search.md: Telemetry",
        ("TS-29", "The serialized bytes of the tools and of the prompt are reported."),
        (
            "TS-30",
            "Catalog size and sources, counts of operations, executed calls, and chosen ids "
            "with sources are reported.",
        ),
        (
            "TS-31",
            "A session log contains the schemas that were shown first, the searches and "
            "descriptions, the final call, and the source of its result.",
        ),
    ),
    *_at(
        "tool-search.md: End-to-end validation",
        ("TS-32", "A fake plugin tool can be called in direct mode."),
        ("TS-33", "Tool Search can call the same fake plugin tool."),
        ("TS-34", "In direct mode the provider receives the fake plugin's schemas."),
        (
            "TS-35",
            "With Tool Search, the provider receives the search tools and none of these schemas.",
        ),
        ("TS-36", "With a large fake catalog the request is smaller under Tool Search."),
        (
            "TS-37",
            "Session logs have the right number of tool calls and the telemetry of the bridged "
            "one.",
        ),
    ),
    *_at(
        "tool-search.md: Failure behaviour",
        ("TS-38", "Search never returns tools that the effective policy excludes."),
        ("TS-39", "`tool_call` fails for a chosen tool that no longer exists."),
        ("TS-40", "If policy or approval stops a call, the result of the call says so."),
        (
            "TS-41",
            "A body never runs without isolation, even if no isolated runtime is available.",
        ),
    ),
    *_at(
        "agent-loop.md: Entry points",
        ("AL-1", "The gateway serves the methods `agent` and `agent.wait`."),
        ("AL-2", "The command line has `agent`, which runs a turn."),
    ),
    *_at(
        "agent-loop.md: How it works",
        ("AL-3", "`agent` rejects invalid params before a run exists."),
        (
            "AL-4",
            "`agent` finds the session by `sessionKey` or `sessionId` and saves its metadata.",
        ),
        ("AL-5", "`agent` answers with `runId` and `acceptedAt` without waiting for the run."),
        (
            "AL-6",
            "A run uses the default model and the default thinking, verbose and trace levels, "
            "unless the request sets them.",
        ),
        ("AL-7", "A run uses its resolved model and auth profile to build the session."),
        (
            "AL-8",
            "Each run ends with one lifecycle end or error. The agent command adds it if the "
            "loop did not emit one.",
        ),
        ("AL-9", "A run returns its payloads together with usage figures."),
        ("AL-10", "Tool events appear on the stream `tool`."),
        ("AL-11", "Assistant deltas appear on the stream `assistant` while the model is speaking."),
        (
            "AL-12",
            "Lifecycle events appear on the stream `lifecycle` with phase start, end or error.",
        ),
        (
            "AL-13",
            "`agent.wait` returns at the end of the run with `status`, `startedAt`, `endedAt` "
            "and any `error`.",
        ),
    ),
    *_at(
        "agent-loop.md: Queueing and concurrency",
        (
            "AL-14",
            "Runs of one session key execute one after another and do not block other sessions.",
        ),
        ("AL-15", "A global lane, if configured, also limits runs across sessions."),
        ("AL-16", "Queue mode `steer` adds a message to the run in progress."),
        ("AL-17", "Queue mode `followup` makes a message the next turn."),
        ("AL-18", "Queue mode `collect` combines queued messages into one turn."),
        ("AL-19", "Queue mode `interrupt` aborts the current run for the newer message."),
        (
            "AL-20",
            "The transcript lock is a file that names its process. It excludes writers outside "
            "of the queue and in other processes.",
        ),
        (
            "AL-21",
            "A writer waits for `session.writeLock.acquireTimeoutMs`, 60000 by default, before "
            "the session is reported as busy.",
        ),
        (
            "AL-22",
            "Acquiring a held write lock again fails unless `allowReentrant: true` is given.",
        ),
    ),
    *_at(
        "agent-loop.md: Session and workspace preparation",
        ("AL-23", "The workspace is resolved and created before a run needs it."),
        ("AL-24", "A sandboxed run can use the workspace root of the sandbox instead."),
        (
            "AL-25",
            "Skills are loaded, or read from a snapshot, and added to the environment and the "
            "prompt.",
        ),
        (
            "AL-26",
            "Bootstrap and context files are resolved and shown in the system prompt report.",
        ),
        ("AL-27", "The session is locked, opened and prepared before anything streams."),
        ("AL-28", "Rewriting, compacting or truncating a transcript acquires that lock first."),
    ),
    *_at(
        "agent-loop.md: Prompt assembly",
        (
            "AL-29",
            "The system prompt consists of base prompt, skills, bootstrap context and overrides "
            "of the run.",
        ),
        ("AL-30", "The limits of the model and the tokens reserved for compaction are respected."),
    ),
    *_at(
        "agent-loop.md: Hooks",
        (
            "AL-31",
            "`agent:bootstrap` can add and remove context files before the system prompt is final.",
        ),
        ("AL-32", "Operator hooks run for commands such as `/new`, `/reset` and `/stop`."),
        ("AL-33", "`before_model_resolve` runs without messages and decides provider and model."),
        (
            "AL-34",
            "`before_prompt_build` runs with messages and can inject the four context and prompt "
            "fields.",
        ),
        (
            "AL-35",
            "`prependContext` is sent with the turn, and the system-context fields become part "
            "of the system prompt.",
        ),
        ("AL-36", "`before_agent_start` still works, in either of the two phases."),
        (
            "AL-37",
            "`before_agent_reply` can take over a turn before the model request, with a "
            "synthetic reply or silence.",
        ),
        ("AL-38", "`agent_end` gets the final messages and the run's metadata."),
        ("AL-39", "`before_compaction` and `after_compaction` run around each compaction."),
        ("AL-40", "`before_tool_call` can change params, and `after_tool_call` sees results."),
        (
            "AL-41",
            "`before_install` inspects staged files after the operator's install policy has run.",
        ),
        (
            "AL-42",
            "`tool_result_persist` rewrites a tool result synchronously before it is written to "
            "the transcript.",
        ),
        (
            "AL-43",
            "`message_received`, `message_sending` and `message_sent` run when a message is "
            "received, before it is sent, and after it was sent.",
        ),
        ("AL-44", "`session_start` and `session_end` run when a session starts and ends."),
        ("AL-45", "`gateway_start` and `gateway_stop` run when the gateway starts and stops."),
        (
            "AL-46",
            "A block of `before_install` is final, and `block: false` does not revoke an "
            "earlier block.",
        ),
        (
            "AL-47",
            "`security.installPolicy` also decides about installs and updates from the command "
            "line, whether hooks are loaded or not.",
        ),
        (
            "AL-48",
            "A cancel of `message_sending` is final, and `cancel: false` does not revoke an "
            "earlier cancel.",
        ),
    ),
    *_at(
        "agent-loop.md: Streaming and partial replies",
        ("AL-49", "Block streaming can send part of a reply at `text_end` or `message_end`."),
        ("AL-50", "Reasoning can be sent as a separate stream or as block replies."),
    ),
    *_at(
        "agent-loop.md: Tool execution and messaging tools",
        ("AL-51", "A tool emits start, update and end events."),
        (
            "AL-52",
            "Tool results that are large or contain images are trimmed before they are logged "
            "or emitted.",
        ),
        (
            "AL-53",
            "Messages that a messaging tool sent are recorded, and a repeated confirmation of "
            "the assistant is suppressed.",
        ),
    ),
    *_at(
        "agent-loop.md: Reply shaping",
        (
            "AL-54",
            "The final payloads consist of assistant text, optional reasoning, tool summaries "
            "if verbose and allowed, and the text of model errors.",
        ),
        ("AL-55", "A reply that is exactly `NO_REPLY` or `no_reply` is not sent."),
        ("AL-56", "The final payloads do not repeat messages that a messaging tool has sent."),
        (
            "AL-57",
            "A fallback reply reports a tool error if nothing else is rendered and no messaging "
            "tool has reached the user.",
        ),
    ),
    *_at(
        "agent-loop.md: Compaction and retries",
        ("AL-58", "Automatic compaction emits `compaction` events and can lead to a retry."),
        (
            "AL-59",
            "A retry starts with empty buffers and tool summaries, so no text is sent twice.",
        ),
    ),
    *_at(
        "agent-loop.md: Event streams",
        (
            "AL-60",
            "A chat channel gets buffered `delta` messages and one `final` at the end or error "
            "of the lifecycle.",
        ),
    ),
    *_at(
        "agent-loop.md: Timeouts",
        (
            "AL-61",
            "`agent.wait` times out after 30 s or its `timeoutMs` and does not affect the run.",
        ),
        (
            "AL-62",
            "`agents.defaults.timeoutSeconds`, 172800 by default, aborts a run that takes longer.",
        ),
        (
            "AL-63",
            "The time limit of a cron turn starts with its execution, and the turn is aborted "
            "at the deadline.",
        ),
        (
            "AL-64",
            "A timed-out cron turn is cleaned up in bounded time before it is recorded, and its "
            "lane is free again.",
        ),
        (
            "AL-65",
            "With diagnostics on, a session without progress for "
            "`diagnostics.stuckSessionWarnMs` is classified.",
        ),
        (
            "AL-66",
            "A session with an active embedded run, model call or tool call is "
            "`session.long_running`.",
        ),
        (
            "AL-67",
            "A silent model call that has an owner is `session.long_running` until "
            "`diagnostics.stuckSessionAbortMs` and `session.stalled` from then on.",
        ),
        ("AL-68", "Active work that made no recent progress is `session.stalled`."),
        (
            "AL-69",
            "Stale model or tool activity without an owner is not classified as long-running.",
        ),
        (
            "AL-70",
            "`session.stuck` means stale bookkeeping that can be recovered, including idle "
            "queued sessions.",
        ),
        ("AL-71", "Recovering a stuck session frees its lane as soon as the checks allow."),
        (
            "AL-72",
            "A stalled embedded run is aborted and drained only after `stuckSessionAbortMs`, by "
            "default at least 5 minutes and three times the warning threshold.",
        ),
        (
            "AL-73",
            "A recovery reports that it was requested and how it was completed, as structured "
            "events.",
        ),
        (
            "AL-74",
            "A recovery marks a session idle only if the processing generation has not changed.",
        ),
        ("AL-75", "Repeated `session.stuck` reports become less frequent while nothing changes."),
        ("AL-76", "A model request is aborted if no chunk arrives within the idle window."),
        (
            "AL-77",
            "A provider's `timeoutSeconds` extends the idle window, unless the timeout of the "
            "agent or run is lower.",
        ),
        (
            "AL-78",
            "Without a provider's timeout, the idle window is the configured agent timeout, at "
            "most 120 s by default.",
        ),
        ("AL-79", "A cron run on a cloud model without a timeout has the default idle window."),
        (
            "AL-80",
            "A cron run on a cloud model with its own timeout has an idle window of at most 60 s.",
        ),
        ("AL-81", "A cron run on a local model has no idle window unless a timeout is set."),
        ("AL-82", "A cron run's own timeout is the idle window on a local model."),
        (
            "AL-83",
            "A provider's `timeoutSeconds` limits connecting, headers, body, the SDK request, "
            "the whole fetch and idle time.",
        ),
    ),
    *_at(
        "agent-loop.md: Where a run can end early",
        ("AL-84", "An abort signal cancels a run."),
        (
            "AL-85",
            "If the gateway is lost or an RPC times out, a run can end early, and then ends "
            "cleanly.",
        ),
    ),
    *_at(
        "clawmode: the model's side",
        (
            "MS-1",
            "Where an MCP server returns one object or array of JSON only as text, "
            "`structuredContent` of the result has it, within bounds.",
        ),
        (
            "MS-2",
            "The index names every trusted tool as `tools.…`, with its id if several tools share "
            "the name. Signatures follow for as many as fit: of tools that the session has used, "
            "then by source, never by the alphabet, with limits, formats, results and marks.",
        ),
        (
            "MS-3",
            "A return annotation becomes the output schema, and is shown in signatures and by "
            "`describe`. Results are not checked against it.",
        ),
        (
            "MS-4",
            "The description of `exec` has at most 2,500 bytes without index and namespaces, both "
            "definitions over 80 tools and three servers stay under 6,400 bytes with every name, "
            "and `max_chars` bounds a description for clients that cut it.",
        ),
        (
            "MS-5",
            "The description of `exec` does not change when an MCP server comes or goes: results "
            "say so, once per change.",
        ),
    ),
    *_at(
        "clawmode: the Python interface",
        (
            "PY-1",
            "Docs and examples import nothing deeper than `clawmode`, `clawmode.testing` and "
            "`clawmode.integrations`.",
        ),
        (
            "PY-2",
            "Importing `CodeMode`, `tool` or `Agent` loads no web server, no MCP SDK and no "
            "provider SDK, and needs no extra.",
        ),
        (
            "PY-3",
            "An agent in Python takes ten lines: one object accepts a model (name or object), "
            "tools, MCP servers and a state folder, and `await agent.run(message)` returns the "
            "result.",
        ),
        (
            "PY-4",
            "`agent.stream(message)` iterates over the events of a run and ends with its result; "
            "leaving the loop early aborts the run.",
        ),
        (
            "PY-5",
            "A wrong use of `Agent` and a run that fails raise an exception that says what to do.",
        ),
        (
            "PY-6",
            "`pip install clawmode` installs what `CodeMode` needs, by at most nine direct "
            "dependencies; everything else has an extra.",
        ),
        (
            "PY-7",
            "Without an extra, what needs it says so in one line with the command that installs "
            "it: Python code by an `ImportError`, a command on stderr.",
        ),
        (
            "PY-8",
            "The wheel works in empty environments on Python 3.11 to 3.14: without extras, and "
            "with `cli`.",
        ),
        (
            "PY-9",
            "Dependencies have ranges; the lowest and the highest versions in them work.",
        ),
        (
            "PY-10",
            "Every module can be imported on macOS and Windows. What the operating system lacks "
            "is refused in one line when it is used.",
        ),
        (
            "PY-11",
            "`CodeMode.sync(...)` runs programs from code without an event loop, and where one "
            "runs: from several threads, with the same failures. Ctrl-C ends a call, and a script "
            "that forgets to close it still ends.",
        ),
        (
            "PY-12",
            "Programs run under asyncio and uvloop. Under trio, opening the object fails with an "
            "error that names the way that works.",
        ),
        (
            "PY-13",
            "mypy and pyright, in their strict modes, accept user code that uses the public names "
            "and the adapters, and find its mistakes.",
        ),
    ),
    *_at(
        "clawmode: calls that people and models look at",
        (
            "AK-1",
            "A pending call shows its input in a waiting result. Secrets are redacted, and the "
            "inputs are bounded for each call and in total.",
        ),
        (
            "AK-2",
            "A failed result shows the inputs of calls that are not known to only read, within "
            "the same bounds, also if another process made the calls.",
        ),
        (
            "AK-3",
            "The error of a failed call shows the submitted line that made the call, with line "
            "and column, also after a park. An error that wraps it says why the call failed.",
        ),
        (
            "AK-4",
            "Sibling calls of one program that wait for a person are one question, which can be "
            "answered for all calls or one by one: in Python, at the terminal, through the "
            "gateway and by a client of the MCP server.",
        ),
        (
            "AK-5",
            "A group has the calls that a program makes in one step, also if more calls need "
            "approval than may run at once. No call waits noticeably for its siblings, and an "
            "asker or client that knows no groups gets each question as before.",
        ),
        (
            "AK-6",
            "An answer to a group is for the calls that the group showed and for no others. The "
            "first answer to each question counts. Answers to some calls are kept, and after a "
            "SIGKILL another process asks about the rest.",
        ),
        (
            "AK-7",
            'With `tools.codeMode.dialect: "codex"`, `exec` is a freeform custom tool in the '
            "format of the Responses API, `wait` takes `cell_id`, `yield_time_ms`, `max_tokens` "
            "and `terminate`, and `tools.mcp__server__tool` calls an MCP tool. Without this "
            "setting, nothing of it exists.",
        ),
    ),
    *_at(
        "MCP for every client",
        (
            "MX-1",
            "The official conformance suite passes on both sides, except for scenarios that do "
            "not apply; each of these has a reason.",
        ),
        (
            "MX-2",
            "Clients of others list, call and wait, over stdio and HTTP, also if they open a "
            "session for every call, and through bridges.",
        ),
        (
            "MX-3",
            "At least ten servers of others work behind one `clawmode`.",
        ),
    ),
    *_at(
        "clawmode setup",
        (
            "SU-1",
            "`clawmode setup` moves the servers of every known MCP client behind clawmode after "
            "consent, keeps the comments of the files, and `--undo` restores them byte for byte.",
        ),
    ),
    *_at(
        "frameworks",
        (
            "FW-1",
            "A call of `exec` or `wait` that a framework makes again, in this process or another, "
            "continues its program: no program is started twice, and no call that may have taken "
            "effect is made again.",
        ),
        (
            "FW-2",
            "A nested call that needs approval pauses the framework's call with the exact nested "
            "calls. An answer is for the calls that were shown, and for no others.",
        ),
        (
            "FW-3",
            "Nested calls of the framework's own tools run with the context and the context "
            "variables of the framework's call. Cancelling that call ends the program.",
        ),
        (
            "FW-4",
            "A framework that is missing, too old or too new raises an ImportError that names the "
            "framework, the range and the extra.",
        ),
        (
            "FW-5",
            "A tool that raises `ApprovalNeeded` is called again once a person has approved the "
            "call, and not at all if the person denies the call.",
        ),
        (
            "FW-6",
            "A person's answer counts in whichever process the framework gives it, also while the "
            "process that asked still lives. The call takes effect once, even if the same answer "
            "comes twice, and an answer to a program that is not kept starts nothing.",
        ),
        (
            "FW-20",
            "`ClawMode` as a middleware of LangChain shows the model `exec` and `wait` in place of "
            "the agent's tools, and programs call these tools with their injected arguments.",
        ),
        (
            "FW-21",
            "Every middleware and every callback of a LangChain agent sees each nested call, and "
            "cancelling the run ends the program and its calls.",
        ),
        (
            "FW-22",
            "A nested call that the `HumanInTheLoopMiddleware` of a LangChain agent reviews "
            "interrupts the run. The decision holds for this call, also after the process was "
            "killed, and each effect happens once.",
        ),
        (
            "FW-23",
            "Updates of the state that nested tools return to LangGraph are applied when the call "
            "of the model returns, also those from before an interrupt.",
        ),
        (
            "FW-30",
            "OpenAI Agents SDK: programs call the agent's function tools through the SDK, so that "
            "guardrails, hooks and spans apply. Nested calls that need approval are interruptions "
            "of the run, and `RunState` continues the program, in another process too.",
        ),
        (
            "FW-40",
            "pydantic-ai: programs call the agent's tools through its tool manager, so that hooks, "
            "usage limits, spans and events apply. A nested approval ends the run with "
            "`DeferredToolRequests`, and `DeferredToolResults` continues the program, in another "
            "process too.",
        ),
        (
            "FW-24",
            "`ClawMode` as a transform of a FastMCP server runs JavaScript and TypeScript programs "
            "that call the server's tools through its middleware, and describes them as such.",
        ),
        (
            "FW-25",
            "A hostile program in a FastMCP server reaches nothing but the server's tools, ends at "
            "the limits of time and memory, and leaves nothing for the next program.",
        ),
        (
            "FW-50",
            "Google ADK: programs call wrapped tools through ADK, so that plugins, callbacks and "
            "spans apply. Nested calls that need confirmation are confirmed with the `exec` or "
            "`wait`, in another process too.",
        ),
        (
            "FW-31",
            "Claude Agent SDK: programs call the tools of the options' MCP servers, and the rules, "
            "hooks and `can_use_tool` of the options decide about nested calls. A question defers "
            "`wait`, and the resumed session continues the program, in another process too.",
        ),
        (
            "FW-32",
            "Microsoft Agent Framework: programs call functions through the middleware of the "
            "agent. Nested calls that need approval are a `function_approval_request`, whose "
            "response continues the program, in another process too.",
        ),
    ),
    *_at(
        "a control page, and HTTP interfaces",
        (
            "HT-1",
            "OpenAI's official SDK uses the agents of a gateway as models, by chat completions and "
            "by responses, whole and streaming, with images, usage and errors in OpenAI's shape.",
        ),
        (
            "HT-2",
            "The client's functions are called from programs, and their results continue the same "
            "run.",
        ),
        (
            "HT-3",
            "`previous_response_id`, a header, `user` or the earlier messages select the session.",
        ),
        (
            "HT-4",
            "A run that needs a person returns in time with a text that says where to answer, and "
            "continues afterwards.",
        ),
        (
            "HT-5",
            "Without a token, its scope or a permitted origin, no request has an effect. What is "
            "not supported is rejected by name.",
        ),
    ),
    *_at(
        "a fleet: several nodes on one store",
        (
            "FL-1",
            "Nodes are killed and stopped at random moments, and no program is lost without its "
            "caller being told, no effect happens twice, and callers are told of every effect, or "
            "that its outcome is unknown.",
        ),
        (
            "FL-2",
            "The same holds for nodes that share a PostgreSQL, are stopped for longer than their "
            "lease, or lose the network to it in any way, while PostgreSQL is restarted or killed.",
        ),
        (
            "FL-3",
            "Timers keep their time, whatever the clocks and uptimes of the nodes are on which a "
            "program is parked and resumed.",
        ),
    ),
    *_at(
        "editors, by the Agent Client Protocol",
        (
            "AC-1",
            "The client of the official package drives `clawmode acp`: text and thoughts stream, "
            "and calls of programs appear below their `exec`, with kind, input, output and file.",
        ),
        ("AC-2", "Text, images, links and embedded files of a prompt reach the model."),
        (
            "AC-3",
            "The answer to a prompt has the stop reason and the usage. A failed turn is an error "
            "with its reason, and a cancelled one stops at once.",
        ),
        (
            "AC-4",
            "A call that may change something waits for permission: once, always or denied. The "
            "modes of a session change who decides, but lift no prohibition.",
        ),
        (
            "AC-5",
            "Sibling calls are one question, or one each. A cancelled prompt withdraws its "
            "questions, and a tool gets input by a form of the client.",
        ),
        (
            "AC-6",
            "Sessions are listed by folder, and loaded with their calls, resumed and closed, also "
            "after a restart.",
        ),
        (
            "AC-7",
            "Sessions run at the same time, each in its folder and with its own servers. A folder "
            "that no agent may work in, and a configuration that nobody trusts, are refused.",
        ),
        (
            "AC-8",
            "A line, a parameter or an answer that is invalid is answered with an error, and "
            "changes nothing. The words of strangers are shown as text.",
        ),
        (
            "AC-9",
            "At the end of stdin and by SIGTERM, the process ends with its runs and their child "
            "processes. Stdout has only messages of the protocol.",
        ),
    ),
    *_at(
        "the control page",
        (
            "CP-1",
            "Running turns, their programs and nested calls are a live tree: state, duration, what "
            "each waits for and until when; with workers, queue and memory.",
        ),
        (
            "CP-2",
            "Login is by a link that works once, or by a token. The session is an HttpOnly, "
            "same-site cookie, which ends by logout, disuse, and with its token, together with its "
            "connections. It outlives a restart of the gateway.",
        ),
        (
            "CP-3",
            "Host and origin are checked on every request and WebSocket. Rebound names, other "
            "sites, forms, frames and guessed codes get nothing, and no secret is logged. The link "
            "of a stranger logs nobody in without a question.",
        ),
        (
            "CP-4",
            "The words of strangers are always text: scripts, bidi marks, control characters and "
            "long lines neither run nor hide nor break the page.",
        ),
        (
            "CP-5",
            "Questions show the exact call. Siblings are one list, the first answer counts, and "
            "everybody sees who gave it. A parked program whose worker died resumes.",
        ),
        (
            "CP-6",
            "The page works at 360 px, with the keyboard alone, in light and dark mode, and with "
            "10,000 nodes in a tree.",
        ),
        (
            "CP-7",
            "After a lost connection the page connects again and shows what was missed, once.",
        ),
        (
            "CP-8",
            "Over loopback the page is usable within 300 ms with 100 sessions. Twenty open pages "
            "leave the gateway under 150 MB, and 500 open pages leave it responsive.",
        ),
        (
            "CP-20",
            "Sessions are listed and searched. A transcript shows nested calls under their `exec`, "
            "highlighted programs, output and tokens; long ones are windowed and paged.",
        ),
        (
            "CP-21",
            "In the view Sessions people create sessions, write, steer, stop, begin a new "
            "conversation, and export and download the trajectory.",
        ),
        (
            "CP-22",
            "Chat streams answers with their calls, shows images, stops a turn, and after a "
            "reconnection in mid-stream shows what was missed.",
        ),
        (
            "CP-23",
            "Tools shows the catalog of an agent as its model reads it, with declarations, and "
            "searches with the ranker of programs.",
        ),
        (
            "CP-24",
            "An editor runs a program against the catalog, and shows its calls, questions, output "
            "and result; it can be stopped.",
        ),
        (
            "CP-25",
            "Operation shows MCP servers and their health, jobs, plugins and the findings of "
            "the doctor, and follows the log.",
        ),
        (
            "CP-26",
            "Operation shows the configuration with each error at its line, and creates and "
            "revokes tokens; a new token is shown once.",
        ),
        (
            "CP-27",
            "A token without a scope sees what it may not do, and why; nothing fails only when "
            "it is tried.",
        ),
        (
            "CP-28",
            "Text of strangers is text in every view: scripts, bidi marks, control characters and "
            "lines of a megabyte do nothing but appear.",
        ),
        (
            "CP-29",
            "Every view fits on 360 pixels, works with the keyboard alone, and has readable "
            "contrast in light and dark mode.",
        ),
    ),
    *_at(
        "docs/reference/gateway-protocol.md",
        (
            "GP-1",
            "Every event has a number in the gateway. `events.since` returns the events after a "
            "number, once and in order, and of a text that grows the last state only.",
        ),
        (
            "GP-2",
            "A client gets only those missed events that its scopes and subscriptions let it "
            "receive.",
        ),
        (
            "GP-3",
            "The events that are kept have a limit of count and bytes. A position that is too old, "
            "or that another process gave, is a reset and never a silent gap.",
        ),
        (
            "GP-4",
            "`runs.tree` shows turns, their programs and all nested calls with state, duration and "
            "parent, with redacted previews of inputs.",
        ),
        (
            "GP-5",
            "A parked program, also of an earlier process, and a call that waits for a person are "
            "shown with what they wait for and until when.",
        ),
        ("GP-6", "`runs.changed` brings every change of the tree to followers, and to no others."),
        (
            "GP-7",
            "A tree of 10,000 nodes is read in pages of bounded size. A larger tree leaves out "
            "calls that have ended, and says how many.",
        ),
        (
            "GP-8",
            "A follower that reads slowly misses changes in place of filling the gateway's memory, "
            "and is told to read the tree again.",
        ),
        (
            "GP-9",
            "`system.figures` shows the workers with their programs, the queues, and the memory of "
            "the gateway and of each worker.",
        ),
        (
            "GP-10",
            "The first answer to a question counts; events and lists say what was decided and who "
            "answered, also for input and for answers from a channel.",
        ),
        (
            "GP-11",
            "A conversation is read in pages, the newest entries first. Programs have their "
            "source, result, output and nested calls, wherever these are in the file, and answers "
            "their tokens.",
        ),
        (
            "GP-12",
            "A page has a bounded size whatever people, models and tools have written; what was "
            "cut can be read alone.",
        ),
        (
            "GP-13",
            "Sessions are found by key, title and last message, and listed page by page without "
            "gaps and repetitions.",
        ),
        (
            "GP-14",
            "`tools.surface` and `tools.declaration` show the catalog of an agent exactly as its "
            "model and programs get it.",
        ),
        ("GP-15", "`tools.search` finds what a program finds, in the same order."),
        (
            "GP-16",
            "`codemode.run` runs a program of an operator under the policy and approvals of the "
            "agent. A program that waits is continued, aborted or given up like any other.",
        ),
        (
            "GP-17",
            "Operators create and revoke tokens. The secret is in one response and nowhere else, "
            "and a revoked token ends its connections.",
        ),
        (
            "GP-18",
            "`doctor.run`, `mcp.servers` and `plugins.list` say what is wrong with a gateway, and "
            "since when.",
        ),
        (
            "GP-19",
            "`config.get` returns the text of the file with its lines and without secrets, also if "
            "the file is broken, and issues with line and column.",
        ),
        (
            "GP-20",
            "The log is followed by number, and the files of an export are downloaded in parts; "
            "no name leads out of their folder.",
        ),
    ),
    *_at(
        "fleet.md: 2, 3.1 to 3.6, 3.11 and 7",
        (
            "PG-1",
            "PostgreSQL is reached by TLS only, unless the server is on this machine.",
        ),
        (
            "PG-2",
            "No error, log or representation shows the password or the user of the database.",
        ),
        (
            "PG-3",
            "A statement waits for a connection for at most 2 seconds, and its answer is given up "
            "after a limit, whatever the server or the network does.",
        ),
        (
            "PG-4",
            "A statement whose connection was lost is repeated, and says the same even if it had "
            "been executed.",
        ),
        (
            "PG-5",
            "The schema is made and upgraded in numbered steps, once. A build that is too old for "
            "it, or that would shut out living nodes, changes nothing.",
        ),
        (
            "PG-6",
            "Names, rows and objects that strangers have put into the database run no code of "
            "theirs and resume no program.",
        ),
        (
            "PG-7",
            "A process is a node, which beats by the clock of the database. A node that is "
            "overdue, or whose session has ended, is declared dead by one of the others, and never "
            "comes back under its id.",
        ),
        (
            "PG-8",
            "A node that finds itself dead gives up all programs that it has, which others can "
            "resume, logs that, and goes on as a new node.",
        ),
        (
            "PG-9",
            "A node without a key, or without the key of a living node, does not start.",
        ),
        (
            "PG-10",
            "A reply wakes the `wait` on another node. Wakes that were missed are made up for.",
        ),
        (
            "PG-11",
            "No function of the database changes anything for an owner with an old fence.",
        ),
        (
            "PG-12",
            "Cells that have expired are ended a few at a time by one node, and tombstones are "
            "dropped by the day. The number of parked programs is bounded without counting rows.",
        ),
        (
            "PG-13",
            "`clawmode state` checks and upgrades the database, and moves programs between a "
            "folder and the database, each to one place only.",
        ),
        (
            "PG-14",
            "While the database cannot be reached, `/readyz` says so.",
        ),
        (
            "PG-15",
            "PgBouncer in transaction mode may be in between if the node does not listen. A node "
            "that listens through it does not start, and is told what to do.",
        ),
        (
            "PG-16",
            "Programs of `clawmode mcp` are in the database that `state` names: those of a token "
            "on every node, and those over stdio by state folder and configuration.",
        ),
        (
            "PG-17",
            "A folder and a database answer the same questions about their nodes (who lives, who "
            "drains), and wake whoever waits for a program.",
        ),
    ),
    # Run by path, because pytest's importlib mode makes siblings unimportable by name.
    *_at(
        "findings.py",
        *runpy.run_path(str(Path(__file__).with_name("findings.py")))["FINDINGS"].items(),
    ),
)

REQUIREMENTS: dict[str, Requirement] = {requirement.id: requirement for requirement in _ALL}

assert len(REQUIREMENTS) == len(_ALL), "two requirements have the same id"
