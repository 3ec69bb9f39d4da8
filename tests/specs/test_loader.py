"""Loading a task: its defaults, and one clear message with line, field and what is accepted for each mistake."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from specs.errors import SpecError
from specs.loader import load_task
from specs.schema import Harness, Language, Scoring
from tests.specs.conftest import INTERFACE, SMALL, Write, refused, the_error


def test_the_smallest_task_has_the_documented_defaults(write: Write) -> None:
    """What is left out means what the design says."""
    task = load_task(write(SMALL)).task
    assert [(c.name, c.target_ratio, c.weight) for c in task.configs] == [("small", 0.95, 1.0), ("large", 0.95, 1.0)]
    assert task.scoring is Scoring.MIN_RATIO
    assert (task.stage_gate.ratio, task.stage_gate.strict) == (0.9, False)
    assert (task.budget.max_iterations, task.budget.max_wall_minutes) == (100, 120)
    assert task.budget.max_tokens is None
    assert task.budget.max_usd is None
    assert (task.search.width, task.search.stall_after, task.search.min_gain, task.search.max_steps) == (1, 4, 0.01, 40)
    assert task.harness is Harness.GATE
    assert task.problem.shapes == {}
    assert task.notes == {}


@pytest.mark.parametrize(("gpu", "language"), [("CPU", Language.CPP), ("cpu", Language.CPP), ("H200", Language.CUDA)])
def test_the_language_follows_the_device(write: Write, gpu: str, language: Language) -> None:
    """C++ for a CPU, CUDA for anything else."""
    assert load_task(write(SMALL.replace("CPU", gpu))).task.language is language


def test_the_digest_is_that_of_the_bytes(write: Write) -> None:
    """Anyone can check it with sha256sum."""
    path = write(SMALL)
    assert load_task(path).digest == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_key_with_nothing_behind_it_is_a_key_left_out(write: Write) -> None:
    """`hints:` with every hint commented out is no mistake."""
    assert load_task(write(f"{SMALL}hints:\nbudget:\n")).task.hints == ()


def test_a_gate_task_without_gate_and_interface_loads(write: Write) -> None:
    """Both may be written later."""
    task = load_task(write(SMALL)).task
    assert task.gate is None
    assert task.interface is None


def test_all_problems_of_a_file_come_together_in_order(write: Write) -> None:
    """Wrong type, unknown word, duplicate name and misspelt key: all told at once, by line."""
    text = SMALL.replace("CPU", "[CPU]").replace("name: large", "name: small") + "scoring: best\nbuget: {}\n"
    errors = refused(write(text))
    assert [(e.line, e.field) for e in errors] == [(2, "gpu"), (12, "configs[1].name"), (14, "scoring"), (15, "buget")]


def test_an_error_names_file_line_field_value_and_what_is_accepted(write: Write) -> None:
    """The whole line a person sees."""
    path = write(SMALL.replace("{N: 64}", "{N: 64}\n    target_ratio: [0.9, 1.0]"))
    assert str(the_error(path)) == (
        f"{path}:12: configs[0].target_ratio: [0.9, 1.0] (a list) given; accepted: a number greater than 0"
    )


@pytest.mark.parametrize(
    ("field", "value", "given", "accepted"),
    [
        ("target_ratio", "true", "true (a truth value)", "a number greater than 0"),
        ("target_ratio", "'1.0'", "'1.0' (text)", "a number greater than 0 (without quotes)"),
        ("target_ratio", "fast", "'fast' (text)", "a number greater than 0"),
        ("target_ratio", "0", "0 (a number)", "a number greater than 0"),
        ("target_ratio", "-0.5", "-0.5 (a number)", "a number greater than 0"),
        ("target_ratio", "{a: 1}", "{'a': 1} (a mapping)", "a number greater than 0"),
        ("weight", "-1", "-1 (a number)", "a number from 0"),
        ("weight", "yes", "true (a truth value)", "a number from 0"),
    ],
)
def test_a_wrong_config_value_is_told(write: Write, field: str, value: str, given: str, accepted: str) -> None:
    """What was given, its kind, and what is accepted."""
    problem = the_error(write(SMALL.replace("{N: 64}", f"{{N: 64}}\n    {field}: {value}")))
    assert (problem.line, problem.field) == (12, f"configs[0].{field}")
    assert problem.message == f"{given} given; accepted: {accepted}"


@pytest.mark.parametrize("number", [".nan", ".inf", "-.inf", "1e400"])
@pytest.mark.parametrize(
    "place", ["configs[0].target_ratio", "configs[0].args.N", "problem.shapes.K", "budget.max_usd"]
)
def test_a_number_that_is_not_finite_is_refused(write: Write, number: str, place: str) -> None:
    """Wherever it stands, as it was written."""
    text = {
        "configs[0].target_ratio": SMALL.replace("{N: 64}", f"{{N: 64}}\n    target_ratio: {number}"),
        "configs[0].args.N": SMALL.replace("N: 64", f"N: {number}"),
        "problem.shapes.K": SMALL.replace("baseline:", f"  shapes: {{K: {number}}}\nbaseline:"),
        "budget.max_usd": f"{SMALL}budget: {{max_usd: {number}}}\n",
    }[place]
    problem = the_error(write(text))
    assert problem.field == place
    assert problem.message == f"{number} is not a finite number; a finite number is accepted"


@pytest.mark.parametrize(
    ("line", "field", "message"),
    [
        ("scoring: best", "scoring", "'best' (text) given; accepted: one of min_ratio, weighted_avg, focus"),
        ("stage_gate: 0.9", "stage_gate", "0.9 (a number) given; accepted: a mapping with the keys ratio, strict"),
        ("stage_gate: {strict: 1}", "stage_gate.strict", "1 (a number) given; accepted: true or false"),
        ("budget: {max_iterations: 0}", "budget.max_iterations", "0 (a number) given; accepted: a whole number from 1"),
        (
            "budget: {max_iterations: 9.5}",
            "budget.max_iterations",
            "9.5 (a number) given; accepted: a whole number from 1",
        ),
        ("search: {width: 65}", "search.width", "65 (a number) given; accepted: a whole number from 1 to 64"),
        ("search: {min_gain: 1}", "search.min_gain", "1 (a number) given; accepted: a number from 0 below 1"),
        ("hints: one", "hints", "'one' (text) given; accepted: a list of text"),
        ("hints: [1]", "hints[0]", "1 (a number) given; accepted: text (put it in quotes)"),
        ("harness: own", "harness", "'own' (text) given; accepted: one of gate, self_contained"),
        (
            "acceptance: {command: []}",
            "acceptance.command",
            "[] (a list) given; accepted: a list of at least one, each text",
        ),
        (
            "model: {effort: huge}",
            "model.effort",
            "'huge' (text) given; accepted: one of low, medium, high, xhigh, max",
        ),
        ("model: {provider: scripted}", "model", "provider 'scripted' needs 'script', a folder of candidate sources"),
        ("language: cuda", "language", "'cuda' given for gpu CPU; accepted: cpp"),
    ],
)
def test_a_wrong_top_level_value_is_told(write: Write, line: str, field: str, message: str) -> None:
    """Each in words of our own."""
    problem = the_error(write(f"{SMALL}{line}\n"))
    assert (problem.line, problem.field, problem.message) == (14, field, message)


@pytest.mark.parametrize("key", ["name", "gpu", "arch", "precision", "problem", "baseline", "configs"])
def test_a_missing_required_key_is_named(write: Write, key: str) -> None:
    """With what it would take."""
    lines = SMALL.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"{key}:"))
    end = next((i for i in range(start + 1, len(lines)) if not lines[i].startswith(" ")), len(lines))
    problem = the_error(write("\n".join(lines[:start] + lines[end:])))
    assert problem.field == key
    assert problem.message.startswith("is missing; accepted: ")


def test_no_message_is_pydantics(write: Write) -> None:
    """Neither its phrasing nor its links reach a person."""
    text = SMALL.replace("CPU", "7").replace("{N: 64}", "[1]").replace("{N: 4096}", "{N: [1]}") + "work: {flops: 1.5}\n"
    told = "\n".join(map(str, refused(write(text))))
    for phrase in ("http", "Input should", "validation error", "type=", "Value error", "Field required"):
        assert phrase not in told


def test_a_config_that_is_no_mapping_is_told_once(write: Write) -> None:
    """The list around it is not called wrong too."""
    problem = the_error(write(f"{SMALL}  - 7\n"))
    assert (problem.field, problem.line) == ("configs[2]", 14)


@pytest.mark.parametrize("configs", ["[]", "{a: 1}"])
def test_configs_that_are_no_list_of_some_are_refused(write: Write, configs: str) -> None:
    """At least one config is needed, in a list."""
    problem = the_error(write(f"{SMALL[: SMALL.index('configs:')]}configs: {configs}\n"))
    assert "accepted: a list of at least one" in problem.message


def test_an_argument_that_lacks_a_field_says_which(write: Write) -> None:
    """Each kind of argument has its own needs."""
    text = SMALL + INTERFACE + "    - {name: w, kind: workspace}\n"
    assert the_error(write(text)).message == "an argument of kind 'workspace' needs bytes"


def test_an_interface_without_output_is_refused(write: Write) -> None:
    """A kernel that yields nothing cannot be judged."""
    problem = the_error(write(SMALL + INTERFACE.replace("kind: output", "kind: input")))
    assert (problem.field, problem.line) == ("interface", 14)


def test_an_expression_that_is_none_is_refused_with_its_line(write: Write) -> None:
    """What expressions may hold is told."""
    problem = the_error(write(SMALL + INTERFACE.replace("shape: [N]}", 'shape: ["N**2"]}', 1)))
    assert (problem.line, problem.field) == (17, "interface.arguments[0].shape[0]")
    assert "'N**2' is not accepted; accepted: numbers, names" in problem.message


def test_whole_numbers_may_stand_for_expressions(write: Write) -> None:
    """`shape: [64]` and `bytes: 128` need no quotes."""
    loaded = load_task(write(f"{SMALL}{INTERFACE}    - {{name: w, kind: workspace, bytes: 128}}\n"))
    assert loaded.task.interface is not None
    assert loaded.task.interface.arguments[-1].bytes == "128"


# ---------------------------------------------------------------- the files that a task names


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder in which everything the task names is there."""
    (tmp_path / "gate").mkdir()
    (tmp_path / "script").mkdir()
    (tmp_path / "script" / "01.cpp").write_text("// one\n")
    for name in ("baseline.cpp", "seed.cpp", "accept.sh"):
        (tmp_path / name).write_text("x\n")
    (tmp_path / "accept.sh").chmod(0o755)
    (tmp_path / "task.yaml").write_text(
        SMALL.replace("source: a loop", "source: a loop\n  program: baseline.cpp")
        + "gate: gate\nseed: seed.cpp\nmodel: {provider: scripted, script: script}\n"
        + "acceptance:\n  command: [./accept.sh]\n"
    )
    return tmp_path


