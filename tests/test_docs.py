"""The pages of docs/: their tables are true, their messages are real, and their links resolve."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

import meshkit
from meshkit.call import Call
from meshkit.cli.main import main
from meshkit.errors import format_error
from meshkit.groups.open_mesh import CONFLICT
from meshkit.launch.disagreement import describe_disagreement
from meshkit.layout.crossings import check_crossings
from meshkit.redistribute.pattern import parse_pattern
from tests.pages import ROOT, read_blocks
from tests.redistribute.test_pattern import USES
from tests.redistribute.test_transitions import TABLE

DOCS = ROOT / "docs"
PAGE = (DOCS / "concepts" / "redistribution.md").read_text()
PROMISES = ROOT / "tests" / "scenarios" / "promises.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", PROMISES, *DOCS.rglob("*.md")]
COMMANDS = [path.stem for path in (DOCS / "commands").glob("*.md") if path.stem != "index"]
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def raised_by(call: Call, case: Callable[[], object]) -> str:
    """Return the error of a case as the call of a live job quotes it."""
    with pytest.raises(meshkit.MeshkitError) as caught:
        case()
    return f"{type(caught.value).__name__}: {caught.value.quote(call)}"


def test_the_table_has_the_twenty_uses() -> None:
    patterns = re.findall(r"^\| `(.* -> .*?)` \|", PAGE, re.MULTILINE)
    assert sorted(patterns) == sorted(USES)
    axes = {"shard": 2, "rep": 2, "ep": 2, "sp": 2, "cp": 2, "tp": 2, "dp": 2, "pp": 2}
    for text in patterns:
        names = [dim.name for dim in parse_pattern(text.replace("...", "b")).left.dims]
        plan = meshkit.plan_redistribution(
            axes, text.replace("...", "b"), **dict.fromkeys(names, 8)
        )
        assert plan.received == plan.bound
        assert plan.backward is not None


def test_the_table_of_transitions_is_the_tested_one() -> None:
    lines = re.search(r"^\| from, to .*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    assert lines is not None
    rows = [line.strip("| \n").split(" | ") for line in lines[0].strip().splitlines()]
    symbols = [cell.strip("`") for cell in rows[0][1:]]
    shown = {
        (row[0].strip("`"), symbol): cell
        for row in rows[2:]
        for symbol, cell in zip(symbols, row[1:], strict=True)
    }
    expected = {cell: _short(text) for cell, text in TABLE.items()}
    assert shown == expected


def _short(text: str) -> str:
    """Return forward and backward of a cell; a reduce also clears the tensor on other ranks."""
    return ", ".join(side.replace("reduce, keep on one", "reduce") for side in text.split(" | "))


def test_the_disagreement_shown_is_the_one_raised() -> None:
    request, other = {"sizes": "dp=4 sp=2 tp=1"}, {"sizes": "dp=2 sp=4 tp=1"}
    requests = {rank: other if rank == 4 else request for rank in range(8)}
    evidence, fix = describe_disagreement(requests, {4: "host b, pid 311"}, [])
    text = format_error(CONFLICT, *evidence, fix=fix)
    assert f"DisagreementError: {text}" in (DOCS / "errors.md").read_text()


def test_the_warning_shown_is_the_one_given() -> None:
    sizes = {"dp": 2, "tp": 2}
    topology = meshkit.Topology.of_hosts(["a", "b"] * 2)
    warning = check_crossings(meshkit.Layout(**sizes), topology, {"tp": "warn"}).warning
    assert warning is not None
    shown = f"RuntimeWarning: {warning.quote(Call('build_mesh', (), sizes))}\n"
    assert shown in (DOCS / "concepts" / "links.md").read_text()


def test_the_words_of_the_code_stand_where_the_page_says() -> None:
    page = (DOCS / "concepts" / "words.md").read_text()
    places = re.findall(r"`(\w+)` in `([\w/]+\.py)`", page)
    assert len(places) > 20
    for name, file in places:
        source = (ROOT / "meshkit" / file).read_text()
        assert re.search(rf"^(class|def) {name}\b", source, re.MULTILINE), (name, file)


def test_every_error_has_a_section() -> None:
    names = {name for name in meshkit.__all__ if name.endswith("Error")} - {"MeshkitError"}
    assert names <= {*HEADING.findall((DOCS / "errors.md").read_text())}


def test_every_command_has_a_page() -> None:
    index = (DOCS / "commands" / "index.md").read_text()
    assert sorted(COMMANDS) == sorted(re.findall(r"^\| \[(\w+)\]", index, re.MULTILINE))


@pytest.mark.parametrize("name", ["plan", "explain", "move", "search", "doctor", "eject"])
def test_the_json_fields_of_a_command_are_those_of_its_page(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path if name == "eject" else ROOT)  # it writes a file
    text = (DOCS / "commands" / f"{name}.md").read_text()
    example = next(block.body for block in read_blocks(text) if block.kind == "console")
    main([*shlex.split(example.partition("\n")[0])[2:], "--json"])
    section = text.partition("## JSON")[2]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) or [section]
    fields = {field for row in rows for field in re.findall(r"`(\w+)`", row)} - {"to"}
    assert sorted(fields) == sorted(json.loads(capsys.readouterr().out))


def test_every_public_name_is_in_the_reference() -> None:
    reference = "".join(path.read_text() for path in (DOCS / "reference").glob("*.md"))
    modules = [getattr(meshkit, name) for name in meshkit.__all__]
    names = {f"::: {value.__module__}.{value.__name__}" for value in modules}
    assert sorted(name for name in names if f"{name}\n" not in reference) == []


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r"(?:- |: )([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_and_files_of_a_page_exist(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    for link in links:
        target, _, anchor = link.partition("#")
        path = page.parent / target if target else page
        assert path.exists(), link
        if anchor:
            assert anchor in _anchors(path.read_text()), link
    files = re.findall(r"`((?:tests|examples|meshkit|benchmarks)/[\w/.-]*\w)`", text)
    assert [name for name in files if not (ROOT / name).exists()] == []


def _anchors(text: str) -> set[str]:
    """Return the anchors of a page: those of its headings, and of the objects that it documents."""
    objects = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    return {*objects, *(_anchor(title) for title in HEADING.findall(text))}


def _anchor(title: str) -> str:
    """Return the anchor that the site gives to a heading."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())


def test_promises_are_numbered_in_order_and_are_in_the_summary() -> None:
    numbers = [
        int(number) for number in re.findall(r"^\| (\d+) \|", PROMISES.read_text(), re.MULTILINE)
    ]
    assert numbers == [*range(1, len(numbers) + 1)] != []
    page = (DOCS / "evidence" / "promises.md").read_text()
    rows = [line.rsplit("|", 2)[1] for line in page.splitlines() if re.match(r"\| .*\d \|$", line)]
    spans = [span.split("-") for row in rows for span in row.split(",")]
    shown = [
        number
        for first, *last in spans
        for number in range(int(first), int([first, *last][-1]) + 1)
    ]
    assert sorted(shown) == numbers


def test_the_tests_that_the_evidence_names_exist() -> None:
    """A path may be shortened to its end."""
    tests = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    for page in (PROMISES, *(DOCS / "evidence").glob("*.md")):
        for name in re.findall(r"`((?:[\w-]+/)*test_\w+\.py)", page.read_text()):
            assert any(f"/{path}".endswith(f"/{name}") for path in tests), f"{page.name}: {name}"
