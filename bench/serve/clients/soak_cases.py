"""The actions of the clients of a soak test, and the comparison of answers with reference answers. The reference
answers are those that the server gave without load.

An answer is compared as a list of dictionaries, one for each generation. They contain everything that the server
computes, but no ids and times. A request must get the same answer with and without streaming, and with and without
concurrent requests.
"""
import asyncio
import json
import random

from clients.http_client import ANSWER_SECONDS, Connection, HungUp, Lost, Manner, encode, exchange

REFUSALS = (429, 503)  # statuses of valid requests while the server is overloaded
TEXTS = ["The dispatcher sends each token", "Once the engine moved", "A rank combines", "Cold rails and", "Number 7: "]


def sampling(r):
    return {"temperature": r.choice([0, 1]), "top_p": 0.95, "max_tokens": r.choice([1, 8, 40, 120, 300])}


def make_requests(model, count):
    """Returns (path, body) of each request that gets a reference answer."""
    requests = []
    for i in range(count):
        r = random.Random(i)
        s = sampling(r)
        ids = [r.randrange(1, 1000) for _ in range(r.choice([1, 5, 60, 200, 500]))]
        openai = {"model": model, **s, "seed": i}
        native = {"temperature": s["temperature"], "top_p": 0.95, "max_new_tokens": s["max_tokens"], "sampling_seed": i,
                  "ignore_eos": i % 2 == 0}
        kind = i % 6
        if kind == 0:
            requests.append(("/generate", {"input_ids": ids, "sampling_params": native}))
        elif kind == 1:
            native["max_new_tokens"] = min(40, native["max_new_tokens"])  # each event contains all tokens so far
            requests.append(("/generate", {"text": r.choice(TEXTS), "sampling_params": native, "return_logprob": True,
                                           "logprob_start_len": 0, "top_logprobs_num": 3}))
        elif kind == 2:
            batch = [ids[:1 + j] for j in range(1, 5)]
            requests.append(("/generate", {"input_ids": batch, "sampling_params": native}))
        elif kind == 3:
            requests.append(("/v1/completions", {**openai, "prompt": ids, "ignore_eos": True}))
        elif kind == 4:
            requests.append(("/v1/completions", {**openai, "prompt": [r.choice(TEXTS), "B"], "n": 2}))
        else:
            messages = [{"role": "user", "content": r.choice(TEXTS) * 3}]
            requests.append(("/v1/chat/completions", {**openai, "messages": messages}))
    return requests


def native_result(answer):
    meta = answer["meta_info"]
    kept = ("finish_reason", "prompt_tokens", "completion_tokens", "input_token_logprobs", "output_token_logprobs",
            "input_top_logprobs", "output_top_logprobs")
    return {"text": answer["text"], "ids": answer["output_ids"], **{key: meta[key] for key in kept if key in meta}}


def whole_results(path, answer):
    if path == "/generate":
        return [native_result(each) for each in (answer if isinstance(answer, list) else [answer])]
    choices = sorted(answer["choices"], key=lambda choice: choice["index"])
    return [{"text": choice.get("text") or choice.get("message", {}).get("content") or "",
             "finish_reason": choice["finish_reason"]} for choice in choices] + [answer["usage"]["completion_tokens"]]


def stream_results(path, events):
    for event in events:
        if "error" in event:
            raise Lost(f"error event: {event['error']}")
    if path == "/generate":
        results = {}
        for event in events:  # cumulative, except the fields of the prompt, which are sent once
            result, before = native_result(event), results.get(event.get("index", 0), {})
            result.update({key: before[key] for key in before if key.startswith("input_") and not result[key]})
            results[event.get("index", 0)] = result
        return [results[i] for i in sorted(results)]
    texts, reasons, tokens = {}, {}, None
    for event in events:
        tokens = event["usage"]["completion_tokens"] if event.get("usage") else tokens
        for choice in event["choices"]:
            i = choice["index"]
            texts[i] = texts.get(i, "") + (choice.get("text") or choice.get("delta", {}).get("content") or "")
            reasons[i] = choice["finish_reason"] or reasons.get(i)
    return [{"text": texts[i], "finish_reason": reasons[i]} for i in sorted(texts)] + [tokens]


def first_difference(got, want, where="answer"):
    """Describes the first difference of two JSON values."""
    if type(got) is type(want) is list and len(got) == len(want):
        pairs = [(f"{where}[{i}]", *pair) for i, pair in enumerate(zip(got, want))]
    elif type(got) is type(want) is dict and got.keys() == want.keys():
        pairs = [(f"{where}.{key}", got[key], want[key]) for key in got]
    else:
        return f"{where} is {json.dumps(got)[:200]}, but without load it was {json.dumps(want)[:200]}"
    return next(first_difference(a, b, name) for name, a, b in pairs if a != b)


