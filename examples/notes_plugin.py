"""A plugin in a folder: its tools, its namespace and its guard, in one program, offline.

The plugin is `examples/plugins/notes`; `clawmode plugins check examples/plugins/notes` looks at it.
"""

from pathlib import Path

import anyio

from clawmode import CodeMode, Plugins

FOLDER = Path(__file__).parent / "plugins" / "notes"

PROGRAM = """\
await Notes.add("Ann orders the coffee until Friday.", "meeting", "kitchen");
await Notes.add("Bo repairs the lamp.", "meeting", "workshop");
let refused;
try { await Notes.add("The password: swordfish"); } catch (error) { refused = error.message; }
const [coffee, meeting] = await Promise.all([Notes.find("coffee"), Notes.tagged("meeting")]);
return { coffee: coffee.map((note) => note.text), meeting: meeting.length, refused };
"""


async def main() -> None:
    plugins = Plugins([FOLDER], {"notes": {"config": {"maxChars": 200}}}, installed=False)
    (view,) = plugins.load()
    assert view.loaded, view.problem
    print(f"{view.id} {view.version}: {', '.join(tool.id for tool in plugins.tools)}")
    async with CodeMode(
        tools=plugins.tools, hooks=plugins.hooks, namespaces=plugins.namespaces
    ) as code_mode:
        result = await code_mode.exec(PROGRAM)
    plugins.unload()
    print(result.unwrap())
    assert result.value == {
        "coffee": ["Ann orders the coffee until Friday."],
        "meeting": 2,
        "refused": "plugin:notes:add_note was blocked: a note is no place for secrets",
    }, result


if __name__ == "__main__":
    anyio.run(main)
