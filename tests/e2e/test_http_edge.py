"""Limits of the HTTP server against clients (memory, descriptors, log, queue), and access control."""
import http.client
import json
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time

import pytest

from server import FIXTURES, PROGRAM, Server

MODEL = FIXTURES / "qwen3_moe"
MIB = 1 << 20
LONG = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 400, "ignore_eos": True, "temperature": 0}}


def front_rss(server):
    for line in open(f"/proc/{server.process.pid}/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1]) << 10


def port_of(server):
    return int(server.url.rsplit(":", 1)[1])


def start_raw(*flags, **options):
    """Starts `serve` without the readiness check of class Server. Standard output is a pipe."""
    return subprocess.Popen([PROGRAM, "serve", "--model-path", str(MODEL), *map(str, flags)], stdout=subprocess.PIPE,
                            text=True, **options)


def wait_ready(process):
    line = process.stdout.readline()
    assert "ready at" in line, line
    return line


def test_bodies_and_floods_stay_within_the_memory_limit():
    with Server(MODEL, "--http-memory-limit", "192M") as server:
        before, peak, done = front_rss(server), [0], threading.Event()

        def watch():
            while not done.wait(0.01):
                peak[0] = max(peak[0], front_rss(server))

        watcher = threading.Thread(target=watch)
        watcher.start()
        holders = []
        block = b"0," * (MIB // 2)
        for _ in range(10):  # unfinished bodies
            client = socket.create_connection(("127.0.0.1", port_of(server)))
            client.settimeout(10)
            client.sendall(b"POST /generate HTTP/1.1\r\nHost: a\r\nContent-Length: 64000000\r\n\r\n")
            try:
                for _ in range(60):
                    client.sendall(block)
            except OSError:
                pass  # the server rejected the request
            holders.append(client)
        assert server.request("/health")[0] == 200
        for client in holders:
            client.close()
        time.sleep(0.5)
        for body in (b'{"input_ids":[' + b"0," * (10 * MIB) + b"0]}", b'{"input_ids":[' + b"[]," * (8 * MIB) + b"0]}",
                     b'{"prompt":"' + b"hello " * (5 * MIB) + b'"}'):
            assert server.request("/tokenize", raw=body)[0] in (400, 413, 503)
        wide = {"input_ids": [[5] * 400] * 32, "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 500}
        assert server.request("/generate", wide)[0] in (400, 413, 503)
        done.set()
        watcher.join()
        assert peak[0] - before < 192 * MIB * 1.15
        assert server.request("/generate", {"input_ids": [5], "sampling_params": {"max_new_tokens": 2}})[0] == 200


def test_a_blocked_log_stops_no_request():
    process = start_raw("--port", "0", "--log-requests", stderr=subprocess.PIPE)
    try:
        port = int(wait_ready(process).strip().rsplit(":", 1)[1])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        for _ in range(3000):  # log lines exceed the capacity of the pipe
            connection.request("GET", "/v1/models")
            assert connection.getresponse().read()
    finally:
        process.kill()
        process.wait()


def test_descriptors_are_raised_to_what_is_allowed():
    def low():
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, min(2000, hard)))

    process = start_raw("--port", "0", stderr=subprocess.DEVNULL, preexec_fn=low)
    try:
        port = int(wait_ready(process).strip().rsplit(":", 1)[1])
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(400)]
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
        for client in clients:
            client.close()
    finally:
        process.terminate()
        process.wait(60)


def test_an_interrupted_start_is_no_success():
    for delay in (0.05, 0.02, 0.01, 0.005):
        process = start_raw("--port", "0", stderr=subprocess.DEVNULL)
        time.sleep(delay)
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
        if "ready at" in process.stdout.read():
            continue  # the signal arrived after the start
        assert code in (128 + signal.SIGTERM, -signal.SIGTERM)
        return
    raise AssertionError("the server was ready before every signal")


def test_the_queue_has_a_limit_by_default_and_says_when_to_come_again():
    with Server(MODEL, "--max-running-requests", 1, "--max-total-tokens", 4096) as server:
        clients, statuses = [], []
        for _ in range(20):
            connection = http.client.HTTPConnection("127.0.0.1", port_of(server), timeout=60)
            connection.request("POST", "/generate", json.dumps({**LONG, "stream": True}))
            response = connection.getresponse()
            statuses.append(response.status)
            if response.status == 429:
                assert response.getheader("Retry-After") == "1"
            clients.append(connection)
        assert 429 in statuses
        assert statuses.count(200) >= 17
        for connection in clients:
            connection.close()
        assert server.request("/generate", {"input_ids": [[5]] * 18})[0] == 400  # exceeds the total limit


