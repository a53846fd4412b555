"""The token of a run: who sees it, and who is shown it."""

import stat
from pathlib import Path

import pytest

from asyncrl.errors import InputError
from asyncrl.wire.access import Keys, bearer, external_key, is_shown, new_token, read_keys, write_token


def test_each_token_is_another_one_and_its_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "access.token"
    path.write_text("of an earlier start")
    path.chmod(0o644)
    token = new_token()
    write_token(path, token)
    assert path.read_text() == token != new_token() and len(token) >= 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("Bearer secret", True),
        ("bearer secret", True),
        ("Bearer secrets", False),
        ("Bearer ", False),
        ("Basic secret", False),
        ("secret", False),
        ("Bearer sécret", False),
        (None, False),
    ],
)
def test_a_header_shows_the_key_or_does_not(header: str | None, expected: bool) -> None:
    assert is_shown("secret", header) is expected


def test_the_token_goes_to_processes_of_the_run_and_the_users_key_to_all_others() -> None:
    keys = Keys("token", external="key", own=["http://10.0.0.1:30000"])
    keys.add_own("http://10.0.0.2:30000")
    assert [keys.of(f"http://10.0.0.{n}:30000/generate") for n in (1, 2, 3)] == ["token", "token", "key"]
    # Another port is another process.
    assert keys.of("http://10.0.0.1:3000") == "key" and not keys.is_own("https://10.0.0.1:30000")
    assert bearer(Keys("token").of("http://10.0.0.9:1")) == {}


def test_the_users_key_is_read_from_the_variable_that_the_recipe_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert external_key(None, {}) == ""
    assert external_key("MY_KEY", {"MY_KEY": "secret"}) == "secret"
    monkeypatch.setenv("MY_KEY", "secret")
    keys = read_keys("token", "MY_KEY")
    assert (keys.token, keys.external) == ("token", "secret")
    with pytest.raises(InputError, match=r"serving.api_key_variable is MY_KEY, but .* Set it to the key"):
        external_key("MY_KEY", {"MY_KEY": ""})
