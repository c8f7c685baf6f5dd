"""The Debian package in a minimal system: installation, the systemd unit, the service, the commands of docs/install.md, and
removal. The tests run in this order, in one system."""
import configparser
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest

import debian_root
from debian_root import ROOT

sys.path.insert(0, str(ROOT / "tests/e2e"))
import documented  # noqa: E402

UNIT = "switchyard@yardling.service"
EXPOSURE = 20  # maximum of `systemd-analyze security`, in tenths; 100 is the worst


@pytest.fixture(scope="module")
def package():
    return ROOT / debian_root.script("package")


@pytest.fixture(scope="module")
def root(package):
    if os.geteuid() != 0:
        pytest.skip("root is needed for debootstrap and chroot")
    with debian_root.DebianRoot(ROOT / "build/packages/test-root") as root:
        root.run("apt-get", "update")
        root.run("apt-get", "install", "-y", "--no-install-recommends", "systemd", "util-linux", "sudo")
        yield root


def field(package, name):
    return subprocess.run(["dpkg-deb", "-f", package, name], capture_output=True, text=True, check=True).stdout.strip()


def install_page():
    """The commands of docs/install.md that need the installed package."""
    return [c.text for c in documented.commands("docs/install.md")
            if c.text.startswith(("sudo ", "switchyard serve --config")) and "switchyard-dev" not in c.text]


def test_the_package_needs_only_libraries(package):
    depends = [re.match(r"[\w.+-]+", part.strip())[0] for part in field(package, "Depends").split(",")]
    assert depends and all(name.startswith("lib") and not name.endswith("-dev") for name in depends), depends
    listed = subprocess.run(["dpkg-deb", "-c", package], capture_output=True, text=True, check=True).stdout
    owners = {line.split()[1] for line in listed.splitlines()}
    assert owners == {"root/root"}
    assert not re.search(r"/include/|\.a$|\.h$", listed, re.M), "the library for developers is not part of the package"


def test_equal_sources_give_equal_packages(package):
    first = package.read_bytes()
    assert (ROOT / debian_root.script("package")).read_bytes() == first


def test_the_install_page_installs_it_and_starts_the_services(root, package):
    (root.path("/build/packages")).mkdir(parents=True)
    shutil.copy(package, root.path("/build/packages"))
    for command in install_page():
        enables = "systemctl enable" in command  # its --now fails, since systemd does not run here
        printed = root.run("bash", "-ec", f"cd / && {command}", fails=enables)
        if enables:
            name = command.split()[-1]
            assert root.path(f"/etc/systemd/system/multi-user.target.wants/{name}.service").is_symlink(), printed
        if "--dry-run" in command:
            assert printed.startswith("model ") and "/usr/share/switchyard/models/yardling" in printed
    assert root.run("switchyard", "--version").startswith("switchyard ")


def test_the_unit_is_valid_and_hardened(root):
    assert root.run("systemd-analyze", "verify", UNIT) == ""
    print(root.run("systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={EXPOSURE}", UNIT))


def test_the_service_starts_serves_and_stops(root):
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(root.path("/usr/lib/systemd/system/switchyard@.service"))
    command = shlex.split(unit["Service"]["ExecStart"].replace("%i", "yardling"))
    manager, port = debian_root.Manager(root), debian_root.free_port()
    with debian_root.started(root, [*command, "--port", port], NOTIFY_SOCKET=manager.address,
                             WATCHDOG_USEC="1000000") as server:
        lines = manager.wait_for("READY=1")
        assert "WATCHDOG=1" not in lines
        assert "sends each token row to the ranks" in debian_root.chat(port)
        for _ in range(3):
            manager.wait_for("WATCHDOG=1")
        server.send_signal(signal.SIGTERM)
        manager.wait_for("STOPPING=1")
        assert server.wait(60) == 0
    manager.close()


