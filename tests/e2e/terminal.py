"""A program on a pseudo-terminal."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time


class Terminal:
    """Runs a command on a terminal of its own. `text`: all output so far, with escape sequences."""

    def __init__(self, *command, columns=100, **environment):
        self.text, self.position = "", 0
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):  # may be ignored in this process
                    signal.signal(number, signal.SIG_DFL)
                os.execvpe(command[0], list(map(str, command)), {**os.environ, **environment})
            finally:
                os._exit(127)
        self.resize(columns)

    def resize(self, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))

    def read(self, seconds):
        """Reads what arrives within `seconds`. Returns False at the end of the output."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.fd, 65536)
        except OSError:  # the program has ended
            return False
        self.text += data.decode(errors="replace")
        return bool(data)

    def expect(self, pattern, seconds=30):
        """Waits for output after the last match. Returns the match."""
        end = time.time() + seconds
        while not (found := re.compile(pattern).search(self.text, self.position)):
            more = self.read(0.1)
            found = re.compile(pattern).search(self.text, self.position)
            assert found or (more and time.time() < end), f"no {pattern!r} in {self.text[self.position:]!r} of {self.text!r}"
        self.position = found.end()
        return found

    def send(self, text):
        os.write(self.fd, text.encode())

    def wait(self, seconds=60):
        """Reads to the end, and returns the exit code, or -signal."""
        end = time.time() + seconds
        while self.read(0.1):
            assert time.time() < end, f"still running: {self.text!r}"
        return os.waitstatus_to_exitcode(self._reap())

    def _reap(self):
        pid, self.pid = self.pid, 0
        return os.waitpid(pid, 0)[1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            self._reap()
        os.close(self.fd)