def test_files_that_are_all_there_are_no_problem(project: Path) -> None:
    """The sound case, against which the others stand."""
    assert load_task(project / "task.yaml").check_files() == []


@pytest.mark.parametrize(
    ("path", "field", "line"),
    [
        ("gate", "gate", 15),
        ("baseline.cpp", "baseline.program", 9),
        ("seed.cpp", "seed", 16),
        ("script", "model.script", 17),
        ("accept.sh", "acceptance.command[0]", 19),
    ],
)
@pytest.mark.parametrize("instead", ["nothing", "the other kind"])
def test_a_file_that_is_absent_or_of_the_wrong_kind_is_told(
    project: Path, path: str, field: str, line: int, instead: str
) -> None:
    """With the line of the key that names it; loading itself does not look."""
    target, was_folder = project / path, (project / path).is_dir()
    target.rename(project / "elsewhere")
    if instead == "the other kind":
        if was_folder:
            target.write_text("x")
        else:
            target.mkdir()
    problems = load_task(project / "task.yaml").check_files()
    assert [(p.field, p.line, p.severity) for p in problems] == [(field, line, "error")]
    assert ("not there" if instead == "nothing" else "is a fi" if was_folder else "is a folder") in problems[0].message


def test_a_script_folder_without_a_candidate_of_the_language_is_told(project: Path) -> None:
    """A folder of .txt files plays nothing."""
    (project / "script" / "01.cpp").rename(project / "script" / "01.txt")
    assert "holds no .cpp file" in load_task(project / "task.yaml").check_files()[0].message