def test_systemd_runs_the_service_in_its_sandbox(root):
    """The unit as it is, with a shorter watchdog: dynamic user, file system, devices, system calls."""
    port = debian_root.free_port()
    flags = root.path("/etc/switchyard/yardling.yaml")
    text = flags.read_text()
    flags.write_text(text.replace("port: 30000", f"port: {port}"))
    drop_in = root.path(f"/etc/systemd/system/{UNIT}.d/watchdog.conf")
    drop_in.parent.mkdir()
    drop_in.write_text("[Service]\nWatchdogSec=2\nRestartSec=0\n")
    root.path("/etc/systemd/system/multi-user.target.wants/switchyard@olmoe.service").unlink()
    with debian_root.Booted(root) as system:
        if system.failure is not None:
            pytest.skip(f"systemd cannot run in namespaces here: {system.failure}")
        system.run("systemctl", "start", UNIT)  # waits for READY=1; the unit is also enabled
        assert system.property(UNIT, "StatusText") == f"serves yardling at http://127.0.0.1:{port}"
        assert "sends each token row to the ranks" in debian_root.chat(port)
        server = system.property(UNIT, "MainPID")
        status = system.run("cat", f"/proc/{server}/status")
        assert re.search(r"^NoNewPrivs:\t1$", status, re.M) and re.search(r"^Seccomp:\t2$", status, re.M)
        assert re.search(r"^CapBnd:\t0+$", status, re.M) and not re.search(r"^Uid:\t0\t", status, re.M)
        # A server that hangs is ended by the watchdog and starts again. systemd continues it for the signal.
        system.run("bash", "-c", f"kill -STOP {server}")
        wait_until(lambda: system.property(UNIT, "NRestarts") == "1")
        system.run("systemctl", "start", UNIT)
        assert "sends each token row to the ranks" in debian_root.chat(port)
        assert system.property(UNIT, "MainPID") != server
        system.run("systemctl", "stop", UNIT)
        assert system.property(UNIT, "Result") == "success"
        assert root.path("/var/lib/private/switchyard/yardling").is_dir()
        print(system.run("journalctl", "--no-pager", "-u", UNIT))
    flags.write_text(text)
    shutil.rmtree(drop_in.parent)


def wait_until(condition, seconds=60):
    end = time.time() + seconds
    while not condition():
        assert time.time() < end, "the condition did not become true"
        time.sleep(0.2)


def test_an_invalid_configuration_ends_the_start(root):
    root.path("/etc/switchyard/bad.yaml").write_text("model-path: /nonexistent\n")
    with debian_root.started(root, ["switchyard", "serve", "--config", "/etc/switchyard/bad.yaml"]) as server:
        assert server.wait(60) == 2
        assert "/nonexistent/config.json: No such file or directory" in server.stdout.read()


def test_the_command_of_the_image_serves(root):
    """The image has this package and no more, so its command works here as well."""
    lines = (ROOT / "deploy/Containerfile").read_text().splitlines()
    words = [word for key in ("ENTRYPOINT", "CMD") for line in lines if line.startswith(key)
             for word in re.findall(r'"([^"]*)"', line)]
    manager, port = debian_root.Manager(root), debian_root.free_port()
    with debian_root.started(root, [*words, "--port", port], NOTIFY_SOCKET=manager.address):
        manager.wait_for("READY=1")
        assert "sends each token row to the ranks" in debian_root.chat(port)
    manager.close()


def test_the_completion_lists_commands_and_flags(root):
    complete = ("source /usr/share/bash-completion/completions/switchyard; COMP_WORDS=(switchyard {}); COMP_CWORD={}; "
                "_switchyard; printf '%s\\n' \"${{COMPREPLY[@]}}\"")
    assert root.run("bash", "-c", complete.format("tr", 1)).split() == [
        "train", "train-picture", "train-score", "train-tokenizer"]
    assert root.run("bash", "-c", complete.format("serve --dry", 2)).split() == ["--dry-run"]


def test_completion_of_other_shells_is_installed(root):
    for shell, path in [("zsh", "zsh/vendor-completions/_switchyard"), ("fish", "fish/vendor_completions.d/switchyard.fish")]:
        assert root.path(f"/usr/share/{path}").read_text() == root.run("switchyard", "completion", shell)


def test_an_upgrade_keeps_changed_files(root, package):
    file = root.path("/etc/switchyard/yardling.yaml")
    changed = file.read_text() + "log-requests: true\n"
    file.write_text(changed)
    root.run("dpkg", "-i", f"/build/packages/{package.name}")
    assert file.read_text() == changed


def test_removal_keeps_the_configuration_and_purge_leaves_nothing(root):
    state = root.path("/var/lib/private/switchyard/yardling/trace.json")
    state.parent.mkdir(parents=True, exist_ok=True)
    state.write_text("{}")
    root.run("apt-get", "remove", "-y", "switchyard")
    assert root.path("/etc/switchyard/yardling.yaml").exists() and state.exists()
    assert not root.path("/usr/bin/switchyard").exists()
    root.run("apt-get", "purge", "-y", "switchyard")
    shutil.rmtree(root.path("/build"))
    found = root.run("find", "/", "-xdev", "(", "-path", "/proc", "-o", "-path", "/dev", ")", "-prune", "-o", "-iname",
                     "*switchyard*", "-print")
    assert found == ""
    assert "switchyard" not in root.run("dpkg", "-l", "switchyard", fails=True).split("\n")[-2][:3]
