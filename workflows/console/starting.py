"""From a task file to a run at work."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import cast, get_args

from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from activities.bundle import pack
from activities.harness import Harness
from activities.interpreter import command
from activities.runnable import buildable, obstacles, refuse_unpriced
from activities.settings import Settings
from kernels.harness.requests import Locked, LockGate, Sandbox
from specs import schema
from specs.errors import FerretError, Problem, SpecError, UserError
from specs.loader import LoadedTask, load_task
from specs.outcomes import labelled
from specs.plan import Plan
from workflows import visibility
from workflows.budget import unusable
from workflows.console.output import err, note
from workflows.console.session import RUN_ID, WORKFLOW, Session
from workflows.state import WORKFLOW_QUEUE, RunInput

REHEARSAL_S = 60.0  # a gate's first inputs and golden; the run itself has more patience
REGISTERING = 40  # attempts to start while the server takes in new search attributes


def checked(settings: Settings, path: Path) -> LoadedTask:
    """A task that this version can run, every file it names in place, with a gate that works; raises SpecError."""
    loaded = load_task(path)
    told = [*loaded.warnings, *loaded.check_references()]
    for problem in told:
        if problem.severity == "warning":
            note(str(problem), warning=True)
    problems = [problem for problem in told if problem.severity == "error"]
    problems += [loaded.problem(at, message) for at, message in obstacles(loaded.task, loaded.path.parent)]
    if buildable(loaded.task):  # otherwise files would be asked for that could not be used
        problems += loaded.check_files()
    if not problems and loaded.task.gate is not None:
        problems = asyncio.run(_rehearse(settings, loaded))
    if problems:
        raise SpecError(problems)
    return loaded


async def _rehearse(settings: Settings, loaded: LoadedTask) -> list[Problem]:
    """What is wrong with the gate, found out by the very request that the run begins with."""
    task = loaded.task
    assert task.gate is not None
    folder = str(loaded.resolve(task.gate).absolute())
    with tempfile.TemporaryDirectory(prefix="ferret-") as work, err.status("trying the gate"):
        try:
            async with asyncio.timeout(REHEARSAL_S):
                await Harness(settings).ask(LockGate(task=task, gate=Path(folder)), Locked, Path(work))
        except TimeoutError:
            note(
                f"{task.gate}: not ready within {REHEARSAL_S:g} s, so the run will be the first to try it", warning=True
            )
        except FerretError as error:
            said = " ".join(str(error).split())
            named = said.replace(folder, task.gate) if folder in said else f"{task.gate}: {said}"
            return [loaded.problem(("gate",), named)]
    return []


def checked_id(run_id: str | None) -> str | None:
    if run_id is not None and not RUN_ID.fullmatch(run_id):
        raise UserError(f"--id {run_id!r} is no run id; accepted: up to 100 letters, digits, '.', '_' and '-'")
    return run_id


def planned(loaded: LoadedTask, budget: Mapping[str, float | None], model: str | None) -> Plan:
    """The task's plan with what the command line gives instead; None leaves the task's value."""
    plan = Plan.of(loaded.task, loaded.digest)
    given = {name: value for name, value in budget.items() if value is not None}
    for name, value in given.items():
        if problem := unusable(name.removeprefix("max_"), value):
            raise UserError(f"--{name.replace('_', '-')} is {problem}")
    try:
        chosen = plan.model.model_copy(update={"optimizer": schema.check_model(model)}) if model else plan.model
    except ValueError as error:
        raise UserError(f"--model {error}") from None
    return plan.model_copy(update={"budget": plan.budget.model_copy(update=given), "model": chosen})


def estimated(settings: Settings, task: schema.Task, plan: Plan) -> str:
    """What the run may cost, in a line.

    Raises UserError for a limit in USD that nobody could keep, since a model's price is unknown.
    """
    from activities.llm.estimate import described, estimate  # prices take a moment to load
    from activities.llm.prices import Prices

    planned_task = task.model_copy(update={"model": plan.model, "budget": plan.budget})
    refuse_unpriced(planned_task)  # the command line may have given the limit or the model
    return described(estimate(planned_task, Prices.of(settings)))


def isolation(settings: Settings, given: str | None) -> Sandbox:
    if given is not None and given not in get_args(Sandbox):
        raise UserError(f"--sandbox {given!r}; accepted: {', '.join(get_args(Sandbox))}")
    return cast(Sandbox, given or settings.sandbox)


async def begin(session: Session, loaded: LoadedTask, plan: Plan, run_id: str | None, sandbox: Sandbox) -> str:
    """Store what the run needs and start its workflow; gives the run id. Raises UserError when the id is taken."""
    bundle = await pack(loaded, session.store())
    given = RunInput(plan=plan, bundle=bundle, sandbox=sandbox)
    base = run_id or default_id(plan, datetime.now().astimezone())
    # A default id is taken only by another start within the same minute: count on.
    for candidate in [base] if run_id else [base, *(f"{base}-{n}" for n in range(2, 100))]:
        try:
            await _start(session, given, candidate)
        except WorkflowAlreadyStartedError:
            continue
        return candidate
    raise UserError(f"--id {base!r} is taken by another run ({command('client.py', 'status', base)}); give a new one")


async def _start(session: Session, given: RunInput, run_id: str) -> None:
    """Start the workflow; a namespace that has never seen a ferret worker is taught the search attributes first."""
    plan = given.plan
    for attempt in range(REGISTERING):
        try:
            await session.client.start_workflow(
                WORKFLOW,
                given,
                id=run_id,
                task_queue=WORKFLOW_QUEUE,
                # A run's record and delivered files lie under its id, so an id is used once.
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                memo={"task": plan.task, "digest": plan.digest}
                | ({"standing": plan.standing} if plan.standing else {}),
                search_attributes=visibility.at_start(plan),
                static_summary=labelled(f"{plan.task} against {plan.baseline}"[:180], plan.standing),
                static_details=details(plan),
            )
        except RPCError as error:
            unknown = error.status is RPCStatusCode.INVALID_ARGUMENT and "search attribute" in str(error).lower()
            if not unknown or attempt == REGISTERING - 1:
                raise
            if not await visibility.register(session.client):
                names = ", ".join(f"{key.name} ({key.indexed_value_type.name.title()})" for key in visibility.KEYS)
                raise UserError(
                    f"namespace {session.client.namespace} lacks ferret's search attributes and this connection may "
                    f"not add them; let an administrator add {names}"
                ) from None
            await asyncio.sleep(0.25)  # a registered attribute is usable a moment later
        else:
            return


def default_id(plan: Plan, now: datetime) -> str:
    """`skinny-gemm-f32-cpu-3f2a1c-1130-0312`: task, digest, day and minute."""
    slug = re.sub(r"[^a-z0-9._]+", "-", plan.task.lower()).strip("-._")[:60] or "task"
    return f"{slug}-{plan.digest[:6]}-{now:%m%d-%H%M}"


def details(plan: Plan) -> str:
    """The plan as Markdown, for the Temporal UI."""
    rows = "".join(f"| {c.name} | {c.target_ratio:g} | {c.weight:g} |\n" for c in plan.configs)
    told = "\n\nEvery number of this run is **self-reported**, none is verified." if plan.self_contained else ""
    return (
        f"**{plan.task}** against {plan.baseline} on {plan.gpu}, scored by {plan.scoring.value}{told}\n\n"
        f"| config | target ratio | weight |\n|---|---|---|\n{rows}"
    )
