"""The page: what it says equals the result, nothing on it comes from elsewhere, and no name can break out of it."""

from __future__ import annotations

import builtins
import dataclasses
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import grown
from grown.bench.request import Request
from grown.bench.runner import run
from grown.report import page, page_compare, page_findings, page_run, plots
from grown.report.page_html import clean
from helpers import call, make_task

NAMES = ("<script>alert(1)</script>", "\"quoted' & $x_1$ 日本語 🎉", "x" * 60 + "</svg></section>")
LABEL = "</title><img src=x onerror=alert(2)>"
CLASSES = ("<b onclick=x>", "' onload='y", "&lt;already&gt;")
VOID = {"meta", "link", "br", "img", "input"}


class Reader(HTMLParser):
    """A page as it is understood: its numbers, texts, attributes, and whether every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str, str]] = []
        self.numbers: dict[str, list[float]] = {}
        self.cells: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attributes]
        found = dict(attributes)
        if tag == "data":
            self.numbers.setdefault(found["class"] or "", []).append(float(found["value"] or ""))
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("td", "th", "text", "h3"):
            self.cells.append("")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attributes]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.cells and self.open and self.open[-1] in ("td", "th", "text", "h3"):
            self.cells[-1] += data


def hostile_tasks(*_: object) -> list[grown.Task]:
    tasks = []
    for name in NAMES:
        made = make_task(name, noise=90.0)
        parts = {"train": made.train, "test": made.test}
        tasks.append(grown.Task(name, **{k: as_arrays(part) for k, part in parts.items()}, classes=list(CLASSES)))
    return tasks


def as_arrays(part: Any) -> tuple[Any, Any]:
    return part.images.permute(0, 2, 3, 1).numpy(), part.labels.numpy()


@contextmanager
def hostile_stream() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grown.data, "stream", hostile_tasks)
        yield


def hostile_request(out: Path) -> Request:
    return Request(epochs=2, label=LABEL, target=100.0, out=out, settings=("expansions=1",))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose names are all hostile."""
    where = tmp_path_factory.mktemp("page") / "run"
    with hostile_stream():
        run(hostile_request(where))
    return where


def check_numbers(reader: Reader, result: dict[str, Any]) -> None:
    """Every number of a result is on its page, exactly."""
    rows, found = result["tasks"], reader.numbers
    for key in ("average_accuracy", "forgetting", "size_x", "bytes_x"):
        assert found[key] == [result[key]]
    assert found["bytes"] == [result["bytes"]["total"]]
    assert found["accuracy"] == [value for row in result["accuracy_matrix"] for value in row]
    assert found["part"] == list(result["bytes"].values())
    for key in ("target", "val", "test"):
        assert found.get(key, []) == [row[key] for row in rows if row[key] is not None]
    assert found["task_size_x"] == [row["size_x"] for row in rows]
    assert found["task_bytes_x"] == [row["bytes_x"] for row in rows]
    assert found["task_bytes"] == [row["bytes"] for row in rows]
    assert found["stage_val"] == [s["val"] for row in rows for s in row["stages"] if s["val"] is not None]
    assert found["stage_seconds"] == [stage["seconds"] for row in rows for stage in row["stages"]]
    assert found["seconds"] == list(result["seconds"].values())
    if "grown" in found:
        for key in ("grown", "released"):
            assert found[key] == [row["new_kernels"][key] for row in rows]


