"""What goes into the system prompt: base, skills, bootstrap files, what runs and hooks add."""

import os
from itertools import pairwise
from pathlib import Path

import pytest

from clawmode.agent.hooks import PromptAdditions
from clawmode.agent.prompt import BASE, BootstrapFile, Ingredients, build, load_bootstrap_files
from clawmode.agent.skills import SkillLoader


def add_skill(folder: Path, name: str, text: str) -> Path:
    file = folder / name / "SKILL.md"
    file.parent.mkdir(parents=True)
    file.write_text(text, "utf-8")
    return file


SKILL = "---\nname: {}\ndescription: {}\n---\n\nHow it is done.\n"


@pytest.mark.covers("AL-25")
def test_skills_are_found_told_and_give_their_variables(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    add_skill(first, "mail", SKILL.format("mail", '"Write mails."'))
    add_skill(second, "mail", SKILL.format("mail", "Another."))
    add_skill(second, "ledger", "---\nname: ledger\ndescription: >\n  Keep the\n  books.\n---\n")
    add_skill(second, "off", SKILL.format("off", "Switched off."))
    loader = SkillLoader((first, second), frozenset({"off"}), {"mail": {"MAIL_KEY": "k"}})
    found = loader.load()
    assert [(skill.name, skill.description) for skill in found.skills] == [
        ("ledger", "Keep the books."),
        ("mail", "Write mails."),
    ]
    assert found.env() == {"MAIL_KEY": "k"}
    assert "- mail: Write mails. (" in found.prompt()
    assert "MAIL_KEY" not in repr(loader)
    assert [note.rpartition(": ")[2] for note in found.notes] == [
        "another folder has a skill 'mail', which is used"
    ]


@pytest.mark.parametrize(
    ("front", "description"),
    [
        ('description: "Write: mails" # a comment', "Write: mails"),
        ("description: 'It''s for mails'", "It's for mails"),
        ("description: |\n  Write\n  mails.", "Write mails."),
        ("description: Write\n  mails.", "Write mails."),
        ("tools: [read, write]\nmore:\n  - a\n  - b\ndescription: Write.", "Write."),
        ("description: yes", "yes"),
        ("description: 2027-01-31", "2027-01-31"),
        # These are not YAML, and were always accepted.
        ("description: Use when: the user asks", "Use when: the user asks"),
        ("description: Use when: the user\n  asks: politely", "Use when: the user asks: politely"),
        ("description: *bold* text", "*bold* text"),
        ("description: `code` first", "`code` first"),
        ("description: @me", "@me"),
        ('description: "Quoted" and more', 'Quoted" and more'),
        ("description: |\n\ttab: a", "tab: a"),
    ],
)
def test_the_description_of_a_skill_is_yaml_or_plain_text(
    tmp_path: Path, front: str, description: str
) -> None:
    add_skill(tmp_path, "mail", f"---\nname: mail\n{front}\n---\n")
    found = SkillLoader((tmp_path,)).load()
    assert [(it.name, it.description) for it in found.skills] == [("mail", description)]


LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{new}: &{new} [*{old}, *{old}]\n" for old, new in pairwise("abcdefghij")
)


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("front", "why"),
    [
        (LAUGHS, "line 2: anchors (&), aliases (*) and tags (!) of YAML are not supported"),
        ("a: *b", "line 2: anchors"),
        ("a: 1\nb: !!python/object/apply:os.system [id]", "line 3: anchors"),
        ("a: " + "[" * 20_000, "the YAML between the two lines of `---` is nested too deeply"),
        ("? " * 10_000, "the YAML between the two lines of `---` is nested too deeply"),
        ("a: b\n" * 10_000, "between the two lines of `---` may be at most 32768 characters"),
        ("[1, 2]", "`description` is missing"),
        ("description: [a, b]", "`description` is missing"),
    ],
    ids=["laughs", "alias", "tag", "flow depth", "block depth", "long", "list", "no text"],
)
def test_hostile_yaml_is_rejected_with_a_reason(tmp_path: Path, front: str, why: str) -> None:
    add_skill(tmp_path, "bad", f"---\n{front}\n---\n")
    found = SkillLoader((tmp_path,)).load()
    assert found.skills == ()
    assert found.notes[0].partition("SKILL.md: ")[2].startswith(why)


