"""Settings from a file, the environment and flags: precedence, sources, bounds, and errors that say where."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endcast.errors import EndcastError, InputError
from endcast.serving.operations.config import DEFAULT, MASKED, Value, load_config, of_assignments, printed, printed_json
from endcast.serving.operations.config_values import from_text, from_toml, to_toml
from endcast.serving.operations.settings import DECLARED, TYPES, Settings

SECRET = "s3cret-s3cret-s3cret"


def write(folder: Path, text: str) -> Path:
    file = folder / "endcast.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_nothing_given_is_the_defaults() -> None:
    config = load_config()
    assert config.settings == Settings()
    assert set(config.sources.values()) == {DEFAULT}


def test_a_flag_wins_over_the_environment_that_over_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "port = 1\nmax_requests = 2\nhost = 'a'\ngrace_s = 7\n")
    environment = {"ENDCAST_PORT": "11", "ENDCAST_MAX_REQUESTS": "12", "HOME": "x"}
    config = load_config(file=file, environment=environment, flags={"port": Value(value=21, source="--port")})
    got = config.settings
    assert (got.port, got.max_requests, got.host, got.grace_s) == (21, 12, "a", 7.0)
    assert config.sources["port"] == "--port"
    assert config.sources["max_requests"] == "ENDCAST_MAX_REQUESTS"
    assert config.sources["host"] == f"{file} line 3, host"
    assert config.sources["log_level"] == DEFAULT


def test_the_environment_may_name_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "port = 5\n")
    assert load_config(environment={"ENDCAST_CONFIG": str(file)}).settings.port == 5
    with pytest.raises(EndcastError, match=r"cannot read the settings in .*missing"):
        load_config(environment={"ENDCAST_CONFIG": str(tmp_path / "missing")})


def test_paths_in_the_file_are_relative_to_it(tmp_path: Path) -> None:
    config = load_config(file=write(tmp_path, "api_keys_file = 'keys'\nadmin_keys_file = '/etc/keys'\n"))
    assert config.settings.api_keys_file == tmp_path / "keys"
    assert config.settings.admin_keys_file == Path("/etc/keys")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port = 1\n\nprot = 2\n", r"endcast\.toml line 3, prot: is no setting of the service\. Did you mean port\?"),
        ("port = 1\n[limits]\nx = 2\n", r"endcast\.toml line 2, limits: is no setting"),
        ("\nport = 'x'\n", r"endcast\.toml line 2, port: must be a whole number, not 'x'"),
        ("port = true\n", r"endcast\.toml line 1, port: must be a whole number, not True"),
        ("port = 1.0\n", r"line 1, port: must be a whole number"),
        ("port = 70000\n", r"endcast\.toml line 1, port: must be at most 65535, not 70000"),
        ("public_metrics = 1\n", r"public_metrics: must be true or false"),
        ("grace_s = inf\n", r"grace_s: must be finite"),
        ("grace_s = nan\n", r"grace_s: must be finite"),
        ("default_horizons = [16, 0]\n", r"default_horizons: must be at least 1, not 0"),
        ("default_horizons = 16\n", r"default_horizons: must be a list, each a whole number"),
        ("default_quantiles = [1.0]\n", r"default_quantiles: must be below 1"),
        ("log_level = 'loud'\n", r"log_level: must be one of debug, info, warning, error, not 'loud'"),
        ("tls_key = 'k.pem'\n", r"tls_certificate: must be given where the other of the pair is"),
        ("host = ''\n", r"host: must be a text that is not empty"),
        ("port = \n", r"endcast\.toml is no TOML: .*line 1"),
        ("port = 1\nport = 2\n", r"endcast\.toml is no TOML: .*line 2"),
    ],
)
def test_what_is_wrong_in_the_file_is_said_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(EndcastError, match=message):
        load_config(file=write(tmp_path, text))


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("ENDCAST_PORT", "x", r"ENDCAST_PORT: must be a whole number, not 'x'"),
        ("ENDCAST_PORT", "-1", r"ENDCAST_PORT: must be at least 0, not -1"),
        ("ENDCAST_MAX_REQUEST", "1", r"ENDCAST_MAX_REQUEST: is no setting.*ENDCAST_MAX_REQUESTS\?"),
        ("ENDCAST_PUBLIC_METRICS", "maybe", r"ENDCAST_PUBLIC_METRICS: must be true or false, not 'maybe'"),
        ("ENDCAST_DEFAULT_HORIZONS", "16,x", r"must be a list, separated by commas, each a whole number"),
        ("ENDCAST_GRACE_S", "1e999", r"ENDCAST_GRACE_S: must be finite"),
    ],
)
def test_what_is_wrong_in_the_environment_names_the_variable(variable: str, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_config(environment={variable: text})


@pytest.mark.parametrize(
    "links",
    [
        {"ENDCAST_PORT": "tcp://10.0.0.1:8080", "ENDCAST_SERVICE_HOST": "10.0.0.1", "ENDCAST_SERVICE_PORT": "8080"},
        {"ENDCAST_PORT_8080_TCP": "tcp://10.0.0.1:8080", "ENDCAST_PORT_8080_TCP_ADDR": "10.0.0.1"},
        {"ENDCAST_STAGING_SERVICE_PORT_HTTP": "8080", "ENDCAST_STAGING_PORT": "tcp://10.0.0.2:80"},
    ],
    ids=["own", "ports", "another"],
)
def test_what_kubernetes_sets_for_a_service_of_our_name_is_not_taken_for_settings(links: dict[str, str]) -> None:
    assert load_config(environment=links).settings == Settings()


def test_a_secret_that_is_wrong_is_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        load_config(file=write(tmp_path, f"api_keys = '{SECRET}'\n"))
    assert SECRET not in str(error.value) and "must be a list" in str(error.value)


def test_secrets_are_shown_nowhere() -> None:
    config = load_config(environment={"ENDCAST_API_KEYS": f"a:{SECRET},b:{SECRET}2", "ENDCAST_ADMIN_KEYS": SECRET})
    assert config.settings.api_keys == (f"a:{SECRET}", f"b:{SECRET}2")
    shown = printed(config) + repr(printed_json(config)) + repr(config)
    assert SECRET not in shown
    assert f'api_keys = ["{MASKED}", "{MASKED}"]' in printed(config)


def test_what_is_printed_is_a_file_that_says_the_same(tmp_path: Path) -> None:
    given = ["port=9", "host=::1", "default_quantiles=0.1,0.25", "tls_certificate=/c", "tls_key=/k", "log_prompts=yes"]
    config = load_config(flags=of_assignments(given))
    text = printed(config)
    assert all(name in text for name in DECLARED)
    assert "# --set port: port to listen on" in text
    again = load_config(file=write(tmp_path, text))
    assert again.settings == config.settings


def test_json_has_every_setting_with_its_source() -> None:
    shown = printed_json(load_config(flags={"port": Value(value=1, source="--port")}))
    assert set(shown) == set(DECLARED) and shown["port"] == {"value": 1, "source": "--port"}
    assert shown["tls_key"] == {"value": None, "source": DEFAULT}


def test_assignments() -> None:
    assert of_assignments(["port=1", "port=2"])["port"].value == 2
    assert of_assignments(["tls_key="])["tls_key"].value is None
    assert of_assignments(["api_keys="])["api_keys"].value == ()
    for wrong, message in (("port", "must be NAME=VALUE"), ("prot=1", "Did you mean port"), ("port=a", "--set port")):
        with pytest.raises(InputError, match=message):
            of_assignments([wrong])


def test_every_setting_has_a_type_that_each_source_can_give() -> None:
    """Fails for a new field whose type has no notation in TOML or in text."""
    for name, kind in TYPES.items():
        default = getattr(Settings(), name)
        if default is not None:
            document = tomllib.loads(f"x = {to_toml(default)}")
            assert from_toml(document["x"], kind, Path()) == default, name
            text = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
            assert from_text(text, kind) == default, name
        else:
            assert from_text("", kind) is None, name


def test_every_setting_says_what_it_is_for() -> None:
    assert all(declared.about for declared in DECLARED.values())
    assert set(DECLARED) == {field.name for field in dataclasses.fields(Settings)}


@given(st.text() | st.tuples(st.text(max_size=9), st.text(max_size=9)) | st.integers() | st.floats(allow_nan=False))
def test_any_value_survives_being_written_as_toml(value: Any) -> None:
    if isinstance(value, str):
        value = value.encode("utf-8", "replace").decode()
    if isinstance(value, tuple):
        value = tuple(each.encode("utf-8", "replace").decode() for each in value)
    read = tomllib.loads(f"x = {to_toml(value)}")["x"]
    assert (tuple(read) if isinstance(read, list) else read) == value