def check_alone(text: str) -> Reader:
    """Nothing is loaded, nothing runs, every element is closed, every id is there once."""
    reader = Reader(text)
    assert len(text.encode()) < 2_000_000
    assert not reader.tags & {"script", "img", "iframe", "object", "embed", "base", "form", "style2", "foreignobject"}
    ids = [value for _, name, value in reader.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    for tag, name, value in reader.attributes:
        assert not name.startswith("on")
        assert name not in ("src", "srcset", "action", "background")
        if name.endswith("href"):
            assert value == "data:," if tag == "link" else value[1:] in ids
        assert all(found[1:] in ids for found in re.findall(r"url\((.*?)\)", value))
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    return reader


def test_the_numbers_are_those_of_the_result(folder: Path) -> None:
    reader = check_alone(page.write(folder).read_text())
    check_numbers(reader, json.loads((folder / "result.json").read_text()))
    assert "svg" in reader.tags
    structure = page_run.read(folder).structure
    assert structure is not None
    assert reader.numbers["used"] == [count for row in structure.used for count in row]
    assert reader.numbers["picked"] == [sum(row[:-1]) for row in structure.used]


def test_hostile_names_stay_names(folder: Path) -> None:
    text = page.make(page_run.read(folder))
    reader = check_alone(text)
    for name in NAMES:
        assert name in reader.cells  # in a table, whole
    assert ", ".join(CLASSES) in reader.cells
    assert LABEL in reader.cells
    assert "<script" not in text
    assert "onerror=alert(2)>" not in text
    assert any(cell.startswith("2 \"quoted' & $x_1") for cell in reader.cells)  # in a plot, as it is written
    assert clean("a\x00\u202eb\ud800\uffff\nc") == "a\ufffd\ufffdb\ufffd\ufffd c"


def test_a_page_repeats_but_for_its_times(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    shutil.copytree(folder, other)
    result = json.loads((other / "result.json").read_text())
    result["seconds"] = dict.fromkeys(result["seconds"], 99.25)
    for task in result["tasks"]:
        for stage in task["stages"]:
            stage["seconds"] = 77.25
    (other / "result.json").write_text(json.dumps(result))
    one, two = page.write(folder).read_text(), page.write(other).read_text()
    assert one != two
    times = re.compile(r'<section id="times">.*?</section>', re.DOTALL)
    assert len(times.findall(one)) == 1
    assert times.sub("", one) == times.sub("", two)


def test_a_page_does_not_depend_on_the_users_own_plot_settings(folder: Path) -> None:
    import matplotlib

    plain = page.make(page_run.read(folder))
    with matplotlib.rc_context({"savefig.bbox": "tight", "font.size": 20, "axes.titlesize": 4, "lines.marker": "x"}):
        assert page.make(page_run.read(folder)) == plain
        assert matplotlib.rcParams["font.size"] == 20  # and leaves them as they are


def test_without_matplotlib_there_are_tables(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *more: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    assert not plots.available()
    text = page.make(page_run.read(folder))
    reader = check_alone(text)
    check_numbers(reader, json.loads((folder / "result.json").read_text()))
    assert "svg" not in reader.tags
    assert "pip install 'grown[plots]'" in text
    assert "Nothing was forgotten" in text


@pytest.mark.parametrize("method", ["scratch", "joint"])
def test_other_methods_have_a_page_too(method: str, tmp_path: Path) -> None:
    result, where = run(Request(method=method, tasks=2, epochs=2, out=tmp_path / "run"))
    text = page.write(where).read_text()
    check_numbers(check_alone(text), json.loads(json.dumps(result)))
    assert 'id="structure"' not in text


def forge(folder: Path, to: Path, **changes: Any) -> Path:
    """The run as another one: its result with changes, and no model."""
    to.mkdir()
    result = json.loads((folder / "result.json").read_text())
    (to / "result.json").write_text(json.dumps({**result, **changes}))
    return to


def test_several_runs_side_by_side(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    accuracy = json.loads((folder / "result.json").read_text())["average_accuracy"]
    runs = [
        folder,
        forge(folder, tmp_path / "a", seed=1, average_accuracy=accuracy - 2.0),
        forge(folder, tmp_path / "<i>b", method="scratch", label="default", protocol="paper", average_accuracy=50.0),
    ]
    out = tmp_path / "all.html"
    assert call("report", *map(str, runs), "--out", str(out)) == 0
    assert f"{out}: {out.stat().st_size:,} bytes" in capsys.readouterr().out.replace("\n", "")
    reader = check_alone(out.read_text())
    assert reader.numbers["mean_average_accuracy"] == pytest.approx([accuracy - 1.0, 50.0])
    assert reader.numbers["average_accuracy"] == [accuracy, accuracy - 2.0, 50.0]
    assert any(cell == str(runs[2]) for cell in reader.cells)
    assert "too good to be compared" in out.read_text()  # one of them decided on test images
    for changes, words in (
        ({"benchmark": "other"}, "cannot stand side by side"),
        ({"base_parameters": 7}, "cannot stand side by side"),
        ({}, "are both grown"),
    ):
        other = forge(folder, tmp_path / f"other {[*changes]}", **changes)
        with pytest.raises(grown.ConfigError, match=words):
            page_compare.make(page_compare.read([folder, other]))


def test_many_settings_are_ranked_and_mapped(folder: Path, tmp_path: Path) -> None:
    """More of them than there are marks: rows instead of a legend, those far below marked as such."""
    folders = [
        forge(
            folder,
            tmp_path / str(place),
            label=f"setting-{place}",
            average_accuracy=90.0 - 10 * place,
            bytes_x=0.5 + place,
        )
        for place in range(plots.MANY + 1)
    ]
    for few in (True, False):
        text = page_compare.make(page_compare.read(folders[: plots.MANY] if few else folders))
        check_alone(text)
        assert ("An arrow" in text) != few
        drawn = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
        assert [svg.count("setting-3") for svg in drawn[:3]] == [1, 1, 1]  # in a legend, or as a row
        assert (">80.0<" in drawn[0]) != few  # values are written beside the marks of a ranking


def test_the_papers_curve_stands_beside_its_benchmark(folder: Path, tmp_path: Path) -> None:
    text = page.write(forge(folder, tmp_path / "a", benchmark="cifar100-superclass")).read_text()
    for words in ("the paper's to 0.48x", "row “Ours”", "the paper's, kernels", "0.4x"):
        assert words in text
    assert "row “Ours”" not in page.write(folder).read_text()


def test_why_it_grew(folder: Path) -> None:
    found = page_run.read(folder)
    stage = {"name": "reuse", "epochs": 1, "val": 90.0, "seconds": 1.0}
    row = {"target": 91.0, "val": 90.0, "grew": False, "stages": [stage]}
    more = {**row, "stages": [stage, {**stage, "name": "expand", "val": 95.0}]}

    def why(row: dict[str, Any], **config: Any) -> str:
        settings = {"config": {**found.config, "margin": 0.0, **config}}
        return page_findings.why(row, dataclasses.replace(found, settings=settings))

    assert why(row, margin=1.0) == "reuse reached 90.0, not below the target 91.0 less the margin 1: no need to grow"
    assert why(row) == "reuse reached 90.0, below the target 91.0; the caps left no room to grow"
    assert why(row, grow=False).endswith("growth is switched off")
    assert why({**more, "val": 95.0, "grew": True}).endswith("expanded once, and held-out accuracy rose to 95.0")
    assert why(more).endswith("held-out accuracy did not rise, so nothing of it was kept")
    assert why({**row, "target": None}) == "there was no target"
    first = {**row, "stages": [{"name": "expand", "epochs": 1, "val": 90.0, "seconds": 1.0}]}
    assert why(first, seed_size=0.5, start_size=0.25) == "the first task starts small and grows up to the seed size"
    assert why(first, seed_size=0.5, start_size=None).endswith("grows up to the seed size")
    assert why(first, seed_size=0.5, start_size=0.5) == "the first task starts at the seed size"
    assert why(row, expansions=0).endswith("the settings allow no expansion")
    assert why(row, trial=False).endswith("nothing was added")
    glance, expand = {**stage, "name": "glance", "epochs": 5, "val": 70.0}, more["stages"][1]
    given_up = why({**row, "val": 95.0, "grew": True, "stages": [glance, expand]})
    assert given_up == (
        "after 5 epochs reuse was at 70.0, hopelessly below the target 91.0: "
        "expanded once, and held-out accuracy rose to 95.0"
    )
    assert why({**more, "stages": [glance, expand, stage]}).startswith("reuse reached 90.0, below the target")
    assert why({**row, "stages": [glance, {**stage, "val": 92.0}]}).endswith("no need to grow")
    assert page_findings.verdict(row, 0.0) == "missed by 1.0"
    assert page_findings.verdict(row, 1.0) == "within the margin, 1.0 below"


def test_what_was_not_measured_is_not_claimed() -> None:
    stage = {"name": "reuse", "epochs": 1, "val": 90.0, "seconds": 1.0}
    named = {"name": "t", "target": 99.0, "val": 90.0}
    missed = {**named, "grew": False, "stages": [stage]}  # below its target, and not expanded
    expand = {**stage, "name": "expand", "val": 93.0}
    tried = {**named, "val": 93.0, "grew": True, "stages": [stage, expand]}
    blind = {**named, "grew": True, "stages": [stage, {**stage, "name": "refit", "val": None}]}
    assert page_findings.stages([missed]) == "No task was expanded after reuse"
    assert "in 1 of the 1 tasks that were expanded" in page_findings.stages([missed, tried])
    assert page_findings.stages([missed, blind]).endswith("what they gained is not known")
    assert page_findings.growth([], 1).endswith("is not known")
    glance = {**stage, "name": "glance", "val": 70.0}
    given_up = {**named, "val": 93.0, "grew": True, "stages": [glance, expand]}
    assert page_findings.stages([missed, given_up]).endswith("what they gained is not known")
    assert [page_findings.reused(row) for row in (missed, tried, given_up)] == [None, 90.0, None]
    assert [page_findings.untried(row) for row in (missed, tried, blind, given_up)] == [False, False, True, True]
    in_vain = {**named, "grew": False, "stages": [glance, {**expand, "val": 60.0}, stage]}
    assert "none of the 2 tasks" in page_findings.stages([in_vain, {**in_vain, "stages": [glance, stage, expand]}])
    assert page_findings.growth([], 0) == "No later task was expanded"


def test_what_was_forgotten_is_said(folder: Path) -> None:
    found = page_run.read(folder)
    result = {**found.result, "accuracy_matrix": [[90.0], [80.0, 70.0], [60.0, 75.0, 50.0]], "forgetting": 15.0}
    said = page_findings.memory(dataclasses.replace(found, result=result))
    assert said == f"15.0 points were forgotten on average, most by {NAMES[0]}: 30.0 points"


def test_released_kernels_add_up(folder: Path) -> None:
    found = page_run.read(folder)
    structure = found.structure
    assert structure is not None
    learner = grown.load(folder / "model.safetensors")
    banks = learner.banks.values()
    assert structure.free[-1] == sum(int((bank.owner == 0).sum()) for bank in banks)
    assert sum(map(sum, structure.owned)) == sum(bank.owned() for bank in banks)
    for place, row in enumerate(found.tasks):
        assert sum(structure.owned[place]) == sum(row["new_kernels"].values())
    assert [sum(added) for added in zip(*structure.channels, strict=True)] == [bank.shape[0] for bank in banks]


def test_a_run_makes_its_page_and_what_is_no_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    where = tmp_path / "run"
    assert call("run", "--tasks", "1", "--epochs", "1", "--target", "0", "--out", str(where)) == 0
    first = (where / "report.html").read_bytes()
    (where / "report.html").unlink()
    assert call("report", str(where)) == 0
    assert (where / "report.html").read_bytes() == first
    (where / "report.html").unlink()
    assert call("run", "--resume", str(where)) == 0  # of a run that has ended
    assert (where / "report.html").read_bytes() == first
    capsys.readouterr()
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "run.json").write_text("{}")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "result.json").write_text('{"benchmark": 1}')
    monkeypatch.chdir(tmp_path)
    for arguments, words in (
        (["absent"], "there is no run here"),
        (["begun"], "has not ended; go on with: grown run --resume begun"),
        (["broken"], "this is not a result (no method)"),
        ([], "Missing argument"),
        (["run", "--out", "absent/x.html"], "cannot write absent/x.html"),
    ):
        assert call("report", *arguments) == 2
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1
