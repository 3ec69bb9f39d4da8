"""The kernels and tasks that ship with ferret do what their READMEs say, judged by the real harness."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest

from kernels.harness import build, gate, judge, requests, trial
from kernels.harness.gate import Case
from specs.loader import LoadedTask, load_task
from specs.outcomes import BuildResult, BuildStatus, FailureKind, Verdict, VerificationStage
from tests.shared import one_for_all

ROOT = Path(__file__).resolve().parents[2]
TASKS = {
    "skinny_gemm_f32": ROOT / "specs" / "tasks" / "skinny-gemm-f32-cpu.yaml",
    "rmsnorm_f32": ROOT / "specs" / "tasks" / "rmsnorm-f32-cpu.yaml",
}
KERNELS = sorted(folder.parent for folder in (ROOT / "kernels").glob("*/gate"))
SOURCES = [
    pytest.param(name, source.name, id=f"{name}/{source.stem}")
    for name in TASKS
    for source in sorted((ROOT / "kernels" / name / "candidates").glob("*.cpp"))
]
# What is wrong with the candidates that are wrong on purpose; every other one must pass.
NOT_BUILT = {("skinny_gemm_f32", "01-vector-type-typo.cpp")}
REFUSED = {
    ("skinny_gemm_f32", "03-register-tile-drops-k-tail.cpp"): (VerificationStage.EDGES, FailureKind.WRONG, "c"),
    ("skinny_gemm_f32", "05-replays-its-answer.cpp"): (VerificationStage.RANGES, FailureKind.WRONG, "c"),
    ("rmsnorm_f32", "01-drops-eps.cpp"): (VerificationStage.RANGES, FailureKind.WRONG, "rstd"),
    ("rmsnorm_f32", "02-forgets-the-stage-tensor.cpp"): (VerificationStage.NUMERICS, FailureKind.NOT_WRITTEN, "rstd"),
}


class Bench:
    """One shipped task, its locked gate and a folder of builds."""

    def __init__(self, loaded: LoadedTask, builds: Path) -> None:
        assert loaded.task.gate is not None
        self.task, self.folder, self.builds = loaded.task, loaded.resolve(loaded.task.gate), builds
        self.kernel = self.folder.parent
        self.lock = gate.lock(self.task, self.folder)

    def on_the_cheapest_config(self) -> Bench:
        """The same, on one config beside the gate's own cases; baseline, seed and last candidate are put to all."""
        cases = {config.name: Case(name=config.name, args=config.args) for config in self.task.configs}
        cheapest = min(self.task.configs, key=lambda config: trial.case_bytes(self.task, cases[config.name]))
        fewer = copy.copy(self)
        fewer.task = self.task.model_copy(update={"configs": (cheapest,)})
        fewer.lock = gate.lock(fewer.task, fewer.folder)
        return fewer

    def build(
        self, source: Path, *, baseline: bool = False, production: bool = False
    ) -> tuple[BuildResult, Path | None]:
        role = "baseline" if baseline else "candidate"
        built = build.build(
            requests.Build(task=self.task, source=source, role=role, production=production, builds=self.builds)
        )
        return built.result, built.library

    def judge(
        self, library: Path, *, source: Path | None = None, baseline: bool = False, held_out: bool = False
    ) -> Verdict:
        return judge.judge(
            requests.Judge(
                task=self.task,
                gate=self.folder,
                lock=self.lock,
                library=library,
                source=source,
                role="baseline" if baseline else "candidate",
                builds=self.builds,
                held_out=held_out,
            )
        )

    def verdict(
        self, source: Path, *, baseline: bool = False, production: bool = False, held_out: bool = False
    ) -> Verdict:
        result, library = self.build(source, baseline=baseline, production=production)
        assert library is not None, result.log_tail
        return self.judge(library, source=source, baseline=baseline, held_out=held_out)


