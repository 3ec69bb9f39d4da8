"""A script is handed in through the real SDK, by a server inside the worker that strangers cannot use."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from activities.bundle import pack
from activities.llm import client, local_server
from activities.llm.client import Attempt, ask
from activities.llm.profiles import Profile, profile_of
from activities.llm.scripted import NO_TOKENS, nothing_left
from activities.workshop import Workshop
from specs.errors import ModelError, ModelFault
from specs.outcomes import BlobRef
from specs.schema import Provider
from tests.activities.llm.sessions import make_session, workshop_at
from tests.fakes import write_task

FIRST = {"role": "user", "content": "Make it faster."}
BIG = '// \u2028 ä 😀 \r\n\tfloat x = "\\n";\n' + "x" * (2**20 - 60)


async def packed(folder: Path, script: list[str | bytes]) -> tuple[Workshop, BlobRef]:
    workshop = workshop_at(folder / "home")
    loaded = write_task(folder / "task", [""] * len(script))
    for path, source in zip(sorted((folder / "task" / "script").iterdir()), script, strict=True):
        path.write_bytes(source if isinstance(source, bytes) else source.encode())
    return workshop, await pack(loaded, workshop.store)


def profile_at(workshop: Workshop, bundle: BlobRef, position: int) -> Profile:
    session = make_session(bundle=bundle, script_position=position)
    scripted = session.model.model_copy(update={"provider": Provider.SCRIPTED, "script": "script"})
    return profile_of(session.model_copy(update={"model": scripted}), workshop.settings, {})


async def asked(profile: Profile, *messages: dict[str, Any]) -> dict[str, Any]:
    body = {"model": "claude-opus-5-5", "max_tokens": 1_024, "messages": list(messages or [FIRST])}
    try:
        return await ask(profile, body, Attempt())
    finally:
        await client.close_all()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_candidate_is_written_and_submitted_at_once(tmp_path: Path, stream: bool) -> None:
    """Character by character what the file holds, up to the largest source there may be."""
    workshop, bundle = await packed(tmp_path, ["// one", BIG])
    profile = profile_at(workshop, bundle, 1)
    assert (profile.stream, profile.free, profile.trust_env) == (True, True, False)
    message = await asked(profile if stream else _in_one_piece(profile))
    write, submit = message["content"]
    assert (write["name"], write["input"]) == ("write_kernel", {"source": BIG})
    assert (submit["name"], submit["input"]) == ("submit", {"title": "01.cpp"})
    assert write["id"] != submit["id"]
    assert message["stop_reason"] == "tool_use"
    assert {name: message["usage"][name] for name in NO_TOKENS} == NO_TOKENS


def _in_one_piece(profile: Profile) -> Profile:
    return Profile(profile.name, profile.base_url, profile.api_key, stream=False, trust_env=False)


async def test_the_same_position_always_plays_the_same(tmp_path: Path) -> None:
    """A turn that is repeated after a crash changes nothing."""
    workshop, bundle = await packed(tmp_path, ["// one", "// two"])
    assert await asked(profile_at(workshop, bundle, 0)) == await asked(profile_at(workshop, bundle, 0))
    assert await asked(profile_at(workshop, bundle, 0)) != await asked(profile_at(workshop, bundle, 1))


@pytest.mark.parametrize("last", ["Go on.", [{"type": "tool_result", "tool_use_id": "x", "content": "no"}]])
async def test_after_its_candidate_the_script_has_nothing_to_add(tmp_path: Path, last: Any) -> None:
    """Whatever is answered to it."""
    workshop, bundle = await packed(tmp_path, ["// one"])
    profile = profile_at(workshop, bundle, 0)
    said = {"role": "assistant", "content": (await asked(profile))["content"]}
    message = await asked(profile, FIRST, said, {"role": "user", "content": last})
    assert (message["stop_reason"], [block["type"] for block in message["content"]]) == ("end_turn", ["text"])


async def test_what_cannot_be_handed_in_is_told_beforehand_and_by_the_server(tmp_path: Path) -> None:
    """In one line, as of any proposal."""
    workshop, bundle = await packed(tmp_path, ["// one", "// \u00e4".encode("latin-1"), " \n"])
    unpacked = await workshop.bundle(bundle)
    wrong = {
        1: "'01.cpp' is not UTF-8 text: byte 0xe4 at 3",
        2: "'02.cpp' is empty; a source is needed",
        3: "the script's 3 candidates were all played",
    }
    assert nothing_left(unpacked, 0) == ""
    for position, reason in wrong.items():
        assert nothing_left(unpacked, position) == reason
        with pytest.raises(ModelError) as refused:
            await asked(profile_at(workshop, bundle, position))
        assert (refused.value.kind, refused.value.retryable) == (ModelFault.INVALID_REQUEST, False)
        assert reason in str(refused.value)


async def test_a_source_that_is_too_large_is_nothing_to_hand_in(tmp_path: Path) -> None:
    """A bundle made by hand may hold one."""
    workshop, bundle = await packed(tmp_path, ["// one"])
    unpacked = await workshop.bundle(bundle)
    (step,) = unpacked.script()
    step.chmod(0o644)
    step.write_bytes(b"x" * (2**20 + 1))
    assert nothing_left(unpacked, 0) == "'00.cpp' has 1048577 bytes; at most 1048576 are accepted"


async def test_a_bundle_that_is_not_in_the_store_is_worth_another_attempt(tmp_path: Path) -> None:
    """The store may be back by then."""
    workshop, _ = await packed(tmp_path, ["// one"])
    with pytest.raises(ModelError) as refused:
        await asked(profile_at(workshop, BlobRef(sha256="f" * 64, size=1), 0))
    assert (refused.value.kind, refused.value.retryable) == (ModelFault.SERVER_ERROR, True)


async def test_two_workshops_of_one_process_share_the_server_and_no_secret(tmp_path: Path) -> None:
    """And each plays its own."""
    one, first = await packed(tmp_path / "a", ["// one"])
    other, second = await packed(tmp_path / "b", ["// other"])
    addresses = [profile_at(one, first, 0).base_url, profile_at(other, second, 0).base_url]
    ports, secrets = zip(*((address.split("/")[2], address.split("/")[3]) for address in addresses), strict=True)
    assert len(set(ports)) == 1
    assert len(set(secrets)) == 2
    (write, _) = (await asked(profile_at(other, second, 0)))["content"]
    assert write["input"] == {"source": "// other"}


async def spoken(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    writer.write_eof()
    try:
        return await reader.read()
    except ConnectionResetError:  # dropped with more of it on the way
        return b""
    finally:
        writer.close()


def post(path: str, body: bytes, **headers: str) -> bytes:
    given = {"Content-Length": str(len(body)), **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body


async def test_who_lacks_the_secret_learns_nothing(tmp_path: Path) -> None:
    """Other users of the machine can reach the port."""
    workshop, bundle = await packed(tmp_path, ["// one"])
    _, _, host, secret, *rest = profile_at(workshop, bundle, 0).base_url.split("/")
    port, body = int(host.split(":")[1]), json.dumps({"messages": [FIRST]}).encode()
    assert len(secret) >= 32
    right = post(f"/{secret}/{'/'.join(rest)}/v1/messages", body)
    assert (await spoken(port, right)).startswith(b"HTTP/1.1 200 ")
    for wrong in (
        right.replace(secret.encode(), secret[:-1].encode() + b"~"),
        right.replace(f"/{secret}".encode(), b"/"),
        right.replace(f"/{secret}".encode(), "/ä".encode()),
        right.replace(b"POST", b"GET"),
        right.replace(b"/v1/messages", b"/v1/models"),
        right.replace(b"/scripted/", b"/anthropic/other/"),
        right.replace(b"/scripted/", b"/nonsense/"),
        post("/", body),
    ):
        answer = await spoken(port, wrong)
        assert answer.startswith(b"HTTP/1.1 404 ")
        assert b"one" not in answer


async def test_nonsense_does_not_stop_the_server(tmp_path: Path) -> None:
    """Each is refused or dropped, and the next request is served."""
    workshop, bundle = await packed(tmp_path, ["// one"])
    profile = profile_at(workshop, bundle, 0)
    port, path = int(profile.base_url.split("/")[2].split(":")[1]), f"/{profile.base_url.split('/', 3)[3]}/v1/messages"
    for request, answer in (
        (b"\x00\xff\r\n\r\n", b"HTTP/1.1 404 "),
        (b"x" * (local_server.MAX_HEAD_BYTES * 2), b""),
        (b"POST / HTTP/1.1\r\n", b""),
        (post(path, b"{}", **{"Content-Length": "100"}), b""),
        (post(path, b"{}", **{"Content-Length": "-1"}), b"HTTP/1.1 413 "),
        (post(path, b"{}", **{"Content-Length": "99999999999"}), b"HTTP/1.1 413 "),
        (post(path, b"{"), b"HTTP/1.1 400 "),
        (post(path, b"[]"), b"HTTP/1.1 400 "),
        (post(path, b'{"messages": 3}'), b"HTTP/1.1 400 "),
        (post(path.replace("/0/v1", "/minus/v1"), b'{"messages": []}'), b"HTTP/1.1 400 "),
    ):
        assert (await spoken(port, request)).startswith(answer), request[:80]
    assert (await asked(profile))["stop_reason"] == "tool_use"
