"""Runs one method over one benchmark and writes the run's folder."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from grown import data, metrics
from grown.bench import folder, presets
from grown.bench import resume as resuming
from grown.bench.request import Request, configure, first_tasks, make_template, read_tasks
from grown.config import Config
from grown.data.folders import PREFIX
from grown.errors import FileError, Stopped
from grown.io import lock
from grown.io.journal import Journal
from grown.methods import load, method
from grown.methods.base import Observer, TaskReport
from grown.train.evaluate import evaluate

FORESEEN = "foresee"  # where the journal keeps what is trained ahead of the tasks


@dataclass(frozen=True)
class _Plan:
    """A request, understood: nothing of it is written yet."""

    request: Request
    config: Config
    tasks: list[data.Task]
    learner: Any
    about: dict[str, Any]
    threads: int  # of PyTorch on the CPU, as the run began


def run(
    request: Request, observer: Observer | None = None, tasks: list[data.Task] | None = None
) -> tuple[dict[str, Any], Path]:
    """Learn the stream; returns the result and its folder. `tasks` are the stream's, if they were read already."""
    plan = _understand(request, observer=observer, tasks=tasks)
    where = folder.claim(request.out, plan.about["benchmark"].replace(":", "-"), request.method, request.seed)
    try:
        folder.write_json(
            where / "run.json",
            {
                **plan.about,
                "width": request.width,
                "threads": plan.threads,
                "config": plan.config.to_json(),
                "tasks": [task.name for task in plan.tasks],
                "data": resuming.data_digests(plan.tasks),
                "request": request.to_json(),
                "contract": folder.CONTRACT,
                "versions": folder.versions(),
            },
        )
    except BaseException:
        lock.release(where)
        raise
    return _go(plan, where, resuming.Progress(), observer), where


def resume(where: Path, observer: Observer | None = None, root: Path | None = None) -> tuple[dict[str, Any], Path]:
    """Go on with the run in a folder, from its last kept epoch; its data may lie elsewhere by now."""
    if not (where / "run.json").is_file():
        raise FileError(f"{where}: there is no run in this folder (no run.json)")
    lock.hold(where)
    try:
        if (where / "result.json").is_file() and not (where / resuming.FILE).exists():
            lock.release(where)
            return resuming.read_json(where / "result.json"), where
        about = resuming.read_json(where / "run.json")
        try:
            request = Request.from_json(about["request"])
        except (KeyError, TypeError) as error:
            raise FileError(f"{where / 'run.json'} does not say what was asked for; this run cannot go on") from error
        if root is not None:
            moved = {"data": root} if request.folder is None else {"benchmark": f"{PREFIX}{root}"}
            request = dataclasses.replace(request, **moved)
        if about.get("versions") != folder.versions() and observer is not None:
            observer({"event": "note", "text": "other versions than the run began with: its last bits may differ"})
        plan = _understand(request, about.get("threads"), observer)
        if about.get("data") != resuming.data_digests(plan.tasks):
            raise FileError(f"the data of {request.benchmark} are not those that the run in {where} began with")
        progress = resuming.Progress.read(where)
        if progress.done:
            learner = load(where / resuming.MODEL)
            learner.configure(plan.config)
            if (resume_targets := getattr(learner, "resume_targets", None)) is not None:
                resume_targets(where / resuming.JOURNAL)
            plan = dataclasses.replace(plan, learner=learner)
    except BaseException:
        lock.release(where)
        raise
    return _go(plan, where, progress, observer), where


def _understand(
    request: Request,
    threads: int | None = None,
    observer: Observer | None = None,
    tasks: list[data.Task] | None = None,
) -> _Plan:
    preset = presets.benchmark(request.benchmark)
    config = configure(request, preset)
    make = method(request.method)

    def tell(text: str) -> None:
        if observer is not None:
            observer({"event": "note", "text": text})

    tasks = tasks if tasks is not None else read_tasks(request, tell)
    tasks = first_tasks(tasks, request)
    name = request.backbone if request.backbone is not None else preset.backbone
    shape = tasks[0].input_shape
    learner = make(
        make_template(name, shape, request.width, request.seed, config.shape),
        config,
        input_shape=shape,
        base_parameters=preset.base_parameters or _base(make, name, shape, request, config),
    )
    about = {
        "benchmark": f"{PREFIX}{request.folder.resolve().name}" if request.folder is not None else request.benchmark,
        "method": request.method,
        "label": request.label,
        "backbone": name,
        "recipe": config.recipe.name,
        "protocol": config.protocol,
        "seed": config.seed,
        "device": config.device,
        "base_parameters": learner.base_parameters,
    }
    at_work = config.threads if config.threads is not None else threads or torch.get_num_threads()
    return _Plan(request, config, tasks, learner, about, at_work)


def _go(plan: _Plan, where: Path, progress: resuming.Progress, observer: Observer | None) -> dict[str, Any]:
    """Learn what is left to be learned; the folder is held."""
    threads = torch.get_num_threads()
    log = folder.Log(where / "log.jsonl", observer)
    journal = Journal(where / resuming.JOURNAL, log.mark)
    plan.learner.observer = log
    names = [task.name for task in plan.tasks]
    try:
        torch.set_num_threads(plan.threads)
        _go_on(log, journal, progress)
        tell = log.show if log.mark() else log
        tell({"event": "run", "tasks": names, "folder": str(where)})
        for row in progress.rows:
            log.show({"event": "tested", "task": row["name"], "test": row["test"], "row": row})
        with resuming.stoppable(journal, log.show):
            result = {**plan.about, **_learn_all(plan, where, log, journal, progress)}
        folder.write_json(where / "result.json", result)
        log({"event": "done"})
        resuming.tidy(where, journal)
    except Stopped as stop:
        stop.args = (f"{stop}; go on with: grown run --resume {where}",)
        raise
    except KeyboardInterrupt as error:
        raise Stopped(f"interrupted; go on with: grown run --resume {where}") from error
    finally:
        log.close()
        torch.set_num_threads(threads)
    return result


