"""SGLang's controls of a running server: pauses, delays, limits, logs and sessions."""
import concurrent.futures
import time

import pytest

from server import FIXTURES, Server

MODEL = FIXTURES / "qwen3_moe"
EXACT = ["--dtype", "float32", "--max-total-tokens", 4096, "--target-step-ms", 0]
LAYOUTS = {
    "tp2": ["--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep"],
    "dp2": ["--tp", 2, "--ep", 2, "--dp-size", 2, "--enable-dp-attention"],
    "pp2": ["--pp-size", 2],
}
PROMPTS = [[(7 * i + 11 * p) % 500 for i in range(20 + 9 * p)] for p in range(6)]
SAMPLED = {"temperature": 0.8, "max_new_tokens": 48, "ignore_eos": True}


def generate(server, prompt, seed, **params):
    body = {"input_ids": prompt, "sampling_params": {**SAMPLED, "sampling_seed": seed, **params},
            "return_logprob": True, "logprob_start_len": 0}
    status, answer = server.request("/generate", body)
    assert status == 200, answer
    return answer


def results(answer):
    """What must not depend on pauses."""
    meta = answer["meta_info"]
    return answer["output_ids"], meta["output_token_logprobs"], meta["input_token_logprobs"], meta["finish_reason"]


def post(server, path, body=None, status=200):
    got, answer = server.request(path, body if body is not None else {})
    assert got == status, answer
    return answer


def decoded(server):
    return server.state()["decode_tokens"]


