"""Splits a docstring into the description of the function and those of its parameters.

`docstring-parser` parses the sections about parameters. The other sections, such as `Returns:`,
stay in the description, because a model reads them too; the library would drop those that it does
not know.
"""

import re

# One section, or one field of reST or Epydoc, with the lines that belong to it.
_PARAMETERS = re.compile(
    r"""^(?:
        (?:Args|Arguments|Parameters|Params):[ \t]*$  (?:\n(?:[ \t].*)?$)*     # Google
      | (?:Other[ ])?Parameters[ \t]*\n-{3,}[ \t]*$   (?:\n(?!.+\n-{3}).*$)*   # NumPy
      | [:@](?:param|parameter|arg|argument|key|keyword|type)[ ].*$  (?:\n[ \t].*$)*
    )\n?""",
    re.MULTILINE | re.VERBOSE,
)


def parse(docstring: str | None) -> tuple[str, dict[str, str]]:
    """Returns the description of a function, and those of its parameters by name.

    A section that cannot be parsed stays in the description.

    Args:
        docstring: The docstring, whose indentation `inspect.cleandoc` has removed.
    """
    text = docstring or ""
    sections = "".join(_PARAMETERS.findall(text))
    if not sections:
        return text.strip(), {}
    import docstring_parser  # only now: many programs have no tool with such a section

    try:
        # The library removes indentation, for which it ignores the first line.
        entries = docstring_parser.parse("\n" + sections).params
    except docstring_parser.ParseError:
        return text.strip(), {}
    # NumPy allows several names in one entry: `x, y : int`.
    descriptions = {
        name.strip(" *"): " ".join(entry.description.split())
        for entry in entries
        if entry.description
        for name in entry.arg_name.split(",")
    }
    if not descriptions:
        return text.strip(), {}
    return re.sub(r"\n{3,}", "\n\n", _PARAMETERS.sub("", text)).strip(), descriptions
