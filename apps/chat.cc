// `switchyard chat`: a chat with a running server, or with a server of its own.
#include "chat/chat.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "chat/commands.h"
#include "chat/local_server.h"
#include "core/command_line.h"
#include "core/error.h"
#include "core/json.h"
#include "server/args/command_words.h"

namespace switchyard {
namespace {

constexpr const char* kDefaultUrl = "http://127.0.0.1:30000";

struct ChatArgs {
  chat::ChatOptions chat;
  std::string url, reasoning, once;
  std::optional<double> temperature, top_p;
  double timeout = 600;
  bool no_history = false;
  std::string server_log;
  std::vector<std::string> serve;  // flags of a server of its own; empty: `url` is used
};

void AddFlags(CommandLine& app, ChatArgs& a) {
  constexpr const char* kServer = "Server";
  constexpr const char* kAnswers = "Answers";
  constexpr const char* kSession = "Session";
  chat::Sampling& s = a.chat.sampling;
  app.Option("URL", a.url,
             "Server with OpenAI's API: http://HOST:PORT, https://HOST or unix:PATH. Default: " +
                 std::string(kDefaultUrl));
  app.Option("--api-key", a.chat.api_key, "API key of the server; default: OPENAI_API_KEY")
      .Group(kServer);
  app.Option("--model", a.chat.model, "Model of the server; default: its first").Group(kServer);
  app.Option("--cacert", a.chat.connection.ca_file,
             "PEM file of certificates that are trusted in addition to the system's")
      .Group(kServer);
  app.Switch("--insecure", a.chat.connection.insecure, kServer,
             "Does not verify the server's certificate");
  app.Flag("--timeout", a.timeout, kServer, "Longest wait in seconds for a byte of an answer")
      .Range(0.1, 1e6);
  app.Option("--server-log", a.server_log, "With --model-path: file for the server's messages")
      .Group(kServer);
  app.Option("--system", a.chat.system, "System prompt").Group(kAnswers);
  app.Option("--temperature", a.temperature, "Sampling temperature; default: the server's")
      .NonNegative()
      .Group(kAnswers);
  app.Option("--top-p", a.top_p, "Nucleus sampling: cumulative probability; default: the server's")
      .Range(0.0, 1.0)
      .Group(kAnswers);
  app.Option("--max-tokens", s.max_tokens, "Most tokens of an answer; default: the server's")
      .Group(kAnswers);
  app.Option("--seed", s.seed, "Random seed of each answer").Group(kAnswers);
  app.Option("--reasoning-effort", s.reasoning_effort, "For models that support it, such as low")
      .Group(kAnswers);
  app.Option("--chat-template-kwargs", s.chat_template_kwargs,
             "JSON object of variables of the chat template, such as {\"enable_thinking\": true}")
      .Group(kAnswers);
  app.Option("--reasoning", a.reasoning,
             "Reasoning before an answer: show (dimmed), fold (one line) or hide. Default: show "
             "on a terminal, else hide; in pipes it is written to stderr")
      .OneOf({"show", "fold", "hide"})
      .Group(kAnswers);
  app.Option("--once", a.once, "Prints the answer to this text and exits; -: to all of stdin")
      .Group(kSession);
  app.Switch("--stats", a.chat.stats, kSession, "Prints tokens and time of each answer to stderr");
  app.Switch("--no-history", a.no_history, kSession,
             "Neither reads nor writes the file of earlier lines");
  app.Footer(
      "With --model-path DIR or --config FILE instead of URL, chat starts a server of its own and "
      "stops it at the end. All other flags of `switchyard serve` are valid then.\n"
      "If stdin is not a terminal, each of its lines is a question.");
}

// Flags of serve that a chat's own server cannot have.
void RefuseServeFlag(const std::string& name) {
  constexpr std::array kPrivate = {"--host",         "--port",        "--uds",    "--root-path",
                                   "--ssl-certfile", "--ssl-keyfile", "--nnodes", "--node-rank"};
  if (std::ranges::find(kPrivate, name) != kPrivate.end())
    throw Invalid(
        "{}: the server of a chat has a private socket; use switchyard serve, and chat URL", name);
  if (name == "--dry-run" || name == "--print-schedule")
    throw Invalid(
        "{}: switchyard serve starts no server with this flag, and a chat needs one; leave the "
        "flag out",
        name);
  if (name == "--model")
    throw Invalid(
        "--model is the model of a running server; --model-path DIR names the checkpoint");
}

// Moves the words of serve's flags from `words` to `serve`. Words of chat's own flags stay.
void SplitWords(const CommandLine& app, std::vector<std::string>* words,
                std::vector<std::string>* serve) {
  constexpr std::array kSwitches = {"--insecure", "--stats", "--no-history", "--help"};
  std::vector<std::string> own;
  for (size_t i = 0; i < words->size(); ++i) {
    const std::string& word = (*words)[i];
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    if (word.starts_with("--")) RefuseServeFlag(name);
    const bool is_own = word == "-h" || (word.starts_with("--") && app.Has(name));
    (is_own ? &own : serve)->push_back(word);
    const bool takes_value = is_own && word.starts_with("--") && equals == std::string::npos &&
                             std::ranges::find(kSwitches, name) == kSwitches.end();
    if (takes_value && i + 1 < words->size()) own.push_back((*words)[++i]);
  }
  *words = std::move(own);
}

// Whether the words start a server of their own.
bool StartsServer(const std::vector<std::string>& words) {
  return std::ranges::any_of(words, [](const std::string& word) {
    const std::string name = word.substr(0, word.find('='));
    return name == "--model-path" || name == "--config";
  });
}

std::optional<ChatArgs> Parse(std::vector<std::string> words) {
  ChatArgs a;
  CommandLine app("Chat with a model in the terminal", "switchyard chat");
  AddFlags(app, a);
  const bool starts_server = StartsServer(words);
  if (starts_server) SplitWords(app, &words, &a.serve);
  if (!ParseWords(app, words)) return std::nullopt;
  chat::ChatOptions& c = a.chat;
  c.connection.silence = std::chrono::milliseconds(static_cast<int64_t>(a.timeout * 1000));
  c.sampling.temperature = a.temperature;
  c.sampling.top_p = a.top_p;
  c.history = !a.no_history;
  if (app.Given("--once")) c.once = a.once;
  if (!a.reasoning.empty()) c.reasoning = chat::ParseReasoningMode(a.reasoning, "--reasoning");
  if (!c.sampling.chat_template_kwargs.empty() &&
      !nlohmann::json::parse(c.sampling.chat_template_kwargs, nullptr, false).is_object())
    throw Invalid("--chat-template-kwargs: want a JSON object, like {{\"enable_thinking\": true}}");
  if (starts_server) return a;
  if (!a.server_log.empty()) throw Invalid("--server-log needs --model-path");
  if (const char* key = std::getenv("OPENAI_API_KEY"); key != nullptr && c.api_key.empty())
    c.api_key = key;
  c.url = chat::ParseServerUrl(a.url.empty() ? kDefaultUrl : a.url);
  return a;
}

void CheckKey(const std::string& key) {
  // Other characters would break the head of a request.
  if (std::ranges::any_of(key, [](unsigned char ch) { return ch <= ' ' || ch >= 0x7f; }))
    throw Invalid("the API key has characters other than printable ASCII");
}

// Shows the progress of a start on a terminal, in one line.
class StartLine {
 public:
  ~StartLine() {
    if (width_ > 0) Print(fmt::format("\r{:{}}\r", "", width_));
  }
  void Show(const std::string& last) {
    if (isatty(STDERR_FILENO) == 0) return;
    const bool loads = last.starts_with("loading weights");
    const std::string line = loads ? last : "starting the server";
    Print(fmt::format("\r{:<{}}", line, width_));
    width_ = std::max(width_, line.size());
  }

