"""The key file: made once, whole or not at all, never readable by others, never lost by mistake."""

from __future__ import annotations

import base64
import json
import os
import threading
from pathlib import Path

import pytest

from mcagent.dataplane.wireguard.keys import KeyStore, is_key, public_key
from mcagent.model.errors import BackendError


@pytest.fixture
def store(tmp_path: Path) -> KeyStore:
    """Give a store whose directory does not exist yet."""
    return KeyStore(tmp_path / "state" / "wireguard-keys.json")


def test_the_public_key_is_that_of_rfc_7748() -> None:
    """Section 5.2: the first of its iterations, which begins with the base point's own number as key."""
    private = bytes([9]) + bytes(31)
    expected = "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"
    assert base64.b64decode(public_key(private)).hex() == expected


def test_the_first_use_makes_a_file_for_us_alone(store: KeyStore) -> None:
    """Mode 0600 in a directory of mode 0700; later uses find the same key."""
    assert store.load() is None
    keys = store.ensure()
    assert (store.path.stat().st_mode & 0o777, store.path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert KeyStore(store.path).ensure() == keys == store.load()
    assert is_key(keys.current.public)
    assert keys.private_of(keys.current.public) == keys.current.private


def test_no_text_shows_a_private_key(store: KeyStore) -> None:
    """Neither of the values nor of errors."""
    keys = store.prepare_next()
    shown = repr(keys) + str(keys)
    assert keys.next is not None
    for pair in (keys.current, keys.next):
        assert base64.b64encode(pair.private).decode() not in shown
        assert repr(pair.private) not in shown
        assert pair.private.hex() not in shown


def test_a_rotation_goes_from_next_to_current(store: KeyStore) -> None:
    """A next key is made once and takes the place of the current one, which is forgotten."""
    first = store.ensure().current
    prepared = store.prepare_next()
    assert prepared.next is not None
    assert store.prepare_next() == prepared
    assert prepared.current == first
    promoted = store.promote_next()
    assert (promoted.current, promoted.next) == (prepared.next, None)
    assert promoted.private_of(first.public) is None
    with pytest.raises(BackendError, match="no next key"):
        store.promote_next()
    assert store.prepare_next().next is not None
    assert store.drop_next().next is None


def test_the_key_before_in_the_file_of_an_earlier_agent_is_dropped(store: KeyStore) -> None:
    """Such a file is read like any other, and is without it when it is written next."""
    keys = store.ensure()
    document = json.loads(store.path.read_bytes())
    store.path.write_text(json.dumps(document | {"previous": document["current"]}))
    assert store.load() == keys
    store.prepare_next()
    assert json.loads(store.path.read_bytes()).keys() == {"current", "next"}


def test_a_key_in_use_is_taken_over_when_the_file_is_lost(store: KeyStore) -> None:
    """It is asked for only where there is no file."""
    private = os.urandom(32)
    assert store.ensure(lambda: private).current.public == public_key(private)

    def never() -> bytes:
        raise AssertionError("asked although there is a file")

    assert store.ensure(never).current.public == public_key(private)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[]", "has to hold an object"),
        (b"{}", "has to hold an object"),
        (b'{"current": {}, "other": {}}', "has to hold an object"),
        (b'{"current": 7}', '"current.privateKey" is no base64'),
        (b'{"current": {"privateKey": "SECRET"}}', '"current.privateKey" is no base64'),
        (b'{"current": {"privateKey": "' + b"A" * 43 + b'="}}', '"current.created"'),
    ],
)
def test_a_damaged_file_is_an_error_and_stays(store: KeyStore, content: bytes, words: str) -> None:
    """No rotation begins with it; the error names the file and never its content."""
    store.ensure()
    store.path.write_bytes(content)
    for use in (store.load, store.prepare_next):
        with pytest.raises(BackendError, match=words) as error:
            use()
        assert str(store.path) in str(error.value)
        assert "SECRET" not in str(error.value)
        assert not error.value.retryable
    assert store.path.read_bytes() == content


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b'{"current": {"privateKey": "SECRET"}}'])
def test_a_damaged_file_does_not_end_encryption(
    store: KeyStore, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The key of the device stays, without one a new key is made; the file is kept, and its content not logged."""
    private = store.ensure().current.private
    store.path.write_bytes(content)
    keys = store.ensure(lambda: private)
    assert (keys.current.private, keys) == (private, store.load())
    damaged_file = store.path.with_name(f"{store.path.name}.damaged")
    assert (damaged_file.read_bytes(), damaged_file.stat().st_mode & 0o777) == (content, 0o600)
    assert str(damaged_file) in caplog.text
    assert "SECRET" not in caplog.text
    store.path.write_bytes(content)
    assert store.ensure().current.private != private


def test_a_file_that_others_may_have_read_is_refused(store: KeyStore) -> None:
    """The error says which mode is right."""
    store.ensure()
    store.path.chmod(0o640)
    with pytest.raises(BackendError, match="has mode 0640, must have 0600"):
        store.ensure()


def test_a_link_in_the_files_place_is_not_followed(store: KeyStore, tmp_path: Path) -> None:
    """Somebody else cannot give us a key."""
    store.ensure()
    moved = tmp_path / "elsewhere"
    store.path.rename(moved)
    store.path.symlink_to(moved)
    with pytest.raises(BackendError, match="read key file"):
        store.load()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file away")
def test_a_file_of_another_user_is_refused(store: KeyStore) -> None:
    """The error says whose it is."""
    store.ensure()
    os.chown(store.path, 65534, -1)
    with pytest.raises(BackendError, match="belongs to user 65534"):
        store.ensure()


def test_a_leftover_of_a_killed_process_is_no_obstacle(store: KeyStore) -> None:
    """The file that was being written is not the key file."""
    before = store.ensure()
    store.path.with_name(f".{store.path.name}.new").write_bytes(b"half")
    assert store.prepare_next().current == before.current


def test_many_at_once_make_one_identity(store: KeyStore) -> None:
    """Agent and command line may come at the same time."""
    keys_read: list[str] = []

    def use() -> None:
        keys_read.append(KeyStore(store.path).ensure().current.public)

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys_read) == 8
    assert len(set(keys_read)) == 1
