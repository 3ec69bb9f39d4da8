"""Tune: the next combination of a kernel's parameters, from those that were tried. No model, no state of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specs.schema import Provider, Task
from specs.tuning import Assignment, Space, label, space

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import TrialState

# The search ends after so many combinations for each parameter without a better score: most parameters have about four
# values, and the best combination's neighbours deserve to be looked at twice over.
PATIENCE_PER_PARAMETER = 8


@dataclass(frozen=True, slots=True)
class Trial:
    """One combination that had its turn."""

    assignment: Assignment
    score: float | None  # higher is better; None: it was never timed
    failed: bool = False  # did not build, was wrong, ...: its neighbourhood is worth less


def obstacle(task: Task, folder: Path | None = None) -> str | None:
    """Why the task's seed cannot be tuned; None where it can be, or need not be.

    `folder` is what the task's paths are relative to; a bundle's are absolute. A file that is not there is told with
    the task's other files.
    """
    if task.model.provider is not Provider.TUNE:
        return None
    if task.seed is None:
        return "none given; provider 'tune' needs a kernel with parameters marked in it"
    path = (folder or Path()) / task.seed
    if not path.is_file():
        return None
    try:
        space(path.read_bytes().decode(errors="surrogateescape"), task.language)
    except OSError as error:
        return f"{task.seed!r} cannot be read ({error.strerror})"
    except ValueError as error:
        return f"{task.seed!r} cannot be tuned: {error}"
    return None


def why_over(tunable: Space, past: Sequence[Trial]) -> str | None:
    """Why there is nothing (more) to try; None while there is."""
    count = len(tunable.combinations)
    if not _untried(tunable, past):
        return "the only combination was tried" if count == 1 else f"all {count} combinations were tried"
    patience = PATIENCE_PER_PARAMETER * len(tunable.parameters)
    best, since = float("-inf"), 0
    for trial in past:
        since += 1
        if trial.score is not None and trial.score > best:
            best, since = trial.score, 0
    return f"no better score within {patience} combinations" if since >= patience else None


def next_assignment(tunable: Space, past: Sequence[Trial], seed: str, ahead: int = 0) -> Assignment | None:
    """What to try next, never what was tried; None when the search is over. The same for the same history.

    `ahead` proposals of the same round come before this one: each is found as their own calls find it, and skipped.
    """
    untried = _untried(tunable, past)
    if why_over(tunable, past) is not None or len(untried) <= ahead:
        return None
    search = _Search(tunable, past, seed)
    chosen = untried[0]
    for _ in range(ahead + 1):
        chosen = search.asked(untried)
        untried.remove(chosen)
    return chosen


def _untried(tunable: Space, past: Sequence[Trial]) -> list[Assignment]:
    tried = {label(trial.assignment) for trial in past}
    return [combination for combination in tunable.combinations if label(combination) not in tried]


class _Search:
    """The past as optuna sees it: each value is a place, and failures are what was given up early."""

    def __init__(self, tunable: Space, past: Sequence[Trial], seed: str) -> None:
        import optuna  # a second to import, and needed by tuning runs only
        from optuna.distributions import CategoricalDistribution, IntDistribution

        self._places = {one.name: {value: at for at, value in enumerate(one.ranked())} for one in tunable.parameters}
        # Of numbers neighbours are taken to be alike.
        self._distributions: dict[str, BaseDistribution] = {
            one.name: IntDistribution(0, len(one.values) - 1)
            if one.ordered
            else CategoricalDistribution(tuple(range(len(one.values))))
            for one in tunable.parameters
        }
        self._ordered = {one.name: one.ordered for one in tunable.parameters}
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        number = int.from_bytes(hashlib.sha256(f"{seed} {len(past)}".encode()).digest()[:4], "big")
        # As many random combinations as there are parameters, then its model of the past chooses.
        sampler = optuna.samplers.TPESampler(seed=number, n_startup_trials=len(tunable.parameters))
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        for trial in past:
            if trial.score is not None:
                self._add(trial.assignment, optuna.trial.TrialState.COMPLETE, trial.score)
            elif trial.failed:
                self._add(trial.assignment, optuna.trial.TrialState.PRUNED)

    def asked(self, untried: Sequence[Assignment]) -> Assignment:
        """The untried combination nearest to what optuna suggests, which knows neither tried ones nor conditions."""
        from optuna.trial import TrialState

        asked = self._study.ask(self._distributions)
        suggested = asked.params
        chosen = min(untried, key=lambda one: self._distance(suggested, self._placed(one)))
        self._study.tell(asked, state=TrialState.FAIL)
        # At work from now on, so that what is asked next keeps away from it.
        self._add(chosen, TrialState.RUNNING)
        return chosen

    def _add(self, assignment: Assignment, state: TrialState, score: float | None = None) -> None:
        from optuna.trial import create_trial

        params = self._placed(assignment)
        self._study.add_trial(create_trial(state=state, value=score, params=params, distributions=self._distributions))

    def _placed(self, assignment: Assignment) -> dict[str, int]:
        return {name: self._places[name][value] for name, value in assignment.items()}

    def _distance(self, a: Mapping[str, int], b: Mapping[str, int]) -> int:
        """Steps between neighbouring values; two names are one step apart."""
        return sum(abs(a[name] - b[name]) if ordered else a[name] != b[name] for name, ordered in self._ordered.items())
