#include "server/args/http_args.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <string_view>

#include "core/command_line.h"
#include "core/error.h"
#include "server/trace/otlp.h"

namespace switchyard {
namespace {

constexpr const char* kGroup = "HTTP server";

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// Checks that a key can be sent in a header: printable ASCII without spaces.
void CheckKey(const std::string& key, const std::string& where) {
  const bool good = std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (!good) throw Invalid("{}: a key has a space or a character that is not ASCII", where);
}

}  // namespace

void AddHttpFlags(CommandLine& app, HttpArgs& a) {
  app.Flag("--uds", a.uds, kGroup,
           "Path of a Unix socket to listen on, instead of --host and --port");
  app.Flag("--root-path", a.root_path, kGroup,
           "Path prefix that a proxy adds, like /api; requests with and without it are accepted");
  app.Flag("--ssl-certfile", a.ssl_certfile, kGroup,
           "PEM certificate with its chain, for HTTPS; needs --ssl-keyfile");
  app.Flag("--ssl-keyfile", a.ssl_keyfile, kGroup, "PEM private key of --ssl-certfile");
  app.Flag("--ssl-keyfile-password", a.ssl_keyfile_password, kGroup,
           "Password of an encrypted --ssl-keyfile");
  app.Flag("--api-key", a.api_key, kGroup,
           "Bearer token that clients must send; default: SWITCHYARD_API_KEY");
  app.Flag("--api-key-file", a.api_key_file, kGroup,
           "File with additional keys, one per line; # starts a comment");
  app.Flag("--admin-api-key", a.admin_api_key, kGroup,
           "Key that is valid for all routes, and required for control routes (/flush_cache, "
           "/abort_request, /pause_generation and other controls, /eplb/rebalance, updates of "
           "weights, recording of experts, profiles); default: "
           "SWITCHYARD_ADMIN_API_KEY");
  app.Flag("--cors-allow-origins", a.cors_allow_origins, kGroup,
           "Comma-separated origins whose web pages may send requests, or *. Pages of this machine "
           "and of the server's own origin are always allowed");
  app.Flag("--max-connections", a.max_connections, kGroup,
           "Maximum open connections; further ones get 503, except for GET /health")
      .Range(1, 1 << 20);
  app.Flag("--http-workers", a.worker_threads, kGroup,
           "Worker threads for requests larger than 64 KiB; 0: one per 8 CPUs")
      .Range(0, 64);
  app.Flag(
      "--http-memory-limit", a.memory_limit, kGroup,
      "Memory limit of all requests in the server process (bodies, results, unsent responses), "
      "like 512M or 4G. Further requests get 413 or 503. Default: an eighth of memory");
  app.Flag("--request-queue-timeout", a.queue_timeout_seconds, kGroup,
           "Timeout in seconds from submission to the first token, without /pause_generation; 0: "
           "none")
      .NonNegative();
  app.Flag("--request-timeout", a.running_timeout_seconds, kGroup,
           "Timeout in seconds from the first token to the last, without /pause_generation; 0: "
           "none")
      .NonNegative();
  app.Switch("--disable-page", a.disable_page, kGroup,
             "Serve no web page at / and no /dashboard/events");
}

std::vector<std::string> ReadApiKeys(const HttpArgs& args) {
  std::vector<std::string> keys;
  std::string key = args.api_key.empty() ? Environment("SWITCHYARD_API_KEY") : args.api_key;
  if (!key.empty()) {
    CheckKey(key, args.api_key.empty() ? "SWITCHYARD_API_KEY" : "--api-key");
    keys.push_back(std::move(key));
  }
  if (args.api_key_file.empty()) return keys;
  std::ifstream in(args.api_key_file);
  if (!in) throw NotFound("--api-key-file {}: cannot be read", args.api_key_file);
  const size_t before = keys.size();
  for (std::string line; std::getline(in, line);) {
    const std::string_view text = Trimmed(line);
    if (text.empty() || text.front() == '#') continue;
    keys.emplace_back(text);
    CheckKey(keys.back(), "--api-key-file " + args.api_key_file);
  }
  // A file without a key is an error, because the server would then accept all requests.
  if (keys.size() == before)
    throw Invalid("--api-key-file {}: the file has no key; write one key per line",
                  args.api_key_file);
  return keys;
}

std::string ReadAdminKey(const HttpArgs& args) {
  std::string key =
      args.admin_api_key.empty() ? Environment("SWITCHYARD_ADMIN_API_KEY") : args.admin_api_key;
  CheckKey(key, "--admin-api-key");
  return key;
}

std::vector<std::string> ReadCorsOrigins(const HttpArgs& args) {
  std::vector<std::string> origins;
  std::string_view rest = args.cors_allow_origins;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    std::string_view origin = Trimmed(rest.substr(0, comma));
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    if (origin.empty()) continue;
    if (origin.ends_with('/')) origin.remove_suffix(1);
    const size_t scheme = origin.find("://");
    const bool good = origin == "*" || origin == "null" ||
                      (scheme != std::string_view::npos && scheme > 0 &&
                       origin.find('/', scheme + 3) == std::string_view::npos);
    if (!good)
      throw Invalid("--cors-allow-origins: {} is not an origin, want one like https://a.example",
                    origin);
    origins.emplace_back(origin);
  }
  return origins;
}

