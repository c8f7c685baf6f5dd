#include "server/args/elastic_args.h"

#include "core/command_line.h"

namespace switchyard {

void AddElasticFlags(CommandLine& app, ServerArgs& a, const char* group) {
  app.Switch(
      "--enable-elastic-ep", a.enable_elastic_ep, group,
      "Restarts the ranks if one ends, and continues all open requests with equal outputs. "
      "The default if all ranks are processes of one host. With --nnodes, set it on all "
      "nodes. Refused under mpirun and srun, with GPUs of several nodes, and with --pp-size");
  app.Switch("--disable-elastic-ep", a.disable_elastic_ep, group, "Ends the server if a rank ends");
  app.Flag("--max-rank-deaths", a.max_rank_deaths, group,
           "COUNT/SECONDS: ends the server if ranks end more than COUNT times within SECONDS");
  app.Flag(
         "--rank-stall-timeout", a.rank_stall_seconds, group,
         "Seconds for which a rank process may be stopped (SIGSTOP), or may compute a step without "
         "progress, before it is killed and started again. The limit of a step is at least twice "
         "its expected time. 0: only --watchdog-timeout limits the time")
      .Range(0.0, 1e6);
}

}  // namespace switchyard
