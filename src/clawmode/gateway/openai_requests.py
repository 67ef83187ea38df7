"""Requests in the format of OpenAI: chat completions and responses, read as turns.

Both formats have far more parameters than a turn has. `REFUSED` lists those whose absence a client
would notice; all others are ignored.
"""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from clawmode.messages import IMAGE_TYPES, BadMessage, Image
from clawmode.rpc.protocol import RpcError
from clawmode.types import JsonObject, JsonValue, dataclass

MAX_IMAGES = 20

REFUSED: dict[str, tuple[JsonValue, ...]] = {
    "audio": (None,),
    "background": (None, False),
    "conversation": (None,),
    "function_call": (None, "auto", "none"),
    "functions": (None,),
    "logprobs": (None, False),
    "modalities": (None, ["text"]),
    "n": (None, 1),
    "prompt": (None,),
    "tool_choice": (None, "auto", "none"),
    "top_logprobs": (None, 0),
    "web_search_options": (None,),
}
"""Parameters that are rejected unless they have one of these values."""


def wrong(field: str, problem: str) -> RpcError:
    """Returns the error for a parameter."""
    return RpcError("INVALID_REQUEST", f"{field}: {problem}", field=field)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAiRequest:
    """What a request asks for.

    Attributes:
        history: Earlier messages of the conversation, as role and text.
        results: The results of functions by the ids of their calls.
        previous: The id of the response that the request continues.
    """

    model: str
    message: str
    images: tuple[Image, ...]
    system: str
    history: tuple[tuple[str, str], ...]
    functions: tuple[JsonObject, ...]
    results: dict[str, JsonValue]
    user: str
    previous: str = ""
    stream: bool = False
    stream_usage: bool = False

    def digest(self, more: Iterable[tuple[str, str]] = ()) -> str:
        """Returns a digest of the conversation so far, by which the next request finds it."""
        return hashlib.sha256(json.dumps([self.system, *self.history, *more]).encode()).hexdigest()


# ---- Chat completions ----


def read_chat(body: JsonObject) -> OpenAiRequest:
    """Reads a request of `/v1/chat/completions`.

    Raises:
        RpcError: A parameter is wrong, or is not supported.
    """
    messages = _list(body, "messages", required=True)
    _refuse_others(body, "response_format", _object(body, "response_format"))
    options = _object(body, "stream_options")
    system: list[str] = []
    history: list[tuple[str, str]] = []
    fresh: list[tuple[str, tuple[Image, ...]]] = []
    results: dict[str, JsonValue] = {}
    for number, each in enumerate(messages):
        where = f"messages[{number}]"
        if not isinstance(each, dict):
            raise wrong(where, "expected an object")
        text, images = _content(each.get("content"), f"{where}.content")
        match each.get("role"):
            case "system" | "developer":
                system.append(text)
            case "user":
                fresh.append((text, images))
            case "assistant":
                history += [("user", said) for said, _ in fresh]
                history.append(("assistant", text))
                fresh.clear()
                results.clear()
            case "tool":
                results[_call_id(each, "tool_call_id", where)] = _value(text)
            case _:
                raise wrong(f"{where}.role", "expected system, developer, user, assistant or tool")
    return OpenAiRequest(
        **_common(body, fresh, results),
        system="\n\n".join(system),
        history=tuple(history),
        stream_usage=_flag(options, "include_usage", "stream_options."),
    )


# ---- Responses ----


def read_response(body: JsonObject) -> OpenAiRequest:
    """Reads a request of `/v1/responses`.

    Raises:
        RpcError: A parameter is wrong, or is not supported.
    """
    text_format = _object(_object(body, "text"), "format", "text.")
    _refuse_others(body, "text.format", text_format)
    given = body.get("input")
    rows: JsonValue = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(rows, list) or not rows:
        raise wrong("input", "expected a text or a list of items")
    system = [text] if (text := _text(body, "instructions")) else []
    history: list[tuple[str, str]] = []
    fresh: list[tuple[str, tuple[Image, ...]]] = []
    results: dict[str, JsonValue] = {}
    for number, each in enumerate(rows):
        where = f"input[{number}]"
        if not isinstance(each, dict):
            raise wrong(where, "expected an object")
        kind = each.get("type", "message")
        if kind == "function_call_output":
            text, _ = _content(each.get("output"), f"{where}.output")
            results[_call_id(each, "call_id", where)] = _value(text)
        elif kind == "message" and each.get("role") in ("system", "developer"):
            system.append(_content(each.get("content"), f"{where}.content")[0])
        elif kind == "message" and each.get("role") == "assistant":
            history += [("user", said) for said, _ in fresh]
            history.append(("assistant", _content(each.get("content"), f"{where}.content")[0]))
            fresh.clear()
            results.clear()
        elif kind == "message" and each.get("role") == "user":
            fresh.append(_content(each.get("content"), f"{where}.content"))
        elif kind == "message":
            raise wrong(f"{where}.role", "expected system, developer, user or assistant")
        elif kind not in ("function_call", "reasoning"):  # our own, which the client sends back
            raise wrong(where, f"items of the type {str(kind)[:40]!r} are not supported")
    return OpenAiRequest(
        **_common(body, fresh, results),
        system="\n\n".join(system),
        history=tuple(history),
        previous=_text(body, "previous_response_id"),
    )


