"""The process boundary: one request from a file, one reply into a file."""

from __future__ import annotations

import errno
import sys
import traceback
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from kernels.harness import admission, build, gate
from kernels.harness.judge import judge
from kernels.harness.machine_code import inspect
from kernels.harness.measure import measure, write_atomically
from kernels.harness.profile import profile
from kernels.harness.requests import (
    Build,
    Inspect,
    Judge,
    Judged,
    Locked,
    LockGate,
    Measure,
    Profile,
    ProgramRan,
    Refusal,
    Reply,
    Request,
    Result,
    RunProgram,
)
from kernels.harness.self_contained import run_program
from kernels.harness.tolerances import calibrate
from specs.errors import FerretError, MachineError, UserError

# The machine is out of something that others may give back.
SHORTAGES = {errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EAGAIN}

_REQUEST: TypeAdapter[Request] = TypeAdapter(Request)


def serve(request_path: Path, reply_path: Path) -> None:
    """Do what `request_path` asks and write a Reply to `reply_path`, whole or not at all.

    Returns whenever a reply was written, a refusal included. Raises UserError when the request cannot be read.
    """
    try:
        request = _REQUEST.validate_json(request_path.read_bytes())
    except OSError as error:
        raise UserError(f"request {request_path}: {error.strerror}; a JSON file is needed") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(f"request {request_path}: {where or 'the file'}: {first['msg']}") from None
    write_atomically(reply_path, answer(request).model_dump_json())


def answer(request: Request) -> Reply:
    """The reply to a request; no exception of the work itself gets past this."""
    try:
        return Reply(result=do(request))
    except MachineError as error:
        return _refused(error, retryable=True)
    except FerretError as error:
        return _refused(error, retryable=False)
    except (OSError, MemoryError) as error:
        traceback.print_exc(file=sys.stderr)
        short = isinstance(error, MemoryError) or error.errno in SHORTAGES
        if short:
            return Reply(refusal=Refusal(error="MachineError", message=str(error) or "out of memory", retryable=True))
        return _internal(error)
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        return _internal(error)


def do(request: Request) -> Result:
    match request:
        case LockGate():
            return _locked(request)
        case Build():
            return build.build(request)
        case Judge():
            return Judged(verdict=judge(request))
        case Measure():
            return measure(request)
        case RunProgram():
            return ProgramRan(report=run_program(request))
        case Inspect():
            return inspect(request)
        case Profile():
            return profile(request)


def _locked(request: LockGate) -> Locked:
    """A lock is given only to a gate that no mutant gets through; without its numbers a gate is only rehearsed."""
    lock = gate.lock(request.task, request.gate)
    loaded = gate.load(request.task, request.gate, lock)
    gate.rehearse(loaded)
    if loaded.uncalibrated and request.baseline is not None:
        assert request.builds is not None
        lock = calibrate(loaded, request.gate, request.baseline, request.builds, request.sandbox)
        loaded = gate.load(request.task, request.gate, lock)
    if not loaded.uncalibrated:
        admission.refuse_weak(loaded, lock)
    return Locked(lock=lock, uncalibrated=loaded.uncalibrated)


def _refused(error: FerretError, *, retryable: bool) -> Reply:
    return Reply(refusal=Refusal(error=type(error).__name__, message=str(error), retryable=retryable))


def _internal(error: Exception) -> Reply:
    return Reply(refusal=Refusal(error="InternalError", message=f"{type(error).__name__}: {error}", retryable=False))