 private:
  // The terminal may be closed.
  static void Print(const std::string& text) { std::fputs(text.c_str(), stderr); }

  size_t width_ = 0;
};

int ChatWithOwnServer(ChatArgs& args, chat::Signals& signals) {
  chat::LocalServer server(
      {.flags = args.serve, .api_key = args.chat.api_key, .log = args.server_log}, signals);
  try {
    StartLine line;
    server.WaitReady([&](const std::string& last) { line.Show(last); });
  } catch (const chat::Interrupted& end) {
    return 128 + end.signal;
  }
  args.chat.url = server.url();
  return chat::RunChat(args.chat, signals, [&] { server.CheckAlive(); });
}

// Without this, the descriptor of a socket could have the number of a closed standard descriptor.
// The modes keep reads of stdin and writes to stdout errors.
void OpenStandardDescriptors() {
  constexpr std::array kModes = {O_WRONLY, O_RDONLY, O_RDWR};
  for (int fd = 0; fd < static_cast<int>(kModes.size()); ++fd)
    if (fcntl(fd, F_GETFD) < 0) open("/dev/null", kModes[fd]);  // the lowest free number
}

}  // namespace

int RunChat(const std::vector<std::string>& words) {
  OpenStandardDescriptors();
  auto args = Parse(words);
  if (!args) return 0;
  CheckKey(args->chat.api_key);
  chat::Signals signals;
  if (!args->serve.empty()) return ChatWithOwnServer(*args, signals);
  return chat::RunChat(args->chat, signals, [] {});
}

}  // namespace switchyard