def test_an_acceptance_command_that_cannot_run_is_told(project: Path) -> None:
    """A script that is not executable would fail only at the very end of a run."""
    (project / "accept.sh").chmod(0o644)
    assert "is not executable" in load_task(project / "task.yaml").check_files()[0].message


def test_a_program_on_path_is_not_looked_for(project: Path) -> None:
    """`make` is found where the acceptance runs."""
    path = project / "task.yaml"
    path.write_text(path.read_text().replace("./accept.sh", "no-such-program"))
    assert load_task(path).check_files() == []


def test_references_are_not_looked_for(write: Write) -> None:
    """Public tasks name files that only their authors have."""
    assert load_task(write(f"{SMALL}references: [not/here]\n")).check_files() == []


def test_canonical_sources_and_a_recording_are_looked_for(write: Write) -> None:
    """A gate is written from the one, a run is replayed from the other."""
    path = write(f"{SMALL}canonical: [absent.py, .]\nmodel: {{provider: replay, recording: absent.jsonl}}\n")
    told = {problem.field: problem.message for problem in load_task(path).check_files()}
    assert told["canonical[0]"] == "'absent.py' is neither beside the task nor in resources/"
    assert told["canonical[1]"] == "'.' is a folder; a file is needed"
    assert told["model.recording"].startswith("'absent.jsonl' is not there")


