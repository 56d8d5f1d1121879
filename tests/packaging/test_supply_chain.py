"""The list of everything that the package installs, and the search for known vulnerabilities in it."""

from __future__ import annotations

import json
import os
import re
import tomllib
from subprocess import CompletedProcess

import pytest

from reliamsg.lab import free_port
from tests.children import run_child
from tests.docs.blocks import ROOT

pytestmark = pytest.mark.integrations

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def normalized(requirement: str) -> str:
    """The name in a requirement, as package indexes compare it."""
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def make(target: str, **more: str) -> CompletedProcess[str]:
    outer = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return run_child(["make", target], text=True, timeout=500, env=outer | more, cwd=ROOT)


def test_the_bill_of_materials_and_the_audit_of_dependencies() -> None:
    """In one test, since both use one environment."""
    made = make("sbom")
    assert made.returncode == 0, made.stderr
    text = (ROOT / "build" / "sbom.json").read_text()
    found = json.loads(text)
    root = found["metadata"]["component"]
    assert (found["bomFormat"], root["name"], root["version"]) == (
        "CycloneDX",
        "reliamsg",
        PROJECT["version"],
    )
    listed = {normalized(component["name"]) for component in found["components"]}
    wanted = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    assert {normalized(each) for some in wanted for each in some} - listed == set()
    assert listed & {"pytest", "ruff", "sphinx", "reliamsg"} == set()
    assert all("version" in component for component in found["components"])
    assert str(ROOT) not in text

    nobody = f"http://127.0.0.1:{free_port()}"
    audited = make("audit-dependencies", HTTPS_PROXY=nobody, https_proxy=nobody, NO_PROXY="", no_proxy="")
    assert audited.returncode != 0
    assert "could not be looked up" in audited.stderr
