"""What an iteration says of a candidate that was refused."""

from __future__ import annotations

import pytest

from specs.outcomes import Failure, FailureKind, VerificationStage
from workflows.iteration import _refused


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("n1024 (normal): c is off by 3 at [0, 5]", "wrong in case n1024 (normal): c is off by 3 at [0, 5]"),
        ("n1024: no answer came", "wrong in case n1024 at c: no answer came"),
        ("no answer came", "wrong in case 'n1024' at c: no answer came"),
        ("n10240 (normal): other", "wrong in case 'n1024' at c: n10240 (normal): other"),
    ],
)
def test_a_refusal_names_case_and_tensor_once(message: str, said: str) -> None:
    """Whether the judge's message has them already or not."""
    failure = Failure(
        kind=FailureKind.WRONG,
        verification=VerificationStage.NUMERICS,
        case="n1024",
        first_failing_stage="c",
        message=message,
    )
    assert _refused(failure) == said
