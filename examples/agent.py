"""An agent in ten lines: a model, a tool, a question.

Set `ANTHROPIC_API_KEY`, or name another model, such as "ollama/qwen3". `agent_turn.py` shows an
agent with a model that plays a script.
"""

import asyncio

from clawmode import Agent


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def main() -> None:
    async with Agent("anthropic/claude-sonnet-5", tools=[add]) as agent:
        result = await agent.run("What is 1 + 2?")
        print(result.output)  # It is 3.


asyncio.run(main())
