"""A server that speaks MCP by hand over its pipes, and misbehaves as it is told.

    python raw_server.py [MODE] [STATE FILE]

In the mode `listed`, what it offers is the JSON in the variable `OFFER`: `{tools, about}`.

Plain JSON and the standard library, so that it starts in 20 ms and may send what no library would.
"""

import json
import os
import signal
import sys
import time
from typing import Any

MODE = sys.argv[1] if len(sys.argv) > 1 else "good"
STATE = sys.argv[2] if len(sys.argv) > 2 else ""
OFFER = json.loads(os.environ.get("OFFER", "{}"))

heard: list[str] = []
tools: list[Any] = []


def send(message: Any) -> None:
    write(json.dumps(message) + "\n")


def write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def answer(id_: Any, result: Any) -> None:
    if MODE.startswith("modern"):
        result = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", **result}
    send({"jsonrpc": "2.0", "id": id_, "result": result})


def text(id_: Any, said: str) -> None:
    answer(id_, {"content": [{"type": "text", "text": said}]})


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def tool(name: Any, input_schema: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "description": f"{name}!",
        "inputSchema": input_schema or schema(),
        **more,
    }


def count_runs() -> int:
    """How often this server was started, this time included."""
    if not STATE:
        return 1
    with open(STATE, "a", encoding="utf-8") as file:
        file.write("x")
    return os.path.getsize(STATE)


# ---- Tools ----


def echo(id_: Any, arguments: Any) -> None:
    answer(id_, {"content": [], "structuredContent": {"got": arguments}})


def big(id_: Any, arguments: Any) -> None:
    """An answer of as many bytes as asked for, with its id before or after it."""
    filler = "x" * arguments["size"]
    body = f'"result": {{"content": [{{"type": "text", "text": "{filler}"}}]}}'
    if arguments.get("last"):
        write(f'{{{body}, "jsonrpc": "2.0", "id": {id_}}}\n')
    elif arguments.get("hidden"):
        write(f'{{"result": {{"content": []}}, "x": "{filler}", "id": {id_}, "y": "{filler}"}}\n')
    else:
        write(f'{{"jsonrpc": "2.0", "id": {id_}, {body}}}\n')


def many_parts(id_: Any, arguments: Any) -> None:
    write(f'{{"jsonrpc":"2.0","id":{id_},"result":{{"content":[{"[]," * 2_000_000}[]]}}}}\n')


def many_blocks(id_: Any, arguments: Any) -> None:
    answer(id_, {"content": [{"type": "text", "text": ""}] * 20_000})


def deep(id_: Any, arguments: Any) -> None:
    write(f'{{"jsonrpc":"2.0","id":{id_},"result":{{"a":{"[" * 5000}{"]" * 5000}}}}}\n')


def invalid(id_: Any, arguments: Any) -> None:
    answer(id_, {"content": "no list"})


def is_error(id_: Any, arguments: Any) -> None:
    said = arguments.get("text", "no such file")
    answer(id_, {"content": [{"type": "text", "text": said}], "isError": True})


def rpc_error(id_: Any, arguments: Any) -> None:
    error = {"code": -32050, "message": "quota \x1b[31mexceeded" * arguments.get("times", 1)}
    error |= {"data": arguments["data"]} if "data" in arguments else {}
    send({"jsonrpc": "2.0", "id": id_, "error": error})


def garbage(id_: Any, arguments: Any) -> None:
    write("Debug: \x1b[31mnot JSON\n{]\n\xff\n\n[1, 2]\nnull\n" + '{"jsonrpc": "2.0"}\n' * 50)
    text(id_, "after garbage")


def only_garbage(id_: Any, arguments: Any) -> None:
    write("<html>what?</html>\n")


def unreadable(id_: Any, arguments: Any) -> None:
    write(f'{{"jsonrpc": "2.0", "id": {id_}, "result": {{"content": oops}}}}\n')


def half_a_character(id_: Any, arguments: Any) -> None:
    """As a server in JavaScript writes a text that it has cut in the middle of an emoji."""
    answer(id_, {"content": [{"type": "text", "text": "cut \ud83d"}], "x": "\ud83d"})


def other_id(id_: Any, arguments: Any) -> None:
    text("nobody", "for nobody")
    text(id_ + 1_000, "for nobody")
    text(id_, "for you")
    text(id_, "again")


