"""A stand-in for `python -m kernels.harness serve`: what comes of a candidate is written in a string of its own.

Run as `python fake_harness.py CONTROL REQUEST REPLY`. A source may say `fake: fails;`, `fake: wrong;`,
`fake: wrong when timed;`, `fake: wrong when held out;` and `fake: ratio 1.25;`, or `#define RATIO 1.25` for a parameter
search. The control folder holds refusals and holds that a test placed there, and the log of what was asked. Standard
library only, so that it starts fast.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

DEVICE = {"name": "fake device", "detail": "pinned to a dream", "toolkit": "none"}


def main(control: Path, request_path: Path, reply_path: Path) -> None:
    request = json.loads(request_path.read_text())
    kind = request["kind"]
    entry = {
        "kind": kind, "pid": os.getpid(), "request": request, "gpu": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "environment": dict(os.environ),
    }  # fmt: skip
    with (control / "log.jsonl").open("a") as log:
        log.write(json.dumps(entry) + "\n")
    if held(control, request):
        child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        (control / f"held-{kind}").write_text(str(child.pid))
        while (control / f"hold-{kind}").exists():
            time.sleep(0.02)
        child.kill()
    refusals = sorted(control.glob(f"refuse-{kind}-*"))
    if refusals:
        reply = {"refusal": json.loads(refusals[0].read_text())}
        refusals[0].unlink()
    elif (control / f"die-{kind}").exists():
        (control / f"die-{kind}").unlink()
        os.abort()
    elif leaves(control / f"leave-{kind}"):
        os._exit(0)
    else:
        reply = {"result": globals()[kind](request)}
    temporary = reply_path.with_suffix(".tmp")
    temporary.write_text(json.dumps(reply))
    temporary.replace(reply_path)


def leaves(file: Path) -> bool:
    """Whether this process is to end without a reply; counts down."""
    left = int(file.read_text()) if file.exists() else 0
    if left:
        file.write_text(str(left - 1))
    return left > 0


def held(control: Path, request: dict[str, Any]) -> bool:
    """Whether a test wants this request to wait: any of its kind, or those about a certain candidate."""
    hold = control / f"hold-{request['kind']}"
    if not hold.exists():
        return False
    wanted = json.loads(hold.read_text())
    if wanted["production"] and not request.get("production"):
        return False
    about = next((request[key] for key in ("source", "library", "candidate", "program") if request.get(key)), None)
    return wanted["about"] in (Path(about).read_text() if about else "")


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def lock_gate(request: dict[str, Any]) -> dict[str, Any]:
    gate = Path(request["gate"])
    files = {str(path.relative_to(gate)): sha(path.read_bytes()) for path in sorted(gate.rglob("*")) if path.is_file()}
    return {"kind": "locked", "lock": {"digest": sha(json.dumps(files).encode()), "files": files}}


def build(request: dict[str, Any]) -> dict[str, Any]:
    source = Path(request["source"]).read_bytes()
    key = sha(source + str(request["production"]).encode())
    result: dict[str, Any] = {"status": "built", "key": key, "compiler": "fake++ 1.0", "seconds": 0.01}
    if b"fake: fails;" in source:
        result |= {
            "status": "failed",
            "log_tail": "kernel.cpp:1:1: error: the fake compiler says no\n" + "note\n" * 700,
        }
        return {"kind": "built", "result": result}
    library = Path(request["builds"]) / key / "kernel.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    content = b"library of " + source
    library.write_bytes(content)
    result["library"] = {"sha256": sha(content), "size": len(content)}
    return {"kind": "built", "result": result, "library": str(library)}


def failure(kind: str, message: str) -> dict[str, Any]:
    return {
        "kind": kind, "verification": "numerics", "case": "small", "first_failing_stage": "y", "message": message,
    }  # fmt: skip


def judge(request: dict[str, Any]) -> dict[str, Any]:
    library = Path(request["library"]).read_bytes()
    verdict: dict[str, Any] = {
        "passed": True, "library": sha(library), "gate": request["lock"]["digest"], "cases": 7, "sandbox": "off",
        "scope": request["scope"],
    }  # fmt: skip
    if b"fake: wrong;" in library or (b"fake: wrong when held out;" in library and request["held_out"]):
        verdict |= {"passed": False, "failure": failure("wrong", "the fake judge says 3.0 where 4.0 is right")}
    return {"kind": "judged", "verdict": verdict}


def timing(us: float) -> dict[str, Any]:
    return {"median_us": us, "q1_us": us * 0.99, "q3_us": us * 1.01, "samples": 20}


def ratio_of(library: str | None) -> float:
    if library is None:
        return 1.0
    found = re.search(r"(?:fake: ratio|#define RATIO) ([0-9.]+)", Path(library).read_text())
    return float(found[1]) if found else 0.5


def interval(value: float) -> dict[str, Any]:
    return {"value": value, "low": value * 0.999, "high": value * 1.001}


def measure(request: dict[str, Any]) -> dict[str, Any]:
    names = [config["name"] for config in request["task"]["configs"]]
    Path(request["samples"]).write_text(json.dumps({name: [1.0, 2.0] for name in names}))
    if request["candidate"] is None:
        times = {"timings": {name: timing(100.0) for name in names}, "device": DEVICE, "description": "fake vendor 1.0"}
        return {"kind": "baseline_measured", "times": times, "samples": request["samples"]}
    library = Path(request["candidate"])
    if b"fake: wrong when timed;" in library.read_bytes():
        return {
            "kind": "measured",
            "outcome": {"failure": failure("timed_wrong", "call 17 of the timed ones was wrong")},
        }
    ratio, champion = ratio_of(request["candidate"]), request["champion"] and ratio_of(request["champion"])
    configs = [
        {
            "config": name,
            "baseline": timing(100.0),
            "candidate": timing(100.0 / ratio),
            "champion": champion and timing(100.0 / champion),
            "ratio": interval(ratio),
            "champion_ratio": champion,
        }
        for name in names
    ]
    measurement = {
        "library": sha(library.read_bytes()),
        "configs": configs,
        "score": interval(ratio),
        "geomean": ratio,
        "gain": champion and interval(ratio / champion),
        "device": DEVICE,
    }
    return {"kind": "measured", "outcome": {"measurement": measurement}, "samples": request["samples"]}


def run_program(request: dict[str, Any]) -> dict[str, Any]:
    program = Path(request["program"]).read_bytes()
    refused = "the program ended with status 3" if b"fake: wrong;" in program else ""
    ratio = 0.0 if refused else ratio_of(request["program"])
    configs = [{"config": config["name"], "ratio": ratio, "reason": refused} for config in request["task"]["configs"]]
    report = {
        "program": sha(program), "configs": configs, "score": ratio, "geomean": ratio, "refused": refused,
        "machine": "fake device",
    }  # fmt: skip
    return {"kind": "program_ran", "report": report}


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