@pytest.mark.parametrize("name", ["x" * 5000, '"a\\0b"'])
def test_a_name_that_no_file_can_bear_is_not_there(write: Write, name: str) -> None:
    """A name too long or with a zero byte is a problem, not an OSError."""
    problems = load_task(write(f"{SMALL}gate: {name}\n")).check_files()
    assert [p.field for p in problems] == ["gate"]


def test_paths_are_relative_to_the_task_file(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the command is typed, and wherever the process goes afterwards."""
    monkeypatch.chdir(project.parent)
    loaded = load_task(Path(project.name) / "task.yaml")
    monkeypatch.chdir("/")
    assert loaded.resolve("gate") == project / "gate"
    assert loaded.check_files() == []


def test_file_problems_call_the_file_as_it_was_given(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Like all other problems."""
    monkeypatch.chdir(project)
    (project / "seed.cpp").unlink()
    assert [str(p).split(" ")[0] for p in load_task("task.yaml").check_files()] == ["task.yaml:16:"]


def test_a_spec_error_prints_one_line_a_problem(write: Write) -> None:
    """Each of them with the file's name, so that an editor can jump there."""
    path = write(f"{SMALL}scoring: best\nharness: own\n")
    with pytest.raises(SpecError) as caught:
        load_task(path)
    assert [line.startswith(f"{path}:1{n}: ") for n, line in enumerate(str(caught.value).splitlines(), 4)] == [
        True,
        True,
    ]


@pytest.mark.parametrize("role", ["optimizer", "reviewer", "gate_writer"])
@pytest.mark.parametrize("name", ["../../v1/projects/x", "a?b=c", "a#b", "a\\nb", "\\e[2J", "m\\u00f6del", "%2e"])
def test_a_model_has_an_id_that_can_stand_in_an_address(write: Write, role: str, name: str) -> None:
    """Some servers are asked under it."""
    error = the_error(write(f'{SMALL}model: {{{role}: "{name}"}}\n'))
    assert f"model.{role}" in str(error)
    assert "is no model's id; accepted: letters, digits" in str(error)


@pytest.mark.parametrize(
    "name",
    [
        "claude-opus-5-5@20260101",
        "arn:aws:bedrock:us-east-1:1:inference-profile/us.anthropic.claude-opus-5-5-v1:0",
        "hf.co/someone/Model-GGUF:Q4_K_M",
        "/models/a b.gguf",
    ],
)
def test_every_servers_own_kind_of_id_is_one(write: Write, name: str) -> None:
    """Clouds, Ollama, a file of llama.cpp."""
    assert load_task(write(f'{SMALL}model: {{optimizer: "{name}"}}\n')).task.model.optimizer == name


def test_an_iteration_has_so_many_steps_at_most(write: Write) -> None:
    """All of them are one history, and a server ends one that is too long."""
    error = the_error(write(f"{SMALL}search: {{max_steps: 301}}\n"))
    assert "accepted: a whole number from 1 to 300" in str(error)
