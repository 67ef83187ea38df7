"""The text of pages, honest and hostile."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clawmode.core_tools.page_text import read_page

PAGE = """<!DOCTYPE html><html><head><title> A &amp; B </title><style>p { color: red }</style>
<script>document.write("<p>never</p>")</script></head>
<body><!-- a <b>comment</b> --><h1>Head<em>ing</em></h1>
<p>One &lt;two&gt;
   three&nbsp;four.<br>Five <a href="/six?x=1&amp;y=2">six</a>.</p>
<ul><li>a</li><li>b <a href="javascript:evil()">c</a></ul>
<pre>  kept
  as is</pre>
<table><tr><th>x</th><td>y</td></tr></table>
<noscript>never</noscript><svg><text>never</text></svg>
</body></html>"""


def test_a_page_as_text() -> None:
    page = read_page(PAGE, base="https://example.org/dir/")
    assert page.title == "A & B"
    assert page.text == (
        "Heading\n\nOne <two> three\xa0four.\nFive six.\n\n- a\n- b c\n\n  kept\n  as is\n\n| x | y"
    )


def test_a_page_as_markdown() -> None:
    page = read_page(PAGE, base="https://example.org/dir/", markdown=True)
    assert page.text == (
        "# Heading\n\nOne <two> three\xa0four.\n"
        "Five [six](https://example.org/six?x=1&y=2).\n\n- a\n- b c\n\n"
        "```\n  kept\n  as is\n```\n\n| x | y"
    )


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("", ""),
        ("plain", "plain"),
        ("a < b > c", "a < b > c"),
        ("a <", "a <"),
        ("<p>open", "open"),
        ("<p <b>x", "x"),
        ("<!-- open", ""),
        ("a<!-->b-->c", "ac"),
        ("<script>open", ""),
        ("<script>a</SCRIPT >b", "b"),
        ("<style>a</style>b", "b"),
        ("<head><p>hidden</head>shown", "shown"),
        ("<head><title>t</title><body>shown", "shown"),
        ("<svg/>shown", "shown"),
        ("</p></a></pre>x", "x"),
        ("<textarea><b>&lt;</textarea>", "<b><"),
        ("<?php x ?>a<![CDATA[b]]>", "a"),
        ("&#0;&bogus;&#x41;", "\ufffd&bogus;A"),
        ("\u0130<p>x</p>", "\u0130\n\nx"),
    ],
)
def test_pages_that_are_broken_give_what_there_is(source: str, text: str) -> None:
    assert read_page(source).text == text


def test_a_link_cannot_pretend_to_be_another() -> None:
    page = '<a href="https://evil.example/a)b c">x](https://good.example)[y</a>'
    text = read_page(page, markdown=True).text
    assert text == "[x)(https://good.example)(y](https://evil.example/a%29b%20c)"


@pytest.mark.parametrize(
    "piece",
    [
        *("<", "<a", "<a ", "<!--", "<!-", "<?", "</", "<script>", "<title>", "<textarea>"),
        *("&", "&#", "<a href=", "<a href='", '<a href="', "<p>", "<ul>", "<pre>", "<a>", "\n"),
        *("<svg>", "<td>", "</pre>", " ", "<a href=x>", "<!--<script>", "<iframe>", "<head>"),
    ],
)
def test_no_page_takes_long(piece: str) -> None:
    source = piece * (300_000 // len(piece))
    began = time.process_time()
    read_page(source, markdown=True)
    read_page(source + "x" + "</a>" * 1_000, markdown=True)
    assert time.process_time() - began < 5


@given(st.text("<>/!-abpre ='\"&;#\n", max_size=200), st.booleans())
def test_no_text_makes_it_fail(source: str, markdown: bool) -> None:
    page = read_page(source, base="https://example.org", markdown=markdown)
    assert page.text == "\n".join(line.rstrip() for line in page.text.strip().split("\n"))
    if not {"<", "&"} & set(source):
        assert page.text.split() == source.split()
