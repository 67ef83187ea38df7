"""Code as users write it, with the public names only. mypy and pyright check it strictly."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from anthropic.types import ToolParam
from google.genai.types import FunctionDeclarationDict
from openai.types.chat import ChatCompletionToolParam
from openai.types.responses import FunctionToolParam

from clawmode import (
    Approvals,
    BeforeToolCall,
    CallEvent,
    CodeMode,
    CodeModeConfig,
    CodeModeResult,
    Decision,
    Hooks,
    JsonValue,
    MemoryStore,
    Policy,
    Pool,
    ProgramFailed,
    ProgramWaiting,
    Question,
    RequireApproval,
    RunContext,
    SqliteStore,
    SyncCodeMode,
    Tool,
    ToolCallDecision,
    ToolContext,
    compact,
    tool,
)


@dataclass
class Order:
    product: str
    amount: int


@tool(effect="read", idempotent=True)
async def price(product: str) -> float:
    """Look up a price."""
    return float(len(product))


@tool
def order(product: str, amount: int = 1) -> Order:
    """Order a product."""
    return Order(product, amount)


def plain(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def execute(params: dict[str, JsonValue], context: ToolContext) -> JsonValue:
    return {"call": context.call_id, "params": params}


by_hand = Tool("by_hand", "A tool without a function.", {"type": "object"}, execute)

hooks = Hooks()


async def guard(event: BeforeToolCall) -> ToolCallDecision | None:
    if event.tool_name == "order":
        return ToolCallDecision(
            require_approval=RequireApproval(title="Order?", description="Order?")
        )
    return None


hooks.before_tool_call(guard)


async def approve(question: Question) -> Decision:
    return "allow-once" if question.input else "deny"


def watch(event: CallEvent) -> None:
    print(event.phase, event.tool_id)


def show(result: CodeModeResult) -> str:
    try:
        value = result.unwrap()
    except ProgramFailed as error:
        return f"{error.code}: {error.error}"
    except ProgramWaiting as error:
        return error.run_id
    number: int = result.value_as(int)
    return f"{value} {number} {compact(result)}"


async def main(folder: Path) -> None:
    context = RunContext(session_id="s", run_id="r")
    async with (
        Pool(size=2) as pool,
        CodeMode(
            tools=[price, order, plain, by_hand],
            config=CodeModeConfig(timeout_ms=500),
            policy=Policy.from_config({"deny": ["order"]}),
            hooks=hooks,
            approvals=Approvals(ask_for=["order"], approver=approve),
            store=SqliteStore(folder),
            context=context,
            pool=pool,
        ) as code_mode,
    ):
        stop = code_mode.watch(watch)
        result = await code_mode.exec("return tools.price({product: 'tea'})")
        while result.status == "waiting":
            result = await code_mode.wait(result.run_id)
        print(show(result), await code_mode.abort(result.run_id))
        stop()
        chat: list[ChatCompletionToolParam] = code_mode.definitions()
        responses: list[FunctionToolParam] = code_mode.definitions("openai-responses")
        messages: list[ToolParam] = code_mode.definitions("anthropic")
        google: list[FunctionDeclarationDict] = code_mode.definitions("google")
        raw: list[dict[str, JsonValue]] = code_mode.definitions("mcp", max_chars=2000)
        print(chat, responses, messages, google, raw)
        answer: dict[str, JsonValue] = await code_mode.call("exec", {"code": "return 1"})
        print(answer["status"], plain(1, 2), order("tea").amount, await price("tea"))


@asynccontextmanager
async def lifespan() -> AsyncGenerator[Pool]:
    async with Pool() as pool:
        yield pool


def script(code_mode: SyncCodeMode) -> JsonValue:
    return code_mode.exec("return 1").unwrap()


def synchronous() -> None:
    with CodeMode.sync(tools=[plain], config={"timeoutMs": 500}, store=MemoryStore()) as code_mode:
        names = [definition["name"] for definition in code_mode.definitions("anthropic")]
        print(names, script(code_mode))


if __name__ == "__main__":
    asyncio.run(main(Path("state")))
    synchronous()
