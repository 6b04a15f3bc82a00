"""The examples that spread a fleet's cells over machines: their commands, with stand-ins.

What stands in is `provision`, which answers as it does and notes what it is asked, and the engines'
own programs. What GitHub and GitLab do with the rest of their files is theirs.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from kit.cache import REPOSITORY
from kit.files import write
from kit.pages import blocks
from kit.probe import need_programs
from kit.process import Completed, run

_EXAMPLES = REPOSITORY / "docs/examples/fleet"
_PAGE = REPOSITORY / "docs/how-to/build-for-a-fleet.md"
_CELLS = [f"demo/1.2/open/debian:12/6.1.0-{number}-amd64" for number in range(47, 50)]
_REFERENCES = [f"registry.example:5000/drivers/demo:{number}" for number in range(47, 50)]
# Notes its words, and answers as the command does.
_PROVISION = """\
#!/bin/bash
echo "$*" >> calls
if [[ " $* " == *" --password-fd 3 "* ]]; then cat <&3 >> passwords; fi
case " $* " in
*" --missing "*) cat {folder}/plan.json ;;
*" {reference} "*) exit 1 ;;
esac
"""


class Site:
    """A checkout with fleet.toml, and stand-ins for programs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "checkout"
        shutil.copytree(_EXAMPLES, self.folder)
        self.programs = folder / "programs"
        self.programs.mkdir()
        plan = [
            {"id": cell, "reference": reference, "pin": {"cell": cell}}
            for cell, reference in zip(_CELLS, _REFERENCES, strict=True)
        ]
        (folder / "plan.json").write_text(json.dumps({"cells": plan, "failed": []}))
        script = _PROVISION.format(folder=folder, reference=_REFERENCES[0])
        self.stand_in("provision", script)

    def stand_in(self, name: str, text: str) -> None:
        write(self.programs / name, text, 0o755)

    def sh(self, script: str, **variables: str) -> Completed:
        """Run a script as the engines do: with bash, which ends at the first failure."""
        env = {"PATH": f"{self.programs}:/usr/local/bin:/usr/bin:/bin", **variables}
        return run(["bash", "-e", "-c", f"cd {self.folder}\n{script}"], env=env, check=False)

    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def built_pins(self) -> list[str]:
        """The references to which a Pin was pushed."""
        words = [call.split() for call in self.calls() if "--pin" in call]
        return [call[call.index("--push") + 1] for call in words]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    need_programs("jq", "bash", "awk")
    return Site(tmp_path)


def _yaml(name: str) -> dict[Any, Any]:
    document: dict[Any, Any] = yaml.safe_load((_EXAMPLES / name).read_text())
    return document


def test_github_plans_and_builds_a_pin_a_job(site: Site) -> None:
    jobs = _yaml("github-actions.yml")["jobs"]
    plan = next(step["run"] for step in jobs["plan"]["steps"] if "run" in step)
    output = site.folder / "output"
    assert site.sh(plan, GITHUB_OUTPUT=str(output)).returncode == 0
    name, _, value = output.read_text().partition("=")
    assert (name, json.loads(value)) == ("cells", [0, 1, 2])
    assert (
        jobs["build"]["strategy"]["matrix"]["cell"] == "${{ fromJSON(needs.plan.outputs.cells) }}"
    )
    build = next(step for step in jobs["build"]["steps"] if "run" in step)
    assert build["env"]["CELL"] == "${{ matrix.cell }}"
    password = {"FLEET_PASSWORD": "secret word"}
    done = site.sh(build["run"], CELL="1", **password)
    assert done.returncode == 0, done.stderr
    assert json.loads((site.folder / "pin.json").read_text()) == {"cell": _CELLS[1]}
    assert site.built_pins() == [_REFERENCES[1]]
    assert (site.folder / "passwords").read_text() == "secret word\n"
    assert "secret" not in "".join(site.calls())
    assert site.sh(build["run"], CELL="0", **password).returncode == 1


def test_gitlabs_jobs_share_the_cells(site: Site) -> None:
    jobs = _yaml("gitlab-ci.yml")
    assert site.sh("\n".join(jobs["plan"]["script"])).returncode == 0
    total = jobs["build"]["parallel"]
    script = "\n".join(jobs["build"]["script"])
    ends = [
        site.sh(script, CI_NODE_TOTAL=str(total), CI_NODE_INDEX=str(index)).returncode
        for index in range(1, total + 1)
    ]
    assert sorted(site.built_pins()) == _REFERENCES
    assert sorted(ends) == [0] * (total - 1) + [1], "the cell that fails is one job's"


def test_kubernetes_has_a_pod_a_pin(site: Site) -> None:
    site.stand_in("kubectl", '#!/bin/sh\necho "kubectl $*" >> calls\ncat > created 2> /dev/null\n')
    (site.folder / "fleet.key").touch()
    block = next(
        text for _, text in blocks(_PAGE.read_text()) if "kubectl create configmap" in text
    )
    done = site.sh(block)
    assert done.returncode == 0, done.stderr
    job = yaml.safe_load((site.folder / "created").read_text())
    assert job["kind"] == "Job"
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"]) == ("Indexed", len(_CELLS))
    container = spec["template"]["spec"]["containers"][0]
    script = container["args"][0].replace("/fleet/", f"{site.folder}/")
    script = script.replace("/tmp/pin.json", f"{site.folder}/pin.json")  # noqa: S108 - the pod's
    shell = " ".join(container["command"])
    for index in (1, 2):
        quoted = f"cat > pod <<'EOF'\n{script}\nEOF\n{shell} \"$(cat pod)\""
        assert site.sh(quoted, JOB_COMPLETION_INDEX=str(index)).returncode == 0
        assert json.loads((site.folder / "pin.json").read_text()) == {"cell": _CELLS[index]}
    assert site.built_pins() == _REFERENCES[1:]
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in spec["template"]["spec"]["volumes"]}


def test_slurms_script_submits_itself(site: Site) -> None:
    site.stand_in("sbatch", '#!/bin/sh\necho "sbatch $*" >> calls\n')
    assert site.sh("sh slurm-array.sh").returncode == 0
    assert site.calls()[-1] == "sbatch --array=0-2%8 slurm-array.sh"
    for task in ("1", "2"):
        assert site.sh("sh slurm-array.sh", SLURM_ARRAY_TASK_ID=task).returncode == 0
    assert site.built_pins() == _REFERENCES[1:]
    (site.folder.parent / "plan.json").write_text('{"cells": []}')
    done = site.sh("sh slurm-array.sh")
    assert (done.returncode, done.stdout) == (0, "The registry has every cell.\n")


def test_systemd_takes_the_units(site: Site) -> None:
    need_programs("systemd-analyze")
    service = site.folder / "provision-matrix.service"
    program = site.programs / "provision"
    service.write_text(service.read_text().replace("/usr/local/bin/provision", str(program)))
    timer = site.folder / "provision-matrix.timer"
    done = run(["systemd-analyze", "verify", service, timer], check=False)
    own = [line for line in done.stderr.splitlines() if "provision-matrix" in line]
    assert own == [], done.stderr
