"""`switchyard chat` on a pseudo-terminal and in pipes, with a stub of a server and with servers of its own."""
import ctypes
import json
import os
import pathlib
import re
import select
import shutil
import signal
import ssl
import subprocess
import time

import pytest

import server
from chat_server import ChatServer
from server import ROOT
from terminal import Terminal

PROGRAM = os.path.abspath(server.PROGRAM)
YARDLING = ROOT / "models/yardling"
LOCAL = ["--model-path", YARDLING, "--device", "cpu", "--max-total-tokens", "4096"]
PROMPT, MORE = r">(\x1b\[0m)? ", r"\.(\x1b\[0m)? "
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    for name in ("OPENAI_API_KEY", "NO_COLOR", "SWITCHYARD_API_KEY", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TERM", "xterm-256color")
    return tmp_path


@pytest.fixture
def stub():
    with ChatServer() as running:
        yield running


def chat(*words, stdin="", **environment):
    """Runs a chat in pipes. Returns (exit code, stdout, stderr)."""
    done = subprocess.run([PROGRAM, "chat", *map(str, words)], input=stdin, capture_output=True, text=True,
                          timeout=server.START_SECONDS + 60,                          env={**os.environ, **environment})
    return done.returncode, done.stdout, done.stderr


def terminal(url, *words, **environment):
    return Terminal(PROGRAM, "chat", url, *words, **environment)


def read_some(stream, text, seconds=30):
    """Reads the text from an unbuffered pipe of bytes."""
    end, data = time.time() + seconds, b""
    while len(data) < len(text):
        assert select.select([stream], [], [], max(0, end - time.time()))[0], f"no {text!r} after {data!r}"
        data += (part := os.read(stream.fileno(), len(text) - len(data)))
        assert part, f"end after {data!r}"
    assert data.decode() == text


def default_signals():
    """Programs in the background of a shell may be started with these signals ignored."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def needs_editing():
    try:
        ctypes.CDLL("libedit.so.2")
    except OSError:
        pytest.skip("requires libedit")


# Terminal


@pytest.mark.parametrize("term", ["xterm-256color", "dumb"])  # dumb: without line editing
def test_a_chat_has_several_turns_and_ends_with_ctrl_d(stub, term):
    with terminal(stub.url, "--system", "Be brief.", "--temperature", "0", "--seed", "3", TERM=term) as t:
        t.expect("first at http")
        t.expect(PROMPT)
        t.send("hello\r")
        t.expect(r"echo: hello \(2 messages\)")
        t.expect(PROMPT)
        t.send("again\r")
        t.expect(r"echo: again \(4 messages\)")
        t.expect(PROMPT)
        t.send("\x04")
        assert t.wait() == 0
    first, second = stub.requests
    assert first["model"] == "first" and first["temperature"] == 0 and first["seed"] == 3 and "top_p" not in first
    assert [m["role"] for m in second["messages"]] == ["system", "user", "assistant", "user"]


@pytest.mark.parametrize("term", ["xterm-256color", "dumb"])
def test_text_is_shown_as_it_is_received(stub, term):
    with terminal(stub.url, TERM=term) as t:
        t.expect(PROMPT)
        t.send("gate\r")
        t.expect("before")
        t.send("typed early\r\x04")  # while the answer is printed
        stub.gate.set()
        t.expect("after")
        t.expect(r"echo: typed early \(3 messages\)")
        assert t.wait() == 0


@pytest.mark.parametrize("term", ["xterm-256color", "dumb"])
def test_closing_the_terminal_ends_the_chat(stub, term):
    with terminal(stub.url, TERM=term) as t:
        t.expect(PROMPT)
        t.send("slow\r")
        t.expect("begun")
        os.close(t.fd)
        t.fd = os.open("/dev/null", os.O_RDONLY)
        assert stub.closed.wait(30)
        assert t.wait() == 128 + signal.SIGHUP


@pytest.mark.parametrize("term", ["xterm-256color", "dumb"])
def test_ctrl_c_stops_the_answer_and_keeps_the_session(stub, term):
    with terminal(stub.url, TERM=term) as t:
        t.expect(PROMPT)
        t.send("slow\r")
        t.expect("begun")
        t.send("\x03")
        t.expect(r"\[stopped\]")
        assert stub.closed.wait(30)  # so a server aborts the request
        t.expect(PROMPT)
        t.send("typed but not sent")
        t.expect("sent")
        t.send("\x03")
        t.expect(PROMPT)
        t.send("hello\r")
        t.expect(r"echo: hello \(3 messages\)")
        t.send("\x04")
        assert t.wait() == 0
    assert stub.requests[-1]["messages"][1] == {"role": "assistant", "content": "begun"}


def test_lines_can_be_edited_and_are_kept_for_later_chats(stub, home):
    needs_editing()
    with terminal(stub.url) as t:
        t.expect(PROMPT)
        t.send("helo\x1b[Dl\x1b[F!\r")  # left arrow, end
        t.expect(r"echo: hello! ")
        t.expect(PROMPT)
        t.send(" secret\r")  # begins with a space
        t.expect("echo:  secret")
        t.expect(PROMPT)
        t.send("\x04")
        assert t.wait() == 0
    file = home / "state/switchyard/chat_history"
    assert file.read_text() == "hello!\n" and file.stat().st_mode & 0o777 == 0o600
    with terminal(stub.url) as t:
        t.expect(PROMPT)
        t.send("\x1b[A")  # up
        t.expect("hello!")
        t.send("\r")
        t.expect(r"echo: hello! \(1 messages\)")
    with terminal(stub.url, "--no-history") as t:
        t.expect(PROMPT)
        t.send("\x1b[Anew\r")
        t.expect(r"echo: new \(1 messages\)")
    assert "new" not in file.read_text()


def test_text_of_several_lines(stub):
    needs_editing()
    with terminal(stub.url) as t:
        t.expect(PROMPT)
        t.send("one\\\r")
        t.expect(MORE)
        t.send("two\r")
        t.expect("1 messages")
        t.expect(PROMPT)
        t.send("\x1b[200~def f():\n\treturn 1\n\x1b[201~\r")
        t.expect("3 messages")
        t.resize(40)
        t.expect(PROMPT)
        t.send("gr\u00fc\u00df\u20ac\r")
        t.expect("5 messages")
    assert [r["messages"][-1]["content"] for r in stub.requests] == ["one\ntwo", "def f():\n return 1\n", "gr\u00fc\u00df\u20ac"]


def test_commands(stub, home):
    with terminal(stub.url) as t:
        t.expect(PROMPT)
        t.send("hello\r")
        t.expect("1 messages")
        t.expect(PROMPT)
        for command, shown in [("/help", "/undo"), ("/system Be kind.", "is set"), ("/system", r"Be kind\."),
                               (f"/save {home}/chat.json", "1 turns saved"), ("/nothing", "there is no command /nothing"),
                               ("/save /proc/none", "error: /"), ("/undo", "0 remain")]:
            t.send(command + "\r")
            t.expect(shown)
            t.expect(PROMPT)
        t.send("again\r")
        t.expect(r"echo: again \(2 messages\)")
        t.expect(PROMPT)
        t.send("//slash\r")
        t.expect(r"echo: /slash \(4 messages\)")
        t.expect(PROMPT)
        t.send("/reset\r")
        t.expect("a new chat begins")
        t.expect(PROMPT)
        t.send("end\r")
        t.expect(r"echo: end \(2 messages\)")
        t.expect(PROMPT)
        t.send("/exit\r")
        assert t.wait() == 0
    saved = json.loads((home / "chat.json").read_text())
    assert [m["role"] for m in saved["messages"]] == ["system", "user", "assistant"]


def test_colours_and_reasoning(stub):
    with terminal(stub.url) as t:
        t.expect(PROMPT)
        t.send("think\r")
        t.expect(r"\x1b\[2mOne moment,.*let me think\.")
        t.expect(r"\x1b\[0m\s*The answer\.")
        t.expect(PROMPT)
        t.send("/reasoning fold\r")
        t.expect(PROMPT)
        t.send("think\r")
        t.expect(r"\[thought for [\d.]+ s, 5 words\]")
        t.expect("The answer")
        t.expect(PROMPT)
        t.send("/reasoning hide\r")
        t.expect(PROMPT)
        start = len(t.text)
        t.send("think\r")
        t.expect("The answer")
        assert "moment" not in t.text[start:]
    assert all("One moment" not in json.dumps(r["messages"]) for r in stub.requests)


def test_no_color(stub):
    with terminal(stub.url, NO_COLOR="1") as t:
        t.expect(PROMPT)
        t.send("think\r")
        t.expect(r"\[reasoning\]\s+One moment, let me think\.\s+\[answer\]\s+The answer\.")
        t.expect(PROMPT)
        t.send("refuse\r")
        t.expect("error: .*this question is refused")
        assert not COLOUR.search(t.text)
    with terminal(stub.url, NO_COLOR="") as t:  # empty is as good as absent
        t.expect(COLOUR.pattern)


def test_the_model_cannot_send_escape_sequences(stub):
    with terminal(stub.url, NO_COLOR="1") as t:
        t.expect(PROMPT)
        t.send("controls\r")
        t.expect(r"\]0;titleplain\[31m red")


def test_failures_keep_the_session(stub):
    with terminal(stub.url) as t:
        t.expect(PROMPT)
        for question, shown in [("refuse", "400: this question is refused"), ("break", "error: the ranks are lost"),
                                ("cut", "error: .*the connection ended within the response"), ("length", "at the token limit")]:
            t.send(question + "\r")
            t.expect(shown)
            t.expect(PROMPT)
        t.send("hello\r")
        t.expect(r"echo: hello \(3 messages\)")  # only the complete answer is kept


# Pipes


def test_each_line_of_a_pipe_is_answered(stub):
    code, out, err = chat(stub.url, "--model", "second", "--stats", stdin="hello\n\n/help\nlast")
    assert (code, out) == (0, "echo: hello (1 messages)\necho: /help (3 messages)\necho: last (5 messages)\n")
    assert len(re.findall(r"\[5 prompt tokens, 4 output tokens in [\d.]+ s\]", err)) == 3
    assert {r["model"] for r in stub.requests} == {"second"}
    assert not os.path.exists(pathlib.Path(os.environ["XDG_STATE_HOME"]) / "switchyard")


def test_once_prints_one_answer(stub):
    flags = ["--max-tokens", 7, "--top-p", "0.5", "--chat-template-kwargs", '{"enable_thinking": true}']
    assert chat(stub.url + "/v1/", "--once", "hello", *flags) == (0, "echo: hello (1 messages)\n", "")
    assert stub.requests[0]["max_tokens"] == 7 and stub.requests[0]["top_p"] == 0.5
    assert stub.requests[0]["chat_template_kwargs"] == {"enable_thinking": True}
    assert chat(stub.url, "--once", "-", stdin="a\nb\n")[1] == "echo: a\nb (1 messages)\n"
    assert chat(stub.url, "--once", "think") == (0, "The answer.\n", "")
    code, out, err = chat(stub.url, "--once", "length")
    assert (code, out) == (0, "echo: length (1 messages)\n") and "at the token limit" in err
    code, out, err = chat(stub.url, "--once", "think", "--reasoning", "show")
    assert (code, out) == (0, "The answer.\n") and "let me think." in err
    assert chat(stub.url, "--once", "controls")[1] == "\x1b]0;title\x07plain\x1b[31m red\n"  # unchanged in pipes


def test_exit_codes(stub):
    down = f"http://127.0.0.1:{server.free_port()}"
    for words, code, said in [
            ([down, "--once", "a"], 1, "Connection refused (is a server running there?"),
            ([stub.url, "--once", "refuse"], 2, "400: this question is refused"),
            ([stub.url, "--once", "break"], 1, "the ranks are lost"),
            ([stub.url, "--once", "a", "--model", "third"], 2, "has no such model, but first, second"),
            ([stub.url, "--once", ""], 2, "the question is empty"),
            ([stub.url, "--once", "a", "--temprature", "1"], 2, "the nearest is --temperature"),
            ([stub.url, "--once", "a", "--server-log", "x"], 2, "needs --model-path"),
            ([stub.url, "--chat-template-kwargs", "[]"], 2, "want a JSON object"),
            (["ftp://a"], 2, "want http://HOST:PORT")]:
        got, out, err = chat(*words)
        assert got == code and said in err, (words, got, err)
        assert err.count("\n") == 1 and out == ("begun\n" if "break" in words else "")
    code, out, _ = chat(stub.url, stdin="hello\nrefuse\nhello\n")
    assert code == 2 and out == "echo: hello (1 messages)\n"


def test_keys():
    with ChatServer(key="right") as stub:
        assert chat(stub.url, "--once", "a", "--api-key", "right")[0] == 0
        assert chat(stub.url, "--once", "a", OPENAI_API_KEY="right")[0] == 0
        code, _, err = chat(stub.url, "--once", "a")
        assert code == 2 and "the server requires an API key: wrong key (set it by --api-key or OPENAI_API_KEY)" in err
        code, _, err = chat(stub.url, "--once", "a", "--api-key", "wrong", OPENAI_API_KEY="right")
        assert code == 2 and "the server refused the API key" in err
        code, _, err = chat(stub.url, "--once", "a", "--api-key", "a\r\nb: c")
        assert code == 2 and "printable" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_ends_a_chat_in_a_pipe(stub, number):
    process = subprocess.Popen([PROGRAM, "chat", stub.url, "--once", "slow"], stdout=subprocess.PIPE, bufsize=0,
                               preexec_fn=default_signals)
    read_some(process.stdout, "begun")
    process.send_signal(number)
    assert process.wait(30) == 128 + number
    assert stub.closed.wait(30)


def test_an_ignored_signal_stays_ignored(stub):
    process = subprocess.Popen([PROGRAM, "chat", stub.url, "--once", "gate"], stdout=subprocess.PIPE, bufsize=0,
                               preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    read_some(process.stdout, "before")
    process.send_signal(signal.SIGHUP)
    stub.gate.set()
    assert process.wait(30) == 0


def test_a_closed_output_is_an_error(stub):
    process = subprocess.Popen([PROGRAM, "chat", stub.url, "--once", "gate"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               bufsize=0)
    read_some(process.stdout, "before")
    process.stdout.close()
    stub.gate.set()
    assert process.wait(30) == 1
    assert b"standard output: Broken pipe" in process.stderr.read()


def test_a_closed_standard_error_changes_nothing(stub):
    for words, code, out in [(["--once", "hello", "--stats"], 0, "echo: hello (1 messages)\n"), (["--once", "refuse"], 2, "")]:
        done = subprocess.run(["sh", "-c", 'exec "$@" 2>&-', "sh", PROGRAM, "chat", stub.url, *words], stdout=subprocess.PIPE,
                              text=True, timeout=60)
        assert (done.returncode, done.stdout) == (code, out)


@pytest.mark.skipif(not shutil.which("openssl"), reason="requires openssl to create a certificate")
def test_tls(home):
    key, certificate = home / "key.pem", home / "cert.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", certificate],
                   check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with ChatServer(context=context) as stub:
        assert chat(stub.url, "--once", "hello", "--cacert", certificate)[1] == "echo: hello (1 messages)\n"
        assert chat(stub.url, "--once", "hello", "--insecure")[0] == 0
        code, _, err = chat(stub.url, "--once", "hello")
        assert code == 1 and "self-signed certificate" in err and "--cacert" in err
        code, _, err = chat(stub.url, "--once", "hello", "--cacert", key)
        assert code == 2 and "no certificate" in err


# Servers of Switchyard


def servers_of(parent):
    out = subprocess.run(["ps", "--ppid", str(parent), "-o", "pid="], capture_output=True, text=True).stdout
    return [int(pid) for pid in out.split()]


def test_a_chat_with_a_server_of_its_own(home):
    code, out, err = chat(*LOCAL, "--temperature", 0, "--once", "What is dispatch?", "--server-log", home / "log",
                          SWITCHYARD_API_KEY="not for this server")
    assert (code, out) == (0, "Dispatch sends each token row to the ranks that own the experts its router chose.\n"), err
    assert "the server has shut down" in (home / "log").read_text()
    with Terminal(PROGRAM, "chat", *LOCAL, "--temperature", "0", "--tp", "2", "--ep", "2") as t:
        t.expect(r"unix:(\S+)/socket\. /help", server.START_SECONDS)
        directory = pathlib.Path(re.search(r"unix:(\S+)/socket", t.text)[1])
        assert directory.stat().st_mode & 0o777 == 0o700
        (running,) = servers_of(t.pid)
        t.expect(PROMPT)
        t.send("7 times 8\r")
        t.expect(r"7 \* 8 = 56\.")
        t.expect(PROMPT)
        os.kill(running, signal.SIGKILL)
        end = time.time() + 30
        while not pathlib.Path(f"/proc/{running}/stat").read_text().split()[2] == "Z":
            assert time.time() < end
            time.sleep(0.02)
        t.send("7 times 9\r")
        assert t.wait() == 1
        assert "signal 9 ended the server" in t.text
    assert not directory.exists()


def test_sigterm_stops_the_server_too():
    with Terminal(PROGRAM, "chat", *LOCAL) as t:
        t.expect(PROMPT, server.START_SECONDS)
        children = servers_of(t.pid)
        os.kill(t.pid, signal.SIGTERM)
        assert t.wait() == 128 + signal.SIGTERM
        assert server.have_ended(children)


def test_further_signals_hasten_the_end_of_the_server():
    with Terminal(PROGRAM, "chat", *LOCAL) as t:
        t.expect(PROMPT, server.START_SECONDS)
        (running,) = servers_of(t.pid)
        os.kill(running, signal.SIGSTOP)  # only SIGKILL ends it then
        t.send("\x04")
        end = time.time() + 20  # without further signals, the end takes 30 s
        pending = 0
        while not pending & 1 << (signal.SIGTERM - 1):
            assert t.read(0.02) and time.time() < end, t.text
            pending = int(re.search(r"ShdPnd:\s+(\w+)", pathlib.Path(f"/proc/{running}/status").read_text())[1], 16)
        while t.read(0.1):
            assert time.time() < end, t.text
            os.kill(t.pid, signal.SIGINT)
        assert t.wait() == 0
        assert server.have_ended([running])


def test_a_server_that_cannot_start_is_an_error(home):
    for words, said in [(["--model-path", home], "config.json: No such file"),
                        ([*LOCAL, "--no-such-flag", "1"], "there is no flag --no-such-flag"),
                        ([*LOCAL, "--port", "1"], "private socket"), ([*LOCAL, "--model", "x"], "--model-path DIR"),
                        ([*LOCAL, "--dry-run"], "starts no server")]:
        code, out, err = chat(*words, "--once", "a")
        assert code == 2 and said in err and out == "" and err.count("\n") == 1, (words, err)


def test_thinking_of_the_bundled_model():
    with server.Server(YARDLING, "--device", "cpu", "--max-total-tokens", 4096) as running:
        words = ["--temperature", 0, "--once", "7 times 8", "--chat-template-kwargs", '{"enable_thinking": true}']
        code, out, err = chat(running.url, *words, "--reasoning", "show")
        assert code == 0 and "56" in out and err.strip()
        assert chat(running.url, *words)[1:] == (out, "")