def never(id_: Any, arguments: Any) -> None:
    pass


def leave(id_: Any, arguments: Any) -> None:
    sys.stderr.write(f"fatal: {os.environ.get('TOKEN', 'out of cheese')}\n")
    sys.stderr.flush()
    os._exit(7)


def kill(id_: Any, arguments: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop(id_: Any, arguments: Any) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def close_output(id_: Any, arguments: Any) -> None:
    os.close(1)
    signal.pause()


def flood_stderr(id_: Any, arguments: Any) -> None:
    sys.stderr.write("a" * 1_000_000 + "\n" + "\x1b[2Jline\n" * 200_000)
    sys.stderr.flush()
    text(id_, "flooded")


def flood_requests(id_: Any, arguments: Any) -> None:
    """Asks without end, and does not read the answers."""
    while True:
        send({"jsonrpc": "2.0", "id": "x" * 10_000, "method": "ping"})


def flood_notifications(id_: Any, arguments: Any) -> None:
    for _ in range(5_000):
        send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        send({"jsonrpc": "2.0", "method": "notifications/nonsense", "params": {"a": 1}})
    text(id_, "noisy")


def progress(id_: Any, arguments: Any) -> None:
    steps = arguments.get("steps", 3)
    step = 0
    while step < steps or not os.path.exists(arguments.get("until", "/")):
        step = min(step + 1, steps)
        params = {"progressToken": id_, "progress": step, "total": steps, "message": f"step {step}"}
        send({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
        time.sleep(arguments.get("pause", 0.1))
    text(id_, "done")


def flood_progress(id_: Any, arguments: Any) -> None:
    for step in range(1_000):
        number = "1e999" if step % 2 else str(step)
        write(
            '{"jsonrpc": "2.0", "method": "notifications/progress", "params": '
            f'{{"progressToken": {id_}, "progress": {number}, "message": "{"x" * 10_000}"}}}}\n'
        )
    text(id_, "done")


def hostile_keys(id_: Any, arguments: Any) -> None:
    """What a careless program would merge into an object of its own."""
    keys = (
        '{"__proto__": {"polluted": 1}, "constructor": {"prototype": {"polluted": 1}}, "then": 1}'
    )
    write(
        f'{{"jsonrpc":"2.0","id":{id_},"result":{{"content":[],"structuredContent":{keys},'
        '"__proto__":{"polluted":1},"then":1}}\n'
    )


def change(id_: Any, arguments: Any) -> None:
    tools[:] = [tool(name) for name in arguments["names"]]
    send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
    text(id_, "changed")


def ask(id_: Any, arguments: Any) -> None:
    fields = arguments.get("fields") or {"name": {"type": "string"}}
    params = {"message": "Your name?", "requestedSchema": schema(**fields)}
    request = {"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": params}
    send(request)
    while True:
        message = json.loads(sys.stdin.readline())
        if message.get("id") == "q":
            answer(id_, {"content": [], "structuredContent": message.get("result", message)})
            return
        heard.append(message.get("method", "answer"))


def what_was_heard(id_: Any, arguments: Any) -> None:
    answer(id_, {"content": [], "structuredContent": {"heard": heard, "pid": os.getpid()}})


def environment(id_: Any, arguments: Any) -> None:
    answer(id_, {"content": [], "structuredContent": {"env": dict(os.environ), "cwd": os.getcwd()}})


def spawn_child(id_: Any, arguments: Any) -> None:
    """A child that outlives its parent, and holds its pipes."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pause()
        os._exit(0)
    answer(id_, {"content": [], "structuredContent": {"pid": child}})


# ---- Tools of the newest protocol ----


def input_required(id_: Any, **more: Any) -> None:
    answer(id_, {"resultType": "input_required", **more})


def asks(id_: Any, arguments: Any, params: Any) -> None:
    """Asks twice at once, then answers with the answers."""
    given = params.get("inputResponses")
    if given:
        answer(
            id_,
            {"content": [], "structuredContent": {"given": given, "at": params["requestState"]}},
        )
        return
    form = {"mode": "form", "message": "Who?", "requestedSchema": schema(name={"type": "string"})}
    page = {"mode": "url", "message": "Pay.", "url": "https://pay.example"}
    questions = {"who": form, "pay": page}
    requests = {
        key: {"method": "elicitation/create", "params": it} for key, it in questions.items()
    }
    input_required(id_, inputRequests=requests, requestState="here")


def asks_for_ever(id_: Any, arguments: Any, params: Any) -> None:
    input_required(id_, requestState="again")


def is_ready_later(id_: Any, arguments: Any, params: Any) -> None:
    state = params.get("requestState", "")
    if len(state) < 3:
        input_required(id_, requestState=state + "x")
    else:
        text(id_, "ready")


def asks_a_model(id_: Any, arguments: Any, params: Any) -> None:
    said = {"role": "user", "content": {"type": "text", "text": "hi"}}
    request = {"method": "sampling/createMessage", "params": {"messages": [said], "maxTokens": 9}}
    input_required(id_, inputRequests={"m": request})


class Task:
    """What became of the task so far; each poll is a step."""

    steps: Any = ()
    polls = 0
    given: Any = None


def starts_a_task(id_: Any, arguments: Any, params: Any) -> None:
    """Continues in the background: each `tasks/get` answers the next of the given states."""
    Task.steps, Task.polls = list(arguments["steps"]), 0
    first = {"taskId": "t1", "status": "working", "ttlMs": None, "pollIntervalMs": 1}
    answer(id_, {"resultType": "task", **first, **arguments.get("first", {})})


def poll_task(params: Any) -> Any:
    Task.polls += 1
    state = Task.steps.pop(0) if len(Task.steps) > 1 else Task.steps[0]
    if state.get("status") == "completed":
        given: Any = {"given": Task.given, "polls": Task.polls}
        result: dict[str, Any] = {"content": [], "structuredContent": given}
        state = {"result": result, **state}
    return {"taskId": params["taskId"], "ttlMs": 1000, "pollIntervalMs": 1, **state}


MODERN = {
    function.__name__: function
    for function in (asks, asks_for_ever, is_ready_later, asks_a_model, starts_a_task)
}

TOOLS = {
    function.__name__: function
    for function in (
        *(echo, big, many_parts, many_blocks, deep, invalid, is_error, rpc_error, garbage),
        *(only_garbage, unreadable, half_a_character, other_id, never, leave, kill, stop),
        *(flood_stderr, flood_requests, flood_notifications, flood_progress, progress),
        *(close_output, hostile_keys, change, ask),
        *(what_was_heard, environment, spawn_child),
    )
}


# ---- Lists ----


def hostile_tools() -> list[Any]:
    recursive = schema(child={"$ref": "#"})
    loop = {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}}
    loop["$defs"] = {"a": {"$ref": "#/$defs/a"}}
    return [
        tool("fine"),
        tool("fine", description="the second of its name"),
        tool(""),
        tool("n" * 10_000),
        tool("\U0001f600"),
        tool("a\u202eb"),
        tool(" space "),
        tool(7),
        "not an object",
        None,
        {"name": "no_schema"},
        tool("string_schema", "string"),
        tool("array_schema", {"type": "array"}),
        tool("bad_properties", {"type": "object", "properties": {"a": 1}}),
        tool("bad_required", {"type": "object", "required": "a"}),
        tool("untyped", {"properties": {"a": {"type": "string"}}}),
        tool("huge", schema(a={"description": "x" * 300_000})),
        tool("file_ref", schema(a={"$ref": "file:///etc/passwd"})),
        tool("url_ref", schema(a={"$ref": "http://127.0.0.1:9/schema"})),
        tool("recursive", recursive),
        tool("loop", loop),
        tool("resources/read"),
        tool("__proto__"),
        tool("constructor", annotations={"readOnlyHint": True, "title": 3, "x": [1]}),
        tool("odd", None, title=5, outputSchema="no", icons="x", execution=7, _meta=[1]),
        tool("loud", description="d" * 100_000),
    ]


def list_page(cursor: str | None) -> dict[str, Any]:
    if MODE == "thousands":
        return {"tools": [tool(f"tool{n:04}") for n in reversed(range(5_000))]}
    if MODE == "one_page":
        return {"tools": [tool(f"tool{n:05}") for n in range(8_000)]}
    if MODE == "endless":
        start = int(cursor or 0)
        page = [tool(f"tool{n}") for n in range(start, start + 10)]
        return {"tools": page, "nextCursor": str(start + 10)}
    if MODE == "circle":
        return {"tools": [tool("a" if cursor is None else "b")], "nextCursor": "same"}
    if MODE == "pages":
        page = int(cursor or 0)
        following = {"nextCursor": str(page + 1)} if page < 4 else {}
        return {"tools": [tool(f"tool{page}")], **following}
    if MODE == "twenty":
        return {"tools": [tool(f"tool{n}") for n in range(20)]}
    if MODE == "hostile":
        return {"tools": hostile_tools()}
    if MODE == "no_list":
        return {"tools": {"a": 1}}
    if MODE == "listed":
        return {"tools": OFFER["tools"]}
    if MODE == "long_list":
        return {"tools": [tool("a", description="x" * 50_000_000)]}
    return {"tools": tools}


CAPABILITIES: dict[str, Any] = {"tools": {"listChanged": True}}
if MODE == "everything":
    CAPABILITIES |= {"resources": {}, "prompts": {}}


def describe(method: str, params: Any) -> Any:
    """The answers that have nothing to do with tools."""
    if method == "initialize":
        return {
            "protocolVersion": "2025-11-25",
            "capabilities": CAPABILITIES,
            "serverInfo": {"name": OFFER.get("about", "raw"), "version": "1"},
            "instructions": OFFER.get("about", "Be careful."),
        }
    if method == "server/discover" and MODE.startswith("modern"):
        return {"supportedVersions": ["2026-07-28"], "capabilities": CAPABILITIES}
    if method == "tasks/get":
        return poll_task(params)
    if method == "tasks/update":
        Task.given = params["inputResponses"]
    if method in ("tasks/update", "tasks/cancel"):
        return dict[str, Any]()
    if method == "tools/list":
        return list_page((params or {}).get("cursor"))
    if method == "ping":
        return dict[str, Any]()
    if method == "resources/list":
        page = int((params or {}).get("cursor") or 0)
        following = {"nextCursor": str(page + 1)} if page < 2 else {}
        return {"resources": [{"uri": f"memo://{page}", "name": f"m{page}"}], **following}
    if method == "resources/read":
        scheme, _, size = params["uri"].partition("://")
        said = "x" * int(size) if scheme == "big" else "one"
        return {"contents": [{"uri": params["uri"], "text": said}]}
    if method == "prompts/list":
        return {"prompts": [{"name": "brief"}]}
    if method == "prompts/get":
        said = json.dumps(params.get("arguments"))
        return {"messages": [{"role": "user", "content": {"type": "text", "text": said}}]}
    return None


def respond(message: dict[str, Any]) -> None:
    method, id_ = message.get("method", ""), message.get("id")
    heard.append(method)
    if id_ is None:
        return
    params = message.get("params")
    if method == "tools/call":
        assert params is not None
        if params["name"] in MODERN:
            MODERN[params["name"]](id_, params.get("arguments"), params)
        elif MODE in ("twenty", "thousands", "listed"):
            answer(id_, {"content": [], "structuredContent": {"tool": params["name"]}})
        else:
            TOOLS[params["name"]](id_, params.get("arguments"))
        return
    if method == "server/discover" and MODE == "ignores_discover":
        return
    result = describe(method, params)
    if result is None:
        error = {"code": -32601, "message": "Method not found"}
        send({"jsonrpc": "2.0", "id": id_, "error": error})
    else:
        answer(id_, result)


def main() -> None:
    runs = count_runs()
    if MODE == "silent":
        signal.pause()
    fails = {"exits": True, "starts_the_third_time": runs < 3, "starts_once": runs > 1}
    fails["starts_when_told"] = not os.path.exists(f"{STATE}.told")
    if fails.get(MODE):
        sys.stderr.write(f"{OFFER.get('about', 'cannot open the database')}\n")
        sys.exit(3)
    if MODE == "babbles":
        while True:
            write("Listening on port 8080...\n")
            time.sleep(0.001)
    if MODE == "banner":
        write("\n\x1b[1mWelcome!\x1b[0m\n")
    simple = {name: schema() for name in (*TOOLS, *MODERN)}
    simple["echo"] = {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "default": 1},
            "b": {"type": "object", "default": {"c": [2]}},
            "need": {"type": "string"},
            "__proto__": {"type": "string", "default": "own"},
            "font": {"type": "string", "default": None},
        },
        "required": ["need", "a"],
    }
    hints = {"readOnlyHint": True, "idempotentHint": True}
    tools.extend(tool(name, it, annotations=hints) for name, it in simple.items())
    for line in sys.stdin:
        respond(json.loads(line))


main()