def compare(got, want):
    if got != want:
        raise Lost(first_difference(got, want))


def as_stream(path, body):
    return {**body, "stream": True, **({} if path == "/generate" else {"stream_options": {"include_usage": True}})}


def check_refusal(answer, allowed):
    """Returns whether the request was refused with an allowed status. Raises Lost for any other refusal."""
    if answer.status == 200:
        return False
    if answer.status not in allowed:
        raise Lost(f"status {answer.status}: {answer.body[:200]!r}")
    if answer.status in REFUSALS and "retry-after" not in answer.headers:
        raise Lost(f"status {answer.status} without Retry-After")
    return True


class Cases:
    """Each method is one action of a client. It returns "answered", "refused" or "hung up", or raises Lost."""

    def __init__(self, address, model, count):
        self.address, self.requests, self.references = address, make_requests(model, count), []
        self.count = 0  # of requests with a `rid`
        r = random.Random(0)
        self.texts = [" ".join(r.choices(TEXTS, k=count)) for count in (30, 3_000, 40_000)]
        self.tokens = {}  # tokens of each text

    async def learn(self):
        """Sends each request once, without other load, and stores the reference answers."""
        async def ask(path, body):
            answer = await exchange(self.address, encode("POST", path, body))
            if answer.status != 200:
                raise Lost(f"{path}: status {answer.status}: {answer.body[:300]!r}")
            return answer.json()

        for path, body in self.requests:
            self.references.append(whole_results(path, await ask(path, body)))
        for text in self.texts:
            self.tokens[text] = (await ask("/tokenize", {"prompt": text}))["tokens"]

    def pick(self, r):
        i = r.randrange(len(self.requests))
        return (*self.requests[i], self.references[i])

    def judge(self, path, answer, want, stream):
        if check_refusal(answer, REFUSALS):
            return "refused"
        got = stream_results(path, answer.events()) if stream else whole_results(path, answer.json())
        compare(got, want)
        return "answered"

    async def whole(self, r, manner=Manner()):
        path, body, want = self.pick(r)
        answer = await exchange(self.address, encode("POST", path, body), manner)
        return self.judge(path, answer, want, stream=False)

    async def stream(self, r, manner=Manner()):
        path, body, want = self.pick(r)
        answer = await exchange(self.address, encode("POST", path, as_stream(path, body)), manner)
        return self.judge(path, answer, want, stream=True)

    async def slow_reader(self, r):
        return await self.stream(r, Manner(slow=True))

    async def half_closed(self, r):
        return await r.choice([self.whole, self.stream])(r, Manner(half_close=True))

    async def hang_up(self, r):
        return await self.stream(r, Manner(hang_up_after=r.choice([0, 1, 3, 10]), reset=r.random() < 0.5))

    async def hang_up_whole(self, r):
        return await self.whole(r, Manner(hang_up_after=0, reset=r.random() < 0.5))

    async def keep_alive(self, r):
        """Two pipelined requests on one connection. The answers must come in order."""
        first, second = self.pick(r), self.pick(r)
        request = b"".join(encode("POST", path, body) for path, body, _ in (first, second))

        async with asyncio.timeout(ANSWER_SECONDS):
            connection = await Connection.open(self.address)
            try:
                await connection.send(request)
                return [self.judge(path, await connection.answer(), want, stream=False)
                        for path, _, want in (first, second)][-1]
            finally:
                connection.close()

    async def abort(self, r):
        """A stream that another request aborts. Its tokens must be the beginning of the reference answer."""
        i = r.choice([i for i, (path, body) in enumerate(self.requests) if path == "/generate" and
                      not isinstance(body.get("input_ids", [0])[0], list)])
        path, body = self.requests[i]
        self.count += 1
        name, after, sent = f"soak-{self.count}", r.choice([1, 3, 20]), []

        async def watch(events):
            if not sent and events >= after:
                sent.append(True)
                answer = await exchange(self.address, encode("POST", "/abort_request", {"rid": name}))
                if answer.status != 200:
                    raise Lost(f"/abort_request: status {answer.status}")

        request = encode("POST", path, {**as_stream(path, body), "rid": name})
        answer = await exchange(self.address, request, on_events=watch)
        if check_refusal(answer, REFUSALS):
            return "refused"
        (got,) = stream_results(path, answer.events())
        want = self.references[i][0]
        if got["finish_reason"]["type"] != "abort":
            compare(got, want)
        else:
            compare(got["ids"], want["ids"][:len(got["ids"])])
        return "answered"

    async def tokenize(self, r):
        return await self.check_tokens(r.choice(self.texts[:2]))

    async def check_tokens(self, text):
        answer = await exchange(self.address, encode("POST", "/tokenize", {"prompt": text}))
        if check_refusal(answer, REFUSALS):
            return "refused"
        if answer.json()["tokens"] != self.tokens[text]:
            raise Lost("the tokens differ from those without load")
        return "answered"

    async def large_body(self, r):
        """Tokenization of a megabyte, or a prompt or body that exceeds its limit."""
        which = r.randrange(3)
        if which == 0:
            return await self.check_tokens(self.texts[-1])
        if which == 1:
            request, allowed = encode("POST", "/generate", {"text": self.texts[-1]}), (400, *REFUSALS)
        else:
            request, allowed = encode("POST", "/generate", b"[" + b"0," * (34 << 20)), (413, 503)
        answer = await exchange(self.address, request, may_refuse=True)
        return self.expect(answer, allowed)

    def expect(self, answer, allowed):
        if answer.status == 200 or not check_refusal(answer, allowed):
            raise Lost("status 200 for a request that must be refused")
        return "refused"

    async def malformed(self, r):
        request, status = r.choice(MALFORMED)
        answer = await exchange(self.address, request, may_refuse=True)
        try:
            return self.expect(answer, (status, *REFUSALS))
        except Lost as loss:
            raise Lost(f"{request[:100]!r}: {loss}, want {status}") from None

    async def read_state(self, r):
        path = r.choice(["/health", "/v1/models", "/get_model_info", "/get_server_info", "/metrics"])
        answer = await exchange(self.address, encode("GET", path))
        if answer.status != 200:
            raise Lost(f"{path}: status {answer.status}")
        return "answered"

    async def idle(self, r):
        """Connections that send nothing, or only a part of a header."""
        connections = []
        try:
            for _ in range(r.randrange(1, 40)):
                connection = await Connection.open(self.address)
                connections.append(connection)
                if r.random() < 0.3:
                    await connection.send(b"POST /generate HTTP/1.1\r\nHost: a\r\nX-A")
            await asyncio.sleep(r.random() * 3)
        except OSError as error:
            raise Lost(f"connection: {error}") from None
        finally:
            for connection in connections:
                connection.close(r.random() < 0.5)
        raise HungUp


