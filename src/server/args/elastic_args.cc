#include "server/args/elastic_args.h"

namespace switchyard {

void AddElasticFlags(CommandLine& app, ServerArgs& a) {
  constexpr const char* kParallel = "Parallelism";
  app.Switch("--enable-elastic-ep", a.enable_elastic_ep, kParallel,
             "Restarts the ranks if one ends, and continues all open requests with equal outputs. "
             "The default if all ranks are processes of one host. With --nnodes, set it on all "
             "nodes. Refused under mpirun and srun, and with GPUs of several nodes");
  app.Switch("--disable-elastic-ep", a.disable_elastic_ep, kParallel,
             "Ends the server if a rank ends");
  app.Flag("--max-rank-deaths", a.max_rank_deaths, kParallel,
           "COUNT/SECONDS: ends the server if ranks end more than COUNT times within SECONDS");
  app.Flag(
         "--rank-stall-timeout", a.rank_stall_seconds, kParallel,
         "Seconds for which a rank process may be stopped (SIGSTOP), or may compute a step without "
         "progress, before it is killed and started again. The limit of a step is at least twice "
         "its expected time. 0: only --watchdog-timeout limits the time")
      .Range(0.0, 1e6);
}

}  // namespace switchyard
