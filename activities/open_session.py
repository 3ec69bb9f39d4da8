"""Open a conversation: its frame and first message are rendered from state that the code owns, and stored."""

from __future__ import annotations

from datetime import timedelta

from temporalio import activity

from activities.agents.session import Subject
from activities.heartbeat import HEARTBEAT, at_work
from activities.options import PATIENT, Options
from activities.workshop import Workshop
from kernels.harness.requests import GateLock, Sandbox
from specs.dialogue import Chapter, Mode, Role, Workspace
from specs.history import Champion
from specs.outcomes import BaselineTimes, BlobRef, Stage, Value
from specs.schema import Model

OPTIONS = Options(
    start_to_close_timeout=timedelta(minutes=2),  # a few blobs are read and two are written
    heartbeat_timeout=HEARTBEAT,
    retry_policy=PATIENT,
)


class OpenSessionInput(Value):
    run: str  # id of the run's first execution
    place: str  # `iter-007/optimizer`
    epoch: int = 0
    role: Role
    mode: Mode = Mode.IMPROVE
    stage: Stage
    model: Model | None = None  # the command line may have named another one than the task; None: the task's
    bundle: BlobRef
    sandbox: Sandbox
    lock: GateLock | None = None
    baseline_library: BlobRef | None = None
    baseline: BaselineTimes | None = None  # the vendor's times per config
    champion: Champion | None = None
    logbook: BlobRef | None = None
    plan: BlobRef | None = None  # of the research turn before: what a pivot is about
    hints: tuple[str, ...] = ()  # a person's, while the run goes on
    script_position: int = 0
    workspace: Workspace = Workspace()  # kernel None: the champion's, else the seed's
    subject: Subject | None = None  # a reviewer's
    feedback: str = ""  # what a reviewer or a person has against a draft or a plan
    began: Workspace | None = None  # as the conversation did; None: this is its beginning
    earlier: Chapter | None = None  # the epoch before of this same conversation
    because: str = ""  # why that one could not go on


class OpenSessionResult(Value):
    session: BlobRef
    head: BlobRef  # the first message
    workspace: Workspace
    nothing: str = ""  # why there is nothing to ask for: a script that is played out


class SessionOpening:
    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop

    @activity.defn(name="open_session")
    async def open_session(self, given: OpenSessionInput) -> OpenSessionResult:
        async with at_work():
            from activities.agents.opening import open_conversation

            return await open_conversation(self._workshop, given)
