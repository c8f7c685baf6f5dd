"""A server with OpenAI's chat API, for tests of its clients, whose answers depend on the question only."""
import http.server
import json
import threading


class ChatServer:
    """Listens on a free port. `requests`: bodies of the chat completions. The question selects the answer:

    slow       one word, then nothing until the client closes the connection (`closed` is set then)
    gate       one word, then another one after `gate` is set
    think      reasoning before the answer
    length     an answer that ends at the token limit
    controls   an answer with escape sequences
    refuse     status 400
    break      an error event after one word
    cut        the connection ends after one word
    others     "echo: " and the question, with the number of messages
    """

    def __init__(self, key=None, context=None, models=("first", "second")):
        self.key, self.models, self.requests = key, models, []
        self.gate, self.closed = threading.Event(), threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                outer.get(self)

            def do_POST(self):
                outer.post(self)

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        if context:
            self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        scheme = "https" if context else "http"
        self.url = f"{scheme}://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()

    def refused(self, handler):
        if self.key is None or handler.headers.get("Authorization") == f"Bearer {self.key}":
            return False
        self.reply(handler, 401, {"error": {"message": "wrong key"}})
        return True

    @staticmethod
    def reply(handler, status, value):
        body = json.dumps(value).encode()
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def get(self, handler):
        if not self.refused(handler):
            self.reply(handler, 200, {"data": [{"id": name} for name in self.models]})

    def post(self, handler):
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        if self.refused(handler):
            return
        self.requests.append(body)
        question = body["messages"][-1]["content"]
        if question == "refuse":
            self.reply(handler, 400, {"error": {"message": "this question is refused"}})
            return
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.close_connection = True
        self.answer(handler, question, len(body["messages"]))

    def answer(self, handler, question, count):
        def event(value):
            data = f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n".encode()
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            handler.wfile.flush()

        def delta(**fields):
            event({"choices": [{"index": 0, "delta": fields, "finish_reason": None}]})

        reason = "length" if question == "length" else "stop"
        if question == "slow":
            delta(content="begun")
            handler.connection.settimeout(60)
            if handler.connection.recv(1) == b"":
                self.closed.set()
            return
        if question == "gate":
            delta(content="before ")
            self.gate.wait(60)
            delta(content="after")
        elif question == "think":
            delta(reasoning_content="One moment,")
            delta(reasoning_content=" let me think.")
            delta(content="\n\nThe answer.")
        elif question == "controls":
            delta(content="\x1b]0;title\x07plain\x1b[31m red")
        elif question in ("break", "cut"):
            delta(content="begun")
            if question == "break":
                event({"error": {"message": "the ranks are lost"}})
            return
        else:
            for word in f"echo: {question} ({count} messages)".split(" "):
                delta(content=word + ("" if word == "messages)" else " "))
        event({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 4}})
        event("[DONE]")
        handler.wfile.write(b"0\r\n\r\n")
