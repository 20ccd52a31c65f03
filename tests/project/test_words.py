"""One word, one thing: the glossary is used, its words are plain, and no two classes share a name."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

import pytest
from tests.support.paths import ROOT
from tests.support.source import trees

GLOSSARY = ROOT / "docs" / "glossary.md"
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]

VAGUE = ("anybody", "elsewhere", "everybody", "few", "nobody", "somebody", "whoever")
"""Words that do not say who: worker, caller, operator, run and step do."""
_WORD = re.compile(r"^\| \*\*(.+?)\*\* \| .+ \|$", re.MULTILINE)
_CODE = re.compile(r"^( *)```.*?^ *```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_OPENING = re.compile(rf"\W*({'|'.join(VAGUE)})\b", re.IGNORECASE)


def test_a_word_stands_once_in_the_glossary():
    words = _WORD.findall(GLOSSARY.read_text())
    assert len(words) > 50
    assert sorted(words) == sorted(set(words))


def test_every_word_of_the_glossary_is_used():
    """In another document, or in the source."""
    written = "\n".join(path.read_text() for path in [*PAGES, *trees()] if path != GLOSSARY).lower()
    assert [word for word in _WORD.findall(GLOSSARY.read_text()) if not re.search(rf"\b{word}", written)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_sentence_of_a_document_says_who(page):
    prose = _CODE.sub("code", page.read_text())
    sentences = re.split(r"(?<=[.:;?!|])\s+|\n\s*[-*|]\s|\n\n", prose)
    assert [sentence for sentence in sentences if _OPENING.match(sentence)] == []


def test_a_docstring_says_who():
    assert [
        f"{path.name}: {text}" for path, tree in trees().items() for text in _docstrings(tree) if _OPENING.match(text)
    ] == []


def _docstrings(tree: ast.Module) -> Iterator[str]:
    """Give the first line of every docstring, those of attributes included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value.strip().partition("\n")[0]


def test_no_two_classes_share_a_name():
    """Apart from private ones, which are seen in one file only."""
    homes = defaultdict(list)
    for path, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(path.relative_to(ROOT))
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}
