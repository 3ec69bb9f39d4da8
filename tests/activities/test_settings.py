"""The environment variables of ferret itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from activities.settings import Settings, folder_name
from specs.errors import UserError


def test_everything_has_a_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Data under `.ferret` of the current folder, a file store in it, bubblewrap where present."""
    monkeypatch.chdir(tmp_path)
    settings = Settings.from_env({})
    assert settings.home == tmp_path / ".ferret"
    assert settings.store == (tmp_path / ".ferret" / "store").as_uri()
    assert (settings.sandbox, settings.build_id) == ("preferred", None)


def test_a_sandbox_that_does_not_exist_is_refused() -> None:
    """With the three that do."""
    with pytest.raises(UserError, match="FERRET_SANDBOX is 'none'; accepted: required, preferred, off"):
        Settings.from_env({"FERRET_SANDBOX": "none"})


@pytest.mark.parametrize("given", ["0", "601", "nan", "soon"])
def test_a_measurement_takes_a_time_that_its_activity_has(given: str) -> None:
    """A busy machine would otherwise use all of it, for every candidate."""
    with pytest.raises(UserError, match=rf"FERRET_SAMPLING_S is '{given}'; accepted: 1 to 600 seconds"):
        Settings.from_env({"FERRET_SAMPLING_S": given})
    assert Settings.from_env({"FERRET_SAMPLING_S": "20"}).sampling_s == 20
    assert Settings.from_env({}).sampling_s == 120


def test_a_home_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """Before anything is written."""
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="not a folder"):
        Settings.from_env({"FERRET_HOME": str(tmp_path / "file")})


def test_the_stricter_isolation_holds(tmp_path: Path) -> None:
    """A client cannot talk a worker out of its sandbox."""
    worker = Settings(home=tmp_path, store="", sandbox="required")
    assert worker.isolation("off") == "required"
    assert Settings(home=tmp_path, store="", sandbox="off").isolation("preferred") == "preferred"


@pytest.mark.parametrize("run_id", ["plain-run_1.2", "a/b", "..", ".", "..%2F", "ä ö", "x" * 900, "a:b", "con\n"])
def test_every_run_id_is_one_folder_name_of_its_own(run_id: str, tmp_path: Path) -> None:
    """No path escapes, no separators, no surprises."""
    name = folder_name(run_id)
    (tmp_path / name).mkdir()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_different_run_ids_get_different_folders() -> None:
    """Even when they differ in what is replaced, or far behind."""
    ids = ["a/b", "a_b", "a%2Fb", "a b", "x" * 300, "x" * 301, ".a", "%2Ea"]
    assert len({folder_name(run_id) for run_id in ids}) == len(ids)


@pytest.mark.parametrize("home", ["file", "file/inside", "file/two/levels"])
def test_a_home_that_cannot_be_made_is_named_by_its_variable(tmp_path: Path, home: str) -> None:
    """Not the file in it, nor the parent above it, that was tried first."""
    (tmp_path / "file").touch()
    settings = Settings(home=tmp_path / home, store="")
    named = rf"^FERRET_HOME is {tmp_path / home}, but .* cannot be written"
    with pytest.raises(UserError, match=named), settings.writing_home():
        raise AssertionError("never reached")


def test_a_file_in_home_that_cannot_be_opened_is_told_with_home(tmp_path: Path) -> None:
    """One line with both."""
    settings = Settings(home=tmp_path, store="")
    settings.logs.mkdir()
    named = rf"^FERRET_HOME is {tmp_path}, but {settings.logs} cannot be written"
    with pytest.raises(UserError, match=named), settings.writing_home():
        settings.logs.open("ab")


def test_a_file_elsewhere_is_none_of_homes_business(tmp_path: Path) -> None:
    """Its error stays what it is."""
    with pytest.raises(FileNotFoundError), Settings(home=tmp_path / "home", store="").writing_home():
        (tmp_path / "elsewhere" / "x").open()


def test_a_file_of_prices_is_found_or_refused(tmp_path: Path) -> None:
    """Where none is named, the bundled prices count alone."""
    (tmp_path / "prices.yaml").touch()
    assert Settings.from_env({}).prices is None
    assert Settings.from_env({"FERRET_PRICES": str(tmp_path / "prices.yaml")}).prices == tmp_path / "prices.yaml"
    with pytest.raises(UserError, match=r"FERRET_PRICES is .*gone\.yaml, which is not a file; accepted: a YAML file"):
        Settings.from_env({"FERRET_PRICES": str(tmp_path / "gone.yaml")})
