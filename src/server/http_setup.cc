#include "server/http_setup.h"

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <new>
#include <string_view>
#include <thread>

#include "core/error.h"
#include "core/log.h"
#include "engine/host_memory.h"
#include "server/anthropic/messages.h"
#include "server/native/native.h"
#include "server/openai/openai.h"
#include "server/page/page.h"
#include "server/pooling/pooling.h"

namespace switchyard {
namespace {

// Descriptors reserved for rank sockets, checkpoint files and libraries.
constexpr rlim_t kOtherDescriptors = 256;

size_t FitConnections(size_t wanted) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  if (limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    getrlimit(RLIMIT_NOFILE, &limit);
  }
  if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= wanted + kOtherDescriptors)
    return wanted;
  const rlim_t least = kOtherDescriptors / 8;
  const size_t fits = limit.rlim_cur > kOtherDescriptors + least
                          ? limit.rlim_cur - kOtherDescriptors
                          : std::max<size_t>(1, limit.rlim_cur / 4);
  LOG_WARNING(
      "--max-connections {}: reduced to {}, because the process may open only {} descriptors (see "
      "ulimit -n)",
      wanted, fits, limit.rlim_cur);
  return fits;
}

// An eighth of the memory that this process may use, at least 256 MiB.
size_t DefaultHttpMemory() {
  constexpr int64_t kMinBytes = int64_t{256} << 20;
  return static_cast<size_t>(std::max(kMinBytes, ReadHostMemory().total / 8));
}

[[noreturn]] void OnTerminate() {
  const std::exception_ptr failure = std::current_exception();
  try {
    if (failure) std::rethrow_exception(failure);
  } catch (const std::bad_alloc&) {
    // Uses system calls only, because no memory is left to allocate.
    constexpr std::string_view kWords =
        "switchyard: out of memory: the limit of this process (ulimit -v, cgroup) is too small\n";
    [[maybe_unused]] const auto written = write(STDERR_FILENO, kWords.data(), kWords.size());
    _exit(1);
  } catch (...) {
  }
  std::abort();
}

}  // namespace

http::ServerOptions SetUpHttp(const ServerArgs& args) {
  http::ServerOptions o;
  o.host = args.host;
  o.port = args.port;
  o.uds = args.http.uds;
  o.root_path = args.http.root_path;
  while (o.root_path.ends_with('/')) o.root_path.pop_back();
  o.ssl_certfile = args.http.ssl_certfile;
  o.ssl_keyfile = args.http.ssl_keyfile;
  o.ssl_keyfile_password = args.http.ssl_keyfile_password;
  o.io_threads = 2;
  const int cpus = static_cast<int>(std::thread::hardware_concurrency());
  o.worker_threads =
      args.http.worker_threads > 0 ? args.http.worker_threads : std::clamp(cpus / 8, 1, 8);
  o.max_body_bytes = static_cast<size_t>(args.max_body_mb * (1 << 20));
  const size_t memory = ReadMemoryLimit(args.http);
  o.memory_bytes = memory > 0 ? memory : DefaultHttpMemory();
  o.max_connections = FitConnections(args.http.max_connections);
  o.api_keys = ReadApiKeys(args.http);
  o.admin_api_key = ReadAdminKey(args.http);
  o.cors_origins = ReadCorsOrigins(args.http);
  o.paths_without_key = {"/health"};
  if (!args.http.disable_page)
    for (std::string& path : page::Paths()) o.paths_without_key.push_back(std::move(path));
  o.log_requests = args.observe.log_requests;
  if (o.uds.empty() && (o.host == "0.0.0.0" || o.host == "::") && o.api_keys.empty()) {
    LOG_WARNING(
        "--host {} without --api-key: every machine that reaches this address can use the server; "
        "set --api-key to require a key",
        o.host);
  }
  return o;
}

std::string ServerUrl(const HttpArgs& args, const std::string& host, int port) {
  const char* const scheme = args.ssl_certfile.empty() ? "http" : "https";
  if (!args.uds.empty()) return fmt::format("{}://localhost", scheme);
  return fmt::format("{}://{}:{}", scheme,
                     host.find(':') == std::string::npos ? host : "[" + host + "]", port);
}

void ExitWhenOutOfMemory() { std::set_terminate(OnTerminate); }

void ReturnFreedMemory() {
#ifdef __GLIBC__
  // Blocks below kMappedBytes stay in the heap for reuse. Mapping and unmapping them for each
  // request would make the request take 1.5 times as long.
  constexpr int kMappedBytes = 1 << 20, kKeptBytes = 4 << 20;
  mallopt(M_MMAP_THRESHOLD, kMappedBytes);
  mallopt(M_TRIM_THRESHOLD, kKeptBytes);
#endif
}

void RegisterEndpoints(http::Server& server, Service& service) {
  openai::Register(server, service);
  anthropic::Register(server, service);
  native::Register(server, service);
  pooling::Register(server, service);
}

}  // namespace switchyard
