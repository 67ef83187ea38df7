"""Owns the list of what people who tried the product from outside ran into, one sentence each.

Data only. The sentence says what holds since the finding was fixed; the ids are stable. N is from
new users and operators, S from attackers, B from programs written against the contract alone, M
from MCP clients and servers of others, and P from measurements. A test that fails without the fix
names the id: `@pytest.mark.covers("N-1")`.
"""

FINDINGS: dict[str, str] = {
    "N-1": "`clawmode gateway` without options starts a gateway.",
    "N-2": "If no MCP client can ask its user, a call that needs approval fails at once, and the "
    "error says how to allow it.",
    "N-3": "MCP tools can be called by the server's own spelling, and `tools show` prints a call "
    "that works.",
    "N-4": "`clawmode mcp` answers `initialize` within a second; an invalid entry is one missing "
    "server.",
    "N-5": "The same calls need approval with and without a gateway, and agents with a shell "
    "that need none are reported.",
    "N-6": "No request is sent to the model while a person decides.",
    "N-7": "A guard that matches no tool is a warning with the most similar name; a wrong type "
    "raises.",
    "N-8": "Compiling machine code counts against no deadline, happens once, and is announced.",
    "N-9": "A message that no model answered is not repeated to the model by a retry.",
    "N-10": "`result.unwrap()` returns the value or raises with code, error and calls.",
    "N-11": "An exception of a tool keeps its type, and its traceback is logged.",
    "N-12": "The error names an unreachable server, and TypeScript that was submitted as "
    "JavaScript.",
    "N-14": "An agent works in the folder that the documentation names.",
    "N-15": "`config check` and `doctor` reject what start-up rejects.",
    "N-16": "A `CodeMode` can be opened and closed from different tasks.",
    "N-17": "The documentation says how a web server shares a `Pool`.",
    "N-18": "The first commands of the README work as written.",
    "N-19": "`run`, `tools` and `mcp` load installed plugins.",
    "N-20": "The gateway logs the start and end of every run, and every line is JSON.",
    "N-21": "A model error names the address, the setting and the next step.",
    "N-22": "A servers file without servers is an error that names the expected key.",
    "N-25": "Wrong use of `CodeMode` raises exceptions of clawmode that name the fix.",
    "N-26": "Calling a decorated tool calls the function.",
    "N-27": "`CodeModeConfig` in Python gives the same errors and warnings as in the file.",
    "N-28": "The types that hooks and results need are exported.",
    "N-31": "A durable store without a fixed run id is a warning.",
    "N-33": "Arguments that are not valid JSON are reported with line and column.",
    "N-34": "A report about an MCP server that fails to start contains the server's own output.",
    "N-35": "`doctor` reports each problem once, shows progress and gives reasons.",
    "N-36": "The MCP server of `clawmode mcp` has instructions and titles.",
    "N-37": "Chat shows text above the prompt, accepts yes for once, and breaks lines between "
    "words.",
    "N-38": "A reply is printed once, even if its stream was cut off.",
    "N-39": "A reload prints what `config check` prints, and which changes need a restart.",
    "N-40": "`cron add` checks the channel, and says whether a gateway runs.",
    "N-41": "`gateway stop` shows what it waits for; errors are in plain words; `/` is a page.",
    "N-42": "`/metrics` has durations, tokens, model errors, MCP state and cron results.",
    "N-44": "The name OpenClaw is explained, and the `CLAWMODE_*` variables work.",
    "N-46": "A contributor can run one test and a quick subset.",
    "N-48": "Warnings about lockdown and caches say what to do.",
    "S-1": "A configuration that another user can write is not read; one in the working folder "
    "must be trusted once.",
    "S-2": "An agent's file tools cannot change the files from which its setup takes code, rules "
    "or keys.",
    "S-3": "Commands that only read stdin cannot be made to read files.",
    "S-4": "`JSON.rawJSON` cannot bring invalid JSON across the bridge.",
    "S-5": "Connections without a token cannot keep clients with a token out.",
    "S-6": "`edit` and `apply_patch` take bounded time and block no other writer.",
    "S-7": "A worker that sends an answer which is not JSON is killed, and the answer never "
    "reaches the caller.",
    "S-8": "Known secrets are redacted in events and results of the gateway.",
    "S-9": "Commands do not get the variables and values that the configuration uses as keys.",
    "S-10": "A cell does not run again from an older snapshot that was put back.",
    "S-11": "Wrong tokens are counted before they are looked up.",
    "S-12": "Idempotency keys of two tokens cannot be mistaken for each other.",
    "S-13": "A locked worker cannot map memory beyond its limit.",
    "S-14": "The documentation says that cells of different sessions share a worker one after "
    "the other.",
    "S-15": "Unknown keys and agents in the approvals file are errors.",
    "S-16": "Invisible code points are shown in escaped form.",
    "S-17": "A request signed for one channel is rejected by another.",
    "S-18": "A plugin with compiled code is rejected.",
    "S-19": "The operator's skill wins over one of the workspace with the same name.",
    "S-20": "`clawmode mcp --http` requires a long token and counts failures.",
    "S-21": "`config.get` and logs hide the arguments of commands.",
    "S-22": "Key files that others can write are rejected; OAuth discovery does not reach "
    "private addresses.",
    "B-1": "A program that waits for an interval survives a park.",
    "B-2": "A program that uses much memory is not frozen before every batch.",
    "B-3": "A cell that looks up many unknown names does not stall the event loop.",
    "B-4": "A semicolon that begins the line after a type survives the transform.",
    "B-5": "A cancelled `wait` leaves the program waiting.",
    "B-6": "Hooks and approvers of the outer `exec` must answer within its deadline.",
    "B-7": "`end_run` ends a cell whose start waits for a hook or for approval.",
    "B-8": "`abort` and `end_run` reach a cell that runs in another process.",
    "B-9": "Errors in transformed TypeScript have the submitted line.",
    "B-10": "The error for JavaScript that ends too early names the line where it ends.",
    "B-11": "A program that fails at run time is not mistaken for a shell command.",
    "B-12": "Any number of searches and descriptions may be made at once.",
    "B-13": "`reason` is `yield` only if something yields.",
    "B-14": "The inbox of a parked cell stays within `maxSnapshotBytes`.",
    "B-15": "A getter that throws in arguments becomes a tag, as in values.",
    "B-16": "Shell commands are recognised in both languages.",
    "B-17": "A second argument to an MCP tool is an error.",
    "B-18": "Programmer errors raise exceptions of clawmode.",
    "B-19": "`after_tool_call` of the outer `exec` sees the program that ran.",
    "B-20": "Failed results give reasons, causes and places.",
    "M-1": "A login to an MCP server outlives its access tokens.",
    "M-7": "Tools for a server's own app, and content that is only for the user, do not reach the "
    "model.",
    "M-5": "No declaration file takes more than half of a program's output, and each MCP tool has "
    "a declaration of its own.",
    "M-10": "A client proves who it is in the way that the authorization server supports.",
    "M-11": "Limits in the file of another client hold, or a warning says what is ignored.",
    "M-12": "The files of Zed and opencode are read; a file without servers is an error.",
    "M-14": "Processes that share a login renew it one after the other.",
    "M-20": "The name of an MCP tool in programs stays the same when the list of tools changes.",
    "M-22": "Tools that require a task work, and the task of a server is polled.",
    "M-25": "As many MCP servers start at once as the processors can carry, and waiting for a turn "
    "does not count.",
    "P-1": "The size of a large cell is not measured by a freeze before every batch.",
    "P-3": "The calls of a cron turn whose gateway was killed are made once.",
    "P-4": "A parked timer fires on time on a machine with another uptime.",
    "P-5": "A newer build does not change parked programs of an older one.",
    "P-6": "The ledger records the end of every run.",
    "P-10": "A worker that was forked from the template holds no environment variable, descriptor "
    "or key of the template or of the serving process, and is locked down by itself.",
    "P-12": "With the isolation `process-per-cell`, a program runs in a process that has run no "
    "other program, and that runs none after it.",
    "P-20": "A command imports only what it uses: the help no library but the parser, a program "
    "neither models nor MCP, and a model only the SDK of its own API.",
    "P-21": "The workers of `clawmode run` boot while its modules are imported, and end with it.",
    "P-11": "A program that waits for its calls keeps its worker, as far as memory allows, so "
    "more programs than processors do not freeze each other.",
}
