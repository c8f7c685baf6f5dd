"""A minimal Debian system in a folder, in which commands run by chroot."""
import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The mounts are in a namespace of their own, so they end with the command.
ENTER = 'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$0" "$@"'
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs", "--bounding-set=-all"]


def script(name, *arguments):
    """Runs a script of the project. Returns the last line of its output."""
    done = subprocess.run([ROOT / "scripts" / name, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


class DebianRoot:
    """Extracted from the archive of scripts/debian-root. Use as a context manager, which removes the folder. `binds`:
    folders of the host that commands see at the same path."""

    def __init__(self, folder, binds=()):
        self.folder = folder
        mounts = "".join(f'mkdir -p "$0{path}" && mount --bind {path} "$0{path}" && ' for path in binds)
        self.enter = mounts + ENTER
        self.environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive",
                            **{name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}}

    def __enter__(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        subprocess.run(["tar", "-C", self.folder, "-xpf", ROOT / script("debian-root")], check=True)
        shutil.copy("/etc/resolv.conf", self.folder / "etc/resolv.conf")
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder, ignore_errors=True)

    def inside(self, command):
        return ["unshare", "--mount", "--propagation", "private", "bash", "-c", self.enter, str(self.folder), *map(str, command)]

    def run(self, *command, fails=False):
        """Returns the output. `fails`: the exit code is not checked."""
        done = subprocess.run(self.inside(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env=self.environment, timeout=600)
        assert fails or done.returncode == 0, f"{command}\n{done.stdout}"
        return done.stdout

    def path(self, inside):
        return self.folder / inside.lstrip("/")


class Manager:
    """The socket of a service manager below a root: `address` is its path inside."""

    def __init__(self, root, address="/run/notify"):
        self.address = address
        self.file = root.path(address)
        self.file.unlink(missing_ok=True)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self.file))
        self.file.chmod(0o777)
        self.socket.settimeout(120)

    def wait_for(self, line):
        """Receives messages until one has the line. Returns the lines of all of them."""
        received = []
        while line not in received:
            received += self.socket.recv(4096).decode().split("\n")
        return received

    def close(self):
        self.socket.close()
        self.file.unlink(missing_ok=True)


@contextlib.contextmanager
def started(root, command, **environment):
    """A server process inside `root`, without privileges. It must end by the end of the block, else it is killed."""
    process = subprocess.Popen(root.inside([*NOBODY, *command]), env={**root.environment, **environment},
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
        process.kill()
        process.wait()


def chat(port, text="What is dispatch?"):
    body = f'{{"messages": [{{"role": "user", "content": "{text}"}}], "temperature": 0}}'
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", body.encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return response.read().decode()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Booted:
    """systemd as the first process of `root`, in namespaces of its own. `failure` says why it did not start; None: it did."""

    def __init__(self, root):
        self.root, self.group = root, f"switchyard-{os.getpid()}"

    def __enter__(self):
        self.process = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--ipc", "--uts", "--kill-child", ROOT / "tests/packages/boot",
             self.root.folder, self.group], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True, start_new_session=True)
        deadline = time.time() + 30
        while self.process.poll() is None and time.time() < deadline:
            # `starting` ends with `running`, or `degraded` where units of the minimal system fail.
            if self.run("systemctl", "is-system-running", fails=True).strip() in ("running", "degraded"):
                self.failure = None
                return self
            time.sleep(0.2)
        self.process.kill()
        self.failure = self.process.communicate()[1]
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        clean = 'mount -t cgroup2 cgroup2 /mnt && find "/mnt/$0" -depth -type d -exec rmdir {} +'
        deadline = time.time() + 10  # the processes of the namespace end after its first process
        while time.time() < deadline and subprocess.run(["unshare", "--mount", "bash", "-c", clean, self.group],
                                                        capture_output=True).returncode:
            time.sleep(0.2)

    def run(self, *command, fails=False):
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        if not children:
            return ""
        done = subprocess.run(["nsenter", "-t", children[0], "-m", "-p", "-i", "-u", "-C", "-r", "-w", *map(str, command)],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120,
                              env=self.root.environment)
        assert fails or done.returncode == 0, f"{command}\n{done.stdout}"
        return done.stdout

    def property(self, unit, name):
        return self.run("systemctl", "show", "--value", "-p", name, unit).strip()