def run_all(server, pool):
    return [pool.submit(generate, server, prompt, seed) for seed, prompt in enumerate(PROMPTS)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_paused_requests_have_the_same_outputs(layout):
    with concurrent.futures.ThreadPoolExecutor(8) as pool, Server(MODEL, *EXACT, *LAYOUTS[layout]) as server:
        alone = [results(generate(server, prompt, seed)) for seed, prompt in enumerate(PROMPTS)]
        for mode in ("in_place", "retract"):
            post(server, "/flush_cache")
            post(server, "/slow_down", {"forward_sleep_time": 0.01})
            running = run_all(server, pool)
            server.wait_busy()
            for pause in range(3):
                answer = post(server, "/pause_generation", {"mode": mode})
                assert answer["status"] == "ok"
                assert pause > 0 or mode == "in_place" or answer["retracted_requests"] > 0
                before = decoded(server)
                info = server.request("/get_server_info")[1]
                assert info["generation_paused"] is True
                assert "switchyard_generation_paused 1" in server.request("/metrics")[1]
                assert server.request("/health")[0] == 200
                assert server.request("/health_generate")[0] == 503
                load = server.request("/get_load")[1]
                assert sum(group["num_reqs"] for group in load) <= len(PROMPTS)
                if mode == "retract":
                    assert server.state()["running_requests"] == 0
                    post(server, "/flush_cache")
                    assert server.state()["cached_pages"] == 0
                elif pause == 0:
                    assert server.request("/flush_cache", {})[0] == 400
                assert decoded(server) == before
                post(server, "/continue_generation")
                while decoded(server) < before + 6 and any(not r.done() for r in running):
                    time.sleep(0.005)
            assert post(server, "/slow_down") is None
            assert [results(r.result()) for r in running] == alone


def test_an_abort_ends_requests_and_later_ones_wait():
    with concurrent.futures.ThreadPoolExecutor(8) as pool, Server(MODEL, *EXACT, *LAYOUTS["tp2"]) as server:
        want = results(generate(server, PROMPTS[0], 0))
        post(server, "/slow_down", {"forward_sleep_time": 0.02})
        running = run_all(server, pool)
        server.wait_busy(generations=len(PROMPTS))
        answer = post(server, "/pause_generation")
        assert answer["aborted_requests"] == len(PROMPTS)
        for request in running:
            assert request.result()["meta_info"]["finish_reason"]["type"] == "abort"
        late = pool.submit(generate, server, PROMPTS[0], 0)
        while server.state()["waiting_requests"] == 0:
            time.sleep(0.005)
        load = server.request("/get_load")[1]
        assert [g["num_waiting_reqs"] for g in load] == [1]
        assert [g["num_tokens"] for g in load] == [len(PROMPTS[0])]
        assert not late.done()
        post(server, "/slow_down", {"forward_sleep_time": 0})
        post(server, "/continue_generation")
        assert results(late.result()) == want


def test_a_paused_server_stops():
    with concurrent.futures.ThreadPoolExecutor(1) as pool, Server(MODEL, *EXACT, *LAYOUTS["tp2"]) as server:
        post(server, "/pause_generation", {"mode": "in_place"})
        request = pool.submit(generate, server, PROMPTS[0], 0)
        while server.state()["waiting_requests"] == 0:
            time.sleep(0.005)
        assert server.stop() == 0
        assert request.result()["meta_info"]["finish_reason"]["type"] == "abort"


def test_controls_want_the_admin_key_and_name_bad_fields():
    with Server(MODEL, *EXACT, "--api-key", "user", "--admin-api-key", "root") as server:
        user, root = ({"Authorization": f"Bearer {key}"} for key in ("user", "root"))
        bodies = {
            "/pause_generation": {"mode": "stop"},
            "/continue_generation": {"mode": "abort"},
            "/slow_down": {"forward_sleep_time": 1e9},
            "/set_internal_state": {"server_args": {"page_size": 3}},
            "/configure_logging": {"log_level": "loud"},
            "/open_session": {"capacity_of_str_len": 1, "streaming": True},
            "/close_session": {"session_id": "none"},
        }
        for path, body in bodies.items():
            assert server.request(path, body, user)[0] == 403, path
            status, answer = server.request(path, body, root)
            assert status == 400, answer
            assert answer["error"]["param"], answer
            assert answer["error"]["param"].rsplit(".", 1)[-1] in answer["message"]
        assert server.request("/freeze_gc", {}, user)[0] == 403
        assert "no garbage collector" in server.request("/freeze_gc", {}, root)[1]


def test_limits_and_logs_change_while_the_server_runs():
    with concurrent.futures.ThreadPoolExecutor(8) as pool, Server(MODEL, *EXACT, "--max-running-requests", 4) as server:
        assert post(server, "/set_internal_state", {"server_args": {"max_running_requests": 1}}) == [True]
        assert server.request("/get_server_info")[1]["max_running_requests"] == 1
        status, answer = server.request("/set_internal_state", {"server_args": {"max_running_requests": 5}})
        assert (status, answer["error"]["param"]) == (400, "server_args.max_running_requests")
        post(server, "/slow_down", {"forward_sleep_time": 0.005})
        running = run_all(server, pool)
        server.wait_busy(generations=len(PROMPTS))
        for _ in range(10):
            assert server.state()["running_requests"] <= 1
        post(server, "/slow_down")
        for request in running:
            request.result()
        assert "/generate -> 200" not in server.text()
        post(server, "/configure_logging", {"log_requests": True})
        generate(server, PROMPTS[0], 0)
        generate(server, PROMPTS[1], 0)
        end = time.time() + 20
        while "/generate -> 200" not in server.text():
            assert time.time() < end
            time.sleep(0.02)


def test_sessions_continue_requests():
    greedy = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}

    with Server(MODEL, *EXACT) as server:
        def ask(ids, name=None, **params):
            body = {"input_ids": ids, "sampling_params": greedy}
            body |= {"rid": name} if name else {}
            body |= {"session_params": params} if params else {}
            status, answer = server.request("/generate", body)
            assert status == 200, answer
            return answer

        session = post(server, "/open_session", {"capacity_of_str_len": 1000})
        assert isinstance(session, str) and session
        first = ask([5, 6, 7], "a", id=session)
        assert first["output_ids"] == ask([5, 6, 7])["output_ids"]
        whole = [5, 6, 7, *first["output_ids"], 8, 9]
        second = ask([8, 9], "b", id=session, rid="a")
        assert second["meta_info"]["prompt_tokens"] == len(whole)
        assert second["output_ids"] == ask(whole)["output_ids"]
        # Without rid, the name is the id of the HTTP request.
        third = ask([10], None, id=session, rid="b", drop_previous_output=True)
        assert third["output_ids"] == ask([*whole, 10])["output_ids"]
        assert ask([11], None, id=session, rid=third["meta_info"]["id"], offset=2)["meta_info"]["prompt_tokens"] == 3
        ask([12], "c", id=session, rid="a", replace=True)
        for params, field in (({"id": session, "rid": "b"}, "rid"), ({"id": "none"}, "id"), ({}, "id"),
                              ({"id": session, "when": 1}, None)):
            body = {"input_ids": [5], "sampling_params": greedy, "session_params": params or {"offset": 1}}
            status, answer = server.request("/generate", body)
            assert (status == 200) if field is None else \
                (status == 400 and answer["error"]["param"] == "session_params." + field), answer
        two = {"input_ids": [[5], [6]], "sampling_params": greedy, "session_params": {"id": session}}
        assert server.request("/generate", two)[0] == 400
        post(server, "/close_session", {"session_id": session})
        status, answer = server.request("/generate", {"input_ids": [5], "session_params": {"id": session}})
        assert (status, answer["error"]["param"]) == (400, "session_params.id")


def test_a_pause_outlives_the_ranks():
    with concurrent.futures.ThreadPoolExecutor(8) as pool, Server(MODEL, *EXACT, *LAYOUTS["tp2"]) as server:
        alone = [results(generate(server, prompt, seed)) for seed, prompt in enumerate(PROMPTS)]
        post(server, "/slow_down", {"forward_sleep_time": 0.01})
        running = run_all(server, pool)
        server.wait_busy(generations=len(PROMPTS))
        post(server, "/pause_generation", {"mode": "in_place"})
        status, answer = server.request("/scale_elastic_ep", {"restart": True})
        assert status == 200, answer
        assert decoded(server) == 0
        assert server.request("/get_server_info")[1]["generation_paused"] is True
        assert decoded(server) == 0
        post(server, "/slow_down")
        post(server, "/continue_generation")
        assert [r.result()["output_ids"] for r in running] == [ids for ids, *_ in alone]
