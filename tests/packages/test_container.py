"""The image: the linter accepts deploy/Containerfile, and scripts/container builds an image that serves. The build is skipped
where no container can run."""
import json
import os
import shutil
import subprocess
import sys

import pytest

import debian_root
from debian_root import ROOT

CONTAINERFILE = ROOT / "deploy/Containerfile"


def test_the_linter_has_no_findings():
    hadolint = shutil.which("hadolint", path=os.path.dirname(sys.executable)) or shutil.which("hadolint")
    if not hadolint:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([hadolint, CONTAINERFILE], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def run(*command, **options):
    return subprocess.run([*map(str, command)], capture_output=True, text=True, **options)


@pytest.fixture(scope="module")
def tool():
    name = next((name for name in ("podman", "buildah") if shutil.which(name)), None)
    if name is None or os.geteuid() != 0:
        pytest.skip("root and podman or buildah are needed")
    probe = run("buildah", "from", "scratch") if name == "buildah" else run("podman", "info")
    if probe.returncode != 0:
        pytest.skip(f"{name} cannot run here: {probe.stderr.strip().splitlines()[-1]}")
    if name == "buildah":
        run("buildah", "rm", probe.stdout.strip())
    return name


def test_the_image_serves(tool):
    built = run(ROOT / "scripts/container", timeout=1200)
    assert built.returncode == 0, built.stdout + built.stderr
    port = debian_root.free_port()
    command = ["serve", "--config", "/etc/switchyard/yardling.yaml", "--port", port]
    if tool == "podman":
        settings = json.loads(run("podman", "inspect", "switchyard:latest").stdout)[0]["Config"]
        assert settings["User"] == "65534:65534" and settings["Entrypoint"] == ["/usr/bin/switchyard"]
        start = ["podman", "run", "--rm", "--network=host", "switchyard:latest", *command]
    else:
        container = run("buildah", "from", "switchyard:latest").stdout.strip()
        isolation = [] if shutil.which("crun") or shutil.which("runc") else ["--isolation=chroot"]
        start = ["buildah", "run", *isolation, "--network=host", "--user=65534:65534", container, "--", "/usr/bin/switchyard", *command]
    process = subprocess.Popen([*map(str, start)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        for line in process.stdout:
            if "is ready at" in line:
                break
        else:
            raise AssertionError(f"the container ended with {process.wait()}")
        assert "sends each token row to the ranks" in debian_root.chat(port)
    finally:
        process.terminate()
        process.wait(60)
        if tool == "buildah":
            run("buildah", "rm", container)
