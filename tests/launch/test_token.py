"""A store with a token answers only those who have it, and never shows it."""

from __future__ import annotations

import pytest
import torch.distributed as dist

import meshkit
from meshkit.cli.main import main
from meshkit.launch.token import KEY, VARIABLE, find_prefix, protect, require_token
from tests.stores import start_store

TOKEN = "correct horse battery staple"


def test_a_store_without_a_token_answers_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert find_prefix(dist.HashStore(), "/weights") == "/weights"


def test_the_keys_of_two_tokens_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    prefixes = set()
    for token in (TOKEN, "another"):
        monkeypatch.setenv(VARIABLE, token)
        prefixes.add(find_prefix(dist.HashStore(), "/weights"))
        prefixes.add(find_prefix(dist.HashStore(), "/answers"))
    assert len(prefixes) == 4
    assert all(TOKEN not in prefix for prefix in prefixes)


@pytest.mark.parametrize(("own", "words"), [("", "is not set here"), ("wrong", "is another one")])
def test_another_token_is_refused(own: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.HashStore()
    protect(store, TOKEN)
    assert TOKEN.encode() not in store.get(KEY)
    monkeypatch.setenv(VARIABLE, TOKEN)
    assert find_prefix(store, "/weights").startswith("/weights/")
    monkeypatch.setenv(VARIABLE, own)
    with pytest.raises(meshkit.LaunchError, match=words) as error:
        find_prefix(store, "/weights")
    assert TOKEN not in str(error.value)
    assert not own or own not in str(error.value)


def test_a_token_of_a_stranger_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.HashStore()
    store.set(KEY, b"\xff\xfe")
    monkeypatch.setenv(VARIABLE, TOKEN)
    with pytest.raises(meshkit.LaunchError, match="requires a token"):
        find_prefix(store, "/weights")


def test_the_command_needs_the_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(meshkit.LaunchError):
        require_token()
    assert main(["store", "--port", "0", "--token"]) == 1
    assert f"{VARIABLE} is not set" in capsys.readouterr().err


def join(url: str) -> str:
    """Join a job at a store; return its size, or the error."""
    try:
        return str(meshkit.init(init_method=url, device="cpu", arrival_timeout=20).world_size)
    except meshkit.LaunchError as error:
        return str(error)


def test_ranks_join_a_job_at_a_store_with_their_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with start_store(TOKEN) as (url, _):
        monkeypatch.setenv(VARIABLE, "wrong")
        for text in meshkit.spawn(join, 2, (url,), timeout=60):
            assert "the store requires a token, and MESHKIT_STORE_TOKEN is another one" in text
        monkeypatch.setenv(VARIABLE, TOKEN)
        assert meshkit.spawn(join, 2, (url,), timeout=60) == ["2", "2"]
