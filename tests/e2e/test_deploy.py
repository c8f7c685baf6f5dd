"""The files of deploy/: their command lines are accepted by `serve --dry-run`, and their scripts by shellcheck. The schemas
of the manifests, the package and the image are tested by ./test --packages."""
import os
import re
import shutil
import subprocess

import pytest
import yaml

import documented
import server
from server import ROOT

DEPLOY = ROOT / "deploy"
SCRIPTS = [*DEPLOY.glob("debian/p*"), DEPLOY / "slurm.sbatch", DEPLOY / "completion/switchyard.bash",
           *(ROOT / "scripts" / name for name in ("package", "container", "debian-root", "docs-site"))]


def run(*command, **environment):
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment})


def layout(*flags):
    """Properties of the layout that `serve --dry-run` prints."""
    done = run(server.PROGRAM, "serve", *flags, "--dry-run")
    assert done.returncode == 0, done.stderr
    return dict(re.split(r" +", line, maxsplit=1) for line in done.stdout.splitlines())


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_have_no_findings_of_shellcheck(script):
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not installed")
    shell = [] if script.read_text().startswith("#!") else ["--shell=bash"]
    done = run("shellcheck", *shell, script)
    assert done.returncode == 0, done.stdout


def containers(file):
    """Pairs of a pod's name and the arguments of its container."""
    for document in yaml.safe_load_all((DEPLOY / file).read_text()):
        if document["kind"] == "Deployment":
            yield document["spec"]["template"]["spec"]
        if document["kind"] == "LeaderWorkerSet":
            group = document["spec"]["leaderWorkerTemplate"]
            yield from (group[name]["spec"] for name in ("leaderTemplate", "workerTemplate"))


def flags_of(spec, variables, secret):
    (container,) = spec["containers"]
    assert container["args"][0] == "serve"
    flags = [re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], word) for word in container["args"][1:]]
    return [word.replace("/model", str(documented.LAYOUT_MODEL)).replace("/run/switchyard/secret", str(secret))
            if word.startswith(("/model", "--model-path=", "--dist-secret-file=")) else word for word in flags
            ] + documented.LAYOUT_FLAGS


@pytest.fixture
def secret(tmp_path):
    file = tmp_path / "secret"
    file.write_text("0123456789abcdef\n")
    file.chmod(0o600)
    return file


def test_the_pod_of_one_host_runs_all_ranks(secret):
    (spec,) = containers("kubernetes.yaml")
    found = layout(*flags_of(spec, {}, secret))
    assert found["layout"].startswith("tp 8, ep 8")
    assert found["ranks"] == "0 to 7 of 8 here"
    assert found["address"] == "http://0.0.0.0:30000"


def test_the_pods_of_several_hosts_share_the_ranks(secret):
    for index, spec in enumerate(containers("kubernetes-hosts.yaml")):
        variables = {"LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": str(index),
                     "LWS_LEADER_ADDRESS": "switchyard-hosts-0.switchyard-hosts.default"}
        found = layout(*flags_of(spec, variables, secret))
        assert found["ranks"] == (f"{8 * index} to {8 * index + 7} of 16 here, node {index} of 2, rendezvous at "
                                  "switchyard-hosts-0.switchyard-hosts.default:5000 with a secret")
        assert ("address" in found) == (index == 0)


@pytest.mark.parametrize("file, pods", [("kubernetes.yaml", 1), ("kubernetes-hosts.yaml", 2)])
def test_pods_have_no_privileges_and_node_0_has_probes(file, pods):
    specs = list(containers(file))
    assert len(specs) == pods
    for spec in specs:
        (container,) = spec["containers"]
        assert spec["securityContext"]["runAsNonRoot"] and not spec["automountServiceAccountToken"]
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                                "capabilities": {"drop": ["ALL"]}}
    probes = {name: probe["httpGet"]["path"] for name, probe in specs[0]["containers"][0].items() if name.endswith("Probe")}
    assert probes == {"startupProbe": "/health_generate", "readinessProbe": "/health", "livenessProbe": "/health"}


def test_the_probes_work():
    with server.Server(ROOT / "models/yardling", "--device", "cpu", "--max-total-tokens", 4096) as running:
        assert running.request("/health")[0] == 200
        assert running.request("/health_generate")[0] == 200


def test_the_slurm_script_starts_one_process_per_node(tmp_path):
    """With stubs of Slurm's commands: srun runs its command once per node."""
    stubs = {"scontrol": '[ "$1 $2 $3" = "show hostnames nodes[1-2]" ] && printf "node1\\nnode2\\n"',
             "srun": 'while [[ $1 == --* ]]; do shift; done; for i in 0 1; do SLURM_NODEID=$i "$@"; done'}
    for name, text in stubs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "switchyard").symlink_to(os.path.abspath(server.PROGRAM))
    done = run("bash", DEPLOY / "slurm.sbatch", documented.LAYOUT_MODEL, *documented.LAYOUT_FLAGS, "--dry-run",
               PATH=f"{tmp_path}:{os.environ['PATH']}", SLURM_JOB_NODELIST="nodes[1-2]", SLURM_NNODES="2",
               SLURM_SUBMIT_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    ranks = [line for line in done.stdout.splitlines() if line.startswith("ranks")]
    assert [re.sub(r" +", " ", line) for line in ranks] == [
        f"ranks {4 * node} to {4 * node + 3} of 8 here, node {node} of 2, rendezvous at node1:5000 with a secret"
        for node in (0, 1)]
    assert not list(tmp_path.glob(".switchyard-secret*"))  # removed at the end of the job


def test_the_service_of_the_package_serves_the_bundled_model():
    found = layout("--config", DEPLOY / "systemd/yardling.yaml", "--model-path", ROOT / "models/yardling")
    assert found["layout"].startswith("tp 2, ep 2") and found["address"] == "http://127.0.0.1:30000"
