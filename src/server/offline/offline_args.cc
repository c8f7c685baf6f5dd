#include "core/error.h"
#include "server/offline/service.h"

namespace switchyard::offline {
namespace {

struct Refused {
  const char* flag;
  bool given;
};

// Flags are compared with their defaults, so that flags from --config are found too. A flag that is
// given with its default value changes nothing.
void RefuseNetwork(const ServerArgs& a) {
  const ServerArgs none;
  const HttpArgs &http = a.http, plain;
  const Refused flags[] = {
      {"--host", a.host != none.host},
      {"--port", a.port != none.port},
      {"--uds", http.uds != plain.uds},
      {"--root-path", http.root_path != plain.root_path},
      {"--ssl-certfile", http.ssl_certfile != plain.ssl_certfile},
      {"--ssl-keyfile", http.ssl_keyfile != plain.ssl_keyfile},
      {"--ssl-keyfile-password", http.ssl_keyfile_password != plain.ssl_keyfile_password},
      {"--api-key", http.api_key != plain.api_key},
      {"--api-key-file", http.api_key_file != plain.api_key_file},
      {"--admin-api-key", http.admin_api_key != plain.admin_api_key},
      {"--cors-allow-origins", http.cors_allow_origins != plain.cors_allow_origins},
      {"--max-connections", http.max_connections != plain.max_connections},
      {"--http-workers", http.worker_threads != plain.worker_threads},
      {"--http-memory-limit", http.memory_limit != plain.memory_limit},
      {"--request-queue-timeout", http.queue_timeout_seconds != plain.queue_timeout_seconds},
      {"--request-timeout", http.running_timeout_seconds != plain.running_timeout_seconds},
      {"--max-body-mb", a.max_body_mb != none.max_body_mb},
      {"--drain-timeout", a.drain_timeout_seconds != none.drain_timeout_seconds},
      {"--log-requests", a.observe.log_requests},
      {"--log-requests-level", a.observe.log_requests_level != 0},
      {"--dump-requests-folder", !a.observe.dump_requests_folder.empty()},
      {"--crash-dump-folder", !a.observe.crash_dump_folder.empty()},
      {"--enable-trace", a.observe.enable_trace},
      {"--disable-page", http.disable_page}};
  for (const auto& [flag, given] : flags) {
    if (given) throw Invalid("{}: an engine in this process serves no HTTP", flag);
  }
}

void RefuseProcesses(const ServerArgs& a) {
  const ServerArgs none;
  const Refused flags[] = {{"--nnodes", a.nnodes != none.nnodes},
                           {"--node-rank", a.node_rank != none.node_rank},
                           {"--dist-init-addr", a.dist_init_addr != none.dist_init_addr},
                           {"--dist-secret-file", a.dist_secret_file != none.dist_secret_file},
                           {"--require-dist-secret", a.require_dist_secret}};
  for (const auto& [flag, given] : flags) {
    if (given)
      throw Invalid("{}: an engine in this process has ranks on this host only; use `serve`", flag);
  }
  if (a.enable_elastic_ep || !a.restart_flags.empty())
    throw Invalid(
        "{}: the ranks of an engine in this process are threads, which cannot be restarted; use "
        "`serve`",
        a.restart_flags.empty() ? "--enable-elastic-ep" : a.restart_flags.front());
  if (a.engine.disaggregated())
    throw Invalid("--disaggregation-mode {}: prefill and decode workers are servers; use `serve`",
                  a.engine.disaggregation_mode);
  if (a.print_schedule) throw Invalid("--print-schedule: only `serve` prints the schedule");
  if (a.dry_run) throw Invalid("--dry-run: only `serve` prints the layout");
}

}  // namespace

ServerArgs ParseArgs(const std::vector<std::string>& words) {
  std::optional<ServerArgs> args = ParseServe(words);
  if (!args) throw Invalid("--help: only `switchyard serve` prints the help");
  RefuseNetwork(*args);
  RefuseProcesses(*args);
  return *std::move(args);
}

}  // namespace switchyard::offline