size_t ReadMemoryLimit(const HttpArgs& args) {
  if (args.memory_limit.empty()) return 0;
  const std::string& text = args.memory_limit;
  double count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  std::string unit(end, text.data() + text.size());
  for (const char* ending : {"iB", "B"})
    if (unit.ends_with(ending)) unit.erase(unit.size() - std::string_view(ending).size());
  const std::string_view units = "KMGT";
  const size_t power = unit.empty() ? 0 : units.find(static_cast<char>(toupper(unit[0]))) + 1;
  const double bytes = count * static_cast<double>(uint64_t{1} << (10 * power));
  if (error != std::errc() || unit.size() > 1 || (!unit.empty() && power == 0) ||
      !(bytes >= (1 << 20)) || bytes > 1e15) {
    throw Invalid("--http-memory-limit {}: want a size of at least 1M, like 512M or 4G", text);
  }
  return static_cast<size_t>(bytes);
}

namespace {

constexpr const char* kObserveGroup = "Request logs and traces";

}  // namespace

void AddObserveFlags(CommandLine& app, ObserveArgs& a) {
  app.Switch("--log-requests", a.log_requests, kObserveGroup, "Logs one line per request");
  app.Flag("--log-requests-level", a.log_requests_level, kObserveGroup,
           "With --log-requests: 0: no text; 1: also the fields of a request without its prompt; "
           "2: also the prompt and the response, up to 2048 bytes each; 3: both in full")
      .Range(0, 3);
  app.Flag("--dump-requests-folder", a.dump_requests_folder, kObserveGroup,
           "Folder for files with each request and its response, one JSON object per line");
  app.Flag("--crash-dump-folder", a.crash_dump_folder, kObserveGroup,
           "Folder for the requests that are open, or have ended in the last five minutes, when "
           "ranks end unexpectedly");
  app.Switch("--enable-trace", a.enable_trace, kObserveGroup,
             "Sends spans of requests to an OpenTelemetry collector, as OTLP/HTTP with JSON");
  app.Flag("--otlp-traces-endpoint", a.otlp_traces_endpoint, kObserveGroup,
           "URL of the collector: http://HOST:PORT/PATH. Without a path: /v1/traces");
}

void CheckObserveFlags(const CommandLine& app, const ObserveArgs& a) {
  if (app.Given("--otlp-traces-endpoint") && !a.enable_trace)
    throw Invalid("--otlp-traces-endpoint needs --enable-trace");
  if (a.enable_trace) trace::Endpoint::Parse(a.otlp_traces_endpoint);
}

}  // namespace switchyard
