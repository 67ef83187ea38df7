"""A person decides in the middle of a program.

The program deletes files, and each deletion needs a yes. It does not hold anything up while the
person thinks: it is frozen at once, and the result has the status `waiting`. Once the decision has
arrived, `wait` lets it go on from where it was, with all its variables. A no is an error that the
program can catch.
"""

import anyio

from clawmode import Approvals, CodeMode, Decision, tool

PROGRAM = """\
const done = { deleted: [], kept: [] };
for (const name of await tools.list_files({})) {
  try {
    await tools.delete_file({ name });
    done.deleted.push(name);
  } catch (error) {
    if (error.code !== "not_approved") throw error;
    done.kept.push(name);
  }
}
return done;
"""

files = {"draft.txt", "thesis.txt"}


@tool
async def list_files() -> list[str]:
    """The names of all files."""
    return sorted(files)


@tool(effect="write")
async def delete_file(name: str) -> None:
    """Delete a file for good."""
    files.remove(name)


async def decide(approvals: Approvals) -> None:
    """The person: looks at what is asked, thinks, and answers."""
    for question in approvals.pending():
        await anyio.sleep(0.1)
        decision: Decision = "deny" if question.input["name"] == "thesis.txt" else "allow-once"
        print(f"person   {question.title} {question.input['name']}: {decision}")
        approvals.resolve(question.id, decision)


async def main() -> None:
    approvals = Approvals(ask_for=["delete_*"])
    async with CodeMode(tools=[list_files, delete_file], approvals=approvals) as code_mode:
        waits = 0
        with anyio.fail_after(5):  # not the ten seconds that it could take
            result = await code_mode.exec(PROGRAM)
        while result.status == "waiting":
            waits += 1
            print(f"program  {result.status}, frozen as {result.run_id}")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(decide, approvals)
                result = await code_mode.wait(result.run_id)
        print(f"program  {result.status}", result.value)

    assert waits == 2, waits
    assert result.value == {"deleted": ["draft.txt"], "kept": ["thesis.txt"]}, result
    assert files == {"thesis.txt"}, files
    print("the thesis is still there")


if __name__ == "__main__":
    anyio.run(main)