def raw(head, body=b""):
    return head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body


# (request, expected status)
MALFORMED = [
    (encode("POST", "/generate", b'{"text": '), 400),
    (encode("POST", "/generate", b"[" * 100_000), 400),
    (encode("POST", "/generate", b"\xff\xfe"), 400),
    (encode("POST", "/generate", {}), 400),
    (encode("POST", "/generate", {"text": 5}), 400),
    (encode("POST", "/generate", {"input_ids": [-3]}), 400),
    (encode("POST", "/generate", {"input_ids": [1 << 40]}), 400),
    (encode("POST", "/generate", {"input_ids": [5] * 5000}), 400),
    (encode("POST", "/generate", {"text": "a", "sampling_params": {"temperature": -1}}), 400),
    (encode("POST", "/v1/completions", {"prompt": "a", "n": 0}), 400),
    (encode("POST", "/v1/completions", {"prompt": "a", "max_tokens": "x"}), 400),
    (encode("POST", "/v1/chat/completions", {"messages": "hello"}), 400),
    (encode("POST", "/v1/chat/completions", {"messages": []}), 400),
    (encode("POST", "/v1/chat/completions", {"model": "other", "messages": [{"role": "user", "content": "a"}]}), 404),
    (encode("GET", "/generate"), 405),
    (encode("GET", "/nothing"), 404),
    (encode("POST", "/generate", {"text": "a"}, ["Content-Encoding: gzip"]), 415),
    (raw("GET /health HTTP/1.1"), 400),
    (raw("GET /health HTTP/1.1\nHost: a\nHost: b"), 400),
    (raw("GET /health HTTP/3.0\nHost: a"), 505),
    (raw("hello"), 400),
    (raw("GET /health HTTP/1.1\nHost: a\nno colon"), 400),
    (raw("GET /health HTTP/1.1\nHost: a\nX-A: " + "a" * 70_000), 431),
    (raw("POST /generate HTTP/1.1\nHost: a\nContent-Length: 2\nTransfer-Encoding: chunked", b"0\r\n\r\n"), 400),
    (raw("POST /generate HTTP/1.1\nHost: a\nContent-Length: -1"), 400),
    (raw("POST /generate HTTP/1.1\nHost: a\nContent-Length: 99999999999"), 413),
    (raw("POST /generate HTTP/1.1\nHost: a\nTransfer-Encoding: gzip", b"0\r\n\r\n"), 501),
    (raw("POST /generate HTTP/1.1\nHost: a\nTransfer-Encoding: chunked", b"zz\r\n"), 400),
]