def _base(make: Any, name: str, shape: tuple[int, ...], request: Request, config: Config) -> int | None:
    """1x is the backbone at width 1, also where another width is asked for."""
    if request.width == 1.0:
        return None
    reference = make(make_template(name, shape, 1.0, request.seed), config, input_shape=shape)
    return int(reference.base_parameters)


def _scope(number: int) -> str:
    return f"task{number}"


def _go_on(log: folder.Log, journal: Journal, progress: resuming.Progress) -> None:
    """Take the log back to the last state that was kept: of the task under way, else the end of the one before it.

    What was trained until then has taken its seconds too.
    """
    states = (journal.marked(FORESEEN), journal.marked(_scope(progress.done + 1)))
    log.go_on(max([progress.mark, *(mark for mark in states if mark is not None)]))
    progress.seconds["training"] += max(0.0, log.seconds - progress.seconds["total"])


def _learn_all(
    plan: _Plan, where: Path, log: folder.Log, journal: Journal, progress: resuming.Progress
) -> dict[str, Any]:
    learner, tasks, device = plan.learner, plan.tasks, plan.config.device
    clock = log.seconds

    def count(what: str) -> None:
        """The seconds since the last call were spent on this."""
        nonlocal clock
        clock, before = log.seconds, clock
        progress.seconds[what] += clock - before

    if progress.done < len(tasks) and (foresee := getattr(learner, "foresee", None)) is not None:
        log.mute()  # until the journal has given back what it kept: that stands in the log
        with journal.scope(FORESEEN, log.unmute):
            foresee(tasks)
        count("training")
    waiting: list[tuple[TaskReport, float | None]] = []  # learned, but not yet in a file
    for number, task in enumerate(tasks[progress.done :], start=progress.done + 1):
        log.mute()
        with journal.scope(_scope(number), log.unmute):
            log({"event": "task", "task": task.name, "number": number, "of": len(tasks)})
            report: TaskReport = learner.learn(task)
        count("training")
        waiting.append((report, _scratch_test(learner, task, device)))
        if number < len(tasks) and _is_trained(learner, tasks[number]) and not journal.is_stopping:
            continue  # nothing is done between tasks that were trained together, so that one file holds them
        learner.save(where / resuming.NEXT_MODEL)
        # Every row is measured anew, on networks out of the file; nothing is carried over from earlier rows.
        saved = load(where / resuming.NEXT_MODEL)
        networks = saved.networks([old.name for old in tasks[:number]], device)
        found = [
            evaluate(network, old.test, saved.normalisation(old.name), device).accuracy
            for old, network in zip(tasks[:number], networks, strict=True)
        ]
        first = progress.done + 1
        for last, (learned, alone) in enumerate(waiting, start=first):
            progress.matrix.append(found[:last])
            progress.alone.append(alone)
            progress.rows.append(_row(learned, found[last - 1]))
            log({"event": "tested", "task": learned.name, "test": found[last - 1], "row": progress.rows[-1]})
        count("evaluation")
        progress.seconds["total"] = clock
        progress.mark = log.mark()
        if (keep_targets := getattr(learner, "keep_targets", None)) is not None:
            keep_targets(where / resuming.JOURNAL)
        progress.write(where)
        for last in range(first, number + 1):
            journal.clear(_scope(last))
        waiting.clear()
        if journal.is_stopping and number < len(tasks):
            raise Stopped(f"stopped after task {number} of {len(tasks)}")
    size = learner.size()
    return {
        "tasks": progress.rows,
        "accuracy_matrix": progress.matrix,
        "average_accuracy": metrics.average_accuracy(progress.matrix),
        "forgetting": metrics.forgetting(progress.matrix),
        "backward_transfer": metrics.backward_transfer(progress.matrix),
        "forward_transfer": metrics.forward_transfer(progress.matrix[-1], progress.alone),
        "size_x": size.size_x,
        "bytes_x": size.bytes_x,
        "bytes": size.bytes,
        "seconds": progress.seconds,
    }


def _is_trained(learner: Any, task: data.Task) -> bool:
    """Whether learning this task takes no training any more."""
    is_trained = getattr(learner, "is_trained", None)
    return is_trained is not None and bool(is_trained(task.name))


def _scratch_test(learner: Any, task: data.Task, device: str) -> float | None:
    """Scratch's test accuracy, where the target made one be trained; asked for only after the commit.

    A refit learns from more images than that network did, so then they are not compared.
    """
    targets = getattr(learner, "targets", None)
    if targets is None or targets.reference is None or learner.config.refit:
        return None
    network = targets.reference.to(device)
    return evaluate(network, task.test, learner.normalisation(task.name), device).accuracy


def _row(report: TaskReport, test: float) -> dict[str, Any]:
    return {
        "name": report.name,
        "classes": list(report.classes),
        "target": report.target,
        "val": report.val,
        "test": test,
        "stages": [dataclasses.asdict(stage) for stage in report.stages],
        "grew": report.grew,
        "new_kernels": report.new_kernels,
        "size_x": report.size.size_x,
        "bytes_x": report.size.bytes_x,
        "bytes": report.size.bytes["total"],
    }
