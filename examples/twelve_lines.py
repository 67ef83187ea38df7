import asyncio

from clawmode import CodeMode, tool


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def main() -> None:
    async with CodeMode(tools=[add]) as code_mode:
        result = await code_mode.exec("return await tools.add({a: 1, b: 2})")
        while result.status == "waiting":
            result = await code_mode.wait(result.run_id)
        print(result.unwrap())  # 3


asyncio.run(main())
