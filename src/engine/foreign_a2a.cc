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
  if (all.dispatchers.FindIf(name) || all.fused.FindIf(name))
    return;  // a backend of the calling
             // program
  // GPUs have no fused operator (moe/cuda).
  const bool cpu = config->device == "cpu" || (config->device == "auto" && FindGpus().empty());
  moe.a2a_backend = cpu && all.fused.FindIf("fused") ? "fused" : "deepep";
  if (moe.runner_backend == name)
    moe.runner_backend = "auto";  // SGLang pairs the runner of the
                                  // same name with it
  LOG_INFO("--moe-a2a-backend {}: replaced by {}", name, moe.a2a_backend);
}

}  // namespace switchyard
