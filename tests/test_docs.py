"""README and docs: every code block is run, or it is said here why not, and then its commands exist.

A page's blocks are run in their order in one empty folder: `python` ones as a program each, `bash` ones line by line.
`console` blocks are not run. Whatever stands in a block and begins with `grown` names a command and options that exist.
"""

from __future__ import annotations

import glob
import re
import shlex
import subprocess
from pathlib import Path

import pytest

import grown
from grown.methods import METHODS
from helpers import call

ROOT = Path(__file__).resolve().parent.parent
PAGES = {path.name: path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}

# Blocks that are not run, by how they begin, and why.
NOT_RUN = {
    "python3 -m venv": "CI and a clean machine run it",
    "grown run --seed S": "takes minutes; S stands for a number",
    "grown run folder:PATH": "docs/tutorial.md runs these with images",
    "grown report R": "R, R1, R2 and R3 stand for runs; tests/test_page.py makes such pages",
    "grown compare": "takes minutes; tests/test_compare.py and test_cluster.py run these",
    "grown run --out R": "takes minutes; tests/test_resume.py and test_delta.py run these",
    "grown data cifar100": "needs CIFAR-100",
    "grown data miniimagenet": "needs mini-ImageNet and a GPU",
    "grown run cifar100-superclass": "needs CIFAR-100 and a GPU",
    "python benchmarks/": "needs CIFAR-100 and a GPU",
}
NEEDS = {"tutorial.md": {"add", "predict"}}  # a page is run as soon as these commands are there

Block = tuple[str, str]  # language, text


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def indented(text: str) -> list[Block]:
    """And what is indented."""
    without = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return [("", line.strip()) for line in without.splitlines() if line.startswith("    ")]


def lines(text: str) -> list[str]:
    """A shell block's commands, without comments and prompts."""
    joined = text.replace("\\\n", " ").splitlines()
    return [line.removeprefix("$ ").strip() for line in joined if line.strip() and not line.startswith("#")]


def commands() -> dict[str, set[str]]:
    """The sub-commands and their options."""
    import typer.main

    from grown.cli.main import app

    group = typer.main.get_command(app)
    return {
        name: {option for parameter in command.params for option in parameter.opts} | {"--help"}
        for name, command in group.commands.items()  # type: ignore[attr-defined]
    }


def run_line(line: str) -> None:
    """One command: ours in this process, any other in a shell."""
    words = shlex.split(line, comments=True)
    if words[0] != "grown":
        subprocess.run(line, shell=True, check=True)
        return
    found = [sorted(glob.glob(word)) or [word] if "*" in word else [word] for word in words[1:]]  # noqa: PTH207
    assert call(*(word for some in found for word in some)) == 0, line


def is_left_out(text: str) -> bool:
    return any(text.startswith(begin) for begin in NOT_RUN)


READY = [name for name in PAGES if NEEDS.get(name, set()) <= set(commands()) and blocks(PAGES[name])]


@pytest.mark.parametrize("page", READY)
def test_a_pages_code_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, (language, text) in enumerate(blocks(PAGES[page]), start=1):
        if language == "python":
            exec(compile(text, f"{page}, block {number}", "exec"), {"__name__": "page"})
        elif language == "bash" and not is_left_out(text):
            for line in lines(text):
                run_line(line)


def test_what_is_not_run_is_listed() -> None:
    fenced = [(page, *block) for page, text in PAGES.items() for block in blocks(text)]
    assert {language for _, language, _ in fenced} <= {"python", "bash", "console"}
    for page, language, text in fenced:
        assert language != "console" or is_left_out(text), f"{page}: say in NOT_RUN why {text!r} is not run"
    for begin in NOT_RUN:
        assert any(text.startswith(begin) for _, _, text in fenced), f"no block begins with {begin!r}"


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_options_exist(page: str) -> None:
    known, coming = commands(), NEEDS.get(page, set())
    for language, text in [*blocks(PAGES[page]), *indented(PAGES[page])]:
        for line in [] if language == "python" else lines(text):
            words = shlex.split(line, comments=True)
            if words[:1] != ["grown"] or words[1] in coming - set(known):
                continue
            assert words[1] in known, line
            unknown = {word.partition("=")[0] for word in words if word.startswith("--")} - known[words[1]]
            assert not unknown, line


def test_pages_link_to_what_is_there() -> None:
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\(([^)#\s]+)\)", path.read_text()):
            assert link.startswith("https://") or (path.parent / link).exists(), f"{path.name}: {link}"


def test_the_site_has_every_page_and_every_public_name() -> None:
    site = (ROOT / "mkdocs.yml").read_text()
    assert {name for name in PAGES if name != "README.md"} == set(re.findall(r": (\w+\.md)$", site, re.MULTILINE))
    for name in set(grown.__all__) - {"__version__", "data", "models"}:
        assert re.search(rf"(grown\.|### ){name}\b", PAGES["api.md"]), f"api.md lacks {name}"


def test_generated_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import hooks

    page = hooks.on_page_markdown(PAGES["cli.md"])
    for name, options in commands().items():
        assert f"## grown {name}\n" in page
        for option in options - {"--help"}:
            assert option in page or not option.startswith("--")
    made = hooks.on_page_markdown(PAGES["api.md"])
    for kind in (grown.Config, grown.Recipe):
        for name in kind.__dataclass_fields__:
            assert f"| `{name}` |" in made or name == "recipe"


def test_every_method_has_a_page_that_the_site_lists() -> None:
    listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for name in METHODS:
        page = (ROOT / "docs" / "methods" / f"{name}.md").read_text(encoding="utf-8")
        assert page.startswith(f"# {name}\n")
        assert "**What we changed.**" in page, name
        assert f"methods/{name}.md" in listed
