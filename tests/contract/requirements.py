"""Owns the list of what is demanded: every requirement of the three pages and of behaviours.md.

Data only. A test names the ids that it proves, `@pytest.mark.covers("EX-3", "OU-1")`;
`test_coverage.py` compares those marks with this list, and `missing.py` records what no test
covers yet. The sentences say what to look for; the page or behaviours.md decides.

Ids are stable. CF to ER and AD are those of behaviours.md (ER has one per error code); CM is
code-mode.md, with CM-V its validation checklist, CM-N its namespace checklist and CM-E its
end-to-end plan; TS is tool-search.md; AL is agent-loop.md. The lists of code-mode.md are here in
full; otherwise what behaviours.md says already is not repeated for a page. PY is the Python
interface. N, S, B and P are what outsiders ran into: `findings.py`.
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
            "A fractional, zero or negative number takes the field's default, and then the range "
            "clamps it.",
        ),
        (
            "CF-3",
            "The default search limit is lowered to `maxSearchLimit`, and so is any larger limit "
            "asked for.",
        ),
        (
            "CF-4",
            "An agent's own `codeMode` is laid over the global one per field, so its `false` wins "
            "and unset limits are inherited.",
        ),
        (
            "CF-5",
            "Loading rejects a foreign `runtime`, `mode` or language as `invalid_config` with "
            "path and choices, while unknown keys and every defaulted or clamped value are "
            "warnings, the former with the closest known key.",
        ),
        (
            "CF-6",
            "A value of the wrong type is `invalid_config` and never leads to direct tools, and a "
            "file that does not parse is answered with the line and column.",
        ),
    ),
    *_at(
        "behaviours.md: Activation and the model's surface",
        ("SF-1", "Activation does its eight steps in the sequence that the page gives."),
        (
            "SF-2",
            "An active run shows `exec` and `wait` alone, and an agent run left without any tool "
            "does not activate, whereas a handmade `CodeMode` always is active.",
        ),
        (
            "SF-3",
            "The control `exec` is told apart by identity, so a shell tool of that name is "
            "`openclaw:core:exec` in the catalog.",
        ),
        (
            "SF-4",
            "The schema of `exec` has a required `code` and `language` as one plain string enum "
            "without unions or `command`, and `wait` takes `runId` or `run_id`.",
        ),
        (
            "SF-5",
            "The text of `exec` teaches returning, awaiting, fanning out, the catalog helpers, "
            "namespaces, the time budget and the bans, names MCP only where there is some, and "
            "keeps to 2,400 characters of its own.",
        ),
        (
            "SF-6",
            "The index of callable signatures is sorted, byte-stable and capped by "
            "`indexMaxChars`, counts what it skipped, and shows no descriptions and nothing of "
            "MCP or client tools.",
        ),
        (
            "SF-7",
            "A request that carries the run's tool surface leaves only if its wire payload names "
            "`exec` and `wait` once each; otherwise the run fails closed and says what it found.",
        ),
        (
            "SF-8",
            "The model reads a result as JSON without whitespace, with the small telemetry object "
            "in it.",
        ),
    ),
    *_at(
        "behaviours.md: exec input and source",
        (
            "IN-1",
            "Whitespace in `code` or `command` counts as nothing given, and two differing values "
            "are `invalid_input`.",
        ),
        (
            "IN-1b",
            "A `code` that is no string or exceeds 1 MiB is `invalid_input`, extra keys do no "
            "harm, and a null language means the default.",
        ),
        ("IN-2", "A language that is unknown or switched off by config is `unsupported_language`."),
        (
            "IN-3",
            "Imports, `import.meta` and `require` calls in any disguise are "
            "`module_access_denied` by a real parse, while the same words in strings, comments, "
            "patterns or member names pass.",
        ),
        (
            "IN-4",
            "An unmistakable shell command that is no JavaScript is `invalid_input` and points to "
            "the right tool of the catalog.",
        ),
        (
            "IN-5",
            "A cell is an async function body, so `await` and `return` work at its top level.",
        ),
        (
            "IN-6",
            "TypeScript is stripped or lowered with submitted line numbers kept, its diagnostics "
            "are `typescript_transform_failed` with line, column and excerpt, and only TypeScript "
            "cells load the transformer.",
        ),
        (
            "IN-7",
            "An error reads as name and message followed by frames in submitted lines, with no "
            "prelude or host frames.",
        ),
    ),
    *_at(
        "behaviours.md: Running",
        (
            "EX-1",
            "One `exec` or `wait` drains every bridge call it can within its budget, and parks "
            "only for a yield, for work that outlives the deadline, or for people alone.",
        ),
        (
            "EX-2",
            "One monotonic deadline covers a whole call and never stops for a person; a cell that "
            "only people can continue parks at once, and unanswered questions reject no later "
            "than the snapshot expires.",
        ),
        (
            "EX-3",
            "The guest runs until idle and its whole batch is examined first, so a refused batch "
            "has dispatched nothing.",
        ),
        (
            "EX-4",
            "`maxPendingToolCalls` bounds the running tool and namespace calls, 128 more wait in "
            "order, and one beyond fails the cell before any call of its batch ran, even if the "
            "guest catches.",
        ),
        (
            "EX-5",
            "Replies reach the guest in settling order, so races have the true winner and the "
            "losers run on.",
        ),
        (
            "EX-6",
            "Open calls and timeouts hold back `completed` after the main promise has settled, "
            "and an interval does not.",
        ),
        (
            "EX-7",
            "A main promise that nothing can settle fails immediately as `internal_error` with a "
            "text that explains it.",
        ),
        (
            "EX-8",
            "A rejected call is a guest `Error` of plain data with name, message, code and tool "
            "id, and is `nested_tool_failed` if nobody catches it.",
        ),
        (
            "EX-9",
            "A rejection that stays unhandled fails its cell and names the cause, and one that is "
            "handled late does not.",
        ),
        ("EX-10", "A guest error that merely says `interrupted` is not taken for a timeout."),
        (
            "EX-11",
            "Any way of burning guest time ends in `timeout`, regular expressions, callbacks, "
            "getters and JSON too, and cancels the calls still open.",
        ),
        (
            "EX-12",
            "Uncaught heap exhaustion is `memory_limit_exceeded` and drops the VM, caught "
            "exhaustion and deep nesting stay guest errors, and no trap ends a worker that others "
            "use.",
        ),
        (
            "EX-13",
            "The habitual globals such as timers, `console`, URL and encoding classes exist and "
            "outlive a snapshot.",
        ),
        ("EX-14", "Clock and randomness work and differ between cells, and the time zone is UTC."),
        (
            "EX-15",
            "Whatever the guest emits is handed over at once, so a trap, timeout or dead VM loses "
            "none of it.",
        ),
    ),
    *_at(
        "behaviours.md: Values and output",
        (
            "OU-1",
            "`text` and `json` copy their argument when called, and items keep the order of the "
            "calls.",
        ),
        (
            "OU-2",
            "Every value has a JSON form (null, decimal, error object, tag or documented shape), "
            "and the adapter never throws.",
        ),
        (
            "OU-3",
            "Output and value share one budget in UTF-8 bytes of JSON, for every status and "
            "summed over all waits.",
        ),
        (
            "OU-4",
            "An overrun is `output_limit_exceeded` and keeps the longest prefix that ends on a "
            "whole character, with the count of dropped bytes.",
        ),
        (
            "OU-5",
            "A failed result keeps the output made before the failure, and a `wait` brings only "
            "new output.",
        ),
    ),
    *_at(
        "behaviours.md: wait, suspension, snapshots",
        (
            "WA-1",
            "Run ids are unguessable, a foreign, finished or unknown one is `invalid_input` with "
            "reasons for the owner only, and expired and aborted ones have codes of their own.",
        ),
        (
            "WA-2",
            "Of two simultaneous waits for one run the later is refused and the earlier goes on "
            "undisturbed.",
        ),
        (
            "WA-3",
            "A wait out of time answers `waiting` with the same id and only the unsettled calls, "
            "and starts the TTL anew.",
        ),
        ("WA-4", "The reason is `yield` only where a yield is all that is pending."),
        (
            "WA-5",
            "Calls settle into a bounded inbox while the guest is parked, and oversized "
            "arguments, replies or inboxes become catchable errors that advise paging.",
        ),
        ("WA-6", "Calls made after a resume are still children of the first `exec` call."),
        (
            "WA-7",
            "An abort frees a running or parked cell at once instead of parking it, and late "
            "results are dropped.",
        ),
        (
            "WA-8",
            "An oversized snapshot is `snapshot_limit_exceeded` with its batch undispatched, and "
            "a damaged or foreign one is `snapshot_restore_failed` without running the guest.",
        ),
        (
            "WA-9",
            "`maxSuspendedRuns` bounds parked cells per process before a batch has effects, while "
            "running cells pass an admission queue that costs deadline and resumes keep their "
            "place.",
        ),
        (
            "WA-10",
            "A terminal state, `end_run()` and the session's end delete snapshot and inbox, and "
            "`close()` spares durable cells.",
        ),
        (
            "WA-11",
            "A durable store lets another process resume a run in the same scope, without running "
            "leased calls twice and redoing orphans only if they are idempotent or were waiting "
            "for a person.",
        ),
        (
            "WA-12",
            "Restoring compares the memory length with today's limit before unpacking, and "
            "`maxSnapshotBytes` measures stored bytes.",
        ),
    ),
    *_at(
        "behaviours.md: Catalog and names",
        (
            "CA-1",
            "Ids follow the four source patterns, come sorted, and are the same for the same "
            "tools.",
        ),
        (
            "CA-2",
            "`tools.call` accepts an exact id or a unique name, lists the ids of an ambiguous "
            "one, and suggests the nearest for an unknown one.",
        ),
        (
            "CA-3",
            "A call resolves to structured details or else text, and describing adds the "
            "parameters and any output schema.",
        ),
        (
            "CA-4",
            "Dispatch matches whole ids, so a tool named like another's id catches none of its "
            "calls.",
        ),
        (
            "CA-5",
            "A convenience function exists only for a normalized identifier of one visible tool "
            "that is no helper, hostile names break nothing, and a duplicate id is a "
            "configuration error naming both.",
        ),
        (
            "CA-6",
            "The control tools are in no catalog, `exec` and `wait` by identity and those of Tool "
            "Search by name.",
        ),
        ("CA-7", "A denied tool is neither listed nor found nor callable by its guessed id."),
        ("CA-8", "A catalog is its run's own, and no other run can read from it."),
        (
            "CA-8b",
            "A query must be a string and an input an object, and an unusable limit means the "
            "default.",
        ),
        (
            "CA-9",
            "Search puts exact hits first, ranks the rest deterministically with stemming, drops "
            "poor matches, and notes fruitless words in the telemetry for people.",
        ),
    ),
    *_at(
        "behaviours.md: MCP",
        (
            "MC-1",
            "MCP tools are unreachable through `ALL_TOOLS` and everything under `tools`, by id or "
            "name.",
        ),
        (
            "MC-2",
            "Server and tool identifiers are camelCase, and reserved, forbidden or repeated ones "
            "get a number from 2.",
        ),
        (
            "MC-3",
            "A call takes one object, fills in schema defaults, names missing keys before "
            "reaching the server, and treats `__proto__` as ordinary data.",
        ),
        (
            "MC-4",
            "A result resolves with its content fields even if `isError` is set, and only "
            "transport or protocol trouble rejects.",
        ),
        ("MC-5", "Resource and prompt methods exist for the servers that offer them."),
        (
            "MC-6",
            "`$api` answers for all tools, one tool, or one with schema, for a server and for "
            "`MCP` itself.",
        ),
        (
            "MC-7",
            "`API.list` and `API.read` answer without the bridge and refuse odd or unknown paths, "
            "and the three globals exist even when empty.",
        ),
        (
            "MC-8",
            "Every JSON Schema seen in practice yields valid TypeScript, with comments that "
            "cannot be broken out of and defaults made optional.",
        ),
        (
            "MC-9",
            "An MCP server may die, hang, restart or change its tools, and a run gets an error or "
            "a fresh list while the gateway stays up.",
        ),
    ),
    *_at(
        "behaviours.md: Namespaces",
        (
            "NS-1",
            "A bad registration raises on the spot, and an unusable scope fails its cell before "
            "guest code as `internal_error` with the path.",
        ),
        ("NS-2", "A scope may share references and may not be cyclic."),
        ("NS-3", "A forged bridge message is refused and the cell continues."),
    ),
    *_at(
        "behaviours.md: Hooks, approvals, policy",
        (
            "HK-1",
            "Direct and nested calls alike pass one executor in one order: policy, hooks, "
            "approval, tool, after-hooks, record.",
        ),
        (
            "HK-2",
            "For the outer `exec` hooks see its kind, language and both source fields and may "
            "rewrite either, and nested calls carry no such marks.",
        ),
        (
            "HK-3",
            "A block ends the hook chain, its negation decides nothing, and the guest gets a "
            "rejection with the reason.",
        ),
        (
            "HK-4",
            "An approval holds for the very arguments that were shown, so rewriting them asks "
            "again.",
        ),
        (
            "HK-5",
            "Denial beats permission, and names match without case, by wildcard, group and "
            "profile.",
        ),
        (
            "HK-6",
            "A tool must pass each policy layer that is set, from the profile down to sender and "
            "sandbox.",
        ),
        (
            "HK-7",
            "`allow-always` is stored per agent and tool id, says so when asking, and can be "
            "listed and withdrawn.",
        ),
    ),
    *_at(
        "behaviours.md: Additions of ours",
        (
            "AD-9",
            "A guard that matches no tool of the run is a warning with the nearest name.",
        ),
    ),
    *_at(
        "behaviours.md: Transcript, trajectory, telemetry",
        (
            "TR-1",
            "Nested calls are recorded in start order under their parent with status and "
            "duration, and the model never sees them as turns.",
        ),
        ("TR-2", "A transcript survives a crash, with a torn final line repaired."),
        (
            "TR-3",
            "The named counters outlive the catalog and carry no inputs, secrets or environment, "
            "and pending calls have a fixed shape with four states.",
        ),
        ("TR-4", "An exported trajectory nests calls below their parent."),
        (
            "TR-5",
            "A failed result lists its nested calls in start order with state and effect, bounded "
            "and with the rest counted.",
        ),
    ),
    *_at(
        "behaviours.md: Workers",
        (
            "WK-1",
            "Guest code stays out of the serving process, and a dead, stuck or babbling worker "
            "harms its own cell alone and is replaced.",
        ),
        (
            "WK-2",
            "A missing or altered wasm, or a worker that will not start, is `runtime_unavailable` "
            "and exposes no tools.",
        ),
        (
            "WK-3",
            "A worker has no inherited descriptors, no environment and hard limits, and gives up "
            "files and network where the kernel allows.",
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
        ("CM-V1", "With code mode disabled the model gets the tools it always got."),
        ("CM-V2", "An object that does not say `enabled: true` keeps code mode off."),
        (
            "CM-V3",
            "With code mode enabled a run that has tools shows the model `exec` and `wait` and no "
            "other.",
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
            "`$api()` of an MCP namespace gives schemas inline to whoever did not read the files.",
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
            "The shell tool `exec` is invisible to the model, yet policy permitting a cell can "
            "call it by id.",
        ),
        ("CM-V14", "A cell cannot reach the code-mode `exec` or `wait`."),
        (
            "CM-V15",
            "A TypeScript cell runs, and nothing of TypeScript is loaded while off or for "
            "JavaScript.",
        ),
        ("CM-V16", "A cell that tries modules, files, network or environment fails."),
        ("CM-V17", "An endless loop ends in a timeout while the gateway goes on answering."),
        ("CM-V18", "Going over the memory cap ends the guest VM."),
        ("CM-V19", "The caps on output and snapshots hold for finished and for parked cells."),
        ("CM-V20", "A parked cell is brought back by `wait` and delivers its value."),
        (
            "CM-V21",
            "A `wait` with a run id that is unknown, expired, aborted or another session's fails.",
        ),
        ("CM-V22", "Calls of `exec` and `wait` outlive saving and replaying a transcript."),
        ("CM-V23", "A reader can tell nested calls from the transcript and from the telemetry."),
    ),
    *_at(
        "code-mode.md: namespace Test checklist",
        (
            "CM-N1",
            "A namespace's text stands in the prompt only while its backing tools can be seen.",
        ),
        (
            "CM-N2",
            "A tool with the right name and another `sourceName` does not bring the namespace out.",
        ),
        ("CM-N3", "A scope that holds a bare host function is refused."),
        ("CM-N4", "Invented namespace ids and invented paths are refused."),
        ("CM-N5", "A callable member cannot reach a tool that was not declared."),
        ("CM-N6", "Nested objects and references used twice arrive intact in the guest."),
        ("CM-N7", "A namespace call runs a catalog tool and gives back JSON-safe details."),
        ("CM-N8", "The guest can catch the failure of a namespace call."),
        ("CM-N9", "A namespace call that was parked goes on through `wait`."),
        ("CM-N10", "Rolling a plugin back removes the namespaces it had registered."),
    ),
    *_at(
        "code-mode.md: E2E test plan",
        ("CM-E1", "A gateway starts with code mode switched off."),
        ("CM-E2", "That gateway takes an agent turn with a few direct tools."),
        ("CM-E3", "The model of that turn sees the direct tools just as before."),
        ("CM-E4", "The gateway starts again with code mode switched on."),
        ("CM-E5", "It takes an agent turn with test tools of all four sources."),
        ("CM-E6", "The model of that turn sees two tools, `exec` and `wait`."),
        ("CM-E7", "A cell finds the effective test tools in `ALL_TOOLS`."),
        ("CM-E8", "A cell searches, describes and calls the core, plugin and client tools."),
        ("CM-E9", "A cell lists and reads declaration files that describe the visible MCP tools."),
        (
            "CM-E10",
            "A cell calls MCP tools by namespace and finds none in `ALL_TOOLS` or under `tools`.",
        ),
        ("CM-E11", "Denied tools are missing, and guessing their ids does not help."),
        ("CM-E12", "A nested call is begun that finishes only once `exec` has answered `waiting`."),
        ("CM-E13", "The following `wait` restores the VM and hands it the tool's result."),
        ("CM-E14", "Output that was made after the restore is in the final answer."),
        ("CM-E15", "No runtime state is left behind by a timeout, an abort or an expiry."),
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
            "`runtime` takes `quickjs-wasi`, `mode` takes `only`, and both may be left out.",
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
            "A sandboxed agent gets configured MCP tools only if its sandbox policy admits "
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
        ("CM-exec-command", "`command` on its own is run as the cell's source."),
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
            "A failed result has a text `error`, a known `code` if any, `telemetry`, and the "
            "output so far.",
        ),
    ),
    *_at(
        "code-mode.md: wait",
        ("CM-wait-result", "`wait` answers with the same three kinds of result as `exec`."),
        (
            "CM-wait-again",
            "A resumed cell can park once more and be waited for under a run id again.",
        ),
        (
            "CM-wait-failures",
            "Each of the page's six grounds for refusing a `wait` comes back as a failed result "
            "and is not raised.",
        ),
        (
            "CM-wait-callbacks",
            "After a restore the host functions are bound anew by stable names, so references the "
            "guest kept still work.",
        ),
        (
            "CM-wait-description",
            "The text of `wait` tells the model to use it for a `waiting` result only.",
        ),
        (
            "CM-snapshot-private",
            "A snapshot is never placed where users' files are or offered as one.",
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
            "An `ALL_TOOLS` entry has id, name, description and source, perhaps label and "
            "`sourceName`, and no schema.",
        ),
        (
            "CM-guest-search",
            "`tools.search` resolves to compact entries that carry no schema either.",
        ),
        ("CM-guest-call-input", "`tools.call` with no input calls the tool with an empty object."),
        (
            "CM-guest-yield",
            "`yield_control` parks the cell and resolves when `wait` continues it, with or "
            "without a reason.",
        ),
        (
            "CM-mcp-files",
            "There is `mcp/index.d.ts` and one declaration file for each visible server.",
        ),
        (
            "CM-mcp-virtual",
            "Declaration files exist in the guest only and are never written to disk.",
        ),
        ("CM-mcp-readonly", "Guest code cannot alter the table that `API` serves."),
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
            "A namespace is hidden unless all its required tools are in the catalog and its "
            "plugin's own.",
        ),
        (
            "CM-ns-scope-context",
            "`createScope` runs per run and is given the agent, session, run, config and abort "
            "state.",
        ),
        ("CM-ns-data", "Plain values of a scope can be read in the guest without a call."),
        (
            "CM-ns-input-mapper",
            "A mapper turns guest arguments into the tool's input, and without one it is the "
            "first argument or an empty object.",
        ),
        (
            "CM-ns-same-path",
            "A namespace call meets the hooks, approvals, aborts, telemetry and transcript that "
            "`tools.call` meets.",
        ),
        (
            "CM-ns-unsafe-keys",
            "A scope key that is empty, a prototype name or contains the path separator is "
            "refused.",
        ),
        ("CM-ns-identifier", "A `globalName` that is no JavaScript identifier is refused."),
        (
            "CM-ns-collision",
            "A `globalName` that is a built-in global or begins with `__openclaw` is refused.",
        ),
        ("CM-ns-fallback", "A scope value that JSON cannot carry is replaced by a safe stand-in."),
        ("CM-ns-unregister", "Unregistering one namespace id leaves the plugin's others in place."),
        ("CM-ns-clear-tests", "A test can clear all registrations at once."),
    ),
    *_at(
        "code-mode.md: Output API",
        (
            "CM-output-items",
            "`text` makes items of type and text, and `json` makes items of type and value.",
        ),
        ("CM-output-value", "What the cell returns is the `value` of its completed result."),
        ("CM-output-logs", "Console lines use up `maxOutputBytes` like other output."),
    ),
    *_at(
        "code-mode.md: Tool catalog",
        (
            "CM-catalog-sources",
            "Core, bundled plugin, external plugin, MCP and client tools all enter the catalog "
            "once policy has filtered them.",
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
            "`tools.exec` reaches the shell tool, if allowed, where no other tool normalizes to "
            "that name.",
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
        ("CM-nested-updates", "A nested tool's progress updates are streamed on."),
    ),
    *_at(
        "code-mode.md: Runtime state",
        (
            "CM-state-machine",
            "A cell is always in one of six states, and none of the four final ones can be left.",
        ),
        (
            "CM-state-scope",
            "State belongs to run, session and tool call, so two cells of one run do not mix.",
        ),
        ("CM-snapshot-ttl", "A parked cell that nobody resumes is removed once its TTL is over."),
    ),
    *_at(
        "code-mode.md: QuickJS-WASI runtime",
        (
            "CM-runtime-dependency",
            "The engine is this package's own declared one and never a copy that happens to be "
            "installed.",
        ),
        (
            "CM-runtime-isolated",
            "Each cell or resume has a VM of its own, and nothing a cell leaves in it reaches "
            "another.",
        ),
        ("CM-runtime-dispose", "VM handles are released after every final state."),
    ),
    *_at(
        "code-mode.md: TypeScript",
        ("CM-typescript-unchecked", "A type error that still transforms does not stop a cell."),
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
        ("CM-debug-transport", "`OPENCLAW_DEBUG_MODEL_TRANSPORT=1` logs the model requests made."),
        (
            "CM-debug-payload-tools",
            "`OPENCLAW_DEBUG_MODEL_PAYLOAD=tools` logs the names of the tools sent, `exec` and "
            "`wait` when active.",
        ),
        (
            "CM-debug-payload-full",
            "`OPENCLAW_DEBUG_MODEL_PAYLOAD=full-redacted` logs the request as capped and redacted "
            "JSON.",
        ),
        (
            "CM-debug-sse-events",
            "`OPENCLAW_DEBUG_SSE=events` logs the events of the provider's stream.",
        ),
        (
            "CM-debug-sse-peek",
            "`OPENCLAW_DEBUG_SSE=peek` logs five redacted stream events and then no more.",
        ),
    ),
    *_at(
        "tool-search.md: A turn",
        (
            "TS-1",
            "A run with code mode active has no Tool Search surface, whatever `tools.toolSearch` "
            "says.",
        ),
        ("TS-2", "A run not enabled for Tool Search keeps its direct tools."),
        (
            "TS-3",
            "Planning resolves policy, gathers core, plugin, MCP and client tools, indexes them, "
            "and then exposes one surface.",
        ),
        (
            "TS-4",
            "A call made in the body returns to the gateway and meets its policies, restrictions, "
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
            "Schemas shown directly in mode `directory` are a small bounded choice of likely or "
            "required ones.",
        ),
        ("TS-9", "Where `code` is not to be had the run uses `tools`, decided before compaction."),
        ("TS-10", "Client tools stay directly visible in mode `directory`."),
        (
            "TS-11",
            "Calling a hidden directory tool by its exact name works and loads it from the "
            "authorized catalog.",
        ),
        ("TS-12", "A directory that leaves names out refers the model to `tool_search`."),
        (
            "TS-13",
            "The catalog has eligible tools of every source after policy, with no setting that "
            "picks sources.",
        ),
    ),
    *_at(
        "tool-search.md: Configuration",
        ("TS-14", "`true`, or an object without `mode`, means `code`."),
        ("TS-15", "`codeTimeoutMs` is 10000 by default and kept within 1000 and 60000."),
        ("TS-16", "`searchDefaultLimit` is 8 by default."),
        ("TS-17", "`maxSearchLimit` is 20 by default and kept within 1 and 50."),
        ("TS-18", "MCP tools are found and called by id here as all others are."),
    ),
    *_at(
        "tool-search.md: API",
        ("TS-19", "`openclaw.tools.search` answers from this run's catalog with compact entries."),
        (
            "TS-20",
            "`openclaw.tools.describe` gives one entry's whole metadata and its exact input "
            "schema.",
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
            "The parent kills the body at the timeout, even one that has moved on to async "
            "continuations.",
        ),
        (
            "TS-26",
            "The body sees three `console` methods and three `openclaw.tools` methods and no "
            "other host function.",
        ),
        (
            "TS-27",
            "Neither plugin code nor MCP clients nor secrets are inside the isolated runtime.",
        ),
        (
            "TS-28",
            "The body runs in code mode's QuickJS-WASI worker and not in a sandbox of another "
            "kind.",
        ),
    ),
    *_at(
        "tool-search.md: Telemetry",
        ("TS-29", "The serialized bytes of tools and prompt handed to the harness are reported."),
        (
            "TS-30",
            "Catalog size and sources, operation counts, executed calls, and chosen ids with "
            "sources are reported.",
        ),
        (
            "TS-31",
            "A session log tells the schemas seen at first, the searches and describes, the final "
            "call, and the source of its result.",
        ),
    ),
    *_at(
        "tool-search.md: End-to-end validation",
        ("TS-32", "A fake plugin tool can be called in direct mode."),
        ("TS-33", "Tool Search reaches that same fake plugin tool."),
        ("TS-34", "In direct mode the provider receives the fake plugin's schemas."),
        ("TS-35", "With Tool Search the provider receives the bridge and none of them."),
        ("TS-36", "With a large fake catalog the request is smaller under Tool Search."),
        (
            "TS-37",
            "Session logs have the right number of tool calls and the telemetry of the bridged "
            "one.",
        ),
    ),
    *_at(
        "tool-search.md: Failure behaviour",
        ("TS-38", "Search never returns what the effective policy excludes."),
        ("TS-39", "`tool_call` fails for a chosen tool that has since gone."),
        ("TS-40", "A call stopped by policy or approval reports this as its result."),
        (
            "TS-41",
            "A body is never run without isolation, even if no isolated runtime can be made.",
        ),
    ),
    *_at(
        "agent-loop.md: Entry points",
        ("AL-1", "The gateway serves the methods `agent` and `agent.wait`."),
        ("AL-2", "The command line has `agent`, which runs a turn."),
    ),
    *_at(
        "agent-loop.md: How it works",
        ("AL-3", "`agent` refuses bad params before a run exists."),
        (
            "AL-4",
            "`agent` finds the session by `sessionKey` or `sessionId` and saves its metadata.",
        ),
        ("AL-5", "`agent` answers with `runId` and `acceptedAt` without waiting for the run."),
        (
            "AL-6",
            "A run takes its model and its thinking, verbose and trace levels from defaults "
            "unless told.",
        ),
        ("AL-7", "A run uses its resolved model and auth profile to build the session."),
        (
            "AL-8",
            "Each run ends in one lifecycle end or error, added by the agent command if the loop "
            "gave none.",
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
            "`agent.wait` answers at the run's end with `status`, `startedAt`, `endedAt` and any "
            "`error`.",
        ),
    ),
    *_at(
        "agent-loop.md: Queueing and concurrency",
        (
            "AL-14",
            "Runs of one session key go one after another, and other sessions are not held up.",
        ),
        ("AL-15", "A global lane, if configured, bounds runs across sessions too."),
        ("AL-16", "Queue mode `steer` brings a message into the run that is under way."),
        ("AL-17", "Queue mode `followup` makes a message the turn after the present one."),
        ("AL-18", "Queue mode `collect` joins queued messages into one turn."),
        ("AL-19", "Queue mode `interrupt` aborts the present run for the newer message."),
        (
            "AL-20",
            "The transcript lock is a file that names its process, and it holds off writers "
            "outside the queue or in another process.",
        ),
        (
            "AL-21",
            "A writer waits `session.writeLock.acquireTimeoutMs`, 60000 by default, before the "
            "session is called busy.",
        ),
        (
            "AL-22",
            "Taking a held write lock again fails unless `allowReentrant: true` asks for it.",
        ),
    ),
    *_at(
        "agent-loop.md: Session and workspace preparation",
        ("AL-23", "The workspace is resolved and made before a run needs it."),
        ("AL-24", "A sandboxed run can be given the sandbox's workspace root instead."),
        ("AL-25", "Skills are loaded, or taken from a snapshot, and reach environment and prompt."),
        (
            "AL-26",
            "Bootstrap and context files are resolved and shown in the system prompt report.",
        ),
        ("AL-27", "The session is locked, opened and prepared before anything streams."),
        ("AL-28", "Rewriting, compacting or truncating a transcript takes that lock first."),
    ),
    *_at(
        "agent-loop.md: Prompt assembly",
        (
            "AL-29",
            "The system prompt joins base prompt, skills, bootstrap context and overrides of the "
            "run.",
        ),
        ("AL-30", "The model's limits and the tokens reserved for compaction are kept to."),
    ),
    *_at(
        "agent-loop.md: Hooks",
        (
            "AL-31",
            "`agent:bootstrap` can add and remove context files before the system prompt is "
            "settled.",
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
            "`prependContext` goes with the turn, and the system-context fields go into the "
            "system prompt.",
        ),
        ("AL-36", "`before_agent_start` still works, in either of the two phases."),
        (
            "AL-37",
            "`before_agent_reply` can claim a turn before the model call, with a made-up reply or "
            "silence.",
        ),
        ("AL-38", "`agent_end` gets the final messages and the run's metadata."),
        ("AL-39", "`before_compaction` and `after_compaction` run around each compaction."),
        ("AL-40", "`before_tool_call` can change params, and `after_tool_call` sees results."),
        (
            "AL-41",
            "`before_install` inspects staged material once the operator's install policy has run.",
        ),
        (
            "AL-42",
            "`tool_result_persist` rewrites a tool result synchronously before the transcript "
            "gets it.",
        ),
        (
            "AL-43",
            "`message_received`, `message_sending` and `message_sent` run at their points of a "
            "message's way.",
        ),
        ("AL-44", "`session_start` and `session_end` frame a session."),
        ("AL-45", "`gateway_start` and `gateway_stop` frame the gateway's life."),
        (
            "AL-46",
            "A block from `before_install` is final, and its negation lifts no earlier block.",
        ),
        (
            "AL-47",
            "`security.installPolicy` also decides installs and updates made from the command "
            "line, hooks loaded or not.",
        ),
        (
            "AL-48",
            "A cancel from `message_sending` is final, and its negation lifts no earlier cancel.",
        ),
    ),
    *_at(
        "agent-loop.md: Streaming and partial replies",
        ("AL-49", "Block streaming can send part of a reply at `text_end` or `message_end`."),
        ("AL-50", "Reasoning can come on a stream of its own or as block replies."),
    ),
    *_at(
        "agent-loop.md: Tool execution and messaging tools",
        ("AL-51", "A tool emits start, update and end events."),
        (
            "AL-52",
            "Large or image-bearing tool results are trimmed before they are logged or emitted.",
        ),
        (
            "AL-53",
            "A messaging tool's sends are remembered, and the assistant's repeated confirmation "
            "is suppressed.",
        ),
    ),
    *_at(
        "agent-loop.md: Reply shaping",
        (
            "AL-54",
            "The final payloads are made of assistant text, optional reasoning, tool summaries if "
            "verbose and allowed, and model error text.",
        ),
        ("AL-55", "A reply that is exactly `NO_REPLY` or `no_reply` is not sent."),
        ("AL-56", "The final payloads do not repeat what a messaging tool has sent."),
        (
            "AL-57",
            "A tool error is told in a fallback reply if nothing else renders and no messaging "
            "tool reached the user.",
        ),
    ),
    *_at(
        "agent-loop.md: Compaction and retries",
        ("AL-58", "Automatic compaction emits `compaction` events and can lead to a retry."),
        (
            "AL-59",
            "A retry starts with empty buffers and tool summaries, so nothing is said twice.",
        ),
    ),
    *_at(
        "agent-loop.md: Event streams",
        (
            "AL-60",
            "A chat channel gets buffered `delta` messages and one `final` at the lifecycle's end "
            "or error.",
        ),
    ),
    *_at(
        "agent-loop.md: Timeouts",
        ("AL-61", "`agent.wait` gives up after 30 s or its `timeoutMs` and leaves the run alone."),
        (
            "AL-62",
            "`agents.defaults.timeoutSeconds`, 172800 by default, aborts a run that takes longer.",
        ),
        ("AL-63", "A cron turn's clock starts with its execution and aborts it at the deadline."),
        (
            "AL-64",
            "A timed-out cron turn is cleaned up within bounds before it is recorded, and its "
            "lane is free again.",
        ),
        (
            "AL-65",
            "With diagnostics on, a session that processes past `diagnostics.stuckSessionWarnMs` "
            "without progress is classified.",
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
        ("AL-69", "Stale model or tool activity without an owner does not pass as long-running."),
        (
            "AL-70",
            "`session.stuck` is for stale bookkeeping that can be recovered, idle queued sessions "
            "included.",
        ),
        ("AL-71", "Recovering a stuck session frees its lane as soon as the gates allow."),
        (
            "AL-72",
            "A stalled embedded run is aborted and drained only past `stuckSessionAbortMs`, by "
            "default no less than 5 minutes and three warn thresholds.",
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
        ("AL-75", "Repeated `session.stuck` reports come less often while nothing changes."),
        ("AL-76", "An idle window that passes without a chunk aborts the model request."),
        (
            "AL-77",
            "A provider's `timeoutSeconds` widens the idle window, unless the agent's or run's "
            "timeout is lower.",
        ),
        (
            "AL-78",
            "Without it the idle window is the configured agent timeout, at most 120 s by default.",
        ),
        ("AL-79", "A cron run on a cloud model that sets no timeout has the default idle window."),
        (
            "AL-80",
            "A cron run on a cloud model with its own timeout has an idle window of 60 s at most.",
        ),
        ("AL-81", "A cron run on a local model has no idle window unless a timeout is set."),
        ("AL-82", "A cron run's own timeout is the idle window on a local model."),
        (
            "AL-83",
            "A provider's `timeoutSeconds` governs connecting, headers, body, the SDK request, "
            "the fetch as a whole and idling.",
        ),
    ),
    *_at(
        "agent-loop.md: Where a run can end early",
        ("AL-84", "An abort signal cancels a run."),
        (
            "AL-85",
            "Losing the gateway, or an RPC that times out, can end a run early, and then ends it "
            "cleanly.",
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
    ),
    # Run by path, because pytest's importlib mode makes siblings unimportable by name.
    *_at(
        "findings.py",
        *runpy.run_path(str(Path(__file__).with_name("findings.py")))["FINDINGS"].items(),
    ),
)

REQUIREMENTS: dict[str, Requirement] = {requirement.id: requirement for requirement in _ALL}

assert len(REQUIREMENTS) == len(_ALL), "two requirements have the same id"