def test_requests_over_their_time_end():
    with Server(MODEL, "--request-timeout", 0.01, "--max-total-tokens", 4096) as server:
        long = {**LONG, "sampling_params": {**LONG["sampling_params"], "n": 64}}
        status, body = server.request("/generate", long)
        assert status == 503, body
        assert "--request-timeout" in body["error"]["message"]


def test_routes_that_change_state_want_post_and_the_admin_key():
    with Server(MODEL, "--api-key", "user", "--admin-api-key", "root") as server:
        user, root = ({"Authorization": f"Bearer {key}"} for key in ("user", "root"))
        assert server.request("/health")[0] == 200
        assert server.request("/health_generate")[0] == 401
        assert server.request("/health_generate", headers=user)[0] == 200
        assert server.request("/flush_cache", headers=root)[0] == 405
        assert server.request("/flush_cache", method="POST", headers=user)[0] == 403
        assert server.request("/flush_cache", method="POST", headers=root)[0] == 200
        for path in ("/start_profile", "/stop_profile"):
            assert server.request(path, method="POST", headers=user)[0] == 403
            assert server.request(path, headers=root)[0] == 405


def test_keys_from_a_file_and_the_environment(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# two clients\none\n  two  \n\n")
    with Server(MODEL, "--api-key-file", keys, env={"SWITCHYARD_API_KEY": "three"}) as server:
        for key in ("one", "two", "three"):
            assert server.request("/v1/models", headers={"Authorization": f"Bearer {key}"})[0] == 200
        assert server.request("/v1/models", headers={"Authorization": "Bearer # two clients"})[0] == 401


def test_pages_of_other_sites_cannot_drive_a_local_server():
    with Server(MODEL) as server:
        body = {"input_ids": [5], "sampling_params": {"max_new_tokens": 1}}
        assert server.request("/generate", body, {"Origin": "https://evil.example"})[0] == 403
        assert server.request("/generate", body, {"Origin": "http://localhost:8080"})[0] == 200


@pytest.mark.skipif(not shutil.which("openssl"), reason="requires openssl to create a certificate")
def test_https(tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", certificate],
                   check=True, capture_output=True)
    process = start_raw("--port", "0", "--ssl-certfile", certificate, "--ssl-keyfile", key, stderr=subprocess.DEVNULL)
    try:
        line = wait_ready(process)
        assert "https://" in line
        port = int(line.strip().rsplit(":", 1)[1])
        context = ssl.create_default_context(cafile=certificate)
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=context)
        for size in (1, 200):
            connection.request("POST", "/generate", json.dumps({**LONG, "sampling_params": {"max_new_tokens": size}}))
            assert json.loads(connection.getresponse().read())["meta_info"]["completion_tokens"] >= 1
        connection.request("POST", "/generate", json.dumps({**LONG, "stream": True}))
        assert connection.getresponse().read().endswith(b"data: [DONE]\n\n")
        with socket.create_connection(("127.0.0.1", port)) as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
            assert not plain.recv(100).startswith(b"HTTP")
    finally:
        process.terminate()
        process.wait(60)


def test_a_unix_socket(tmp_path):
    path = str(tmp_path / "socket")
    for _ in range(2):  # the second start replaces the stale socket file
        process = start_raw("--uds", path, stderr=subprocess.DEVNULL)
        wait_ready(process)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            client.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 200")
        process.kill()
        process.wait()


def test_log_lines_have_id_model_and_tokens():
    with Server(MODEL, "--log-requests", "--served-model-name", "tiny") as server:
        body = {"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 3, "ignore_eos": True}}
        server.request("/generate", body, {"X-Request-Id": "abc-1"})
        for _ in range(100):
            if "abc-1" in server.text():
                break
            time.sleep(0.02)
        line = next(line for line in server.text().splitlines() if "abc-1" in line)
        for part in ("POST /generate -> 200", "model tiny", "2 prompt tokens", "3 completion tokens", "first token after"):
            assert part in line