# ---- What both have ----


def _common(
    body: JsonObject,
    fresh: list[tuple[str, tuple[Image, ...]]],
    results: dict[str, JsonValue],
) -> dict[str, Any]:
    if not fresh and not results:
        raise wrong("messages" if "messages" in body else "input", "the last must be of the user")
    model = body.get("model")
    if not isinstance(model, str):
        raise wrong("model", "expected the name of an agent")
    images = [image for _, found in fresh for image in found]
    if len(images) > MAX_IMAGES:
        raise wrong("messages", f"at most {MAX_IMAGES} images")
    return {
        "model": model,
        "message": "\n\n".join(text for text, _ in fresh),
        "images": tuple(images),
        "functions": tuple(_functions(body)),
        "results": results,
        "user": _text(body, "user"),
        "stream": _flag(body, "stream"),
    }


def _refuse_others(body: JsonObject, name: str, shape: JsonObject) -> None:
    for field, allowed in REFUSED.items():
        if body.get(field) not in allowed:
            raise wrong(field, f"{json.dumps(body[field])[:80]} is not supported")
    if shape.get("type", "text") != "text":
        raise wrong(name, "only text is supported: ask for JSON in a message")


def _functions(body: JsonObject) -> Iterable[JsonObject]:
    if body.get("tool_choice") == "none":
        return
    names: set[str] = set()
    for number, each in enumerate(_list(body, "tools")):
        where = f"tools[{number}]"
        # In a chat, the function is in an object of its own.
        about = each.get("function", each) if isinstance(each, dict) else None
        if not isinstance(each, dict) or each.get("type") != "function":
            raise wrong(where, "only functions are supported")
        if not isinstance(about, dict) or not isinstance(about.get("name"), str):
            raise wrong(f"{where}.name", "expected the name of the function")
        if about["name"] in names:
            raise wrong(f"{where}.name", f"there are two functions {about['name'][:80]!r}")
        names.add(about["name"])
        yield {
            "name": about["name"],
            "description": _text(about, "description", f"{where}."),
            "parameters": _object(about, "parameters", f"{where}.") or {"type": "object"},
            # The call has no effect here: the client gets it, and makes or refuses it itself.
            "effect": "read",
        }


def _content(content: JsonValue, where: str) -> tuple[str, tuple[Image, ...]]:
    """Returns the text and the images of a message."""
    if content is None or isinstance(content, str):
        return content or "", ()
    if not isinstance(content, list):
        raise wrong(where, "expected a text or a list of parts")
    texts: list[str] = []
    images: list[Image] = []
    for number, part in enumerate(content):
        if not isinstance(part, dict):
            raise wrong(f"{where}[{number}]", "expected an object")
        kind = part.get("type")
        if kind in ("text", "input_text", "output_text", "refusal"):
            name = "refusal" if kind == "refusal" else "text"
            texts.append(_text(part, name, f"{where}[{number}]."))
        elif kind in ("image_url", "input_image"):
            url = part.get("image_url")
            url = url.get("url") if isinstance(url, dict) else url
            images.append(_image(url, f"{where}[{number}]"))
        else:
            raise wrong(f"{where}[{number}]", f"parts of the type {kind!r} are not supported")
    return "\n".join(texts), tuple(images)


def _image(url: JsonValue, where: str) -> Image:
    # An address would be fetched by the gateway, from inside of its network.
    text = url if isinstance(url, str) else ""
    head, _, data = text.partition(",")
    kind = head.removeprefix("data:").removesuffix(";base64")
    if not head.startswith("data:") or not head.endswith(";base64"):
        raise wrong(where, f"an image must be a data: URL with base64 of {', '.join(IMAGE_TYPES)}")
    try:
        return Image.parse(data, kind)
    except BadMessage as error:
        raise wrong(where, str(error)) from None


def _value(text: str) -> JsonValue:
    """Returns the result of a function: JSON if it is an object or a list, else the text."""
    if text[:1] in ("{", "["):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text


def _call_id(item: JsonObject, name: str, where: str) -> str:
    if not isinstance(value := item.get(name), str):
        raise wrong(f"{where}.{name}", "expected the id of a call")
    return value


def _text(body: JsonObject, name: str, where: str = "") -> str:
    value = body.get(name)
    if not (value is None or isinstance(value, str)):
        raise wrong(where + name, "expected a text")
    return value or ""


def _flag(body: JsonObject, name: str, where: str = "") -> bool:
    value = body.get(name)
    if not (value is None or isinstance(value, bool)):
        raise wrong(where + name, "expected true or false")
    return value is True


def _object(body: JsonObject, name: str, where: str = "") -> JsonObject:
    value = body.get(name)
    if not (value is None or isinstance(value, dict)):
        raise wrong(where + name, "expected an object")
    return value or {}


def _list(body: JsonObject, name: str, *, required: bool = False) -> list[JsonValue]:
    value = body.get(name)
    if value is None and not required:
        return []
    if not isinstance(value, list) or (required and not value):
        raise wrong(name, "expected a list")
    return value
