#include "server/args/disaggregation_args.h"

#include "core/error.h"

namespace switchyard {

void AddDisaggregationFlags(CommandLine& app, ServerArgs& a) {
  constexpr const char* kGroup = "Prefill and decode workers";
  app.Flag("--disaggregation-mode", a.engine.disaggregation_mode, kGroup,
           "null: the server computes whole requests. prefill: it computes prompts and their first "
           "tokens. decode: it continues prompts of a prefill worker")
      .OneOf({"null", "prefill", "decode"});
  app.Flag("--disaggregation-bootstrap-port", a.bootstrap_port, kGroup,
           "prefill: port at which decode workers connect; 0: any free port. decode: the default "
           "of bootstrap_port in requests")
      .Range(0, 65535);
  app.Flag("--disaggregation-transfer-backend", a.disaggregation_backend, kGroup,
           "Transfer of the KV cache: tcp, or shm (one copy, if both workers run on one host as "
           "one user)")
      .OneOf({"tcp", "shm"});
  app.Flag("--disaggregation-timeout", a.disaggregation_timeout_seconds, kGroup,
           "Seconds that a request waits for its other worker")
      .Range(0.1, 1e6);
}

void CheckDisaggregationFlags(const CommandLine& app, const ServerArgs& a) {
  if (a.engine.disaggregated()) return;
  for (const char* flag : {"--disaggregation-bootstrap-port", "--disaggregation-transfer-backend",
                           "--disaggregation-timeout"})
    if (app.Given(flag)) throw Invalid("{} needs --disaggregation-mode prefill or decode", flag);
}

}  // namespace switchyard
