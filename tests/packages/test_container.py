"""The image: the linter accepts deploy/Containerfile, and scripts/container builds an image that serves. It is skipped
without podman and buildah."""
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
def image():
    """The built image. Commands of its Containerfile run by chroot, since an OCI runtime may not work in a container."""
    if os.geteuid() != 0 or not (shutil.which("podman") or shutil.which("buildah")):
        pytest.skip("root and podman or buildah are needed")
    built = run(ROOT / "scripts/container", timeout=1200, env={**os.environ, "BUILDAH_ISOLATION": "chroot"})
    assert built.returncode == 0, built.stdout + built.stderr
    return "localhost/switchyard:latest"


def start_command(image):
    """The command that runs the image, and one that cleans up: podman where its runtime works, else buildah with chroot."""
    if shutil.which("podman") and run("podman", "run", "--rm", "--network=host", image, "--version").returncode == 0:
        return ["podman", "run", "--rm", "--network=host", image], ["true"]
    if not shutil.which("buildah"):
        pytest.skip("podman cannot run containers here, and buildah is not installed")
    container = run("buildah", "from", image).stdout.strip()
    return (["buildah", "run", "--isolation=chroot", "--network=host", "--user=65534:65534", container, "--",
             "/usr/bin/switchyard"], ["buildah", "rm", container])


def test_the_image_serves(image):
    start, clean = start_command(image)
    port = debian_root.free_port()
    process = subprocess.Popen([*start, "serve", "--config", "/etc/switchyard/yardling.yaml", "--port", str(port)],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert any("is ready at" in line for line in process.stdout), f"the container ended with {process.wait()}"
        assert "sends each token row to the ranks" in debian_root.chat(port)
    finally:
        process.terminate()
        process.wait(60)
        run(*clean)
