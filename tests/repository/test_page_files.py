"""The files of the control page: no way to make HTML of a stranger's text, and no other host."""

import re

import pytest

from clawmode.gateway.page_server import FOLDER, page_files

SOURCES = sorted(path for path in FOLDER.iterdir() if path.suffix in (".js", ".html", ".css"))

FORBIDDEN = (
    *("innerHTML", "outerHTML", "insertAdjacentHTML", "dangerouslySetInnerHTML", "document.write"),
    *("createContextualFragment", "DOMParser", "srcdoc", "setHTMLUnsafe", "javascript:"),
    *("eval(", "new Function", "localStorage", "@import"),
)


@pytest.mark.hostile
@pytest.mark.covers("CP-4")
def test_no_file_of_the_page_can_make_html_or_code_of_a_text() -> None:
    found = [
        (path.name, word)
        for path in SOURCES
        for word in FORBIDDEN
        if word in path.read_text("utf-8")
    ]
    assert found == []


@pytest.mark.covers("CP-3")
def test_documents_have_no_inline_script_or_style_and_name_no_other_host() -> None:
    for path in SOURCES:
        text = path.read_text("utf-8")
        assert not re.search(r"https?://(?!www\.w3\.org)[a-z]", text), path.name
        if path.suffix == ".html":
            assert not re.search(r"<style|<script(?![^>]*src=)|\son\w+=|\sstyle=", text), path.name


def test_files_of_the_page_are_short_and_the_library_is_served_as_it_was_pinned() -> None:
    assert [path.name for path in SOURCES if len(path.read_text("utf-8").splitlines()) > 400] == []
    served = page_files()
    assert set(served.files) >= {path.name for path in SOURCES if path.suffix != ".html"}
    assert b"useErrorBoundary" in served.files["preact.js"]