@pytest.fixture(autouse=True)
def own_device_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is timed here, so nothing has to wait for a run that times something on this machine."""
    monkeypatch.setenv("FERRET_LOCKS", str(tmp_path))


@pytest.fixture(scope="session")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return one_for_all(tmp_path_factory) / "builds"


@pytest.fixture(scope="session")
def benches(builds: Path) -> dict[str, Bench]:
    return {name: Bench(load_task(path), builds) for name, path in TASKS.items()}


@pytest.mark.parametrize("folder", KERNELS, ids=lambda folder: folder.name)
def test_a_kernel_folder_has_its_parts(folder: Path) -> None:
    """Whoever opens a kernel folder finds the same few files."""
    for part in ("README.md", "gate/gate.yaml", "gate/reference.py"):
        assert (folder / part).is_file(), f"{folder.name} has no {part}"
    for stem in ("baseline", "seed"):
        assert list(folder.glob(f"{stem}.*")), f"{folder.name} has no {stem}"


@pytest.mark.parametrize("folder", KERNELS, ids=lambda folder: folder.name)
def test_the_readme_names_every_candidate(folder: Path) -> None:
    """The table of candidates is complete, and shows none that is gone."""
    told = set(re.findall(r"`(\d\d-[\w-]+)`", (folder / "README.md").read_text()))
    assert told == {source.stem for source in (folder / "candidates").iterdir()}


@pytest.mark.parametrize("name", TASKS)
def test_a_shipped_task_loads_without_a_word(name: str) -> None:
    """A shipped task has no warning, and every file it names exists."""
    loaded = load_task(TASKS[name])
    assert (loaded.warnings, loaded.check_files()) == ([], [])


@pytest.mark.parametrize("name", TASKS)
def test_a_shipped_task_describes_its_work(name: str) -> None:
    """The roofline floor needs both figures, and at least three configs make a score that one shape cannot carry."""
    task = load_task(TASKS[name]).task
    assert task.work.flops
    assert task.work.bytes
    assert len(task.configs) >= 3


@pytest.mark.parametrize("name", TASKS)
def test_the_baseline_passes_its_own_gate(benches: dict[str, Bench], name: str) -> None:
    """A gate that the vendor fails, held-out cases included, measures nothing."""
    bench = benches[name]
    verdict = bench.verdict(bench.kernel / "baseline.cpp", baseline=True, held_out=True)
    assert verdict.passed, verdict.failure


@pytest.mark.parametrize("name", TASKS)
def test_the_seed_passes(benches: dict[str, Bench], name: str) -> None:
    """A run starts from something correct."""
    bench = benches[name]
    verdict = bench.verdict(bench.kernel / "seed.cpp")
    assert verdict.passed, verdict.failure


@pytest.mark.parametrize(("name", "source"), SOURCES)
def test_a_candidate_comes_to_its_end(
    benches: dict[str, Bench], name: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each candidate is refused for what is wrong with it, and at the place where that shows, or else passes."""
    monkeypatch.setattr(judge, "STRESS_CALLS", (8, 16))
    bench = benches[name].on_the_cheapest_config()
    result, library = bench.build(bench.kernel / "candidates" / source)
    if (name, source) in NOT_BUILT:
        assert result.status is BuildStatus.FAILED, result.log_tail
        assert "error:" in result.log_tail
        return
    assert library is not None, result.log_tail
    verdict = bench.judge(library)
    if (name, source) not in REFUSED:
        assert verdict.passed, verdict.failure
        return
    failure = verdict.failure
    assert failure is not None
    assert (failure.verification, failure.kind, failure.first_failing_stage) == REFUSED[name, source]


@pytest.mark.parametrize("name", TASKS)
def test_the_last_candidate_survives_final_acceptance(benches: dict[str, Bench], name: str) -> None:
    """The kernel that a scripted run delivers holds up with production flags and on the held-out cases."""
    bench = benches[name]
    last = max((bench.kernel / "candidates").glob("*.cpp"))
    verdict = bench.verdict(last, production=True, held_out=True)
    assert verdict.passed, verdict.failure
    assert verdict.memory_check.startswith("passed")
