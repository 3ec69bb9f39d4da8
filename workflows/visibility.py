"""The search attributes of a run: what lists and filters in the Temporal UI and CLI work with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.client import Client
from temporalio.common import SearchAttributeKey, SearchAttributePair, SearchAttributeUpdate, TypedSearchAttributes
from temporalio.service import RPCError, RPCStatusCode

from specs.outcomes import labelled
from specs.plan import Plan
from workflows.state import Phase, RunState

TASK = SearchAttributeKey.for_keyword("FerretTask")
GPU = SearchAttributeKey.for_keyword("FerretGpu")
STAGE = SearchAttributeKey.for_keyword("FerretStage")
PHASE = SearchAttributeKey.for_keyword("FerretPhase")
CHAMPION = SearchAttributeKey.for_keyword("FerretChampion")
ITERATION = SearchAttributeKey.for_int("FerretIteration")
SCORE = SearchAttributeKey.for_float("FerretScore")
TOKENS = SearchAttributeKey.for_int("FerretTokens")
USD = SearchAttributeKey.for_float("FerretUsd")

KEYS: tuple[SearchAttributeKey[Any], ...] = (TASK, GPU, STAGE, PHASE, CHAMPION, ITERATION, SCORE, TOKENS, USD)


def at_start(plan: Plan) -> TypedSearchAttributes:
    """What a client gives a new run, so that it is found before its first step."""
    return TypedSearchAttributes([SearchAttributePair(TASK, plan.task), SearchAttributePair(GPU, plan.gpu)])


def of_child(plan: Plan, index: int, stage: str) -> TypedSearchAttributes:
    return TypedSearchAttributes(
        [
            SearchAttributePair(TASK, plan.task),
            SearchAttributePair(GPU, plan.gpu),
            SearchAttributePair(STAGE, stage),
            SearchAttributePair(ITERATION, index),
        ]
    )


def of_run(plan: Plan, state: RunState, phase: Phase) -> Sequence[SearchAttributeUpdate[Any]]:
    updates: list[SearchAttributeUpdate[Any]] = [
        TASK.value_set(plan.task),
        GPU.value_set(plan.gpu),
        STAGE.value_set(state.stage.value),
        PHASE.value_set(phase.value),
        ITERATION.value_set(state.next_index),
    ]
    if state.charge.calls:
        usd = state.charge.usd
        updates += [TOKENS.value_set(state.charge.tokens), USD.value_unset() if usd is None else USD.value_set(usd)]
    if state.champion is not None:
        champion = labelled(state.champion.version, state.champion.standing)
        updates += [CHAMPION.value_set(champion), SCORE.value_set(state.champion.score)]
    elif state.acceptance is not None:
        updates += [CHAMPION.value_unset(), SCORE.value_unset()]  # no win has passed acceptance
    return updates


async def register(client: Client) -> bool:
    """Make the attributes known to the namespace; a workflow that sets an unknown one would hang without an error.

    True when they are registered; False when this connection may not do so (Temporal Cloud: an administrator does).
    """
    request = AddSearchAttributesRequest(
        namespace=client.namespace,
        search_attributes={key.name: int(key.indexed_value_type) for key in KEYS},  # type: ignore[misc]
    )
    try:
        await client.operator_service.add_search_attributes(request)
    except RPCError as error:
        if error.status is RPCStatusCode.ALREADY_EXISTS:
            return True
        if error.status in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED):
            return False
        raise
    return True
