"""Records of requests: --log-requests-level, --dump-requests-folder, --crash-dump-folder and bench serve --replay."""
import json
import os
import signal
import subprocess
import time

from server import FIXTURES, PROGRAM, Server, fails_to_start

MODEL = FIXTURES / "qwen3_moe"
FLAGS = ["--tp", 2, "--ep", 2, "--dtype", "float32", "--max-total-tokens", 4096]
PARAMS = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}


def lines(folder, kind):
    return [json.loads(line) for file in sorted(folder.glob(f"{kind}-*.jsonl")) for line in file.open()]


def wait(condition, seconds=30):
    end = time.time() + seconds
    while not condition():
        assert time.time() < end
        time.sleep(0.02)


def test_dumped_requests_are_repeated(tmp_path):
    with Server(MODEL, *FLAGS, "--dump-requests-folder", tmp_path) as server:
        body = {"input_ids": [5, 6, 7], "sampling_params": PARAMS}
        status, answer = server.request("/generate", body, {"X-Request-Id": "mine"})
        assert status == 200, answer
        chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "stream": True}
        assert server.request("/v1/chat/completions", chat)[0] == 200
        wait(lambda: len(lines(tmp_path, "requests")) == 2)
        first, second = lines(tmp_path, "requests")
        assert first["id"] == "mine" and first["request"] == body and first["response"] == answer
        assert second["path"] == "/v1/chat/completions" and second["response"].startswith("data: ")
        file = next(tmp_path.glob("requests-*.jsonl"))
        port = server.url.rsplit(":", 1)[1]
        done = subprocess.run([PROGRAM, "bench", "serve", "--port", port, "--replay", file, "--json",
                               tmp_path / "figures.json"], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert json.loads((tmp_path / "figures.json").read_text())["completed"] == 2
        # The file grows by the warm-up request and the two requests.
        wait(lambda: len(lines(tmp_path, "requests")) == 5)
        again = [line for line in lines(tmp_path, "requests")[2:] if line["path"] == "/generate"]
        for line in again:
            last = json.loads(line["response"].split("data: ")[-2])
            assert last["output_ids"] == answer["output_ids"]
        assert server.request("/configure_logging", {"dump_requests_folder": ""})[0] == 200
        assert server.request("/generate", body)[0] == 200
        assert server.request("/configure_logging", {"dump_requests_folder": "relative"})[0] == 400
        status, answer = server.request("/configure_logging", {"crash_dump_folder": str(file) + "/x"})
        assert (status, answer["error"]["param"]) == (400, "crash_dump_folder")
        assert len(lines(tmp_path, "requests")) == 5


def test_the_text_of_requests_is_logged_on_demand():
    with Server(MODEL, *FLAGS, "--log-requests", "--log-requests-level", 1) as server:
        body = {"input_ids": [5, 6, 491], "sampling_params": PARAMS}
        server.request("/generate", body, {"X-Request-Id": "one"})
        wait(lambda: "http: one request" in server.text())
        line = next(line for line in server.text().splitlines() if "http: one request" in line)
        assert "max_new_tokens" in line and "491" not in line
        assert server.request("/configure_logging", {"log_requests_level": 3})[0] == 200
        status, answer = server.request("/generate", body, {"X-Request-Id": "two"})
        wait(lambda: "http: two request" in server.text())
        line = next(line for line in server.text().splitlines() if "http: two request" in line)
        assert "491" in line and json.dumps(answer["output_ids"], separators=(",", ":")) in line
        server.request("/generate", {**body, "no_logs": True}, {"X-Request-Id": "three"})
        server.request("/generate", body, {"X-Request-Id": "four"})
        wait(lambda: "http: four request" in server.text())
        assert "http: three request" not in server.text()


def test_a_crash_leaves_the_requests_in_a_file(tmp_path):
    with Server(MODEL, *FLAGS, "--crash-dump-folder", tmp_path) as server:
        ended = {"input_ids": [5, 6, 7], "sampling_params": PARAMS}
        assert server.request("/generate", ended, {"X-Request-Id": "ended"})[0] == 200
        assert not lines(tmp_path, "crash")
        assert server.request("/pause_generation", {"mode": "in_place"})[0] == 200
        waiting = subprocess.Popen(["curl", "-s", server.url + "/generate", "-H", "X-Request-Id: open", "-H",
                                    "Content-Type: application/json", "-d", json.dumps(ended)],
                                   stdout=subprocess.PIPE)
        wait(lambda: server.state()["waiting_requests"] > 0)
        os.kill(server.ranks()[1], signal.SIGKILL)
        wait(lambda: lines(tmp_path, "crash"))
        found = {line["id"]: line for line in lines(tmp_path, "crash")}
        assert found["ended"]["status"] == 200 and found["ended"]["request"] == ended
        assert found["open"]["request"] == ended and "status" not in found["open"]
        wait(lambda: server.request("/continue_generation", {})[0] == 200)
        answer = json.loads(waiting.communicate(timeout=60)[0])
        assert answer["output_ids"] == found["ended"]["response"]["output_ids"]


def test_folders_that_cannot_be_written_are_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    for flag in ("--dump-requests-folder", "--crash-dump-folder"):
        code, text = fails_to_start("--model-path", MODEL, flag, tmp_path / "file")
        assert code == 2 and flag in text