def test_skills_are_read_again_only_if_something_changed(tmp_path: Path) -> None:
    file = add_skill(tmp_path, "mail", SKILL.format("mail", "Write mails."))
    loader = SkillLoader((tmp_path,))
    before = loader.load()
    assert loader.load() is before
    file.write_text(SKILL.format("mail", "Write letters."), "utf-8")
    os.utime(file, ns=(1, 1))
    assert loader.load().skills[0].description == "Write letters."


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("no front matter", "`description` is missing between the two lines of `---`"),
        ("---\nname: x\n---\n", "`description` is missing between the two lines of `---`"),
        (
            SKILL.format("../up", "Up."),
            "'../up' is not a valid name of a skill: use up to 64 letters, digits, `_`, `.` and "
            "`-`",
        ),
        ("---\ndescription: x\n---\n" + "y" * (256 << 10), "the file is larger than 262144 bytes"),
    ],
)
def test_what_is_no_skill_is_left_out_and_noted(tmp_path: Path, text: str, why: str) -> None:
    add_skill(tmp_path, "bad", text)
    add_skill(tmp_path, "good", SKILL.format("good", "Good."))
    found = SkillLoader((tmp_path, tmp_path / "nowhere")).load()
    assert [skill.name for skill in found.skills] == ["good"]
    assert [note.partition("SKILL.md: ")[2] for note in found.notes] == [why]


def test_bootstrap_files_are_those_of_the_workspace_and_no_others(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (tmp_path / "secret").write_text("secret")
    (workspace / "AGENTS.md").write_text("Be kind.")
    (workspace / "USER.md").symlink_to(tmp_path / "secret")
    (workspace / "SOUL.md").mkdir()
    (workspace / "inside.md").symlink_to("AGENTS.md")
    names = ["AGENTS.md", "USER.md", "SOUL.md", "../secret", "inside.md", "AGENTS.md", "none.md"]
    found = load_bootstrap_files(workspace, names)
    assert [(file.name, file.text) for file in found] == [
        ("AGENTS.md", "Be kind."),
        ("inside.md", "Be kind."),
    ]


def test_a_long_file_is_cut_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("x" * 50)
    (file,) = load_bootstrap_files(tmp_path, max_chars=20)
    assert (len(file.text), file.cut) == (20, 30)
    assert file.prompt().endswith("[30 more characters: read the file]")


@pytest.mark.covers("AL-26", "AL-29")
def test_the_prompt_has_everything_in_its_order_and_reports_it(tmp_path: Path) -> None:
    add_skill(tmp_path, "mail", SKILL.format("mail", "Write mails."))
    given = Ingredients(
        workspace=tmp_path,
        skills=SkillLoader((tmp_path,)).load(),
        files=[BootstrapFile("SOUL.md", "Calm.")],
        extra="Only today.",
    )
    made = build(given, PromptAdditions(prepend_system_context="H", append_system_context="T"))
    assert [part.name for part in made.parts] == [
        *("hooks: before", "base", "workspace", "skills", "SOUL.md", "run", "hooks: after")
    ]
    places = [made.text.index(it) for it in ("H", BASE, "Skills:", "Calm.", "Only today.")]
    assert places == sorted(places)
    report = made.report()
    assert report["tokens"] == made.tokens > 30
    assert build(given) == build(given)


@pytest.mark.covers("AL-35")
def test_a_hooks_system_prompt_replaces_it_and_context_goes_with_the_turn(tmp_path: Path) -> None:
    additions = PromptAdditions(system_prompt="Mine.", prepend_context="Now.")
    made = build(Ingredients(workspace=tmp_path, extra="x"), additions)
    assert (made.text, made.context) == ("Mine.", "Now.")
