#include "core/log.h"
#include "engine/config.h"
#include "kernels/gpus.h"
#include "moe/backends.h"

namespace switchyard {

void ReplaceForeignA2a(EngineConfig* config) {
  MoeOptions& moe = config->moe;
  const std::string name = moe.a2a_backend;
  if (name != "ascend_fuseep" && name != "megamoe") return;
  const MoeBackends builtin = config->backends ? MoeBackends{} : BuiltinMoeBackends();
  const MoeBackends& all = config->backends ? *config->backends : builtin;
  // The calling program may have registered a backend of this name.
  if (all.dispatchers.FindIf(name) || all.fused.FindIf(name)) return;
  // On GPUs, "fused" is an exchange, not a fused operator (moe/gpu_backends.cc).
  const bool cpu = config->device == "cpu" || (config->device == "auto" && FindGpus().empty());
  moe.a2a_backend = cpu && all.fused.FindIf("fused") ? "fused" : "deepep";
  // SGLang combines this backend with the runner of the same name.
  if (moe.runner_backend == name) moe.runner_backend = "auto";
  LOG_INFO("--moe-a2a-backend {}: replaced by {}", name, moe.a2a_backend);
}

}  // namespace switchyard
